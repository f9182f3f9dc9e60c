"""Fields whose samples may be of unequal length: their Layouts, and where the samples of each lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solar.errors import LayoutError
from solar.io.field import Field
from solar.io.layout.groups import grouped
from solar.io.layout.hdf5 import Samples, check_counts, inspect
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.io.ragged import CSR, RAGGED_BY, Columns, Ragged, columns_of, columns_of_groups
from solar.values import Layout

Found = tuple[list[Layout], list[Columns | None]]  # None: each sample is a row


def of_rows(
    path: Paths, fields: Sequence[Any], samples: Samples = "rows", cache: Folder = "auto", *, together: bool = False
) -> Found:
    """The Layouts of these fields; and of each that is Ragged or a CSR matrix, where its samples lie."""
    columns: list[Columns | None] = []
    for field in fields:
        if isinstance(field, Ragged | CSR) and samples == "files":
            raise LayoutError(f'{field.name}: with samples="files" each file is one sample: read its parts as they are')
        own = columns_of(path, field, cache, together=together) if isinstance(field, Ragged | CSR) else None
        columns.append(own)
    names = [name_of(field) for field, own in zip(fields, columns, strict=True) if own is None]
    found = iter(inspect(path, names, samples=samples, cache=cache, together=together) if names or not columns else ())
    layouts = [next(found) if own is None else own.layouts[0] for own in columns]
    if any(columns):
        check_counts(by_sample(layouts, columns))
    return layouts, columns


def of_groups(path: Paths, fields: Sequence[Any], pattern: str, cache: Folder = "auto") -> Found:
    """The Layouts of datasets of groups, each of which is a sample; and, where these differ in length, their rows.

    `pattern`: of the groups' names; empty for all that have the datasets.
    """
    for field in fields:
        _check_of_groups(field)
    wants_rows = [isinstance(field, Ragged) for field in fields]
    found, groups = grouped(path, [name_of(field) for field in fields], pattern, wants_rows, cache)
    columns: list[Columns | None] = []
    for field, own in zip(fields, found, strict=True):
        if own.lengths is not None and isinstance(field, Field):
            raise LayoutError(
                f"{own.layout.paths[0]}: {own.layout.title} differs in length from group to group, and a Field does "
                "not convert such samples: give its name, and do it in a transform"
            )
        ragged = field if isinstance(field, Ragged) else Ragged(name_of(field))
        columns.append(None if own.lengths is None else columns_of_groups(ragged, own, groups))
    return [own.layout for own in found], columns


def _check_of_groups(field: Any) -> None:
    """LayoutError for what is no dataset of a group as it is."""
    why = ""
    if isinstance(field, Field) and (field.steps or field.axis is not None or field.file or field.cf):
        why = "steps, axis, file and cf are not for it"
    elif isinstance(field, CSR):
        why = "a matrix is not"
    elif isinstance(field, Ragged) and any(getattr(field, word) for word in RAGGED_BY):
        why = "its length is its own, which no other dataset tells: Ragged says there only how batches come"
    elif str(name_of(field)).startswith("/"):
        why = 'it is named from there on: "coords", not "/molecules/m1/coords"'
    if why:
        raise LayoutError(f"{name_of(field)}: with groups as samples a field is a dataset in each: {why}")


def name_of(field: Any) -> Any:
    """The dataset that a field is made of."""
    return getattr(field, "name", field)


def by_sample(layouts: Sequence[Layout], columns: Sequence[Any]) -> list[Layout]:
    """The Layouts as if each sample were a row."""
    pairs = zip(layouts, columns, strict=True)
    return [own.by_sample if isinstance(own, Columns) else layout for layout, own in pairs]
