"""What a data set is made of: the Layouts of its fields, and where its samples lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solar.errors import LayoutError
from solar.io.crops import Crops
from solar.io.field import Field
from solar.io.in_groups import in_groups, lying_in_groups
from solar.io.layout.hdf5 import Samples, inspect
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.io.libhdf5.mpio import By, by_mpio
from solar.io.lying import Lying, lying_of
from solar.io.ragged import CSR, Columns, Ragged
from solar.io.unequal import name_of, of_groups, of_rows
from solar.io.windows import Windows
from solar.torch.batch.pending import leaves, mapped
from solar.values import Layout

SAMPLES_MAY_BE = '"rows", "files", "groups", a pattern of groups such as "/runs/*", Windows(...) or Crops(...)'
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
    if not isinstance(samples, str | Windows | Crops):
        raise ValueError(f"samples={samples!r}: {SAMPLES_MAY_BE}")
    if isinstance(samples, str) and samples not in ("rows", "files"):
        if samples != "groups" and not samples.startswith("/"):
            raise ValueError(f"samples={samples!r}: {SAMPLES_MAY_BE}")
        if together or reader != "auto":
            raise LayoutError(
                f"samples={samples!r}: groups are read natively, and looked for by each rank; the second one to open "
                "a file finds them in the cache: leave together= and reader= out"
            )
        pattern = "" if samples == "groups" else samples
        return _arranged(fields, of_groups(path, leaves(fields), pattern, cache))
    if in_groups(path, leaves(fields)):
        if together or reader != "auto":
            raise LayoutError(
                "rows of groups are looked for by each rank, and read natively: leave together= and reader= out"
            )
        return _arranged(fields, lying_in_groups(path, leaves(fields), samples, cache))
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
    kind: Samples = "files" if samples == "files" else "rows"
    columns: Sequence[Lying | Columns] = []
    if elsewhere or joined:
        found = mapped(fields, lambda field: inspect(_file(field, path), name_of(field), samples=kind, **look))
    else:
        found, columns = _arranged(fields, of_rows(path, leaves(fields), kind, cache, together=together))
    layouts = mapped(found, lambda layout: by_mpio(layout, reader))
    return layouts, columns if unequal else lying_of(path, leaves(layouts), given, samples, look)


def _arranged(fields: Any, found: tuple[list[Layout], Any]) -> tuple[Any, Any]:
    """The Layouts in the structure of the fields; and of each where its samples lie."""
    layouts = iter(found[0])
    return mapped(fields, lambda _: next(layouts)), found[1]


def _file(field: Any, path: Paths) -> Paths:
    return path if not isinstance(field, Field) or field.file is None else field.file
