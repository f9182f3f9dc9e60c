"""What a data set is made of: the Layouts of its fields, and where its samples lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solar.boxes import Boxes
from solar.errors import LayoutError
from solar.extents import Extents
from solar.io.crops import Crops
from solar.io.field import Field
from solar.io.layout.hdf5 import Samples, inspect
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.io.libhdf5.mpio import By, by_mpio
from solar.io.lying import Lying, lying_of
from solar.io.ragged import CSR, Columns, Ragged
from solar.io.read.reader import read
from solar.io.unequal import Found, by_sample, name_of, of_groups, of_rows
from solar.io.windows import Windows
from solar.torch.batch.pending import leaves, mapped
from solar.values import Layout

Where = str | tuple[Any, ...] | ArrayLike  # a mask, or its dataset; or datasets, and what makes a mask of their values


Groups = tuple[str, list[str], list[bool]]  # the pattern of their names, what is read of each, and whether as rows


def groups_of(fields: Any, samples: Any) -> Groups | None:
    """By what samples are found that are groups; None where they are not."""
    if not isinstance(samples, str) or samples in ("rows", "files"):
        return None
    every = leaves(fields)
    pattern = "" if samples == "groups" else samples
    return pattern, [name_of(field) for field in every], [isinstance(field, Ragged) for field in every]


def lying(
    path: Paths, fields: Any, samples: Any, reader: By, cache: Folder, together: bool
) -> tuple[Any, Sequence[Lying | Columns]]:
    """The Layouts of the fields, in their structure; and of each of them where its samples lie."""
    if isinstance(samples, str) and samples not in ("rows", "files"):
        if samples != "groups" and not samples.startswith("/"):
            raise ValueError(
                f'samples={samples!r}: "rows", "files", "groups", or the pattern of groups\' names: "/runs/*"'
            )
        if together or reader != "auto":
            raise LayoutError(
                f"samples={samples!r}: groups are read natively, and looked for by each rank; the second one to open "
                "a file finds them in the cache: leave together= and reader= out"
            )
        pattern = "" if samples == "groups" else samples
        return _arranged(fields, of_groups(path, leaves(fields), pattern, cache))
    given = [field if isinstance(field, Field) else None for field in leaves(fields)]
    look: dict[str, Any] = {"cache": cache, "together": together}
    # Where samples do not lie along the first axis, how long that is need not be the same for all.
    elsewhere = isinstance(samples, Crops) or any(field and field.axis is not None for field in given)
    joined = any(field and field.file for field in given)
    unequal = any(isinstance(field, Ragged | CSR) for field in leaves(fields))
    if joined and (elsewhere or unequal or samples == "files"):
        raise LayoutError("fields of other files are rows, or windows of rows: make a data set of each kind")
    if unequal and (elsewhere or isinstance(samples, Windows) or any(field and field.steps for field in given)):
        other = "crops and slices" if elsewhere else "windows"
        raise LayoutError(f"{other} and fields of unequal length do not go together: make a data set of each")
    kind: Samples = "rows" if isinstance(samples, Windows | Crops) else samples
    columns: Sequence[Lying | Columns] = []
    if elsewhere or joined:
        found = mapped(fields, lambda field: inspect(_file(field, path), name_of(field), samples=kind, **look))
    else:
        found, columns = _arranged(fields, of_rows(path, leaves(fields), kind, cache, together=together))
    layouts = mapped(found, lambda layout: by_mpio(layout, reader))
    return layouts, columns if unequal else lying_of(path, leaves(layouts), given, samples, look)


def _arranged(fields: Any, found: Found) -> tuple[Any, Sequence[Columns | None]]:
    """The Layouts in the structure of the fields; and of each where its samples lie."""
    layouts = iter(found[0])
    return mapped(fields, lambda _: next(layouts)), found[1]


def _file(field: Any, path: Paths) -> Paths:
    return path if not isinstance(field, Field) or field.file is None else field.file


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
