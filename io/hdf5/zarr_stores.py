"""Zarr stores, folders and zip files: the Layouts of their arrays, in which each chunk is a place in a file.

A store comes from anywhere. Only plain files in its folder are read, wherever links lead, and every place is compared
with the size of its file.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError, SolarError
from solar.io.channels.progress import awaited
from solar.io.hdf5.chunk_index import running
from solar.io.hdf5.paths import hint
from solar.io.hdf5.zarr_arrays import ZarrArray, array_of_node, node_of
from solar.io.system.identity import ZARR_MARKS, is_zarr_folder
from solar.values import Filter, Form, Layout

# There may be millions of files, and making a Path takes as long as a stat of its file.
# ruff: noqa: PTH112, PTH113, PTH116, PTH118

MOST_METADATA = 16 << 20  # bytes of the metadata of one array or group
MOST_NODES, DEEPEST = 100_000, 64  # arrays and groups that are listed, and groups within each other
MOST_IN_SHARD = 16 << 20  # chunks
INDEX_THREADS = 8  # threads that read the indexes of shards
NO_CHUNK = 2**64 - 1
ZIP_LOCAL, ZIP_LOCAL_NBYTES = b"PK\x03\x04", 30

Facts = tuple[int, int, int, int]  # bytes, mtime_ns, inode, ctime_ns of a file


class StoredCells(NamedTuple):
    """What a store has of the chunks, or shards, of an array."""

    at: NDArray[np.int64]  # [n, axes]: places in the grid
    file: NDArray[np.int32]  # which of `paths`
    offset: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    paths: list[str]  # the first one is what the metadata lies in
    facts: list[Facts]


def is_store(path: str) -> bool:
    """Returns whether it is a Zarr store: a zip file by its name, or a folder with the metadata of a node."""
    if path.endswith(".zip"):
        return os.path.isfile(path)
    return os.path.isdir(path) and is_zarr_folder(path)


def _facts_of(found: os.stat_result) -> Facts:
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns


def _open_at_once(name: str, _: int) -> int:
    """Opens a file to read it, and waits for nobody if it is a pipe."""
    return os.open(name, os.O_RDONLY | os.O_NONBLOCK)


def _number_below(text: str, limit: int) -> int:
    """Returns the number that a part of a key is; -1 where it is none of a grid of this many cells."""
    if not (text.isascii() and text.isdigit() and len(text) < 20) or (text[0] == "0" and text != "0"):
        return -1
    return number if (number := int(text)) < limit else -1


class FolderStore:
    """A store whose keys are the paths of files in a folder."""

    def __init__(self, path: str) -> None:
        self.path, self._real = path, os.path.realpath(path)

    def place(self, key: str) -> str:
        """Returns the path of a key."""
        return os.path.join(self.path, key)

    def text(self, key: str) -> bytes | None:
        """Returns the bytes of some metadata; None where there is none."""
        path = self.place(key)
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise LayoutError(f"{path}: it cannot be read: {error}") from None
        self._check_inside(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_METADATA:
            raise LayoutError(f"{path}: it is no file of at most {MOST_METADATA:,} bytes")
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                return file.read(MOST_METADATA)
        except OSError as error:
            raise ReadError(error.errno, error.strerror, path) from None

    def names(self, key: str) -> list[str]:
        """Returns the folders in that of a group."""
        with os.scandir(self.place(key)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def _check_inside(self, path: str) -> None:
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(self._real.rstrip("/") + "/"):
            raise LayoutError(
                f"{path}: it leads to {real}, which is not in {self._real}: a store from elsewhere could read any file "
                "of yours so. If you trust it, copy the file there"
            )

    def cells(self, key: str, array: ZarrArray, metadata: str) -> StoredCells:
        """Returns the files of an array's chunks, by listing its folder: as many are looked at as there are."""
        grid = _grid_of(array)
        path = self.place(metadata)
        own = _facts_of(os.stat(path))
        files: list[tuple[tuple[int, ...], str, Facts]] = []
        with awaited(f"listing the chunks of /{key}"):
            for place, entry in self._entries(self.place(key), array, grid):
                if entry.is_symlink():
                    self._check_inside(entry.path)
                found = entry.stat()
                if stat.S_ISDIR(found.st_mode):
                    continue
                if not stat.S_ISREG(found.st_mode):
                    raise LayoutError(f"{entry.path}: it is no plain file")
                files.append((place, entry.path, _facts_of(found)))
        files.sort()  # or the order would be the folder's
        return StoredCells(
            np.array([place for place, *_ in files], np.int64).reshape(len(files), len(grid)),
            np.arange(1, len(files) + 1, dtype=np.int32),
            np.zeros(len(files), np.uint64),
            np.array([one[0] for *_, one in files], np.uint64),
            [path, *(name for _, name, _ in files)],
            [own, *(one for *_, one in files)],
        )

    def _entries(
        self, folder: str, array: ZarrArray, grid: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], os.DirEntry[str]]]:
        """Yields the entries of a folder that are named as chunks of an array are."""
        if not grid or array.separator == ".":
            with os.scandir(folder) as entries:
                for entry in entries:
                    if (place := place_of_key(entry.name, array, grid)) is not None:
                        yield place, entry
            return
        first = os.path.join(folder, array.prefix)
        self._check_inside(first)
        folders: list[tuple[str, tuple[int, ...]]] = [(first, ())] if os.path.isdir(first) else []
        while folders:
            where, above = folders.pop()
            with os.scandir(where) as entries:
                for entry in entries:
                    if (number := _number_below(entry.name, grid[len(above)])) < 0:
                        continue
                    if len(above) + 1 == len(grid):
                        yield (*above, number), entry
                    elif entry.is_symlink():  # such links could lead in circles
                        raise LayoutError(f"{entry.path}: it is a link in place of a folder of chunks: copy that there")
                    elif entry.is_dir():
                        folders.append((entry.path, (*above, number)))


def place_of_key(key: str, array: ZarrArray, grid: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the place of a chunk in the grid, by its key below that of its array; None for other keys."""
    parts = key.split(array.separator, len(grid) + 1)
    if array.prefix and parts.pop(0) != array.prefix:
        return None
    if not grid:
        return () if parts == ([] if array.prefix else ["0"]) else None
    if len(parts) != len(grid):
        return None
    place = tuple(map(_number_below, parts, grid))
    return None if min(place) < 0 else place


class ZipStore:
    """A store whose keys are the names of what a zip file holds, not compressed, as Zarr writes them."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file, zipfile.ZipFile(file) as members:  # noqa: PTH123
                self._facts = _facts_of(os.fstat(file.fileno()))
                self._members = {name: one for name, one in members.NameToInfo.items() if not name.endswith("/")}
        except OSError as error:
            raise ReadError(error.errno, error.strerror, path) from None
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, RuntimeError) as error:
            raise LayoutError(f"{path}: it is no zip file that can be read: {error}") from None

    def place(self, key: str) -> str:
        """Returns the name of a key in messages."""
        return f"{self.path}: {key}"

    def _extent(self, file: int, key: str, member: zipfile.ZipInfo) -> tuple[int, int]:
        """Returns where the bytes of a member begin, and how many there are."""
        if (
            member.compress_type != zipfile.ZIP_STORED
            or member.flag_bits & 1
            or member.compress_size != member.file_size
        ):
            raise LayoutError(
                f"{self.place(key)}: it is compressed by zip, or encrypted: make the zip file without that, "
                "as zarr.storage.ZipStore does"
            )
        head = os.pread(file, ZIP_LOCAL_NBYTES, member.header_offset) if member.header_offset >= 0 else b""
        if len(head) < ZIP_LOCAL_NBYTES or head[:4] != ZIP_LOCAL:
            raise LayoutError(f"{self.place(key)}: the zip file is damaged there")
        offset = member.header_offset + ZIP_LOCAL_NBYTES + sum(struct.unpack_from("<HH", head, 26))
        if offset + member.file_size > self._facts[0]:
            raise LayoutError(f"{self.place(key)}: it leaves the zip file")
        return offset, member.file_size

    def text(self, key: str) -> bytes | None:
        """Returns the bytes of some metadata; None where there is none."""
        if (member := self._members.get(key)) is None:
            return None
        if member.file_size > MOST_METADATA:
            raise LayoutError(f"{self.place(key)}: it has more than {MOST_METADATA:,} bytes")
        with open(self.path, "rb") as file:  # noqa: PTH123
            offset, nbytes = self._extent(file.fileno(), key, member)
            return os.pread(file.fileno(), nbytes, offset)

    def names(self, key: str) -> list[str]:
        """Returns the folders in that of a group."""
        above = f"{key}/" if key else ""
        below = (name[len(above) :] for name in self._members if name.startswith(above))
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def cells(self, key: str, array: ZarrArray, metadata: str) -> StoredCells:
        """Returns the places of an array's chunks in the zip file."""
        above, grid = f"{key}/" if key else "", _grid_of(array)
        places, extents = [], []
        with open(self.path, "rb") as file:  # noqa: PTH123
            for name, member in self._members.items():
                if name.startswith(above) and (place := place_of_key(name[len(above) :], array, grid)) is not None:
                    places.append(place)
                    extents.append(self._extent(file.fileno(), name, member))
        offset, nbytes = np.array(extents, np.uint64).reshape(-1, 2).T
        at = np.array(places, np.int64).reshape(len(places), len(grid))
        return StoredCells(at, np.zeros(len(at), np.int32), offset, nbytes, [self.path], [self._facts])


Store = FolderStore | ZipStore


def store_at(path: str) -> Store:
    """Returns the store at a path."""
    return ZipStore(path) if path.endswith(".zip") else FolderStore(path)


def _grid_of(array: ZarrArray) -> tuple[int, ...]:
    return tuple(-(-size // one) for size, one in zip(array.shape, array.stored, strict=True))


# --- arrays and groups ----


def _metadata_of(store: Store, key: str) -> tuple[str, dict[str, Any] | None]:
    """Returns the key of an array's metadata, and the metadata; None for a group, an empty key for nothing."""
    above = f"{key}/" if key else ""
    for mark in ZARR_MARKS:
        text = store.text(above + mark)
        if text is None:
            continue
        if mark == ".zgroup":
            return above + mark, None
        node = node_of(text, store.place(above + mark))
        if mark == "zarr.json" and node.get("node_type") != "array":
            if node.get("node_type") != "group":
                raise LayoutError(f"{store.place(above + mark)}: it describes neither an array nor a group")
            return above + mark, None
        if node.get("zarr_format") != (3 if mark == "zarr.json" else 2):
            raise LayoutError(f"{store.place(above + mark)}: it is of another version of Zarr than its name says")
        return above + mark, node
    return "", None


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
        shapes = {f"/{one}": () for one, error in _array_keys(store) if error is None}
        what = "it is a group, not an array" if metadata else "there is no such array"
        raise LayoutError(f"{store.path}: {name}: {what}; {hint(name, shapes, store.path)}")
    array = array_of_node(node, store.place(metadata))
    try:
        return array, store.cells(key, array, metadata)
    except OSError as error:
        raise ReadError(error.errno, error.strerror, error.filename) from None


def zarr_layouts(paths: Sequence[str], names: Sequence[str]) -> list[Layout]:
    """Returns the Layouts of arrays of Zarr stores; of several stores one after another."""
    stores = []
    for path in paths:
        if not is_store(path):
            raise LayoutError(f"{path}: it is no Zarr store, but {paths[0]} is: a data set is of one kind")
        stores.append(store_at(path))
    return [_layout_of(stores, name) for name in names]


def survey_stores(paths: Sequence[str]) -> dict[str, Layout]:
    """Returns the Layout of every array of the first store, in all of them; one that cannot be read says why."""
    found = {}
    for key, problem in _array_keys(store_at(paths[0])):
        name = f"/{key}"
        try:
            if problem is not None:
                raise problem
            (found[name],) = zarr_layouts(paths, [name])
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
        path, nbytes = cells.paths[int(cells.file[number])], int(cells.nbytes[number])
        index = shard_index(path, int(cells.offset[number]), nbytes, math.prod(inside), array)
        there = np.flatnonzero((index != NO_CHUNK).any(axis=1))
        offset, size = index[there].T
        if np.any(wrong := (size > nbytes) | (offset > nbytes - np.minimum(size, nbytes))):
            at = int(there[np.flatnonzero(wrong)[0]])
            raise LayoutError(f"{path}: chunk {at} of this shard leaves its {nbytes:,} bytes: the shard is damaged")
        return there, index[there] + np.array([cells.offset[number], 0], np.uint64)

    with ThreadPoolExecutor(INDEX_THREADS) as threads, awaited(f"reading the shards of {cells.paths[0]}"):
        found = list(threads.map(places, range(len(cells.at))))
    shard = np.repeat(np.arange(len(found)), [len(there) for there, _ in found])
    there = np.concatenate([np.empty(0, np.int64), *(one for one, _ in found)])
    extents = np.concatenate([np.empty((0, 2), np.uint64), *(one for _, one in found)])
    own = np.stack(np.unravel_index(there, inside), axis=1) if inside else np.empty((len(there), 0), np.int64)
    at = cells.at[shard] * np.array(inside, np.int64) + own
    needed = (at < np.array(grid, np.int64)).all(axis=1)
    shard, extents = shard[needed], extents[needed]
    return cells._replace(at=at[needed], file=cells.file[shard], offset=extents[:, 0], nbytes=extents[:, 1])


def shard_index(path: str, begin: int, nbytes: int, chunks: int, array: ZarrArray) -> NDArray[np.uint64]:
    """Returns the offset and the size of each chunk of a shard, which lies in a file from `begin` on."""
    shards = array.shards
    assert shards is not None, "called for shards"
    decoded = 16 * chunks
    size = decoded + 4 * len(shards.filters)
    if size > nbytes:
        raise LayoutError(f"{path}: this shard of {nbytes:,} bytes is shorter than its index of {size:,} bytes")
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            stored = os.pread(file.fileno(), size, begin + (nbytes - size if shards.at_end else 0))
    except OSError as error:
        raise ReadError(error.errno, error.strerror, path) from None
    try:
        found = _native.decode([_as_native(one) for one in shards.filters], 1, decoded, 0, stored)
    except SolarError as error:
        raise LayoutError(f"{path}: the index of this shard is damaged: {error}") from None
    return np.frombuffer(found, f"{shards.order}u8").astype(np.uint64).reshape(chunks, 2)


def _as_native(one: Filter) -> tuple[int, int, list[int]]:
    return one.id, one.flags, list(one.values)
