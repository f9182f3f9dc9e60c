"""Finds the kinds of samples that a file seems to hold besides rows, and the line of Python that reads each."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.cli import words
from solar.cli.python_lines import (
    FIELDS_SHOWN,
    Shape,
    call,
    field_line,
    last_of,
    numeric_fields,
    once_each,
    quoted,
    rows_of,
)
from solar.errors import LayoutError, SolarError
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.virtual import missing_sources
from solar.io.system import quantities
from solar.samples.constants import read_constant_attribute
from solar.samples.field import Field
from solar.samples.ragged import matrix_shape, varying_numbers
from solar.samples.windows import values_of
from solar.values import Layout

GROUPS = 8  # of any names that are worth to be samples
IN_SERIES = 2  # the same of names that differ only in their numbers
MEMBERS_SHOWN = 16  # fields of groups that are told by name
CLIP_STEPS = 16  # steps of the windows that are shown
SEQUENCE_STEPS = 10  # steps of robomimic's sequences that are shown
OF_STEPS = re.compile(r"(^|/)(actions?|obs|observations?|rewards?|dones?|qpos|qvel|states?|timestamps?|frames?)(/|$)")
COPIES = re.compile(r"(^|/)next_")  # of what other fields have one row later: told last

Layouts = Mapping[str, Layout]


class GroupsAlike(NamedTuple):
    """Neighbouring groups that hold the same datasets."""

    above: str  # the group that holds them; "" for the file itself
    star: str  # "*", or what the names of some there have in common: "demo_*"
    groups: Mapping[str, Layouts]  # by full name, what each has, by its name there
    fields: list[str]  # the datasets that are samples: numbers, of shapes that differ in the first axis at most
    unlike: list[str]  # numbers whose shapes differ in other axes
    others: list[str]  # what is no number, such as text

    @property
    def pattern(self) -> str:
        """The pattern of the groups' names."""
        return f"{self.above}/{self.star}"


def groups_alike(layouts: Layouts) -> Iterator[GroupsAlike]:
    """Returns the groups that hold the same datasets, also in groups of their own; the outermost ones."""
    below: dict[str, dict[str, dict[str, Layout]]] = defaultdict(lambda: defaultdict(dict))
    for name, one in layouts.items():
        parts = name.strip("/").split("/")
        for depth in range(1, len(parts)):
            above = "".join(f"/{part}" for part in parts[: depth - 1])
            below[above][parts[depth - 1]]["/".join(parts[depth:])] = one
    found: list[str] = []
    for above, children in below.items():
        if any(above.startswith(outer) for outer in found):
            continue
        for star, some in similar_groups(children):
            if (made := join_groups(above, star, some)) is not None:
                found.append(f"{above}/")
                yield made
                break


def similar_groups(children: Mapping[str, dict[str, Layout]]) -> Iterator[tuple[str, dict[str, dict[str, Layout]]]]:
    """Yields groups that may be alike, with the common part of their names: all, or else the longest series."""
    series: dict[str, list[str]] = defaultdict(list)
    for name in children:
        series[re.sub(r"\d+", "*", name)].append(name)
    star, names = max(series.items(), key=lambda item: len(item[1]))
    if len(children) >= (GROUPS if len(series) > 1 or "*" not in star else IN_SERIES):
        yield "*", {**children}
    if (
        len(series) > 1
        and "*" in star
        and len(names) >= IN_SERIES
        and len(fnmatch.filter(children, star)) == len(names)
    ):
        yield star, {name: children[name] for name in names}


def join_groups(above: str, star: str, children: Mapping[str, dict[str, Layout]]) -> GroupsAlike | None:
    """Returns the groups as one, if they hold the same datasets."""
    each = [*children.values()]
    kinds = [{name: (one.dtype, len(one.shape)) for name, one in members.items()} for members in each]
    if any(kind != kinds[0] for kind in kinds):
        return None
    numbers = [name for name in numeric_fields(each[0]) if all(members[name].reader == "direct" for members in each)]
    if not numbers:
        return None
    unlike = [name for name in numbers if len({members[name].shape[1:] for members in each}) > 1]
    fields = sorted((name for name in numbers if name not in unlike), key=lambda name: bool(COPIES.search(name)))
    others = [name for name in each[0] if name not in numbers]
    return GroupsAlike(above, star, {f"{above}/{name}": one for name, one in children.items()}, fields, unlike, others)


def shapes_of_groups(asked: str, files: Sequence[str], layouts: Layouts) -> Iterator[Shape]:
    """Yields the lines that read similar groups: each as a sample, its rows, and windows within it."""
    for found in groups_alike(layouts):
        parts = [f"{group}/{name}" for group, members in found.groups.items() for name in members]
        for one in group_shapes(asked, found, alone=len(files) == 1):
            yield one._replace(parts=parts)


def group_shapes(asked: str, found: GroupsAlike, *, alone: bool) -> Iterator[Shape]:
    said = f"{quantities.count(len(found.groups), 'group')} alike"
    left = f", without {', '.join(found.others)}, which is no number" if found.others else ""
    rows = [*row_shapes(asked, found, said, left)] if alone else []
    if found.unlike:
        yield from rows
        if not rows:
            why = f"{said}, of which {' and '.join(found.unlike)} cannot be read"
            yield Shape("groups", [], f"{why}: from group to group they differ in more than the first axis", "")
        rows, left = [], f", without {', '.join([*found.unlike, *found.others])}"
    if not found.fields:
        return
    more = len(found.fields) - MEMBERS_SHOWN
    left += f" (and {quantities.count(more, 'field')} more)" if more > 0 else ""
    fields = {name: quoted(name) for name in found.fields}
    whole = Shape(
        "groups", [], f"{said}, each a sample{left}",
        call(asked, fields, f"samples={quoted(found.pattern)}", MEMBERS_SHOWN),
    )  # fmt: skip
    of_steps = any(OF_STEPS.search(name) for name in found.fields)
    yield from [*rows, whole] if of_steps else [whole, *rows]


def row_shapes(asked: str, found: GroupsAlike, said: str, left: str) -> Iterator[Shape]:
    """Yields the rows of groups that have one for each step or conformer, and windows of such rows."""
    groups = [*found.groups.values()]
    names = [*found.unlike, *found.fields][:MEMBERS_SHOWN]
    first = [each[names[0]].shape[:1] for each in groups]
    rows = [name for name in names if [each[name].shape[:1] for each in groups] == first]
    once = [name for name in names if name not in rows]
    ragged = [name for name in rows if len({each[name].shape[1:] for each in groups}) > 1]
    lengths = [count for shape in first for count in shape]
    if len(names) < 2 or len(lengths) < len(groups) or min(lengths) < 1 or not {*found.unlike} <= {*rows}:
        return
    if any(len({each[name].shape[2:] for each in groups}) > 1 for name in ragged):  # they differ in two axes
        return
    if not found.unlike and (once or min(lengths) < 2):
        return
    between = str(lengths[0]) if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    full = {name: quoted(f"{found.pattern}/{name}") for name in rows}
    constants = {name: _constant(f"{found.pattern}/{name}", [each[name] for each in groups]) for name in once}
    words = f"{said} of {between} rows, each row a sample{left}"
    yield Shape("rows", [], words, call(asked, full | constants, most=MEMBERS_SHOWN))
    if found.unlike:
        return
    steps = min(CLIP_STEPS, *lengths)
    clips = {name: f"Field({text}, steps=range({steps}))" for name, text in full.items()}
    words = f"windows of {steps} rows within these groups{left}"
    yield Shape("windows", [], words, call(asked, clips, most=MEMBERS_SHOWN))


def _constant(name: str, layouts: Sequence[Layout]) -> str:
    """Returns what each group has once, as a field: ragged where its length differs from group to group."""
    kind = "Field" if len({one.shape for one in layouts}) == 1 else "Ragged"
    return f"{kind}({quoted(name)}, constant=True)"


# Layouts that programs and communities write, known by their names: frames of pandas, The Well, a file a sample.


WELL_STEPS = 5  # steps of the windows of trajectories that are shown
FILES = 8  # alike, that are worth to be samples where nothing says that they are
COLUMNS_SHOWN = 12  # columns that are told by name
WELL_FIELD = re.compile(r"/t\d_fields/[^/]+")
PYTABLES_INDEX = re.compile(r"/_i_[^/]+/")


def known_shapes(asked: str, files: Sequence[str], layouts: Layouts) -> list[Shape]:
    """Returns what is known of a file by the names of its datasets."""
    return [
        *_tables(asked, layouts),
        *_frames(asked, files[0], layouts),
        *_well(asked, layouts),
        *_clips_of_robots(asked, files[0], layouts),
        *_demonstrations(asked, files, layouts),
        *file_shapes(asked, files, layouts),
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
        left += f" (and {quantities.count(more, 'column')} more)" if more > 0 else ""
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
            block, text = items.replace("_items", "_values"), _texts(file, layouts[items])
            if block in layouts and len(layouts[block].shape) == 2 and words.is_number(layouts[block].dtype):
                columns[block] = text
            else:
                unread += text
        if not columns:
            continue
        rows = layouts[next(iter(columns))].samples
        said = "; ".join(f"{last_of(block)} has {', '.join(text[:COLUMNS_SHOWN])}" for block, text in columns.items())
        lost = f"; {', '.join(unread)} cannot be read: pandas writes text as Python objects" if unread else ""
        fields = {block: quoted(block) for block in columns}
        yield Shape("table", parts, f"a frame of pandas of {rows:,} rows: {said}{lost}", call(asked, fields))


def _texts(file: str, layout: Layout) -> list[str]:
    """Returns the values of a column, as text; "?" where they cannot be read."""
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
    windows = {name: f"Field({quoted(name)}, axis=(0, 1), steps=range({window}))" for name in chosen}
    many = quantities.count(trajectories, "trajectory", "trajectories")
    said = f"windows of {window} steps of {many} of {steps:,}{left}"
    yield Shape("steps", [*layouts], said, call(asked, windows, most=len(windows)))


# --- files of robots ----


def _clips_of_robots(asked: str, file: str, layouts: Layouts) -> Iterator[Shape]:
    """Files of stable-worldmodel: columns over all steps, and where each episode lies."""
    if "/ep_len" not in layouts or "/ep_offset" not in layouts:
        return
    lengths, offsets = (column_values(file, layouts[name]) for name in ("/ep_len", "/ep_offset"))
    if not len(lengths) or not np.array_equal(offsets, np.cumsum(lengths) - lengths) or lengths.min() < 0:
        return
    steps, longest = int(lengths.sum()), int(lengths.max())
    columns = sorted(
        last_of(name) for name in layouts if name.count("/") == 1 and name not in ("/ep_len", "/ep_offset")
    )
    numbers = [one for one in columns if words.is_number(layouts[f"/{one}"].dtype)]
    numbers = [one for one in numbers if rows_of(layouts[f"/{one}"]) == steps]
    if not numbers or not longest:
        return
    loaded = f", keys_to_load=[{', '.join(map(quoted, numbers))}]" if numbers != columns else ""
    said = f"a file of stable-worldmodel, with {quantities.count(len(lengths), 'episode')} of up to {longest:,} steps,"
    line = f"worldmodel.clips({quoted(asked)}, num_steps={min(CLIP_STEPS, longest)}{loaded})"
    yield Shape("robots", [], f"{said} as its HDF5Dataset reads it", line)


def _demonstrations(asked: str, files: Sequence[str], layouts: Layouts) -> Iterator[Shape]:
    """Files of robomimic: a group for each demonstration, with actions and obs."""
    each: dict[str, dict[str, Layout]] = defaultdict(dict)
    for name, one in layouts.items():
        if name.startswith("/data/") and name.count("/") > 2:
            _, _, group, member = name.split("/", 3)
            each[group][member] = one
    first = next(iter(each.values()), {})
    if len(files) > 1 or "actions" not in first or not all(re.fullmatch(r"demo_\d+", group) for group in each):
        return
    found = [name for name, one in first.items() if words.is_number(one.dtype) and one.shape]
    found = [name for name in found if all(_is_of_steps(members, name, first[name]) for members in each.values())]
    obs = [name.removeprefix("obs/") for name in found if name.startswith("obs/")]
    keys = [name for name in ("actions", "rewards", "dones") if name in found]
    try:
        read_constant_attribute(files[0], Field(f"/data/{next(iter(each))}/", attribute="num_samples"))
    except SolarError:
        return
    if not obs:
        return
    more = "" if len(keys) == 3 else f", dataset_keys=[{', '.join(map(quoted, keys))}]"
    more += "" if all(f"next_obs/{name}" in found for name in obs) else ", load_next_obs=False"
    said = f"a file of robomimic, with {quantities.count(len(each), 'demonstration')}, as its SequenceDataset reads it"
    line = f"worldmodel.robomimic({quoted(asked)}, [{', '.join(map(quoted, obs))}], seq_length={SEQUENCE_STEPS}{more})"
    yield Shape("robots", [], said, line)


def _is_of_steps(members: Layouts, name: str, like: Layout) -> bool:
    """Returns whether a demonstration has this dataset, of the same type and with a row for each of its actions."""
    if name not in members or "actions" not in members:
        return False
    one = members[name]
    return (one.dtype, one.shape[1:]) == (like.dtype, like.shape[1:]) and one.shape[:1] == members["actions"].shape[:1]


# --- a file, a sample ----


def file_shapes(asked: str, files: Sequence[str], layouts: Layouts) -> Iterator[Shape]:
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
    said = f"{quantities.count(len(files), 'file')}, each a sample"
    if scalars and unlike:
        yield Shape("files", [], f"{said}, cannot be read so: {', '.join(unlike)} differ from file to file", "")
    if found and (not unlike or (scalars and found.keys() - scalars)):
        lost = [*unlike, *other]
        left = f", without {', '.join(lost)}" if lost else ""
        parts = [*layouts] if scalars and not unlike else []
        yield Shape("files", parts, said + left, call(asked, {name: quoted(name) for name in found}, 'samples="files"'))


GLANCES = 16  # datasets of each kind, of a file that may have thousands
VALUES = 1 << 20  # that are read of a dataset, to see whether it tells parts
EDGE, LEAST_EDGE = 96, 16  # of the boxes that are shown, and of volumes that are worth boxes
CUBE = 4  # times as long as its shortest axis may the longest of a volume be
LENGTH_NAMES = re.compile(r"(^|_)(lengths?|lens?|counts?|sizes?|num)$|^(n|num)_")
PLACE_NAMES = re.compile(r"(^|_)(ends?|indptr|ptr|offsets?|stops?)$")
ID_NAMES = re.compile(r"(^|_)(ids?|keys?|episode|event|run|traj|trajectory|sequence|patient)(_?(ids?|index|number))?$")


class PartsFound(NamedTuple):
    """Parts of other datasets that a dataset tells."""

    name: str
    word: str  # "ends" "lengths" "indptr" "ids"
    parts: int
    longest: int
    rows: int  # of all parts
    doubt: str = ""  # where it may be read otherwise, too: what would speak for this


def shapes_of(asked: str, files: Sequence[str], layouts: Layouts) -> list[Shape]:
    """Returns what the first of these files seems to hold. It reads a few small datasets, however many there are."""
    layouts = once_each(layouts)
    found = [
        *missing_source_shapes(files[0], layouts),
        *known_shapes(asked, files, layouts),
        *_matrices(asked, files[0], layouts),
    ]
    found += shapes_of_groups(
        asked, files, {name: one for name, one in layouts.items() if name not in _parts_of(found)}
    )
    taken = _parts_of(found)
    left = {name: one for name, one in layouts.items() if name not in taken and one.reader != "none" and one.shape}
    found += _varying(asked, left)
    numbers = {name: one for name, one in left.items() if words.is_number(one.dtype) and one.nbytes}
    for parts in telling_datasets(files[0], left, numbers):
        found += _of_parts(asked, parts, {name: one for name, one in numbers.items() if name != parts.name})
    found += key_columns(asked, files[0], left, numbers, _parts_of(found))
    return [*found, *volume_shapes(asked, numbers)]


def _parts_of(shapes: Sequence[Shape]) -> set[str]:
    return {name for one in shapes for name in one.parts}


# --- matrices, lists, sources ----


def missing_source_shapes(file: str, layouts: Layouts) -> Iterator[Shape]:
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


def telling_datasets(file: str, layouts: Layouts, numbers: Layouts) -> Iterator[PartsFound]:
    """Yields the datasets whose values make parts of others' rows."""
    by_rows: dict[int, list[str]] = defaultdict(list)
    for name, one in numbers.items():
        by_rows[rows_of(one)].append(name)
    small = [name for name, one in layouts.items() if _is_column(one)]
    ints = [
        name for name in small if layouts[name].dtype.kind in "iu" and any(n > rows_of(layouts[name]) for n in by_rows)
    ]
    for name in sorted(ints, key=lambda name: not _by_name(name))[:GLANCES]:
        yield from find_parts(name, column_values(file, layouts[name]), by_rows)
    ids = [
        name
        for name in small
        if ID_NAMES.search(last_of(name)) and len(by_rows[rows_of(layouts[name])]) > (name in numbers)
    ]
    for name in ids[:GLANCES]:
        values = column_values(file, layouts[name])
        runs = np.diff(np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True]))))
        if 1 < len(runs) <= len(values) // 2 and len(runs) == len(np.unique(values)):
            yield PartsFound(name, "ids", len(runs), int(runs.max()), len(values))


def _by_name(name: str) -> bool:
    return bool(PLACE_NAMES.search(last_of(name)) or LENGTH_NAMES.search(last_of(name)))


def find_parts(name: str, values: NDArray[Any], by_rows: Mapping[int, Sequence[str]]) -> Iterator[PartsFound]:
    """Yields what these values tell, if they do: where parts end, or how long they are."""
    if len(values) < 2 or values.dtype.kind not in "iu" or int(values.min()) < 0:
        return
    last, sizes = int(values[-1]), np.diff(values.astype(np.int64), prepend=0)
    named = _by_name(name) or bool((sizes[1:] > 0).all())  # numbers of atoms, say, often ascend a little
    if named and last in by_rows and last > len(values) and (sizes >= 0).all():
        for word, doubt in _first_means(name, len(values), by_rows) if not values[0] else [("ends", "")]:
            yield PartsFound(name, word, len(values) - (word == "indptr"), int(sizes.max()), last, doubt)
        return
    total = int(values.sum(dtype=object))
    if total in by_rows and total > len(values) and LENGTH_NAMES.search(last_of(name)):
        yield PartsFound(name, "lengths", len(values), int(values.max()), total)


def _first_means(name: str, length: int, by_rows: Mapping[int, Sequence[str]]) -> list[tuple[str, str]]:
    """Returns what ends whose first is 0 are, for it stands before the parts, or the first part is empty; where nothing
    tells which, both, with what would speak for each. Other datasets with a row for each part tell, and the name does.
    """
    rows = {"indptr": length - 1, "ends": length}
    beside = {one: word for word, parts in rows.items() for one in by_rows.get(parts, ()) if one != name}
    beside = {one: word for one, word in beside.items() if not PLACE_NAMES.search(last_of(one))}  # in doubt as this is
    found = {beside[one] for one in same_group([*beside], name)}
    if re.search(r"(^|_)(ends?|stops?)$", last_of(name)):
        found.add("ends")
    elif re.search(r"(^|_)(indptr|ptr)$", last_of(name)):
        found.add("indptr")
    if len(found) == 1:
        return [(found.pop(), "")]
    return [("indptr", "if its first 0 stands before them"), ("ends", "if its first 0 is the end of an empty part")]


def _of_parts(asked: str, found: PartsFound, numbers: Layouts) -> Iterator[Shape]:
    """Yields the parts as samples, and windows that lie within them."""
    rows = [name for name, one in numbers.items() if rows_of(one) == found.rows]
    group = found.name.rpartition("/")[0]
    beside = [name for name, one in numbers.items() if rows_of(one) == found.parts and name.rpartition("/")[0] == group]
    by = f"{found.word}={quoted(found.name)}"
    parts = f"the {found.parts:,} parts that {found.name} tells{f' {found.doubt}' if found.doubt else ''}"
    ragged = {name: _ragged(name, by) for name in same_group(rows, found.name)}
    labels = {name: field_line(name, numbers[name]) for name in beside}
    if all(name in labels or _is_rows_of_numbers(numbers[name]) for name in ragged):
        fields = dict([*ragged.items(), *labels.items()][:FIELDS_SHOWN])
        yield Shape("ragged", [found.name], f"{parts}, each a sample", call(asked, fields))
    if found.longest < 2 or (found.doubt and found.word == "ends"):  # an empty part has no windows
        return
    steps = f"range({min(CLIP_STEPS, found.longest)})"
    windows = {name: f"Field({quoted(name)}, steps={steps})" for name in same_group(rows, found.name)}
    within = f"Windows({by.replace('indptr=', 'ends=')})"
    yield Shape("windows", [found.name], f"windows within {parts}", call(asked, windows, f"samples={within}"))


def key_columns(asked: str, file: str, layouts: Layouts, numbers: Layouts, taken: set[str]) -> Iterator[Shape]:
    """Columns whose values name each row, so that another file can be joined to it."""
    named = [
        name
        for name, one in layouts.items()
        if _is_column(one) and ID_NAMES.search(last_of(name)) and name not in taken
    ]
    for name in named[:GLANCES]:
        values, rows = column_values(file, layouts[name]), rows_of(layouts[name])
        with_it = [one for one in numbers if one != name and rows_of(numbers[one]) == rows]
        if len(values) > 1 and with_it and len(np.unique(values)) == len(values):
            first = same_group(with_it, name)[0]
            other = f'Field("/label", file="OTHER.h5", by={quoted(name)})'
            said = f"{name} names each row: labels of another file that has it, too"
            yield Shape("keys", [], said, call(asked, {first: field_line(first, numbers[first]), "/label": other}))


# --- volumes ----


def volume_shapes(asked: str, numbers: Layouts) -> Iterator[Shape]:
    """Datasets of few rows that are nearly cubes: they may be meant as volumes."""
    by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, one in numbers.items():
        shape = (rows_of(one), *one.shape[1:])
        if len(shape) > 2 and min(shape[-3:]) >= LEAST_EDGE and max(shape[-3:]) <= CUBE * min(shape[-3:]):
            by_shape[shape].append(name)
    for shape, names in list(by_shape.items())[:GLANCES]:
        box = tuple(min(EDGE, n // 2) for n in shape[-3:])
        of_rows = ', volumes="rows"' if len(shape) > 3 else ""
        fields = {name: field_line(name, numbers[name]) for name in names}
        said = f"boxes of {words.times(box)}, if these are volumes"
        yield Shape("crops", [], said, call(asked, fields, f"samples=Crops({box}{of_rows})"))


def _ragged(name: str, by: str = "") -> str:
    return f"Ragged({quoted(name)}{f', {by}' if by else ''})"


def _is_column(layout: Layout) -> bool:
    """Returns whether it is a small row of whole numbers or text."""
    return len(layout.shape) == 1 and layout.dtype.kind in "iuS" and 1 < rows_of(layout) <= VALUES


def _is_rows_of_numbers(layout: Layout) -> bool:
    return layout.reader == "direct" and not layout.spread and not layout.dtype.shape


def column_values(file: str, layout: Layout) -> NDArray[Any]:
    """Those of a column; none where they cannot be read."""
    try:
        return values_of(inspect(file, layout.name), text=True)
    except SolarError:
        return np.empty(0, np.int64)


def same_group(names: Sequence[str], to: str) -> list[str]:
    """Those of the same group, if there are any."""
    group = to.rpartition("/")[0]
    return [name for name in names if name.rpartition("/")[0] == group] or list(names)
