"""Where samples lie, by what is asked for: they are rows, windows of rows, or boxes. And what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solar.boxes import Boxes
from solar.errors import LayoutError
from solar.extents import Extents, Steps
from solar.io.crops import Crops, Slices, crops_of, slices_of
from solar.io.field import Field
from solar.io.joined import joined_of
from solar.io.layout.blocks import chunk_of
from solar.io.layout.paths import Paths
from solar.io.ragged import Columns
from solar.io.read.boxed import BoxRows
from solar.io.read.reader import Rows, read
from solar.io.read.stage import Tier
from solar.io.unequal import by_sample
from solar.io.windows import Windows, extents_of
from solar.values import Layout

Where = str | tuple[Any, ...] | ArrayLike  # a mask, or its dataset; or datasets, and what makes a mask of their values
Lying = Extents | Boxes | None  # where the samples of a dataset lie; None: each is a row


def shape_of(layout: Layout, own: Lying) -> tuple[int, ...]:
    """That of a sample."""
    if own is None:
        return layout.sample_shape
    return own.shape if isinstance(own, Boxes) else (*own.shape, *layout.sample_shape)


def lying_of(
    path: Paths, layouts: list[Layout], given: list[Field | None], samples: Any, looking: dict[str, Any]
) -> list[Lying]:
    """Where the samples of each dataset lie: in windows, in boxes, or (None) each is a row."""
    steps = [None if field is None else field.steps for field in given]
    slices = [None if field is None or field.axis is None else _slices(field.axis, field.steps) for field in given]
    crops, along = isinstance(samples, Crops), any(slices)
    wide = along and any(one and one.steps for one in slices)  # windows along another axis
    windows = any(own and not one for own, one in zip(steps, slices, strict=True))
    windows |= isinstance(samples, Windows) and not wide
    if (along and (windows or crops)) or (crops and windows):
        both = "steps, or samples=Windows(...)" if windows else "axis"
        raise LayoutError(
            f"{layouts[0].paths[0]}: {layouts[0].title}: {both} beside "
            f"{'samples=Crops(...)' if crops else 'axis'}: a sample is either of them; what does "
            "not go together, an H5Dataset of its own gives"
        )
    if crops or along:
        for layout in layouts:
            if layout.spread:
                chunk_of(layout)  # raises: its volumes are not its parts
        found: list[Lying]
        found = [
            *(crops_of(path, layouts, samples, **looking) if crops else slices_of(layouts, slices, _every(samples)))
        ]
        for layout, own in zip(layouts, found, strict=True):
            if own is not None:
                chunk_of(layout)  # raises where there are no blocks of it
        return found
    if any(field and field.file for field in given):
        if windows and any(field and field.by for field in given):
            raise LayoutError(f"{layouts[0].files[0]}: {layouts[0].title}: `by` joins rows, and samples are windows")
        apart = joined_of(layouts, given)
        if not windows:
            return [*apart]
    if not windows:
        return [None] * len(layouts)
    places = samples if isinstance(samples, Windows) else Windows()
    whole = extents_of(path, layouts, steps, places, looking["cache"], together=looking["together"])
    return [whole.of_fields((one,)) for one in steps]


def _slices(axis: int | tuple[int, ...], steps: Steps) -> Slices:
    return Slices(axis if isinstance(axis, tuple) else (axis,), steps)


def _every(samples: Any) -> int:
    """From one window along an axis to the next. LayoutError for what Windows say of rows alone."""
    if not isinstance(samples, Windows):
        return 1
    if samples != Windows(samples.every):
        raise LayoutError(f"{samples}: windows along another axis have `every` alone: its whole length is one part")
    return samples.every


def rows_of(layout: Layout, extents: Lying, page_cache: bool | None, tier: Tier | None = None) -> Rows:
    """What reads these samples."""
    if isinstance(extents, Boxes):
        return BoxRows(layout, True, page_cache, extents, tier)
    return Rows(layout, True, page_cache, extents=extents, tier=tier)


def left_by(where: Where, layouts: Sequence[Layout], own: Sequence[Lying | Columns]) -> NDArray[np.int64]:
    """The samples that a mask of the rows leaves, of windows those whose place it leaves. LayoutError where none is."""
    first, lies = by_sample(layouts, own)[0], own[0]
    at = f"{first.files[0]}: {first.title}"
    if isinstance(lies, Boxes):
        raise LayoutError(f"{at}: where= chooses rows, and samples are boxes: Crops has `inside` and `at` for these")
    said = f"where={where!r}" if isinstance(where, str) else "where"
    mask = _mask(where, list(first.files))
    if mask.shape != (first.samples,):
        raise LayoutError(
            f"{at}: {said} has the shape {mask.shape}; one value for each of {first.samples:,} rows is needed"
        )
    if mask.dtype.kind not in "biu":
        raise LayoutError(f"{at}: {said} is of {mask.dtype}; it is true or false, or a whole number that is not 0")
    kept = mask[lies.of(np.arange(len(lies))).start] if isinstance(lies, Extents) else mask
    found = np.flatnonzero(kept)
    if not len(found):
        raise LayoutError(f"{at}: {said} leaves none of {len(kept):,} samples")
    return found


def _mask(where: Where, files: list[str]) -> NDArray[Any]:
    if isinstance(where, str):
        values: NDArray[Any] = read(files, where)
        return values
    if isinstance(where, tuple) and where and callable(where[-1]):
        *names, make = where
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError('where=("/energy", "/good", function): names of datasets, and what makes a mask of them')
        return np.asarray(make(*(read(files, name) for name in names)))
    if callable(where):
        raise TypeError('where=("/energy", function): name the datasets whose values it is given')
    return np.asarray(where)
