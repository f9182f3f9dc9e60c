"""The Layouts of arrays of Zarr stores, in which each chunk is a place in a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError, SolarError
from solar.io.channels.progress import awaited
from solar.io.hdf5.chunk_index import Folder, running
from solar.io.hdf5.paths import hint, is_zarr, without_mark
from solar.io.hdf5.zarr_arrays import ZarrArray, array_of_node
from solar.io.hdf5.zarr_far import FarStore
from solar.io.hdf5.zarr_references import ReferenceStore
from solar.io.hdf5.zarr_stores import FAR_THREADS, Facts, FolderStore, StoredCells, ZipStore, bytes_at
from solar.io.system.identity import ZARR_MARKS
from solar.values import Filter, Form, Layout, is_url

MOST_NODES, DEEPEST = 100_000, 64  # arrays and groups that are listed, and groups within each other
MOST_HINTED = 1000  # arrays and groups that are looked at for a better name
MOST_IN_SHARD = 16 << 20  # chunks
INDEX_THREADS = 8  # threads that read the indexes of shards
NO_CHUNK = 2**64 - 1

Store = FolderStore | ZipStore | FarStore | ReferenceStore


def store_at(path: str, cache: Folder) -> Store:
    """Returns the store at a path, or at a URL."""
    if path.endswith(".json") and without_mark(path) == path:
        return ReferenceStore(path, cache)
    if path.endswith(".zip"):
        return ZipStore(path)
    return FarStore(path) if is_url(path) else FolderStore(path)


# --- arrays and groups ----


def _metadata_of(store: Store, key: str) -> tuple[str, dict[str, Any] | None]:
    """Returns the key of an array's metadata, and the metadata; None for a group, an empty key for nothing."""
    above = f"{key}/" if key else ""
    for mark in ZARR_MARKS:
        node = store.node(above + mark)
        if node is None:
            continue
        if mark == ".zgroup":
            return above + mark, None
        if mark == "zarr.json" and node.get("node_type") != "array":
            if node.get("node_type") != "group":
                raise LayoutError(f"{store.place(above + mark)}: it describes neither an array nor a group")
            return above + mark, None
        if node.get("zarr_format") != (3 if mark == "zarr.json" else 2):
            raise LayoutError(f"{store.place(above + mark)}: it is of another version of Zarr than its name says")
        return above + mark, node
    return "", None


def _check_there(store: Store) -> None:
    """Raises LayoutError if a store has no metadata at its root, so that it is none."""
    if _metadata_of(store, "")[0]:
        return
    meant = ""
    with suppress(SolarError):
        if isinstance(store, FarStore):
            meant = f"; {store.beside()}"
        elif inside := [name for name in store.names("") if _metadata_of(store, name)[0]]:
            meant = f"; what is there lies in its folder {inside[0]}"
    raise LayoutError(
        f"{store.path}: there is no Zarr store: asked for {', '.join(ZARR_MARKS[:-1])} and {ZARR_MARKS[-1]}, and found "
        f"none{meant}"
    )


def _array_keys(store: Store) -> Iterator[tuple[str, LayoutError | None]]:
    """Yields the keys of all arrays, in the order of a tree; with an error, those of nodes that cannot be read."""
    keys, nodes = [""], 0
    while keys:
        key = keys.pop()
        nodes += 1
        if nodes > MOST_NODES:
            raise LayoutError(f"{store.path}: it has more than {MOST_NODES:,} arrays and groups: name those to read")
        try:
            metadata, node = _metadata_of(store, key)
        except LayoutError as error:
            yield key, error
            continue
        if node is not None:
            yield key, None
        elif metadata and key.count("/") < DEEPEST:
            keys += [f"{key}/{name}".lstrip("/") for name in reversed(store.names(key))]


def _key_of(store: Store, name: str) -> str:
    key = name.strip("/")
    if "*" in key:
        raise LayoutError(f"{store.path}: {name}: stars mean groups of HDF5: of a Zarr store name each array")
    if key and ("\0" in key or any(part in ("", ".", "..") for part in key.split("/"))):
        raise LayoutError(f"{store.path}: {name!r} is no name of an array")
    return key


def _array_in(store: Store, name: str) -> tuple[ZarrArray, StoredCells]:
    key = _key_of(store, name)
    metadata, node = _metadata_of(store, key)
    if node is None:
        if not metadata:
            _check_there(store)
        what = "it is a group, not an array" if metadata else "there is no such array"
        raise LayoutError(f"{store.path}: {name}: {what}{_hint_in(store, name)}")
    array = array_of_node(node, store.place(metadata))
    try:
        return array, store.cells(key, array, metadata)
    except OSError as error:
        raise ReadError(error.errno, error.strerror, error.filename) from None


def _hint_in(store: Store, name: str) -> str:
    """Suggests names of arrays; empty where the store does not tell what it has."""
    try:
        shapes = {f"/{one}": () for one, error in islice(_array_keys(store), MOST_HINTED) if error is None}
    except SolarError as error:
        return f", and its names cannot be told: {str(error).removeprefix(f'{store.path}: ')}"
    return f"; {hint(name, shapes, store.path)}"


def zarr_layouts(paths: Sequence[str], names: Sequence[str], cache: Folder) -> list[Layout]:
    """Returns the Layouts of arrays of Zarr stores; of several stores one after another."""
    stores = _stores_at(paths, cache)
    return [_layout_of(stores, name) for name in names]


def _stores_at(paths: Sequence[str], cache: Folder) -> list[Store]:
    if other := next((path for path in paths if not is_zarr(path)), ""):
        raise LayoutError(f"{other}: it is no Zarr store, but {paths[0]} is: a data set is of one kind")
    return [store_at(path, cache) for path in paths]


def survey_stores(paths: Sequence[str], cache: Folder) -> dict[str, Layout]:
    """Returns the Layout of every array of the first store, in all of them; one that cannot be read says why."""
    found, stores = {}, _stores_at(paths, cache)
    for store in stores:
        _check_there(store)
    for key, problem in _array_keys(stores[0]):
        name = f"/{key}"
        try:
            if problem is not None:
                raise problem
            found[name] = _layout_of(stores, name)
        except SolarError as error:
            found[name] = Layout(
                name=name, paths=(paths[0],), file_nbytes=np.zeros(1, np.uint64), file_mtime_ns=np.zeros(1, np.int64),
                shape=(), dtype=np.dtype("V0"), storage="chunked", index="Zarr", reader="none", reason=str(error),
            )  # fmt: skip
    return found


# --- from arrays to a Layout ----


class _ChunkPlaces(NamedTuple):
    """Where the chunks of an array lie."""

    position: NDArray[np.uint64]  # of each in the grid of chunks, row by row
    offset: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    file: NDArray[np.int32]


def _layout_of(stores: Sequence[Store], name: str) -> Layout:
    arrays, cells = zip(*(_array_in(store, name) for store in stores), strict=True)
    first: ZarrArray = arrays[0]
    for store, array in zip(stores, arrays, strict=True):
        if (array.dtype, array.shape[1:], bool(array.shape)) != (first.dtype, first.shape[1:], bool(first.shape)):
            raise LayoutError(
                f"{store.path}: {name} is of shape {array.shape} and type {array.dtype}, which does not fit "
                f"{first.shape} and {first.dtype} in {stores[0].path}"
            )
    if len(stores) > 1 and not first.shape:
        raise LayoutError(f"{stores[0].path}: {name} is a scalar, not rows of samples")
    lengths = [array.shape[0] if array.shape else 1 for array in arrays]
    if sum(lengths) >= 2**62:
        raise LayoutError(f"{stores[0].path}: {name} has more samples than can be counted")
    forms = [Form(array.chunk or (1,), array.filters, array.fill) for array in arrays]
    numbers = list(dict.fromkeys(forms))
    begins = running([len(own.paths) for own in cells])
    facts = np.array([one for own in cells for one in own.facts], object).reshape(-1, 4).T
    several = begins[-1] > len(stores)  # files of a store
    return Layout(
        name=f"/{name.strip('/')}",
        paths=tuple(path for own in cells for path in own.paths),
        file_nbytes=facts[0].astype(np.uint64),
        file_mtime_ns=facts[1].astype(np.int64),
        file_inode=facts[2].astype(np.uint64),
        file_ctime_ns=facts[3].astype(np.int64),
        shape=(sum(lengths), *first.shape[1:]) if first.shape else (),
        dtype=first.dtype,
        storage="chunked",
        index=f"Zarr {first.version}",
        reader="direct",
        reason="",
        forms=tuple(numbers),
        part_file=begins[:-1].astype(np.int32),
        part_form=np.array([numbers.index(form) for form in forms], np.int32),
        part_first=running(lengths),
        dataset_file=(begins[:-1] if several else begins[:0]).astype(np.int32),
        dataset_first=running(lengths) if several else np.empty(0, np.int64),
        asked=tuple(store.path for store in stores) if several else (),
        **_chunk_arrays_of([_chunk_places(*one) for one in zip(arrays, cells, strict=True)], begins, several),
    )


def _chunk_arrays_of(tables: Sequence[_ChunkPlaces], begins: NDArray[np.int64], several: bool) -> dict[str, Any]:
    """Returns the chunk arrays of a Layout. `begins`: the first file of each store, which is a part."""
    counts = [len(own.position) for own in tables]
    order = np.concatenate([np.argsort(own.position) + at for own, at in zip(tables, running(counts), strict=False)])
    position = np.concatenate([own.position for own in tables])[order]
    file = np.concatenate([own.file + at for own, at in zip(tables, begins, strict=False)])[order]
    dense = all(np.array_equal(np.sort(own.position), np.arange(len(own.position))) for own in tables)
    return {
        "part_chunks": running(counts),
        "chunk_index": np.empty(0, np.uint64) if dense else position,
        "chunk_offset": np.concatenate([own.offset for own in tables])[order],
        "chunk_nbytes": np.concatenate([own.nbytes for own in tables])[order],
        "chunk_mask": np.zeros(len(position), np.uint32),
        "chunk_file": file.astype(np.int32) if several else np.empty(0, np.int32),
    }


def _chunk_places(array: ZarrArray, cells: StoredCells) -> _ChunkPlaces:
    grid = tuple(-(-size // chunk) for size, chunk in zip(array.shape, array.chunk, strict=True))
    found = _chunks_in_shards(array, cells, grid) if array.shards is not None else cells
    if not array.filters and np.any(wrong := found.nbytes != array.chunk_nbytes):
        at = int(np.flatnonzero(wrong)[0])
        raise LayoutError(
            f"{cells.paths[int(found.file[at])]}: a chunk has {int(found.nbytes[at]):,} bytes where "
            f"{array.chunk_nbytes:,} are expected"
        )
    position = np.zeros(len(found.at), np.int64)
    for axis, size in enumerate(grid):
        position = position * size + found.at[:, axis]
    return _ChunkPlaces(position.astype(np.uint64), found.offset, found.nbytes, found.file)


def _chunks_in_shards(array: ZarrArray, cells: StoredCells, grid: Sequence[int]) -> StoredCells:
    """Returns the chunks of shards, by the indexes of these."""
    inside = tuple(size // chunk for size, chunk in zip(array.stored, array.chunk, strict=True))
    if math.prod(inside) > MOST_IN_SHARD:
        raise LayoutError(f"{cells.paths[0]}: a shard has more than {MOST_IN_SHARD:,} chunks")

    def places(number: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        file, nbytes = int(cells.file[number]), int(cells.nbytes[number])
        path = cells.paths[file]
        index = shard_index((path, cells.facts[file]), int(cells.offset[number]), nbytes, math.prod(inside), array)
        there = np.flatnonzero((index != NO_CHUNK).any(axis=1))
        offset, size = index[there].T
        if np.any(wrong := (size > nbytes) | (offset > nbytes - np.minimum(size, nbytes))):
            at = int(there[np.flatnonzero(wrong)[0]])
            raise LayoutError(f"{path}: chunk {at} of this shard leaves its {nbytes:,} bytes: the shard is damaged")
        return there, index[there] + np.array([cells.offset[number], 0], np.uint64)

    many = FAR_THREADS if any(map(is_url, cells.paths)) else INDEX_THREADS
    with ThreadPoolExecutor(many) as threads, awaited(f"reading the shards of {cells.paths[0]}"):
        found = list(threads.map(places, range(len(cells.at))))
    shard = np.repeat(np.arange(len(found)), [len(there) for there, _ in found])
    there = np.concatenate([np.empty(0, np.int64), *(one for one, _ in found)])
    extents = np.concatenate([np.empty((0, 2), np.uint64), *(one for _, one in found)])
    own = np.stack(np.unravel_index(there, inside), axis=1) if inside else np.empty((len(there), 0), np.int64)
    at = cells.at[shard] * np.array(inside, np.int64) + own
    needed = (at < np.array(grid, np.int64)).all(axis=1)
    shard, extents = shard[needed], extents[needed]
    return cells._replace(at=at[needed], file=cells.file[shard], offset=extents[:, 0], nbytes=extents[:, 1])


def shard_index(file: tuple[str, Facts], begin: int, nbytes: int, chunks: int, array: ZarrArray) -> NDArray[np.uint64]:
    """Returns the offset and the size of each chunk of a shard, which lies in a file from `begin` on."""
    shards, path = array.shards, file[0]
    assert shards is not None, "called for shards"
    decoded = 16 * chunks
    size = decoded + 4 * len(shards.filters)
    if size > nbytes:
        raise LayoutError(f"{path}: this shard of {nbytes:,} bytes is shorter than its index of {size:,} bytes")
    stored = bytes_at(file, begin + (nbytes - size if shards.at_end else 0), size)
    try:
        found = _native.decode([_as_native(one) for one in shards.filters], 1, decoded, 0, stored)
    except SolarError as error:
        raise LayoutError(f"{path}: the index of this shard is damaged: {error}") from None
    return np.frombuffer(found, f"{shards.order}u8").astype(np.uint64).reshape(chunks, 2)


def _as_native(one: Filter) -> tuple[int, int, list[int]]:
    return one.id, one.flags, list(one.values)
