"""Fields of other files: joined row by row, or by keys that both files have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError
from solar.io.reading.reader import read
from solar.samples.field import Field
from solar.samples.row_windows import RowWindows, windows
from solar.values import Layout


def joined_of(layouts: Sequence[Layout], fields: Sequence[Field | None]) -> list[RowWindows | None]:
    """Returns the rows of each field's samples; None if they have the same numbers. Raises LayoutError."""
    first = next((layout for layout, field in zip(layouts, fields, strict=True) if not (field and field.file)), None)
    if first is None:
        raise LayoutError(
            f"{layouts[0].files[0]}: {layouts[0].title}: every field is of another file; give the data set "
            "the path of one"
        )
    return [joined_rows(layout, field, first) for layout, field in zip(layouts, fields, strict=True)]


def joined_rows(layout: Layout, field: Field | None, first: Layout) -> RowWindows | None:
    if field is None or field.by is None:
        if layout.samples != first.samples:
            raise LayoutError(
                f"{layout.files[0]}: {layout.title} has {layout.samples:,} rows, and {first.files[0]}: {first.title} "
                f"has {first.samples:,}: give `by`, keys that both files have, or a file with as many"
            )
        return None
    here, there = row_keys(first, field.by), row_keys(layout, field.by)
    order = np.argsort(there, kind="stable")
    ascending = there[order]
    if len(twice := np.flatnonzero(ascending[1:] == ascending[:-1])):
        one, other = sorted(order[twice[0] : twice[0] + 2].tolist())
        raise LayoutError(
            f"{layout.files[0]}: {field.by}: rows {one} and {other} have the same key {ascending[twice[0]]!s}: "
            "which of them is meant?"
        )
    places = np.minimum(np.searchsorted(ascending, here), max(0, len(ascending) - 1))
    missing = np.flatnonzero(ascending[places] != here) if len(ascending) else np.arange(len(here))
    if len(missing):
        at, unlike = int(missing[0]), ""
        if here.dtype.kind in "OSU" and there.dtype.kind not in "OSU":
            unlike = "; the keys here are text, and there numbers"
        elif there.dtype.kind in "OSU" and here.dtype.kind not in "OSU":
            unlike = "; the keys here are numbers, and there text"
        raise LayoutError(
            f"{first.files[0]}: {field.by}: row {at} has the key {here[at]!s}, which {layout.files[0]} has not "
            f"({len(missing):,} of {len(here):,} rows are without{unlike})"
            + ("" if unlike else ": leave these out by `where`")
        )
    rows = order[places]
    begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    ends = np.append(begins[1:], len(rows))
    return windows(rows[begins], rows[begins] + ends - begins, every=1, reach=(0, 0))


def row_keys(layout: Layout, by: str) -> NDArray[Any]:
    """Returns the key of each row."""
    keys: NDArray[Any] = read(list(layout.files), by)
    if keys.shape != (layout.samples,):
        raise LayoutError(
            f"{layout.files[0]}: {by} has the shape {keys.shape}; it has a key for each of {layout.samples:,} rows"
        )
    return keys
