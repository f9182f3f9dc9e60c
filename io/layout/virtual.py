"""Virtual datasets and raw files outside: the rows of other datasets and files that native code reads in their place.

libhdf5 says what a dataset is made of (io/libhdf5/slow_child.py); here it is found. What cannot be made of whole rows
stays with libhdf5, and its Layout says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from solar import _native
from solar.errors import LayoutError, SolarError
from solar.io.layout.extents import UNDEFINED
from solar.io.layout.forms import dtype_of
from solar.io.layout.found import found_in
from solar.io.layout.raw import Unresolved, of_raw_files
from solar.io.layout.stretches import Made, Place, Rows, inside_a_chunk, put_together, through, whole
from solar.io.libhdf5 import slow

OUTSIDE = ("virtual", "external")  # storages whose values are elsewhere
VIRTUAL_DEPTH = 8  # virtual datasets within each other
MOST_STRETCHES = 100_000  # of rows; with more, planning would take longer than libhdf5
MOST_NAMED = 8  # raw files in a message
IRREGULAR = "it maps what is no regular pattern of rows"
UNLIMITED = 2**64 - 1  # HDF5's word for "as many as there are"


def resolved(
    files: Sequence[str], datasets: list[_native.Dataset], per_file: bool
) -> tuple[list[_native.Dataset], list[Made]]:
    """The datasets, virtual ones with their shape now, and what each is made of; no Made if libhdf5 is to read them."""
    if all(one["storage"] not in OUTSIDE or one["problem"] for one in datasets):
        return datasets, []
    now, made = [], []
    for file, dataset in zip(files, datasets, strict=True):
        if dataset["storage"] in OUTSIDE and not dataset["problem"]:
            shape, one = _resolved(file, dataset, per_file)
            dataset = {**dataset, "shape": shape, "elsewhere": one if isinstance(one, str) else ""}
        else:
            one = whole(file, dataset)
        now.append(dataset)
        made.append(one)
    natively = [one for one in made if not isinstance(one, str)]
    return now, natively if len(natively) == len(made) else []


def left_to_libhdf5(datasets: list[_native.Dataset], reason: str) -> list[_native.Dataset]:
    """The datasets, of which those that are elsewhere cannot be read natively for this reason."""
    return [{**one, "elsewhere": _why(one, reason)} if one["storage"] in OUTSIDE else one for one in datasets]


def _resolved(file: str, dataset: _native.Dataset, per_file: bool) -> tuple[list[int], Made | str]:
    try:
        facts = slow.made_of(file, dataset["target"] or dataset["name"])
    except SolarError as error:
        if dataset["storage"] == "virtual" or isinstance(error, LayoutError):  # its shape is not known; it is refused
            raise
        return dataset["shape"], _why(dataset, str(error))
    shape = dataset["shape"] if facts["shape"] is None else list(facts["shape"])
    try:
        if facts["shape"] is None:
            shape = _grown(file, dataset, facts)
        if per_file:
            raise Unresolved('with samples="files" only whole datasets of a file are read natively')
        made = _made(file, {**dataset, "shape": shape}, facts, 0)
        if (place := inside_a_chunk(made)) is not None:
            raise Unresolved(f"its rows begin inside a chunk of {_where(place.file, place.dataset)}")
        if len(made.rows) > MOST_STRETCHES:
            raise _too_many(len(made.rows))
    except Unresolved as why:
        raw = ", ".join(dict.fromkeys(str(name) for name, *_ in facts["external"][:MOST_NAMED]))
        return shape, _why(dataset, f"{why}; its raw files: {raw}" if raw else str(why))
    return shape, made


def _why(dataset: _native.Dataset, reason: str) -> str:
    what = "a virtual dataset" if dataset["storage"] == "virtual" else "stored in other, raw files"
    return f"it is {what}, and {reason}"


def _where(file: str, dataset: _native.Dataset) -> str:
    return f"{file}: {dataset['target'] or dataset['name']}"


def _too_many(stretches: int) -> Unresolved:
    return Unresolved(f"it is made of {stretches:,} stretches of rows, more than {MOST_STRETCHES:,}")


def _made(file: str, dataset: _native.Dataset, facts: dict[str, Any], depth: int) -> Made:
    if not math.prod(dataset["shape"]) or dataset["null_space"]:
        raise Unresolved("it has no values")
    if math.prod(dataset["shape"]) * dataset["itemsize"] >= 2**63:
        raise Unresolved("it has more bytes than can be counted")
    if dataset["storage"] == "external":
        return of_raw_files(file, dataset, facts["external"])
    if depth == VIRTUAL_DEPTH:
        raise Unresolved(f"its sources are virtual, too, more than {VIRTUAL_DEPTH} times over")
    if not dataset["shape"]:
        raise Unresolved("it is a scalar")
    return _of_sources(file, dataset, facts, depth)


def missing_sources(file: str, name: str) -> list[tuple[str, str]]:
    """The sources of a virtual dataset that are not there, as it names them: file and dataset."""
    facts = slow.made_of(file, name)
    try:
        stored = facts["shape"] or _grown(file, _native.read_metadata(file, name)["datasets"][0], facts)
        mapped = [one for given in facts["sources"] for one in _blocks(given, stored[0])]
        wanted = list(dict.fromkeys((one.file, one.name) for one in mapped))
        found = found_in(file, wanted, Unresolved)
    except Unresolved:  # its Layout says why
        return []
    return [key for key, (_, there) in zip(wanted, found, strict=True) if there is None]


# --- sources ----


def _grown(file: str, dataset: _native.Dataset, facts: dict[str, Any]) -> list[int]:
    """The shape now of one in a far file that grows with its sources, by libhdf5's rules."""
    rows = 0
    for given in facts["sources"]:
        where, taken = given["to"], given["from"]
        if where is None or taken is None:
            raise Unresolved(IRREGULAR)
        start, stride, count, block = where[0]
        if any(UNLIMITED in side for side in where[1:]):
            raise Unresolved("it grows along another axis than the first")
        if UNLIMITED not in where[0]:
            filled = count * block
        elif "%" in given["file"] + given["name"]:
            filled = _counted(file, given) * block
        elif not taken or UNLIMITED not in taken[0]:
            raise Unresolved("it grows with another axis of its source than the first")
        else:
            ((_, source),) = found_in(file, [(given["file"], given["name"])], Unresolved)
            there = source["shape"] if source else []  # of one that grows itself, what was stored
            filled = _side(taken[0], there[0]).total if there else 0
        if filled:
            turns = (filled - 1) // block
            rows = max(rows, start + turns * stride + filled - turns * block)
    return [rows, *dataset["shape"][1:]]


def _counted(file: str, given: dict[str, Any]) -> int:
    """How many sources there are, one after another, whose names are counted."""
    start, stride, _, _ = given["to"][0]
    number, step = 0, 1
    while True:
        some = _blocks(given, start + (number + step) * stride)[number:]
        found = [one for _, one in found_in(file, [(one.file, one.name) for one in some], Unresolved)]
        if None in found:
            return number + found.index(None)
        number, step = number + step, min(2 * step, 64)


class Filling(NamedTuple):
    """A selection of a source, and the one of the virtual dataset that it fills."""

    file: str
    name: str
    to: list[list[int]]  # start, stride, count, block of each axis
    taken: list[list[int]]  # as well; none: all of it


def _of_sources(file: str, dataset: _native.Dataset, facts: dict[str, Any], depth: int) -> Made:
    shape = dataset["shape"]
    mapped = [one for given in facts["sources"] for one in _blocks(given, shape[0])]
    wanted = dict.fromkeys((one.file, one.name) for one in mapped)
    sources = found_in(file, list(wanted), Unresolved)
    numbers = {key: number for number, key in enumerate(wanted)}
    made: list[Made | None] = [_source(at, one, dataset, depth) for at, one in sources]
    at, pieces = [], []
    for one in mapped:
        number = numbers[one.file, one.name]
        source, there = made[number], sources[number][1]
        if source is None or there is None:  # missing: what it would fill has the fill value
            continue
        begin, piece = _rows_of(one, shape, source, there)
        at.append(begin)
        pieces.append(piece)
    return _covered(file, dataset, facts["fill"], at, pieces)


def _blocks(given: dict[str, Any], rows: int) -> list[Filling]:
    """The mappings of one entry: one, or, where names have %b in them, one for each block of rows."""
    where, taken = given["to"], given["from"]
    if where is None or taken is None:
        raise Unresolved(IRREGULAR)
    names = given["file"], given["name"]
    if not any("%" in name for name in names):
        return [Filling(*names, where, taken)]
    start, stride, count, block = where[0]
    if count != UNLIMITED or any("%" in name.replace("%b", "") for name in names):
        raise Unresolved(f"its source {names[0]}: {names[1]} has a % in its name")
    numbers = range(max(0, -(-(rows - start) // stride)))
    if len(numbers) > MOST_STRETCHES:
        raise _too_many(len(numbers))
    return [
        Filling(
            names[0].replace("%b", str(number)),
            names[1].replace("%b", str(number)),
            [[start + number * stride, 1, 1, block], *where[1:]],
            taken,
        )
        for number in numbers
    ]


def _source(file: str, source: _native.Dataset | None, dataset: _native.Dataset, depth: int) -> Made | None:
    """What a source is made of; None if it is missing."""
    if source is None:
        return None
    where = _where(file, source)
    if source["problem"] or not source["datatype"] or source["null_space"] or max(source["shape"], default=0) >= 2**63:
        raise Unresolved(f"of its source {where} nothing can be read natively")
    try:
        same = source["datatype"] == dataset["datatype"] or dtype_of(source["datatype"]) == dtype_of(
            dataset["datatype"]
        )
    except LayoutError as error:
        raise Unresolved(f"of its source {where} the type is damaged: {error}") from None
    if not same:
        raise Unresolved(f"its source {where} has another type: libhdf5 converts it")
    if source["storage"] not in OUTSIDE:
        if source["elsewhere"]:
            raise Unresolved(f"of its source {where}: {source['elsewhere']}")
        return whole(file, source)
    try:
        facts = slow.made_of(file, source["target"] or source["name"])
    except SolarError as error:
        raise Unresolved(f"of its source: {error}") from None
    source["shape"] = _grown(file, source, facts) if facts["shape"] is None else list(facts["shape"])
    return _made(file, source, facts, depth + 1)


def _rows_of(one: Filling, shape: list[int], made: Made, source: _native.Dataset) -> tuple[Rows, Made]:
    """Where the rows of a mapping begin, and what they are made of."""
    inner = source["shape"]
    if not one.taken:  # all of a source has no extent in the file
        one = one._replace(taken=[[0, 1, 1, length] for length in inner])
    if _in_part(one.to, shape):
        raise Unresolved("its rows are made of several sources, side by side")
    if _in_part(one.taken, inner):
        raise Unresolved(f"it takes a part of each row of {_where(one.file, source)}")
    to = _side(one.to[0], shape[0])
    taken = _side(one.taken[0], inner[0]) if inner else Side(0, 1, 1, 1)
    if len(inner) == len(shape) and inner[1:] == shape[1:]:
        if 0 < to.total == to.block == taken.total == taken.block and len(made.rows) == 1:  # nearly all there are
            return np.array([to.start]), made._replace(first=made.first + taken.start, rows=np.array([to.total]))
        begin, first, rows = _paired(to, taken, one)
        at, found = through(first, rows, made)
        starts = np.concatenate(([0], np.cumsum(rows)))  # of each run among the mapped rows
        return _placed(begin, starts, at), found
    if len(inner) == len(shape) - 1 and (not inner or inner[1:] == shape[2:]):
        return _stacked(one, shape, made, to, taken, source)
    raise Unresolved(f"its source {_where(one.file, source)} has rows of another shape")


def _in_part(sides: list[list[int]], shape: list[int]) -> bool:
    """Whether not all of each row is selected."""
    if len(sides) != len(shape):
        raise Unresolved("a source has another number of axes than was mapped")
    across = zip(sides[1:], shape[1:], strict=True)
    return any(side != [0, 1, 1, size] and _side(side, size) != Side(0, size, size, size) for side, size in across)


class Side(NamedTuple):
    """What is selected along an axis: blocks at start, start + stride, ..., together `total`."""

    start: int
    stride: int
    block: int
    total: int


def _side(side: list[int], length: int) -> Side:
    start, stride, count, block = side
    left = max(0, length - start)
    if block == UNLIMITED:
        total = left
    elif count == UNLIMITED:
        turns, rest = divmod(left, stride)
        total = turns * block + min(rest, block)
    else:
        total = count * block
        if start + (count - 1) * stride + block > length:
            raise Unresolved("a source is smaller than what was mapped of it")
    if total <= block or stride == block:
        return Side(start, total, total, total)
    return Side(start, stride, block, total)


def _paired(to: Side, taken: Side, one: Filling) -> tuple[Rows, Rows, Rows]:
    """Runs of rows that follow one another in both: where they begin there and here, and how many they are."""
    limited = UNLIMITED not in (*one.to[0], *one.taken[0])
    if limited and to.total != taken.total:
        raise Unresolved("a source has another number of rows than was mapped")
    total = min(to.total, taken.total)
    if total == 0:
        return (np.empty(0, np.int64),) * 3
    if (runs := total // to.block + total // taken.block) > MOST_STRETCHES:
        raise _too_many(runs)
    cuts = np.union1d(np.arange(0, total, to.block), np.arange(0, total, taken.block))
    begin, first = (side.start + cuts // side.block * side.stride + cuts % side.block for side in (to, taken))
    return begin, first, np.diff(cuts, append=total)


def _placed(begin: Rows, starts: Rows, at: Rows) -> Rows:
    """Where rows are in the virtual dataset, by their number among those mapped."""
    run = np.searchsorted(starts, at, "right") - 1
    placed: Rows = begin[run] + at - starts[run]
    return placed


def _stacked(
    one: Filling, shape: list[int], made: Made, to: Side, taken: Side, source: _native.Dataset
) -> tuple[Rows, Made]:
    """Rows of which each is several rows of a source, or all of it."""
    where = _where(one.file, source)
    each = shape[1] if len(shape) > 1 else 1
    length = source["shape"][0] if source["shape"] else 1
    rows = source["chunk"][0] if source["chunk"] else 1
    fits = to.total == to.block and taken.total == taken.block == to.total * each and taken.start % each == 0
    if source["storage"] in OUTSIDE or not fits or (each % rows and each != length):
        raise Unresolved(f"rows of {where} are put together to larger ones in a way that only libhdf5 follows")
    chunk = [1, *source["chunk"]] if source["chunk"] else []
    stacked: _native.Dataset = {**source, "shape": [length // each, *shape[1:]], "chunk": chunk}
    place = Place(made.places[0].file, stacked, source)
    first = np.array([taken.start // each], np.int64)
    return np.array([to.start], np.int64), Made([place], np.zeros(1, np.int64), first, np.array([to.total], np.int64))


# --- all together ----


def _covered(file: str, dataset: _native.Dataset, fill: str | None, at: list[Rows], pieces: list[Made]) -> Made:
    """The stretches in the order of their rows; what nothing covers has the fill value."""
    nothing: _native.Dataset = {
        **dataset,
        "storage": "contiguous",
        "elsewhere": "",
        "address": UNDEFINED,
        "filters": [],
    }
    nothing["fill"] = bytes.fromhex(fill or "")
    gaps = Place(file, nothing, nothing)
    found = put_together([Made([gaps], *[np.empty(0, np.int64)] * 3), *pieces])
    begin = np.concatenate([np.empty(0, np.int64), *at])
    order = np.argsort(begin, kind="stable")
    begin, place, first, rows = begin[order], found.place[order], found.first[order], found.rows[order]
    ends = np.concatenate(([0], begin + rows))
    missing = np.concatenate((begin, [dataset["shape"][0]])) - ends
    if np.any(missing < 0):
        raise Unresolved("its sources overlap")
    if fill is None and np.any(missing):
        raise Unresolved("it has rows that no source covers, and no fill value")
    here = np.flatnonzero(missing)
    place, first = np.insert(place, here, 0), np.insert(first, here, 0)
    rows = np.insert(rows, here, missing[here])
    new = np.ones(len(rows), bool)  # else it goes on where the stretch before ends
    new[1:] = (place[1:] != place[:-1]) | (first[1:] != first[:-1] + rows[:-1])
    starts = np.flatnonzero(new)
    return Made(found.places, place[starts], first[starts], np.add.reduceat(rows, starts))
