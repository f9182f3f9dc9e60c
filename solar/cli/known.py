"""Layouts that programs and communities write, known by their names: frames of pandas, The Well, a file a sample."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from solar.cli import words
from solar.cli.lines import Shape, call, last_of, quoted
from solar.errors import SolarError
from solar.io.layout.hdf5 import inspect
from solar.io.machine import figures
from solar.io.windows import values_of
from solar.values import Layout

WELL_STEPS = 5  # steps of the windows of trajectories that are shown
FILES = 8  # alike, that are worth to be samples where nothing says that they are
COLUMNS_SHOWN = 12  # columns that are told by name
WELL_FIELD = re.compile(r"/t\d_fields/[^/]+")
PYTABLES_INDEX = re.compile(r"/_i_[^/]+/")

Layouts = Mapping[str, Layout]


def known_shapes(asked: str, files: Sequence[str], layouts: Layouts) -> list[Shape]:
    """What is known of a file by the names of its datasets."""
    return [
        *_tables(asked, layouts),
        *_frames(asked, files[0], layouts),
        *_well(asked, layouts),
        *_of_files(asked, files, layouts),
    ]


# --- tables ----


def _tables(asked: str, layouts: Layouts) -> Iterator[Shape]:
    """Compound datasets, which PyTables and pandas (format="table") write with indexes beside them."""
    for name, one in layouts.items():
        columns = one.dtype.names
        if not columns or len(one.shape) != 1:
            continue
        group = name.rpartition("/")[0]
        parts = [name, *(other for other in layouts if PYTABLES_INDEX.match(other.removeprefix(group)))]
        numbers = [column for column in columns if words.is_number(one.dtype[column].base)]
        others = [column for column in columns if column not in numbers]
        left = f", without {', '.join(others[:COLUMNS_SHOWN])}, which is no number" if others else ""
        more = len(numbers) - COLUMNS_SHOWN
        left += f" (and {figures.count(more, 'column')} more)" if more > 0 else ""
        fields = {column: f"Field({quoted(name)}, column={quoted(column)})" for column in numbers}
        said = f"{name} is a table of {one.samples:,} rows, and its columns are fields{left}"
        yield Shape("table", parts, said, call(asked, fields, most=COLUMNS_SHOWN) if fields else "")


def _frames(asked: str, file: str, layouts: Layouts) -> Iterator[Shape]:
    """Frames as pandas writes them with format="fixed": a block for each type of column."""
    for name in layouts:
        group, _, last = name.rpartition("/")
        if last != "block0_items" or f"{group}/axis1" not in layouts:
            continue
        parts = [one for one in layouts if one.rpartition("/")[0] == group]
        columns = {}  # of each block of numbers
        unread = []
        for items in (one for one in parts if re.fullmatch(r"block\d+_items", last_of(one))):
            block, told = items.replace("_items", "_values"), _texts(file, layouts[items])
            if block in layouts and len(layouts[block].shape) == 2 and words.is_number(layouts[block].dtype):
                columns[block] = told
            else:
                unread += told
        if not columns:
            continue
        rows = layouts[next(iter(columns))].samples
        said = "; ".join(f"{last_of(block)} has {', '.join(told[:COLUMNS_SHOWN])}" for block, told in columns.items())
        lost = f"; {', '.join(unread)} cannot be read: pandas writes text as Python objects" if unread else ""
        fields = {block: quoted(block) for block in columns}
        yield Shape("table", parts, f"a frame of pandas of {rows:,} rows: {said}{lost}", call(asked, fields))


def _texts(file: str, layout: Layout) -> list[str]:
    """The values of a column, as text; "?" where they cannot be read."""
    try:
        values = values_of(inspect(file, layout.name), text=True)
    except SolarError:
        return ["?"]
    return [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in values.tolist()]


# --- trajectories ----


def _well(asked: str, layouts: Layouts) -> Iterator[Shape]:
    """Files of The Well: trajectories as rows, time as the second axis, in groups by the rank of the tensors."""
    fields = {name: one for name, one in layouts.items() if WELL_FIELD.fullmatch(name) and len(one.shape) > 2}
    numbers = {name: one for name, one in fields.items() if words.is_number(one.dtype) and one.reader == "direct"}
    if not numbers:
        return
    (trajectories, steps), _ = Counter(one.shape[:2] for one in numbers.values()).most_common(1)[0]
    chosen = {name: one for name, one in numbers.items() if one.shape[:2] == (trajectories, steps)}
    others = [name for name in fields if name not in chosen]
    left = f"; without {', '.join(others)}, not of all steps" if others else ""
    window = min(WELL_STEPS, steps)
    told = {name: f"Field({quoted(name)}, axis=(0, 1), steps=range({window}))" for name in chosen}
    said = (
        f"windows of {window} steps of {figures.count(trajectories, 'trajectory', 'trajectories')} of {steps:,}{left}"
    )
    yield Shape("steps", [*layouts], said, call(asked, told, most=len(told)))


# --- a file, a sample ----


def _of_files(asked: str, files: Sequence[str], layouts: Layouts) -> Iterator[Shape]:
    """Files that are each one sample: they have scalars, such as labels, or are many of one shape."""
    if len(files) < 2:
        return
    scalars = [name for name, one in layouts.items() if one.reader == "none" and " is a scalar, " in one.reason]
    if not scalars and len(files) < FILES:
        return
    found: dict[str, Any] = {}
    unlike, other = [], []
    for name in layouts:
        try:
            one: Any = inspect([*files], name, samples="files")
        except SolarError:
            unlike.append(name)
            continue
        if words.is_number(one.dtype) and one.reader == "direct":
            found[name] = one
        else:
            other.append(name)
    scalars = [name for name in scalars if name in found]
    said = f"{figures.count(len(files), 'file')}, each a sample"
    if scalars and unlike:
        yield Shape("files", [], f"{said}, cannot be read so: {', '.join(unlike)} differ from file to file", "")
    if found and (not unlike or (scalars and found.keys() - scalars)):
        lost = [*unlike, *other]
        left = f", without {', '.join(lost)}" if lost else ""
        parts = [*layouts] if scalars and not unlike else []
        yield Shape("files", parts, said + left, call(asked, {name: quoted(name) for name in found}, 'samples="files"'))
