"""Samples that are rows of the datasets of many groups: "/mol/*/energy"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solar.errors import LayoutError
from solar.io.hdf5.chunk_index import Folder, running
from solar.io.hdf5.groups import GroupRows, group_rows, is_pattern
from solar.io.hdf5.paths import Paths, files_of
from solar.samples.field import Field
from solar.samples.protocol import SampleMap
from solar.samples.ragged import CSR, RAGGED_BY, Ragged, RaggedRows
from solar.samples.unequal import field_name
from solar.samples.windows import Windows, extents_of
from solar.values import Layout


def maps_in_groups(
    path: Paths, fields: Sequence[Any], samples: Any, cache: Folder
) -> tuple[list[Layout], list[SampleMap | None]]:
    """Returns the Layouts of these fields, and their sample maps.

    Samples are the rows of one group after another, or windows that never leave their group.
    """
    files = files_of(path)
    check_group_fields(files[0], fields, samples)
    found = [group_rows(files, field_name(field), cache) for field in fields]
    for field, one in zip(fields[1:], found[1:], strict=True):
        _check_rows(field_name(fields[0]), found[0], field_name(field), one)
    steps = [field.steps if isinstance(field, Field) else None for field in fields]
    layouts = [one.layout for one in found]
    windows = isinstance(samples, Windows) or any(steps)
    own: list[SampleMap | None] = [unequal_rows(field, one, windows) for field, one in zip(fields, found, strict=True)]
    if windows:
        places = samples if isinstance(samples, Windows) else Windows()
        whole = extents_of(path, layouts, steps, places, cache)
        own = [whole.of_fields((one,)) for one in steps]
    return layouts, own


def check_group_fields(file: str, fields: Sequence[Any], samples: Any) -> None:
    """Raises LayoutError for options that rows of groups cannot have."""
    for field in fields:
        name = field_name(field)
        why = ""
        if not is_pattern(file, name):
            why = "all fields of a sample are rows of groups, or constants: give this one a name with stars, too"
        elif isinstance(field, CSR) or (isinstance(field, Ragged) and any(getattr(field, w) for w in RAGGED_BY)):
            why = "within groups no dataset says where samples end: each row of a group is a sample"
        elif isinstance(field, Field) and (field.axis is not None or field.file or field.by or field.cf or field.rows):
            why = "axis, file, by, cf and rows are not for rows of groups"
        elif isinstance(samples, Windows) and any((samples.ends, samples.lengths, samples.ids)):
            why = "each group is a part for windows; ends, lengths and ids are for parts of one dataset"
        elif not isinstance(samples, Windows) and samples != "rows":
            why = f"a name with stars means rows of groups, or windows of them, and samples={samples!r} is another kind"
        if why:
            raise LayoutError(f"{file}: {name}: {why}")


def _check_rows(first: str, one: GroupRows, name: str, other: GroupRows) -> None:
    file, names, theirs = one.layout.paths[0], one.layout.groups, other.layout.groups
    assert names is not None and theirs is not None, "they are those of groups"
    if names.text != theirs.text or not np.array_equal(names.begins, theirs.begins):
        raise LayoutError(f"{file}: {first} and {name} are of different groups: all fields of a sample are of one")
    wrong = np.flatnonzero(one.rows != other.rows)
    if len(wrong):
        at = int(wrong[0])
        raise LayoutError(
            f"{one.layout.paths[int(one.layout.part_file[at])]}: {names[at]}: {first} has {int(one.rows[at])} rows, "
            f"and {name} has {int(other.rows[at])}: a sample is the same row of each; what a group has once is a "
            f'constant: Field("{name}", constant=True)'
        )


def unequal_rows(field: Any, found: GroupRows, windows: bool) -> RaggedRows | None:
    """Returns where rows lie that differ in shape from group to group; None if they do not."""
    where = f"{found.layout.paths[0]}: {found.layout.title}"
    if found.heights is None:
        if isinstance(field, Ragged):
            raise LayoutError(f"{where}: its rows have one shape in all groups: leave Ragged away")
        return None
    if windows or isinstance(field, Field):
        what = "windows" if windows else "a Field"
        raise LayoutError(f"{where} has rows of another shape in each group, which {what} cannot be made of: name it")
    first = running(found.rows.tolist())
    length = np.repeat(found.heights, found.rows)
    behind = np.repeat(found.layout.part_first[:-1], found.rows)
    within = np.arange(len(length)) - np.repeat(first[:-1], found.rows)
    ragged = field if isinstance(field, Ragged) else Ragged(field_name(field))
    return RaggedRows(ragged, (found.layout,), behind + within * length, length, first, groups=found.layout.groups)
