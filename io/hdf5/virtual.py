"""Virtual datasets and external raw files: the rows of other datasets that native code reads instead.

libhdf5 says what a dataset is made of (io/hdf5/guarded_child.py); this module finds it. Whatever is not made of whole
rows stays with libhdf5, and its Layout says why.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError, SolarError
from solar.io.hdf5.chunk_index import UNDEFINED, Folder, Table, chunk_table, joined_tables, running
from solar.io.hdf5.datatype import dtype_of
from solar.io.remote.location import sibling
from solar.values import is_url

Rows = NDArray[np.int64]


class Place(NamedTuple):
    """A dataset that holds rows."""

    file: str
    dataset: _native.Dataset  # with the shape, and the chunks, in which its rows are those that are asked for
    stored: _native.Dataset  # as the file has it


class Made(NamedTuple):
    """What a dataset is made of: stretches of rows, one after another, none empty."""

    places: list[Place]
    place: Rows  # of each stretch, which of the places
    first: Rows  # its first row there
    rows: Rows  # how many


def whole_dataset(file: str, dataset: _native.Dataset) -> Made:
    """Returns a dataset as one stretch of its own rows."""
    rows = np.array([min(length, 2**63 - 1) for length in dataset["shape"][:1] or [1]], np.int64)
    return Made([Place(file, dataset, dataset)], np.zeros(1, np.int64), np.zeros(1, np.int64), rows)


def join_stretches(made: Sequence[Made]) -> Made:
    """Returns the stretches of several datasets, one dataset after another; each place once."""
    places: dict[tuple[Any, ...], tuple[int, Place]] = {}
    numbers = [np.array([number_place(place, places) for place in one.places], np.int64) for one in made]
    return Made(
        [place for _, place in places.values()],
        np.concatenate([number[one.place] for number, one in zip(numbers, made, strict=True)]),
        np.concatenate([one.first for one in made]),
        np.concatenate([one.rows for one in made]),
    )


def number_place(place: Place, places: dict[tuple[Any, ...], tuple[int, Place]]) -> int:
    key = place.file, id(place.stored), tuple(place.dataset["shape"])
    return places.setdefault(key, (len(places), place))[0]


def through(outer: Rows, rows: Rows, inner: Made) -> tuple[Rows, Made]:
    """Returns the stretches of a dataset that is made of others: where each piece begins among them, and the pieces."""
    edges = running(inner.rows)
    begin = np.searchsorted(edges, outer, "right") - 1
    counts = np.searchsorted(edges, outer + rows, "left") - begin
    of = np.repeat(np.arange(len(outer)), counts)
    piece = begin[of] + np.arange(len(of)) - np.repeat(running(counts)[:-1], counts)
    start = np.maximum(outer[of], edges[piece])
    end = np.minimum((outer + rows)[of], edges[piece + 1])
    at = running(rows)[:-1][of] + start - outer[of]
    return at, Made(inner.places, inner.place[piece], inner.first[piece] + start - edges[piece], end - start)


def inside_a_chunk(made: Made) -> Place | None:
    """Returns a place at which a stretch begins inside a chunk; None if there is none."""
    chunks = np.array([place.dataset["chunk"][0] if place.dataset["chunk"] else 1 for place in made.places], np.int64)
    wrong = np.flatnonzero(made.first % chunks[made.place])
    return made.places[int(made.place[wrong[0]])] if len(wrong) else None


def parts_of_stretches(
    made: Made, form_of_place: Sequence[int], file_of_place: Sequence[int], cache: Folder
) -> dict[str, Any]:
    """Returns the arrays of a Layout whose parts are these stretches. Raises LayoutError if a place is damaged."""
    tables: list[Table | None] = [None] * len(made.places)
    found = []
    for place, first, rows in zip(made.place.tolist(), made.first.tolist(), made.rows.tolist(), strict=True):
        file, dataset, stored = made.places[place]
        if dataset["storage"] != "chunked":
            found.append(_extent(dataset, first, rows))
            continue
        if (table := tables[place]) is None:
            table = tables[place] = chunk_table(file, stored, cache)
        found.append(chunk_lines(table, dataset, first, rows))
    return {
        "part_file": np.array(file_of_place, np.int32)[made.place],
        "part_form": np.array(form_of_place, np.int32)[made.place],
        "part_first": running(made.rows),
        **joined_tables(found),
    }


def _extent(dataset: _native.Dataset, first: int, rows: int) -> Table:
    """Returns rows of data without chunks as one extent, or none if nothing was written."""
    row_nbytes = math.prod(dataset["shape"][1:]) * dataset["itemsize"]
    written = dataset["address"] != UNDEFINED and row_nbytes > 0
    facts = [(dataset["address"] + first * row_nbytes, rows * row_nbytes)] if written else []
    offset, nbytes = np.array(facts, np.uint64).reshape(-1, 2).T
    return Table(np.empty(0, np.uint64), offset, nbytes, np.zeros(len(facts), np.uint32))


def chunk_lines(table: Table, dataset: _native.Dataset, first: int, rows: int) -> Table:
    """Returns the chunks of rows that begin with a chunk."""
    chunk = dataset["chunk"]
    across = math.prod(-(-size // one) for size, one in zip(dataset["shape"][1:], chunk[1:], strict=True))
    begin, end = first // chunk[0] * across, -(-(first + rows) // chunk[0]) * across
    if len(table.index):
        here = slice(*np.searchsorted(table.index, np.array([begin, end], np.uint64)).tolist())
        index = table.index[here] - np.uint64(begin)
    else:
        here, index = slice(begin, end), np.empty(0, np.uint64)
    return Table(index, table.offset[here], table.nbytes[here], table.mask[here])


# Datasets whose values are in other, raw files: the stretches of these that native code reads in their place.


# ruff: noqa: PTH100, PTH113, PTH116


class Unresolved(Exception):
    """The reason why native code cannot read it."""


def of_raw_files(file: str, dataset: _native.Dataset, external: list[tuple[str, int, int]]) -> Made:
    """Returns the extents of a contiguous dataset in raw files, one after another."""
    row_nbytes = math.prod(dataset["shape"][1:]) * dataset["itemsize"]
    left = math.prod(dataset["shape"]) * dataset["itemsize"]
    places, rows = [], []
    for name, offset, size in external:
        nbytes = min(size, left)
        if not nbytes:
            continue
        if nbytes % row_nbytes:
            raise Unresolved(f"{name} ends within a row")
        path, facts = _from_afar(file, name) if is_url(file) else raw_file_identity(file, name)
        if offset + nbytes > facts["file_nbytes"]:
            raise Unresolved(f"{path} is shorter than its share of the values: libhdf5 gives zeros for the rest")
        there = {"storage": "contiguous", "elsewhere": "", "address": offset, "nbytes": nbytes, **facts}
        shape = [nbytes // row_nbytes, *dataset["shape"][1:]] if dataset["shape"] else []
        place: _native.Dataset = {**dataset, **there, "shape": shape}  # type: ignore[typeddict-item]
        places.append(Place(path, place, place))
        rows.append(nbytes // row_nbytes)
        left -= nbytes
    if left:
        raise Unresolved("its raw files have too few bytes")
    return Made(places, np.arange(len(places)), np.zeros(len(places), np.int64), np.array(rows, np.int64))


def raw_file_identity(file: str, name: str) -> tuple[str, dict[str, int]]:
    """Returns the path of a raw file, and its identity. Raises LayoutError if this file must not refer to it."""
    from solar.io.hdf5 import external_files

    try:
        path = os.path.abspath(
            external_files.raw_file(file, name)
        )  # relative to the working directory, as libhdf5 has it
    except external_files.Unreadable as error:
        raise LayoutError(f"{file}: {error}") from None
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links
        raise Unresolved(f"its raw file {name} cannot be found: {error}") from None
    if os.environ.get("HDF5_EXTFILE_PREFIX"):
        raise Unresolved("HDF5_EXTFILE_PREFIX is set")
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        raise Unresolved(f"there is no file {path}") from None
    if not os.path.isfile(path):
        raise Unresolved(f"{path} is no plain file")
    return path, identity_facts(facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_ctime_ns)


def _from_afar(file: str, name: str) -> tuple[str, dict[str, int]]:
    """Returns the URL and identity of a raw file beside a remote file, which has no working directory."""
    url = sibling(file, name)
    if url is None:
        raise Unresolved(f"its raw file {name} does not lie beside it, and from afar nothing leads elsewhere")
    try:
        return url, identity_facts(*_native.far_look(url))
    except ReadError as error:
        raise Unresolved(f"of its raw file: {error}") from None


def identity_facts(nbytes: int, mtime_ns: int, inode: int, ctime_ns: int) -> dict[str, int]:
    return {"file_nbytes": nbytes, "file_mtime_ns": mtime_ns, "file_inode": inode, "file_ctime_ns": ctime_ns}


# The sources of a virtual dataset: where libhdf5 finds their files, and what these say of the datasets.


# There may be thousands of sources, and making a Path takes as long as a stat of its file.
# ruff: noqa: PTH100, PTH114, PTH119, PTH120


THREADS = 8  # threads that open files at the same time
FAR_THREADS = 64  # and files elsewhere, each of which is waited for
SURVEYED = 16  # datasets of one file, from which on it is read whole

Key = tuple[str, str]  # a file and the name of a dataset in it


def found_in(
    virtual: str, sources: Sequence[Key], failure: type[Exception]
) -> list[tuple[str, _native.Dataset | None]]:
    """Returns the file of each source of this virtual file, and what it says about the dataset.

    None stands for sources whose file or dataset does not exist: libhdf5 gives the fill value for their rows. `failure`
    stands for those where it is not certain what libhdf5 would do.
    """
    if is_url(virtual):
        return _read_from_afar(virtual, sources, failure)
    files = {name: source_path(virtual, name) for name in dict.fromkeys(file for file, _ in sources)}
    places = [(files[file], "/" + name.strip("/")) for file, name in sources]
    by_file: dict[str, list[str]] = {}
    for file, name in places:
        if file is not None:
            by_file.setdefault(file, []).append(name)
    known: dict[Key, _native.Dataset | None] = {}
    by_name: dict[str, list[str]] = {}
    for file, names in by_file.items():
        if len(names) >= SURVEYED:  # each name alone would have the groups read again
            known.update(_survey(file, set(names), failure))
        else:
            for name in names:
                by_name.setdefault(name, []).append(file)
    for name, holding in by_name.items():
        known.update(zip([(file, name) for file in holding], _of_many(holding, name, failure), strict=True))
    found = []
    for file, name in places:
        dataset = None if file is None else known[file, name]
        found.append(((dataset["path"] if dataset else "") or file or "", dataset))
    return found


def source_path(virtual: str, name: str) -> str | None:
    """Returns the path at which libhdf5 finds a source's file; None if it does not."""
    return virtual if name == "." else next(filter(os.path.lexists, _candidates(virtual, name)), None)


def _candidates(virtual: str, name: str) -> Iterator[str]:
    """Yields where libhdf5 looks for a source's file, in this order (its H5F_prefix_open_file)."""
    folder, prefix = os.path.dirname(virtual), os.environ.get("HDF5_VDS_PREFIX", "")
    local = os.path.basename(name) if name.startswith("/") else name
    if name.startswith("/"):
        yield name
    for one in filter(None, prefix.split(":")):
        yield f"{one}/{local}"
    if prefix:
        yield f"{prefix.replace('${ORIGIN}', folder, 1) if prefix.startswith('${ORIGIN}') else prefix}/{local}"
    yield f"{folder}/{local}"
    yield os.path.abspath(local)
    if os.path.islink(virtual):
        yield f"{os.path.dirname(os.path.realpath(virtual))}/{local}"


def _read_from_afar(
    virtual: str, sources: Sequence[Key], failure: type[Exception]
) -> list[tuple[str, _native.Dataset | None]]:
    """Returns what `found_in` does, for a remote file whose sources lie beside it. A forbidden one is not missing."""

    def found(source: Key) -> tuple[str, _native.Dataset | None]:
        file, name = source
        # libhdf5 also looks beside it for an absolute name
        url = virtual if file == "." else sibling(virtual, file.rpartition("/")[2] if file.startswith("/") else file)
        if url is None:
            raise failure(f"its source {file} does not lie beside it, and from afar nothing leads elsewhere")
        try:
            if url != virtual:
                _native.far_look(url)
        except ReadError as error:
            if error.errno != errno.ENOENT:
                raise failure(f"of its source: {error}") from None
            if file.startswith("/"):
                raise failure(f"its source {file} does not lie beside it, and from afar nothing leads there") from None
            return url, None
        dataset = _one(url, "/" + name.strip("/"), failure)
        return (dataset["path"] if dataset else "") or url, dataset

    with ThreadPoolExecutor(FAR_THREADS) as threads:
        return [*threads.map(found, sources)]


def _survey(file: str, names: set[str], failure: type[Exception]) -> Iterator[tuple[Key, _native.Dataset | None]]:
    try:
        read = _native.read_metadata(file)
    except SolarError as error:
        raise failure(f"of its source: {error}") from None
    there = {one["name"]: one for one in read["datasets"] + read["linked"]}
    for name in names:
        yield (file, name), there[name] if name in there else _one(file, name, failure)


def _of_many(files: list[str], name: str, failure: type[Exception]) -> list[_native.Dataset | None]:
    try:
        return [one["datasets"][0] for one in _native.read_metadata_of_many(files, name, THREADS)]
    except SolarError:  # of one of them at least
        return [_one(file, name, failure) for file in files]


def _one(file: str, name: str, failure: type[Exception]) -> _native.Dataset | None:
    try:
        return _native.read_metadata(file, name)["datasets"][0]
    except SolarError as error:
        said = str(error)
        lost = isinstance(error, LayoutError) and ": there is no " in said and "; on the way: " not in said
        if lost and _is_group(file, name.rpartition("/")[0]):  # where that is missing, too, libhdf5 gives up
            return None
        raise failure(f"of its source: {said}") from None


def _is_group(file: str, name: str) -> bool:
    try:
        check_group(file, name) if name else None
    except SolarError:
        return False
    return True


def check_group(file: str, name: str) -> None:
    """Raises SolarError if this is no group, or if the file cannot be read. It does not look into the group."""
    try:
        _native.read_metadata(file, name)
    except SolarError as error:
        if str(error).endswith(": it is a group, not a dataset"):
            return
        raise
    raise LayoutError(f"{file}: {name}: it is a dataset, not a group")


OUTSIDE = ("virtual", "external")  # storages whose values are elsewhere
VIRTUAL_DEPTH = 8  # virtual datasets within each other
MOST_STRETCHES = 100_000  # of rows; with more, planning would take longer than libhdf5
MOST_NAMED = 8  # raw files in a message
IRREGULAR = "it maps what is no regular pattern of rows"
UNLIMITED = 2**64 - 1  # HDF5's word for "as many as there are"


def resolved(
    files: Sequence[str], datasets: list[_native.Dataset], per_file: bool
) -> tuple[list[_native.Dataset], list[Made]]:
    """Returns the datasets with present shapes, and what each is made of; none if libhdf5 has to read it."""
    if all(one["storage"] not in OUTSIDE or one["problem"] for one in datasets):
        return datasets, []
    now, made = [], []
    for file, dataset in zip(files, datasets, strict=True):
        if dataset["storage"] in OUTSIDE and not dataset["problem"]:
            shape, one = _resolve(file, dataset, per_file)
            dataset = {**dataset, "shape": shape, "elsewhere": one if isinstance(one, str) else ""}
        else:
            one = whole_dataset(file, dataset)
        now.append(dataset)
        made.append(one)
    natively = [one for one in made if not isinstance(one, str)]
    return now, natively if len(natively) == len(made) else []


def left_to_libhdf5(datasets: list[_native.Dataset], reason: str) -> list[_native.Dataset]:
    """Returns the datasets, marked as unreadable by native code for this reason if their values are elsewhere."""
    return [{**one, "elsewhere": virtual_reason(one, reason)} if one["storage"] in OUTSIDE else one for one in datasets]


def _resolve(file: str, dataset: _native.Dataset, per_file: bool) -> tuple[list[int], Made | str]:
    try:
        facts = _sources_of_dataset(file, dataset["target"] or dataset["name"])
    except SolarError as error:
        if dataset["storage"] == "virtual" or isinstance(error, LayoutError):  # its shape is not known; it is refused
            raise
        return dataset["shape"], virtual_reason(dataset, str(error))
    shape = dataset["shape"] if facts["shape"] is None else list(facts["shape"])
    try:
        if facts["shape"] is None:
            shape = _grown(file, dataset, facts)
        if per_file:
            raise Unresolved('with samples="files" only whole datasets of a file are read natively')
        made = resolve(file, {**dataset, "shape": shape}, facts, 0)
        if (place := inside_a_chunk(made)) is not None:
            raise Unresolved(f"its rows begin inside a chunk of {target_place(place.file, place.dataset)}")
        if len(made.rows) > MOST_STRETCHES:
            raise _too_many(len(made.rows))
    except Unresolved as why:
        raw = ", ".join(dict.fromkeys(str(name) for name, *_ in facts["external"][:MOST_NAMED]))
        return shape, virtual_reason(dataset, f"{why}; its raw files: {raw}" if raw else str(why))
    return shape, made


def virtual_reason(dataset: _native.Dataset, reason: str) -> str:
    what = "a virtual dataset" if dataset["storage"] == "virtual" else "stored in other, raw files"
    return f"it is {what}, and {reason}"


def target_place(file: str, dataset: _native.Dataset) -> str:
    return f"{file}: {dataset['target'] or dataset['name']}"


def _too_many(stretches: int) -> Unresolved:
    return Unresolved(f"it is made of {stretches:,} stretches of rows, more than {MOST_STRETCHES:,}")


def resolve(file: str, dataset: _native.Dataset, facts: dict[str, Any], depth: int) -> Made:
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
    """Returns the sources of a virtual dataset that do not exist, with file and dataset as it names them."""
    facts = _sources_of_dataset(file, name)
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
    """Returns the present shape of a dataset in a remote file that grows with its sources, by libhdf5's rules."""
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
            filled = count_sources(file, given) * block
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


def count_sources(file: str, given: dict[str, Any]) -> int:
    """Returns how many consecutive sources of a numbered name there are."""
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
        begin, piece = mapping_rows(one, shape, source, there)
        at.append(begin)
        pieces.append(piece)
    return _cover(file, dataset, facts["fill"], at, pieces)


def _blocks(given: dict[str, Any], rows: int) -> list[Filling]:
    """Returns the mappings of one entry: one, or one for each block of rows if its names contain %b."""
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
    """Returns what a source is made of; None if it is missing."""
    if source is None:
        return None
    where = target_place(file, source)
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
        return whole_dataset(file, source)
    try:
        facts = _sources_of_dataset(file, source["target"] or source["name"])
    except SolarError as error:
        raise Unresolved(f"of its source: {error}") from None
    source["shape"] = _grown(file, source, facts) if facts["shape"] is None else list(facts["shape"])
    return resolve(file, source, facts, depth + 1)


def mapping_rows(one: Filling, shape: list[int], made: Made, source: _native.Dataset) -> tuple[Rows, Made]:
    """Returns where the rows of a mapping begin, and what they are made of."""
    inner = source["shape"]
    if not one.taken:  # all of a source has no extent in the file
        one = one._replace(taken=[[0, 1, 1, length] for length in inner])
    if _in_part(one.to, shape):
        raise Unresolved("its rows are made of several sources, side by side")
    if _in_part(one.taken, inner):
        raise Unresolved(f"it takes a part of each row of {target_place(one.file, source)}")
    to = _side(one.to[0], shape[0])
    taken = _side(one.taken[0], inner[0]) if inner else Side(0, 1, 1, 1)
    if len(inner) == len(shape) and inner[1:] == shape[1:]:
        if 0 < to.total == to.block == taken.total == taken.block and len(made.rows) == 1:  # nearly all there are
            return np.array([to.start]), made._replace(first=made.first + taken.start, rows=np.array([to.total]))
        begin, first, rows = _pair_stretches(to, taken, one)
        at, found = through(first, rows, made)
        starts = np.concatenate(([0], np.cumsum(rows)))  # of each run among the mapped rows
        return _place(begin, starts, at), found
    if len(inner) == len(shape) - 1 and (not inner or inner[1:] == shape[2:]):
        return _stack(one, shape, made, to, taken, source)
    raise Unresolved(f"its source {target_place(one.file, source)} has rows of another shape")


def _in_part(sides: list[list[int]], shape: list[int]) -> bool:
    """Returns whether not all of each row is selected."""
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


def _pair_stretches(to: Side, taken: Side, one: Filling) -> tuple[Rows, Rows, Rows]:
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


def _place(begin: Rows, starts: Rows, at: Rows) -> Rows:
    """Returns where rows are in the virtual dataset, by their number among those mapped."""
    run = np.searchsorted(starts, at, "right") - 1
    placed: Rows = begin[run] + at - starts[run]
    return placed


def _stack(
    one: Filling, shape: list[int], made: Made, to: Side, taken: Side, source: _native.Dataset
) -> tuple[Rows, Made]:
    """Rows of which each is several rows of a source, or all of it."""
    where = target_place(one.file, source)
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


def _cover(file: str, dataset: _native.Dataset, fill: str | None, at: list[Rows], pieces: list[Made]) -> Made:
    """Returns the stretches in the order of their rows; what nothing covers has the fill value."""
    nothing: _native.Dataset = {
        **dataset,
        "storage": "contiguous",
        "elsewhere": "",
        "address": UNDEFINED,
        "filters": [],
    }
    nothing["fill"] = bytes.fromhex(fill or "")
    gaps = Place(file, nothing, nothing)
    found = join_stretches([Made([gaps], *[np.empty(0, np.int64)] * 3), *pieces])
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


def _sources_of_dataset(file: str, name: str) -> Any:
    from solar.io.hdf5 import guarded_reader  # starts a process of libhdf5: only where native code does not know it

    return guarded_reader.sources_of_dataset(file, name)
