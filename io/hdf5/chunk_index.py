"""The chunk table of a dataset, read from the file. A large one is kept in the user's cache.

The cache (io/FORMAT.md) is mapped, not read. All of it is checked before use; if anything is wrong, the table is built
again. Only damage to the HDF5 file itself is an error here.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.channels.progress import awaited
from solar.values import is_unversioned, is_url

WORTH_KEEPING = 100_000  # chunks; a smaller table is walked in less than a tenth of a second
KEPT_SUFFIXES = (".index", ".values")  # of values: those of io/hdf5/zarr_references.py
FOLDER_NBYTES = 4 << 30  # what the cache folder may grow to
SETTLED_NS = 2_000_000_000  # a file written more recently may change without a new mtime
INDEX_VERSION = 2
HEADER = struct.Struct("<8sIIQ32s4I")
HEADER_NBYTES, ALIGNMENT = 128, 64
HAS_INDEX, HAS_MASK = 1, 2

Folder = str | os.PathLike[str] | None
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Table:
    """Where each chunk lies, by ascending position in the grid; `index` is empty when entry k is chunk k."""

    index: NDArray[np.uint64]
    offset: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    mask: NDArray[np.uint32]


def chunk_table(path: str, dataset: _native.Dataset, cache: Folder = "auto") -> Table:
    """Returns the table of a chunked dataset. `cache`: a folder, "auto" for the user's, None for none."""
    grid = math.prod(-(-size // chunk) for size, chunk in zip(dataset["shape"], dataset["chunk"], strict=True) if chunk)
    if cache is None or grid < WORTH_KEEPING or is_unversioned(path):
        return _walk_tree(path, dataset, grid)
    key = _key(path, dataset)
    kept = (default_folder() if cache == "auto" else Path(cache)) / f"{key.hex()}.index"
    if (table := quietly(lambda: load_table(kept, key))) is not None:
        return table
    table = _walk_tree(path, dataset, grid)
    settled = time.time_ns() - dataset["file_mtime_ns"] > SETTLED_NS
    if len(table.offset) >= WORTH_KEEPING and settled:
        quietly(lambda: store_table(kept, key, table))
    return table


def _walk_tree(path: str, dataset: _native.Dataset, grid: int) -> Table:
    name, found = dataset["target"] or dataset["name"], np.zeros(1, np.uint64)
    quick = grid < WORTH_KEEPING
    with nullcontext() if quick else awaited(f"reading the index of {name}", lambda: int(found[0]), grid, "chunks"):
        index, offset, nbytes, mask = _native.chunk_table(path, name, dataset["header_address"], found)
    if np.array_equal(index, np.arange(len(index), dtype=np.uint64)):
        index = np.empty(0, np.uint64)
    return Table(index, offset, nbytes, mask)


def _key(path: str, dataset: _native.Dataset) -> bytes:
    facts = [
        INDEX_VERSION,
        path if is_url(path) else os.path.realpath(path),
        dataset["file_nbytes"],
        dataset["file_mtime_ns"],
        dataset["file_inode"],
        dataset["file_ctime_ns"],
        dataset["target"] or dataset["name"],
        dataset["header_address"],
    ]
    facts += [dataset["shape"], dataset["chunk"], dataset["index"], dataset["filters"]]
    return hashlib.blake2b(json.dumps(facts, separators=(",", ":")).encode(), digest_size=32).digest()


def default_folder() -> Path:
    """Returns the user's cache folder."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "solar"


def quietly(act: Callable[[], T]) -> T | None:
    """Returns the result of `act`; None, and never an error, if the cache is missing, damaged, full or forbidden."""
    try:
        return act()
    except (OSError, ValueError, RuntimeError, struct.error):
        return None


def _check_private(facts: os.stat_result) -> None:
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise ValueError("others could have written it")


def _starts(flags: int, count: int) -> tuple[list[int], int]:
    """Returns where each column begins (-1: it is absent), and where the file ends."""
    starts, at = [], HEADER_NBYTES
    for width, there in ((8, flags & HAS_INDEX), (8, True), (8, True), (4, flags & HAS_MASK)):
        at = -(-at // ALIGNMENT) * ALIGNMENT if there else at
        starts.append(at if there else -1)
        at += width * count if there else 0
    return starts, at


def column_checksums(columns: list[Any]) -> list[int]:
    """Returns the CRC-32 of each column. zlib releases the GIL, so all together take as long as one."""
    with ThreadPoolExecutor(len(columns)) as threads:
        return list(threads.map(lambda column: zlib.crc32(column) if len(column) else 0, columns))


@contextmanager
def kept_file(kept: Path) -> Iterator[BinaryIO]:
    """Opens a file of the cache, and marks it as used. ValueError: somebody else could have written it."""
    _check_private(kept.parent.stat())
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # or a FIFO waits
    with open(kept, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        facts = os.fstat(file.fileno())
        _check_private(facts)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("not a plain file")
        yield file
    os.utime(kept)


def load_table(kept: Path, key: bytes) -> Table:
    with kept_file(kept) as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return check_table(view, key)


def check_table(view: mmap.mmap, key: bytes) -> Table:
    magic, version, flags, count, its_key, *sums = HEADER.unpack_from(view)
    (header_sum,) = struct.unpack_from("<I", view, HEADER.size)
    starts, end = _starts(flags, count)
    sound = (magic, version, its_key, header_sum) == (b"SOLARIDX", INDEX_VERSION, key, zlib.crc32(view[: HEADER.size]))
    if not sound or end != len(view):
        raise ValueError("damaged, or another version")
    kinds = (np.uint64, np.uint64, np.uint64, np.uint32)
    columns: list[NDArray[Any]] = [
        np.frombuffer(view, kind, count, start) if start >= 0 else np.empty(0, kind)
        for kind, start in zip(kinds, starts, strict=True)
    ]
    if column_checksums(columns) != sums:
        raise ValueError("damaged")
    index, offset, nbytes, mask = columns
    return Table(index, offset, nbytes, mask if flags & HAS_MASK else np.zeros(count, np.uint32))


def keep(kept: Path, write: Callable[[BinaryIO], None]) -> None:
    """Writes a file of the cache, whole or not at all, and makes room for it."""
    from solar.io.system import atomic_file

    folder = kept.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(folder.stat())
    with atomic_file.write_file(kept, sync=False) as file:
        write(file)
    atomic_file.sweep(folder)
    _prune(folder)


def store_table(kept: Path, key: bytes, table: Table) -> None:
    flags = (HAS_INDEX if len(table.index) else 0) | (HAS_MASK if table.mask.any() else 0)
    columns: list[NDArray[Any]] = [
        table.index,
        table.offset,
        table.nbytes,
        table.mask if flags & HAS_MASK else np.empty(0, np.uint32),
    ]
    header = HEADER.pack(b"SOLARIDX", INDEX_VERSION, flags, len(table.offset), key, *column_checksums(columns))

    def write(file: BinaryIO) -> None:
        file.write(header + struct.pack("<I", zlib.crc32(header)))
        for start, column in zip(_starts(flags, len(table.offset))[0], columns, strict=True):
            if start >= 0:
                file.write(bytes(start - file.tell()))
                file.write(column.data)

    keep(kept, write)


def _prune(folder: Path) -> None:
    """Removes the least recently used files until the folder is small enough."""
    sizes = []
    for path in (one for one in folder.iterdir() if one.suffix in KEPT_SUFFIXES):
        facts = path.lstat()
        sizes.append((facts.st_mtime_ns, facts.st_size, path))
    total = sum(size for _, size, _ in sizes)
    for _, size, path in sorted(sizes):
        if total <= FOLDER_NBYTES:
            break
        path.unlink()
        total -= size


# The chunk arrays of a Layout: where the bytes of its datasets lie, in one file or many.


UNDEFINED = 2**64 - 1  # the address of what was never written


def chunk_arrays(
    files: list[str], datasets: list[_native.Dataset], cache: Folder, wanted: bool
) -> dict[str, NDArray[Any]]:
    """Returns the chunk arrays of a Layout. Damage to them is an error only if they are needed for reading."""
    if all(dataset["storage"] != "chunked" for dataset in datasets):
        return _one_extent_each(datasets)
    tables: list[Table] = []
    with awaited("reading where the chunks are", lambda: len(tables), len(files), "files"):
        for file, dataset in zip(files, datasets, strict=True):
            try:
                tables.append(read_table(file, dataset, cache))
            except LayoutError:
                if wanted:
                    raise
                tables.append(_no_chunks())
    return joined_tables(tables)


def joined_tables(tables: list[Table]) -> dict[str, NDArray[Any]]:
    """Returns the chunk arrays of a Layout whose parts have these tables."""
    dense = all(len(table.index) == 0 for table in tables)
    indices = [table.index if len(table.index) else np.arange(len(table.offset), dtype=np.uint64) for table in tables]
    return {
        "part_chunks": running([len(table.offset) for table in tables]),
        "chunk_index": np.empty(0, np.uint64) if dense else join_arrays(indices),
        "chunk_offset": join_arrays([table.offset for table in tables]),
        "chunk_nbytes": join_arrays([table.nbytes for table in tables]),
        "chunk_mask": join_arrays([table.mask for table in tables]),
    }


def read_table(file: str, dataset: _native.Dataset, cache: Folder) -> Table:
    if dataset["storage"] == "chunked":
        return chunk_table(file, dataset, cache)
    extent = _one_extent_each([dataset])
    return Table(np.empty(0, np.uint64), extent["chunk_offset"], extent["chunk_nbytes"], extent["chunk_mask"])


def _no_chunks() -> Table:
    return Table(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))


def _one_extent_each(datasets: list[_native.Dataset]) -> dict[str, NDArray[Any]]:
    """Returns the chunk arrays of data without chunks: one extent per part, or none if nothing was written."""
    offset = np.fromiter((dataset["address"] for dataset in datasets), np.uint64, len(datasets))
    nbytes = np.fromiter((dataset["nbytes"] for dataset in datasets), np.uint64, len(datasets))
    written = (offset != UNDEFINED) & (nbytes > 0)
    return {
        "part_chunks": running(written),
        "chunk_offset": offset[written],
        "chunk_nbytes": nbytes[written],
        "chunk_mask": np.zeros(np.count_nonzero(written), np.uint32),
    }


def join_arrays(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)  # a single one may be mapped: no copy


def running(counts: Any) -> NDArray[np.int64]:
    """Returns the running sums of the counts, beginning with 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64), dtype=np.int64)])
