"""Builds the sample map of each field from fields, samples and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solar.errors import LayoutError
from solar.io.hdf5.chunk_index import Folder
from solar.io.hdf5.layouts import Samples, inspect
from solar.io.hdf5.paths import Paths
from solar.io.reading.reader import read
from solar.samples.crops import Crops, Slices, crops_of, slice_maps
from solar.samples.field import Field
from solar.samples.pending import leaves, mapped
from solar.samples.protocol import SampleMap, by_sample
from solar.samples.ragged import CSR, Ragged
from solar.samples.row_windows import Steps
from solar.samples.unequal import field_name, in_groups, of_groups, of_rows
from solar.samples.windows import Windows, extents_of
from solar.values import By, Layout

Where = str | tuple[Any, ...] | ArrayLike  # a mask, or its dataset; or datasets, and what makes a mask of their values

SAMPLES_MAY_BE = '"rows", "files", "groups", a pattern of groups such as "/runs/*", Windows(...) or Crops(...)'
Groups = tuple[str, list[str], list[bool]]  # the pattern of their names, what is read of each, and whether as rows


def group_rule(fields: Any, samples: Any) -> Groups | None:
    """Returns the rule by which samples that are groups are found; None if they are not groups."""
    if not isinstance(samples, str) or samples in ("rows", "files"):
        return None
    every = leaves(fields)
    pattern = "" if samples == "groups" else samples
    return pattern, [field_name(field) for field in every], [isinstance(field, Ragged) for field in every]


def build(
    path: Paths, fields: Any, samples: Any, reader: By, cache: Folder, collective_open: bool
) -> tuple[Any, Sequence[SampleMap | None]]:
    """Builds the layouts of the fields, in their structure, and the sample map of each."""
    if not isinstance(samples, str | Windows | Crops):
        raise ValueError(f"samples={samples!r}: {SAMPLES_MAY_BE}")
    if isinstance(samples, str) and samples not in ("rows", "files"):
        if samples != "groups" and not samples.startswith("/"):
            raise ValueError(f"samples={samples!r}: {SAMPLES_MAY_BE}")
        if collective_open or reader != "auto":
            raise LayoutError(
                f"samples={samples!r}: groups are read natively, and looked for by each rank; the second one to open "
                "a file finds them in the cache: leave collective_open= and reader= out"
            )
        pattern = "" if samples == "groups" else samples
        return _arrange(fields, of_groups(path, leaves(fields), pattern, cache))
    if in_groups(path, leaves(fields)):
        from solar.samples.in_groups import maps_in_groups

        if collective_open or reader != "auto":
            raise LayoutError(
                "rows of groups are looked for by each rank, and read natively: leave collective_open= and reader= out"
            )
        return _arrange(fields, maps_in_groups(path, leaves(fields), samples, cache))
    field_arguments = [field if isinstance(field, Field) else None for field in leaves(fields)]
    look: dict[str, Any] = {"cache": cache, "collective_open": collective_open}
    # Where samples do not lie along the first axis, how long that is need not be the same for all.
    elsewhere = isinstance(samples, Crops) or any(field and field.axis is not None for field in field_arguments)
    joined = any(field and field.file for field in field_arguments)
    unequal = any(isinstance(field, Ragged | CSR) for field in leaves(fields))
    if joined and (elsewhere or unequal or samples == "files"):
        raise LayoutError("fields of other files are rows, or windows of rows: make a data set of each kind")
    windows = isinstance(samples, Windows) or any(field and field.steps for field in field_arguments)
    drawn = any(field and field.rows for field in field_arguments)
    if unequal and (elsewhere or windows or drawn):
        other = "crops and slices" if elsewhere else "windows" if windows else "random rows"
        raise LayoutError(f"{other} and fields of unequal length do not go together: make a data set of each")
    kind: Samples = "files" if samples == "files" else "rows"
    columns: Sequence[SampleMap | None] = []
    if elsewhere or joined:
        found = mapped(fields, lambda field: inspect(field_files(field, path), field_name(field), samples=kind, **look))
    else:
        found, columns = _arrange(fields, of_rows(path, leaves(fields), kind, cache, collective_open=collective_open))
    layouts = found if reader == "auto" else mapped(found, lambda layout: _by_mpio(layout, reader))
    return layouts, columns if unequal else map_fields(path, leaves(layouts), field_arguments, samples, look)


def _by_mpio(layout: Layout, reader: By) -> Layout:
    from solar.io.hdf5.mpio import by_mpio

    return by_mpio(layout, reader)


def _arrange(fields: Any, found: tuple[list[Layout], Any]) -> tuple[Any, Any]:
    """Puts layouts into the structure of the fields; returns them and their sample maps."""
    layouts = iter(found[0])
    return mapped(fields, lambda _: next(layouts)), found[1]


def field_files(field: Any, path: Paths) -> Paths:
    return path if not isinstance(field, Field) or field.file is None else field.file


def map_fields(
    path: Paths, layouts: list[Layout], field_arguments: list[Field | None], samples: Any, looking: dict[str, Any]
) -> list[SampleMap | None]:
    """Builds the sample map that `samples=` and the fields ask for; None if each sample is a row."""
    steps = [None if field is None else field.steps for field in field_arguments]
    slices = [
        None if field is None or field.axis is None else make_slices(field.axis, field.steps)
        for field in field_arguments
    ]
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
    if (crops or along or windows) and any(field and field.rows for field in field_arguments):
        other = "boxes" if crops else "slices" if along else "windows"
        raise LayoutError(
            f"{layouts[0].paths[0]}: {layouts[0].title}: random rows beside {other}: each is a kind of sample; make a "
            "data set of each"
        )
    if crops or along:
        from solar.io.hdf5.box_blocks import chunk_of

        for layout in layouts:
            if layout.spread:
                chunk_of(layout)  # raises: its volumes are not its parts
        found: list[SampleMap | None]
        found = [
            *(crops_of(path, layouts, samples, **looking) if crops else slice_maps(layouts, slices, _every(samples)))
        ]
        for layout, own in zip(layouts, found, strict=True):
            if own is not None:
                chunk_of(layout)  # raises where there are no blocks of it
        return found
    if any(field and field.file for field in field_arguments):
        if windows and any(field and field.by for field in field_arguments):
            raise LayoutError(f"{layouts[0].files[0]}: {layouts[0].title}: `by` joins rows, and samples are windows")
        from solar.samples.joined import joined_of

        apart = joined_of(layouts, field_arguments)
        if not windows:
            return [*apart]
    if not windows:
        return [_random_rows(layout, field) for layout, field in zip(layouts, field_arguments, strict=True)]
    places = samples if isinstance(samples, Windows) else Windows()
    whole = extents_of(path, layouts, steps, places, looking["cache"], collective_open=looking["collective_open"])
    return [whole.of_fields((one,)) for one in steps]


def _random_rows(layout: Layout, field: Field | None) -> SampleMap | None:
    """Returns the map of random rows of each sample; None if the field has no `rows`."""
    if field is None or field.rows is None:
        return None
    from solar.samples.random_rows import random_rows

    return random_rows(layout, field.rows, field.seed)


def make_slices(axis: int | tuple[int, ...], steps: Steps) -> Slices:
    return Slices(axis if isinstance(axis, tuple) else (axis,), steps)


def _every(samples: Any) -> int:
    """Returns the distance between windows along an axis. Raises LayoutError for options that only rows have."""
    if not isinstance(samples, Windows):
        return 1
    if samples != Windows(samples.every):
        raise LayoutError(f"{samples}: windows along another axis have `every` alone: its whole length is one part")
    return samples.every


def masked(where: Where, layouts: Sequence[Layout], own: Sequence[SampleMap | None]) -> NDArray[np.int64]:
    """Returns the samples that a mask of the rows selects. Raises LayoutError if it selects none."""
    lies = own[0]
    first = by_sample(lies, layouts[0])
    at = f"{first.files[0]}: {first.title}"
    if lies is not None and not (lies.at_rows or lies.lengths is not None):
        raise LayoutError(f"{at}: where= chooses rows, and samples are boxes: Crops has `inside` and `at` for these")
    said = f"where={where!r}" if isinstance(where, str) else "where"
    mask = _mask(where, list(first.files))
    if mask.shape != (first.samples,):
        raise LayoutError(
            f"{at}: {said} has the shape {mask.shape}; one value for each of {first.samples:,} rows is needed"
        )
    if mask.dtype.kind not in "biu":
        raise LayoutError(f"{at}: {said} is of {mask.dtype}; it is true or false, or a whole number that is not 0")
    kept = mask[lies.first_rows(np.arange(len(lies)))] if lies is not None and lies.at_rows else mask
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
