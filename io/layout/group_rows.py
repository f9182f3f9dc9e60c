"""The rows of datasets of many groups as one Layout: "/mol/*/positions"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.layout.groups import MOST, Column, field_of, names_of, table_of
from solar.io.layout.index import Folder
from solar.values import Layout


class GroupRows(NamedTuple):
    """The rows of a dataset of all groups, group after group."""

    layout: Layout
    rows: NDArray[np.int64]  # of each group
    heights: NDArray[np.int64] | None  # of a row along its first axis in each group, where they differ; None: all alike


def group_rows(files: list[str], name: str, cache: Folder) -> GroupRows:
    """Returns the rows of all datasets that a name with stars means: "/mol/*/positions".

    Rows whose first axes differ from group to group, such as atoms of molecules, are rows of the Layout one by one.
    LayoutError where a dataset cannot be read so.
    """
    pattern, own = split_pattern(name)
    tables = [table_of(file, pattern, [own], cache) for file in files]
    for file, table in zip(files, tables, strict=True):
        if not len(table.names):
            raise LayoutError(
                f"{file}: there are no groups whose names fit {pattern!r}, as {name!r} asks; `solar inspect` lists "
                "what there is"
            )
    columns = [table.columns[0] for table in tables]
    shapes = np.concatenate([column.shape for column in columns])
    if shapes.shape[1] == 0:
        raise LayoutError(f"{files[0]}: {columns[0].kinds[0]['name']} is a scalar, and a scalar has no rows")
    heights = None
    if shapes.shape[1] > 1 and (shapes[:, 1] != shapes[0, 1]).any():
        heights = shapes[:, 1].astype(np.int64)
        columns = [_flattened(file, column) for file, column in zip(files, columns, strict=True)]
    found = field_of(files, [table.identity for table in tables], pattern, own, columns, True)
    layout = replace(found.layout, name=f"{pattern}/{own}", groups=names_of(tables))
    return GroupRows(layout, shapes[:, 0].astype(np.int64), heights)


def alike_rows(files: list[str], name: str, cache: Folder) -> Layout:
    """Returns the Layout of such rows; LayoutError where they differ in shape from group to group."""
    found = group_rows(files, name, cache)
    if found.heights is not None:
        least, most = int(found.heights.min()), int(found.heights.max())
        raise LayoutError(
            f"{files[0]}: {name}: rows have {least} to {most} along their first axis, by group, and so are ragged: "
            f"H5Dataset takes them as they are; on the command line say --ragged {name!r}"
        )
    return found.layout


def split_pattern(name: str) -> tuple[str, str]:
    """Returns the pattern of groups in a name with stars, and the name of the dataset in each of them.

    >>> split_pattern("/data/demo_*/obs/image")
    ('/data/demo_*', 'obs/image')
    """
    parts = name.strip("/").split("/")
    last = max(number for number, part in enumerate(parts) if "*" in part)
    if last + 1 == len(parts):
        raise LayoutError(
            f"{name!r}: stars stand for groups, and the last part of a name is that of the dataset in each of them: "
            '"/demo_*/actions"'
        )
    return "/" + "/".join(parts[: last + 1]), "/".join(parts[last + 1 :])


def is_pattern(file: str, name: Any) -> bool:
    """Returns whether a name means datasets of many groups: it has a star, and is not that of a dataset itself."""
    if not isinstance(name, str) or "*" not in name:
        return False
    try:
        _native.read_metadata(file, name)
    except LayoutError:
        return True
    return False


def _flattened(file: str, column: Column) -> Column:
    """Returns the column with the first two axes of its datasets as one: their bytes are the same."""
    shape = column.shape.copy()
    if (np.multiply(shape[:, 0], shape[:, 1], dtype=float) > MOST).any():
        raise LayoutError(f"{file}: {column.kinds[0]['name']}: groups have more rows than can be counted")
    kinds = []
    for number, kind in enumerate(column.kinds):
        one = kind.copy()
        one["shape"] = [0, *one["shape"][2:]]
        if one["storage"] == "chunked":
            high = shape[column.kind == number, 1]
            if (high != one["chunk"][1]).any():
                raise LayoutError(
                    f"{file}: {one['name']}: rows differ in shape from group to group, and its chunks, "
                    f"{tuple(one['chunk'])}, cut rows of {int(high[high != one['chunk'][1]][0])} in parts: take each "
                    "group as a sample, or write the chunks as long as a row along its first axis"
                )
            one["chunk"] = [one["chunk"][0] * one["chunk"][1], *one["chunk"][2:]]
        kinds.append(one)
    flat = np.column_stack((shape[:, 0] * shape[:, 1], shape[:, 2:]))
    return column._replace(kinds=kinds, shape=flat)
