"""Rules that tell a service which samples a job holds of a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from solar.io.channels.frames import Fault, Refused
from solar.io.hdf5.box_blocks import box_layout
from solar.io.hdf5.layouts import inspect
from solar.samples.in_groups import maps_in_groups
from solar.samples.ragged import CSR, RAGGED_BY, Ragged, columns_of
from solar.samples.row_blocks import why_not_blocks
from solar.samples.row_windows import RowWindows
from solar.samples.unequal import in_groups, of_groups
from solar.values import Layout

if TYPE_CHECKING:
    from solar.samples.field_reader import Read

MOST_PIECES = 64  # that a job tells; and datasets of each group
MOST_WINDOW_ROWS = 1 << 20


def rule_of(read: Read, part: int, groups: Any) -> tuple[list[Any], str]:
    """Returns the rule for one of the layouts that a buffer holds of a dataset, and the name that it applies to."""
    own: Any = read.extents
    if groups is not None:
        return ["groups", *groups, read.fields[0]], read.layout.name
    if own is None or own.kind != "ragged":
        return ["boxes" if own is not None and own.kind == "boxes" else "rows"], read.layout.name
    word = next((word for word in RAGGED_BY if getattr(own.given, word, None) is not None), "")
    kind = "matrix" if isinstance(own.given, CSR) else word
    return [kind, getattr(own.given, word, "") if word else "", part], own.given.name


def layout_of(files: Any, facts: dict[str, Any]) -> Layout:
    """Returns the layout that a job holds: rows, or blocks that samples are cut from."""
    how, name = facts["held"], facts["name"]
    if how == ["rows"]:
        rows: Layout = inspect(files, name, samples="files" if facts["per_file"] else "rows")
        return rows
    if how == ["boxes"]:
        return box_layout(inspect(files, name))
    if how[:1] == ["groups"]:
        return layout_of_groups(files, how)
    if [type(one) for one in how] != [str, str, int] or how[0] not in ("matrix", "", *RAGGED_BY):
        raise Fault("a piece that is held as nothing is")
    word, other, part = how
    columns: Any = None
    if not word and in_groups(files, [name]):
        columns = maps_in_groups(files, [name], "rows", "auto")[1][0]
        if columns is None:
            raise Fault("rows of groups that are all alike are held as rows")
    else:
        columns = columns_of(files, CSR(name) if word == "matrix" else Ragged(name, **({word: other} if word else {})))
    if not 0 <= part < len(columns.layouts):
        raise Fault("a piece of a field that has no such part")
    if why := columns.not_in_blocks:
        raise Refused(f"{why}: each job reads it by itself")
    blocks: Layout = columns.blocks[part].layout
    return blocks


def layout_of_groups(files: Any, how: list[Any]) -> Layout:
    """Returns the layout held of a dataset in many groups: one row per group, or blocks of rows."""
    if [type(one) for one in how] != [str, str, list, list, int] or not 0 <= how[4] < len(how[2]) == len(how[3]):
        raise Fault("groups that are told as none are")
    if len(how[2]) > MOST_PIECES or not all(isinstance(name, str) for name in how[2]):
        raise Fault("names of datasets are texts, and few")
    fields = [Ragged(name) if as_rows else name for name, as_rows in zip(how[2], how[3], strict=True)]
    layouts, columns = of_groups(files, fields, how[1])
    own, layout = columns[how[4]], layouts[how[4]]
    found: Layout = layout if own is None or why_not_blocks(layout) else own.blocks[0].layout
    return found


def windows_of(arrays: list[NDArray[Any]]) -> RowWindows:
    if len(arrays) != 6 or any(one.dtype != np.int64 for one in arrays) or not len(arrays[5]):
        raise Fault("samples of several rows are told by six arrays")
    first, anchor, low, high, every, steps = arrays
    if len(steps) > MOST_WINDOW_ROWS:
        raise Fault("samples of more rows than a window has")
    fields: list[tuple[int, ...] | None] = []
    steps_of_fields, at = steps.tolist(), 0
    while at < len(steps_of_fields):  # of each field its number of rows, -1: the row itself, and their steps
        count, at = steps_of_fields[at], at + 1
        fields.append(None if count < 0 else tuple(steps_of_fields[at : at + count]))
        at += max(count, 0)
    return RowWindows(first, anchor, low, high, int(every[0]), tuple(fields))


def window_arrays(extents: RowWindows) -> list[NDArray[np.int64]]:
    """Returns the arrays by which a job sends windows."""
    steps: list[int] = []
    for one in extents.fields:
        steps += [-1] if one is None else [len(one), *one]
    arrays = [extents.first, extents.anchor, extents.low, extents.high, [extents.every], steps]
    return [np.ascontiguousarray(one, np.int64) for one in arrays]
