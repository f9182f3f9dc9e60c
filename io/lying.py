"""Where samples lie, by what is asked for: they are rows, windows of rows, or boxes. And what reads them."""

from __future__ import annotations

from typing import Any

from solar.boxes import Boxes
from solar.errors import LayoutError
from solar.extents import Extents, Steps
from solar.io.crops import Crops, Slices, crops_of, slices_of
from solar.io.field import Field
from solar.io.joined import joined_of
from solar.io.layout.blocks import chunk_of
from solar.io.layout.paths import Paths
from solar.io.read.boxed import BoxRows
from solar.io.read.reader import Rows
from solar.io.read.stage import Tier
from solar.io.windows import Windows, extents_of
from solar.values import Layout

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
