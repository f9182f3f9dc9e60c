"""Which kinds of samples a file seems to hold beside rows, and the line of Python that reads each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.cli import words
from solar.cli.alike import CLIP_STEPS, shapes_of_groups
from solar.cli.known import known_shapes
from solar.cli.lines import FIELDS_SHOWN, Shape, call, field_of, last_of, once_each, quoted, rows_of
from solar.errors import LayoutError, SolarError
from solar.io.layout.hdf5 import inspect
from solar.io.layout.virtual import missing_sources
from solar.io.ragged import matrix_shape, varying_numbers
from solar.io.windows import values_of
from solar.values import Layout

GLANCES = 16  # datasets of each kind, of a file that may have thousands
VALUES = 1 << 20  # that are read of a dataset, to see whether it tells parts
EDGE, LEAST_EDGE = 96, 16  # of the boxes that are shown, and of volumes that are worth boxes
CUBE = 4  # times as long as its shortest axis may the longest of a volume be
LENGTH_NAMES = re.compile(r"(^|_)(lengths?|lens?|counts?|sizes?|num)$|^(n|num)_")
PLACE_NAMES = re.compile(r"(^|_)(ends?|indptr|ptr|offsets?|stops?)$")
ID_NAMES = re.compile(r"(^|_)(ids?|keys?|episode|event|run|traj|trajectory|sequence|patient)(_?(ids?|index|number))?$")

Layouts = Mapping[str, Layout]


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
    layouts = once_each(layouts)
    found = [*_missing(files[0], layouts), *known_shapes(asked, files, layouts), *_matrices(asked, files[0], layouts)]
    found += shapes_of_groups(
        asked, files, {name: one for name, one in layouts.items() if name not in _parts_of(found)}
    )
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


# --- matrices, lists, sources ----


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
        yield Shape("ragged", [name], f"arrays of unequal length in {name}", call(asked, {name: _ragged(name)}))


# --- parts told by a dataset ----


def _telling(file: str, layouts: Layouts, numbers: Layouts) -> Iterator[PartsTold]:
    """The datasets whose values make parts of others' rows."""
    by_rows: dict[int, list[str]] = defaultdict(list)
    for name, one in numbers.items():
        by_rows[rows_of(one)].append(name)
    small = [name for name, one in layouts.items() if _is_column(one)]
    ints = [
        name for name in small if layouts[name].dtype.kind in "iu" and any(n > rows_of(layouts[name]) for n in by_rows)
    ]
    for name in sorted(ints, key=lambda name: not _by_name(name))[:GLANCES]:
        yield from _lengths(name, _values(file, layouts[name]), by_rows)
    ids = [
        name
        for name in small
        if ID_NAMES.search(last_of(name)) and len(by_rows[rows_of(layouts[name])]) > (name in numbers)
    ]
    for name in ids[:GLANCES]:
        values = _values(file, layouts[name])
        runs = np.diff(np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True]))))
        if 1 < len(runs) <= len(values) // 2 and len(runs) == len(np.unique(values)):
            yield PartsTold(name, "ids", len(runs), int(runs.max()), len(values))


def _by_name(name: str) -> bool:
    return bool(PLACE_NAMES.search(last_of(name)) or LENGTH_NAMES.search(last_of(name)))


def _lengths(name: str, values: NDArray[Any], by_rows: Mapping[int, Sequence[str]]) -> Iterator[PartsTold]:
    """What these values tell, if they do: where parts end, or how long they are."""
    if len(values) < 2 or values.dtype.kind not in "iu" or int(values.min()) < 0:
        return
    last, sizes = int(values[-1]), np.diff(values.astype(np.int64), prepend=0)
    named = _by_name(name) or bool((sizes[1:] > 0).all())  # numbers of atoms, say, often ascend a little
    if named and last in by_rows and last > len(values) and (sizes >= 0).all():
        for word, doubt in _first_means(name, len(values), by_rows) if not values[0] else [("ends", "")]:
            yield PartsTold(name, word, len(values) - (word == "indptr"), int(sizes.max()), last, doubt)
        return
    total = int(values.sum(dtype=object))
    if total in by_rows and total > len(values) and LENGTH_NAMES.search(last_of(name)):
        yield PartsTold(name, "lengths", len(values), int(values.max()), total)


def _first_means(name: str, length: int, by_rows: Mapping[int, Sequence[str]]) -> list[tuple[str, str]]:
    """What ends whose first is 0 are, for it stands before the parts, or the first part is empty; where nothing tells
    which, both, with what would speak for each. Other datasets with a row for each part tell, and the name does.
    """
    rows = {"indptr": length - 1, "ends": length}
    beside = {one: word for word, parts in rows.items() for one in by_rows.get(parts, ()) if one != name}
    beside = {one: word for one, word in beside.items() if not PLACE_NAMES.search(last_of(one))}  # in doubt as this is
    found = {beside[one] for one in _near([*beside], name)}
    if re.search(r"(^|_)(ends?|stops?)$", last_of(name)):
        found.add("ends")
    elif re.search(r"(^|_)(indptr|ptr)$", last_of(name)):
        found.add("indptr")
    if len(found) == 1:
        return [(found.pop(), "")]
    return [("indptr", "if its first 0 stands before them"), ("ends", "if its first 0 is the end of an empty part")]


def _of_parts(asked: str, told: PartsTold, numbers: Layouts) -> Iterator[Shape]:
    """The parts as samples, and windows that lie within them."""
    rows = [name for name, one in numbers.items() if rows_of(one) == told.rows]
    group = told.name.rpartition("/")[0]
    beside = [name for name, one in numbers.items() if rows_of(one) == told.parts and name.rpartition("/")[0] == group]
    by = f"{told.word}={quoted(told.name)}"
    parts = f"the {told.parts:,} parts that {told.name} tells{f' {told.doubt}' if told.doubt else ''}"
    ragged = {name: _ragged(name, by) for name in _near(rows, told.name)}
    labels = {name: field_of(name, numbers[name]) for name in beside}
    if all(name in labels or _is_rows_of_numbers(numbers[name]) for name in ragged):
        fields = dict([*ragged.items(), *labels.items()][:FIELDS_SHOWN])
        yield Shape("ragged", [told.name], f"{parts}, each a sample", call(asked, fields))
    if told.longest < 2 or (told.doubt and told.word == "ends"):  # an empty part has no windows
        return
    steps = f"range({min(CLIP_STEPS, told.longest)})"
    windows = {name: f"Field({quoted(name)}, steps={steps})" for name in _near(rows, told.name)}
    within = f"Windows({by.replace('indptr=', 'ends=')})"
    yield Shape("windows", [told.name], f"windows within {parts}", call(asked, windows, f"samples={within}"))


def _keys(asked: str, file: str, layouts: Layouts, numbers: Layouts, taken: set[str]) -> Iterator[Shape]:
    """Columns whose values name each row, so that another file can be joined to it."""
    named = [
        name
        for name, one in layouts.items()
        if _is_column(one) and ID_NAMES.search(last_of(name)) and name not in taken
    ]
    for name in named[:GLANCES]:
        values, rows = _values(file, layouts[name]), rows_of(layouts[name])
        with_it = [one for one in numbers if one != name and rows_of(numbers[one]) == rows]
        if len(values) > 1 and with_it and len(np.unique(values)) == len(values):
            first = _near(with_it, name)[0]
            other = f'Field("/label", file="OTHER.h5", by={quoted(name)})'
            said = f"{name} names each row: labels of another file that has it, too"
            yield Shape("keys", [], said, call(asked, {first: field_of(first, numbers[first]), "/label": other}))


# --- volumes ----


def _volumes(asked: str, numbers: Layouts) -> Iterator[Shape]:
    """Datasets of few rows that are nearly cubes: they may be meant as volumes."""
    by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, one in numbers.items():
        shape = (rows_of(one), *one.shape[1:])
        if len(shape) > 2 and min(shape[-3:]) >= LEAST_EDGE and max(shape[-3:]) <= CUBE * min(shape[-3:]):
            by_shape[shape].append(name)
    for shape, names in list(by_shape.items())[:GLANCES]:
        box = tuple(min(EDGE, n // 2) for n in shape[-3:])
        of_rows = ', volumes="rows"' if len(shape) > 3 else ""
        fields = {name: field_of(name, numbers[name]) for name in names}
        said = f"boxes of {words.times(box)}, if these are volumes"
        yield Shape("crops", [], said, call(asked, fields, f"samples=Crops({box}{of_rows})"))


def _ragged(name: str, by: str = "") -> str:
    return f"Ragged({quoted(name)}{f', {by}' if by else ''})"


def _is_column(layout: Layout) -> bool:
    """Whether it is a small row of whole numbers or text."""
    return len(layout.shape) == 1 and layout.dtype.kind in "iuS" and 1 < rows_of(layout) <= VALUES


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
