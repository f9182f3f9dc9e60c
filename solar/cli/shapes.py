"""Which kinds of samples a file seems to hold beside rows, and the line of Python that reads each."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.cli import words
from solar.errors import LayoutError, SolarError
from solar.io.layout.hdf5 import inspect
from solar.io.layout.packing import packed
from solar.io.layout.virtual import missing_sources
from solar.io.machine import figures
from solar.io.ragged import matrix_shape, varying_numbers
from solar.io.windows import values_of
from solar.values import Layout

FIELDS_SHOWN = 6  # fields of a sample that are told by name
GLANCES = 16  # datasets of each kind, of a file that may have thousands
VALUES = 1 << 20  # that are read of a dataset, to see whether it tells parts
CLIP = 16  # steps of the windows that are shown
EDGE, LEAST_EDGE = 96, 16  # of the boxes that are shown, and of volumes that are worth boxes
GROUPS = 8  # alike, that are worth to be samples
CUBE = 4  # times as long as its shortest axis may the longest of a volume be
LENGTH_NAMES = re.compile(r"(^|_)(lengths?|lens?|counts?|sizes?|num)$|^(n|num)_")
PLACE_NAMES = re.compile(r"(^|_)(ends?|indptr|ptr|offsets?|stops?)$")
ID_NAMES = re.compile(r"(^|_)(ids?|keys?|episode|event|run|traj|trajectory|sequence|patient)(_?(ids?|index|number))?$")

Layouts = Mapping[str, Layout]


class Shape(NamedTuple):
    """What was seen."""

    kind: str  # "groups" "csr" "ragged" "windows" "crops" "keys" "missing"
    parts: list[str]  # datasets that are no fields by themselves, for they tell of others
    words: str
    python: str  # empty where nothing reads it yet


class PartsTold(NamedTuple):
    """Parts of other datasets that a dataset tells."""

    name: str
    word: str  # "ends" "lengths" "indptr" "ids"
    parts: int
    longest: int
    rows: int  # of all parts
    doubt: str = ""  # where it may be read otherwise, too: what would speak for this


def shapes_of(asked: str, files: Sequence[str], layouts: Layouts) -> list[Shape]:
    """What the first of these files seems to hold. It reads a few small datasets, however many there are."""
    found = [*_missing(files[0], layouts), *_matrices(asked, files[0], layouts)]
    found += _groups(asked, {name: one for name, one in layouts.items() if name not in _parts_of(found)})
    taken = _parts_of(found)
    left = {name: one for name, one in layouts.items() if name not in taken and one.reader != "none" and one.shape}
    found += _varying(asked, left)
    numbers = {name: one for name, one in left.items() if words.is_number(one.dtype) and one.nbytes}
    for told in _telling(files[0], left, numbers):
        found += _of_parts(asked, told, {name: one for name, one in numbers.items() if name != told.name})
    found += _keys(asked, files[0], left, numbers, _parts_of(found))
    return [*found, *_volumes(asked, numbers)]


def _parts_of(shapes: Sequence[Shape]) -> set[str]:
    return {name for one in shapes for name in one.parts}


# --- groups, matrices, lists, sources ----


def _groups(asked: str, layouts: Layouts) -> Iterator[Shape]:
    for pattern, groups, names in groups_alike(layouts):
        fields = {name: quoted(name) for name in names}
        said = f"{figures.count(len(groups), 'group')} alike, each a sample"
        parts = [f"{group}/{name}" for group, members in groups.items() for name in members]
        yield Shape("groups", parts, said, _call(asked, fields, f"samples={quoted(pattern)}"))


def groups_alike(layouts: Layouts) -> Iterator[tuple[str, Mapping[str, Layouts], list[str]]]:
    """Groups beside each other that hold the same datasets, and no groups: the pattern of their names, what each has,
    and which of that are numbers.
    """
    by_group: dict[str, dict[str, Layout]] = defaultdict(dict)
    for name, one in layouts.items():
        group, _, last = name.rpartition("/")
        by_group[group][last] = one
    beside: dict[str, list[str]] = defaultdict(list)
    for group in by_group:
        if group:
            beside[group.rpartition("/")[0]].append(group)
    for above, groups in beside.items():
        first = by_group[groups[0]]
        alike = all(_group_kind(by_group[group]) == _group_kind(first) for group in groups)
        fields = [name for name, one in first.items() if words.is_number(one.dtype)]
        if len(groups) >= GROUPS and alike and fields and all(one.reader == "direct" for one in first.values()):
            yield f"{above}/*", {group: by_group[group] for group in groups}, fields


def _group_kind(members: Layouts) -> dict[str, Any]:
    return {name: (one.dtype, one.shape[1:], len(one.shape), one.reader) for name, one in members.items()}


def _missing(file: str, layouts: Layouts) -> Iterator[Shape]:
    for name in [name for name, one in layouts.items() if one.storage == "virtual"][:GLANCES]:
        try:
            lost = missing_sources(file, name)
        except SolarError:  # the tree says why it cannot be read
            continue
        if lost:
            more = f", and {len(lost) - 1:,} more" if len(lost) > 1 else ""
            said = f"{name} has the fill value where its source is missing: {lost[0][0]}: {lost[0][1]}{more}"
            yield Shape("missing", [], said, "")


def _matrices(asked: str, file: str, layouts: Layouts) -> Iterator[Shape]:
    groups = [name.removesuffix("/indptr") for name in layouts if name.endswith("/indptr")]
    whole = [one for one in groups if f"{one}/data" in layouts and f"{one}/indices" in layouts]
    for group in whole[:GLANCES]:
        parts = [f"{group}/{part}" for part in ("data", "indices", "indptr")]
        try:
            rows, columns = matrix_shape(file, group)
        except LayoutError as error:
            yield Shape("csr", parts, f"a sparse matrix: {str(error).removeprefix(f'{file}: ')}", "")
            continue
        said = f"a sparse matrix of {rows:,} rows and {columns:,} columns"
        yield Shape("csr", parts, said, f"H5Dataset({quoted(asked)}, CSR({quoted(group)}))")


def _varying(asked: str, layouts: Layouts) -> Iterator[Shape]:
    for name in [name for name, one in layouts.items() if varying_numbers(one)][:GLANCES]:
        yield Shape("ragged", [name], f"arrays of unequal length in {name}", _call(asked, {name: _ragged(name)}))


# --- parts told by a dataset ----


def _telling(file: str, layouts: Layouts, numbers: Layouts) -> Iterator[PartsTold]:
    """The datasets whose values make parts of others' rows."""
    by_rows: dict[int, list[str]] = defaultdict(list)
    for name, one in numbers.items():
        by_rows[_rows(one)].append(name)
    small = [name for name, one in layouts.items() if _is_column(one)]
    ints = [
        name for name in small if layouts[name].dtype.kind in "iu" and any(n > _rows(layouts[name]) for n in by_rows)
    ]
    for name in sorted(ints, key=lambda name: not _by_name(name))[:GLANCES]:
        yield from _lengths(name, _values(file, layouts[name]), by_rows)
    ids = [
        name
        for name in small
        if ID_NAMES.search(_last(name)) and len(by_rows[_rows(layouts[name])]) > (name in numbers)
    ]
    for name in ids[:GLANCES]:
        values = _values(file, layouts[name])
        runs = np.diff(np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True]))))
        if 1 < len(runs) <= len(values) // 2 and len(runs) == len(np.unique(values)):
            yield PartsTold(name, "ids", len(runs), int(runs.max()), len(values))


def _by_name(name: str) -> bool:
    return bool(PLACE_NAMES.search(_last(name)) or LENGTH_NAMES.search(_last(name)))


def _lengths(name: str, values: NDArray[Any], by_rows: Mapping[int, Sequence[str]]) -> Iterator[PartsTold]:
    """What these values tell, if they do: where parts end, or how long they are."""
    if len(values) < 2 or values.dtype.kind not in "iu" or int(values.min()) < 0:
        return
    last, sizes = int(values[-1]), np.diff(values.astype(np.int64), prepend=0)
    if last in by_rows and last > len(values) and (sizes >= 0).all():
        for word, doubt in _first_means(name, len(values), by_rows) if not values[0] else [("ends", "")]:
            yield PartsTold(name, word, len(values) - (word == "indptr"), int(sizes.max()), last, doubt)
        return
    total = int(values.sum(dtype=object))
    if total in by_rows and total > len(values) and LENGTH_NAMES.search(_last(name)):
        yield PartsTold(name, "lengths", len(values), int(values.max()), total)


def _first_means(name: str, length: int, by_rows: Mapping[int, Sequence[str]]) -> list[tuple[str, str]]:
    """What ends whose first is 0 are, for it stands before the parts, or the first part is empty; where nothing tells
    which, both, with what would speak for each. Other datasets with a row for each part tell, and the name does.
    """
    rows = {"indptr": length - 1, "ends": length}
    beside = {one: word for word, parts in rows.items() for one in by_rows.get(parts, ()) if one != name}
    beside = {one: word for one, word in beside.items() if not PLACE_NAMES.search(_last(one))}  # in doubt as this is
    found = {beside[one] for one in _near([*beside], name)}
    if re.search(r"(^|_)(ends?|stops?)$", _last(name)):
        found.add("ends")
    elif re.search(r"(^|_)(indptr|ptr)$", _last(name)):
        found.add("indptr")
    if len(found) == 1:
        return [(found.pop(), "")]
    return [("indptr", "if its first 0 stands before them"), ("ends", "if its first 0 is the end of an empty part")]


def _of_parts(asked: str, told: PartsTold, numbers: Layouts) -> Iterator[Shape]:
    """The parts as samples, and windows that lie within them."""
    rows = [name for name, one in numbers.items() if _rows(one) == told.rows]
    group = told.name.rpartition("/")[0]
    beside = [name for name, one in numbers.items() if _rows(one) == told.parts and name.rpartition("/")[0] == group]
    by = f"{told.word}={quoted(told.name)}"
    parts = f"the {told.parts:,} parts that {told.name} tells{f' {told.doubt}' if told.doubt else ''}"
    ragged = {name: _ragged(name, by) for name in _near(rows, told.name)}
    labels = {name: field_of(name, numbers[name]) for name in beside}
    if all(name in labels or _is_rows_of_numbers(numbers[name]) for name in ragged):
        fields = dict([*ragged.items(), *labels.items()][:FIELDS_SHOWN])
        yield Shape("ragged", [told.name], f"{parts}, each a sample", _call(asked, fields))
    if told.longest < 2 or (told.doubt and told.word == "ends"):  # an empty part has no windows
        return
    steps = f"range({min(CLIP, told.longest)})"
    windows = {name: f"Field({quoted(name)}, steps={steps})" for name in _near(rows, told.name)}
    within = f"Windows({by.replace('indptr=', 'ends=')})"
    yield Shape("windows", [told.name], f"windows within {parts}", _call(asked, windows, f"samples={within}"))


def _keys(asked: str, file: str, layouts: Layouts, numbers: Layouts, taken: set[str]) -> Iterator[Shape]:
    """Columns whose values name each row, so that another file can be joined to it."""
    named = [
        name for name, one in layouts.items() if _is_column(one) and ID_NAMES.search(_last(name)) and name not in taken
    ]
    for name in named[:GLANCES]:
        values, rows = _values(file, layouts[name]), _rows(layouts[name])
        with_it = [one for one in numbers if one != name and _rows(numbers[one]) == rows]
        if len(values) > 1 and with_it and len(np.unique(values)) == len(values):
            first = _near(with_it, name)[0]
            other = f'Field("/label", file="OTHER.h5", by={quoted(name)})'
            said = f"{name} names each row: labels of another file that has it, too"
            yield Shape("keys", [], said, _call(asked, {first: field_of(first, numbers[first]), "/label": other}))


# --- volumes ----


def _volumes(asked: str, numbers: Layouts) -> Iterator[Shape]:
    """Datasets of few rows that are nearly cubes: they may be meant as volumes."""
    by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, one in numbers.items():
        shape = (_rows(one), *one.shape[1:])
        if len(shape) > 2 and min(shape[-3:]) >= LEAST_EDGE and max(shape[-3:]) <= CUBE * min(shape[-3:]):
            by_shape[shape].append(name)
    for shape, names in list(by_shape.items())[:GLANCES]:
        box = tuple(min(EDGE, n // 2) for n in shape[-3:])
        of_rows = ', volumes="rows"' if len(shape) > 3 else ""
        fields = {name: field_of(name, numbers[name]) for name in names}
        said = f"boxes of {words.times(box)}, if these are volumes"
        yield Shape("crops", [], said, _call(asked, fields, f"samples=Crops({box}{of_rows})"))


# --- lines of Python ----


def _call(asked: str, fields: Mapping[str, str], more: str = "") -> str:
    few = dict(list(fields.items())[:FIELDS_SHOWN])
    return dataset_call(asked, dict(zip(keys_of(few), few.values(), strict=True)), more)


def dataset_call(asked: str, fields: Mapping[str, str], more: str = "") -> str:
    """The line that makes a data set of these fields."""
    told = ", ".join(f"{quoted(key)}: {text}" for key, text in fields.items())
    return f"H5Dataset({quoted(asked)}, {{{told}}}{f', {more}' if more else ''})"


def keys_of(names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """The last part of each name, where that is its own; else all of it."""
    times = Counter(map(_last, names))
    return [name.strip("/") if times[_last(name)] > 1 else _last(name) for name in names]


def field_of(name: str, layout: Layout) -> str:
    """A field as it is given to H5Dataset."""
    return f"Field({quoted(name)}, cf=True)" if packed(layout) else quoted(name)


def _ragged(name: str, by: str = "") -> str:
    return f"Ragged({quoted(name)}{f', {by}' if by else ''})"


def quoted(value: str) -> str:
    """As Python writes it."""
    return json.dumps(value, ensure_ascii=False)


# --- facts of datasets, in the first file ----


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _rows(layout: Layout) -> int:
    return int(layout.first_of_files[1]) if len(layout.first_of_files) > 1 else layout.samples


def _is_column(layout: Layout) -> bool:
    """Whether it is a small row of whole numbers or text."""
    return len(layout.shape) == 1 and layout.dtype.kind in "iuS" and 1 < _rows(layout) <= VALUES


def _is_rows_of_numbers(layout: Layout) -> bool:
    return layout.reader == "direct" and not layout.spread and not layout.dtype.shape


def _values(file: str, layout: Layout) -> NDArray[Any]:
    """Those of a column; none where they cannot be read."""
    try:
        return values_of(inspect(file, layout.name), text=True)
    except SolarError:
        return np.empty(0, np.int64)


def _near(names: Sequence[str], to: str) -> list[str]:
    """Those of the same group, if there are any."""
    group = to.rpartition("/")[0]
    return [name for name in names if name.rpartition("/")[0] == group] or list(names)
