"""Plain: samples read by h5py alone, as well as an expert gets them from it, for comparison."""

from __future__ import annotations

import bisect
import math
import os
import resource
import time
import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.io.far.fetch import fetched, identity
from solar.io.libhdf5.slow_child import FarFile
from solar.values import is_url

Sample = dict[str, Any]
Cache = Literal["default", "none", "batch", "all"]
# Of libhdf5's chunk cache: its own, none (it then reads only the asked part of a chunk without filters), the chunks
# that one batch touches, and all the memory that is allowed.
CACHES: tuple[Cache, ...] = ("default", "none", "batch", "all")
SLOTS_A_CHUNK = 100  # of the cache's table; with few slots, chunks that hash alike throw each other out
MOST_SLOTS = 4_000_000


_alive: weakref.WeakSet[KeptOpen] = weakref.WeakSet()


class KeptOpen:
    """Datasets of one file or of many alike.

    A process opens a file at its first read from it, and keeps it open. Handles are not passed to other processes.
    """

    def __init__(self, paths: Sequence[str], names: Sequence[str], cached: Sequence[int | None] = ()) -> None:
        """`cached`: bytes of chunk cache of each dataset of a file; None: libhdf5's own."""
        self.paths, self.names = tuple(paths), tuple(names)
        self.cached = tuple(cached) or (None,) * len(names)
        self._open: dict[int, tuple[Any, list[Opened]]] = {}
        self._process = os.getpid()
        _alive.add(self)

    def warm(self, seconds: float) -> None:
        """Fills the chunk caches as an epoch does, by a row of each chunk, until they are full or time is up."""
        end = time.monotonic() + seconds
        for file in range(len(self.paths)):
            for one, left in zip(self._data(file), self.cached, strict=True):
                row = np.empty((1, *one.data.shape[1:]), one.data.dtype.newbyteorder("="))
                full = (left or 0) // (_chunks_nbytes(one.data, 1) or 1)  # rows of chunks
                for first in range(0, one.data.shape[0], one.data.chunks[0])[:full] if full else ():
                    if time.monotonic() > end:
                        return
                    read_rows(one, first, row)

    def cache_nbytes(self, cache: Cache, batch: int, memory: int) -> list[int | None]:
        """Of each dataset's chunk cache, if those of all files may have so much together; None: libhdf5's own."""
        every = [one.data for one in self._data(0)]
        whole = sum(_chunks_nbytes(data, data.shape[0]) for data in every) or 1
        found: list[int | None] = []
        for data in every:
            own = _chunks_nbytes(data, data.shape[0])
            share = min(own, memory * own // whole // len(self.paths))
            some = min(share, _chunks_nbytes(data, batch))
            sizes: dict[Cache, int | None] = {"default": None, "none": 0, "batch": some, "all": share}
            found.append(sizes[cache] if data.chunks else None)
        return found

    def _data(self, file: int) -> list[Opened]:
        return self._file(file)[1]

    def _file(self, file: int) -> tuple[Any, list[Opened]]:
        if self._process != os.getpid():
            self._open, self._process = {}, os.getpid()
        if file not in self._open:
            if len(self._open) >= _most_open():
                self._open.pop(next(iter(self._open)))
            for other in [*_alive]:  # what is open twice in a process has one chunk cache, that of the first
                if other is not self and set(other.paths) & set(self.paths):
                    other.close()
            path = self.paths[file]
            one = h5py.File(_from_afar(path) if is_url(path) else path, "r", locking=False)
            wanted = zip(self.names, self.cached, strict=True)
            self._open[file] = one, [opened(_cached(one, name, nbytes)) for name, nbytes in wanted]
        return self._open[file]

    def close(self) -> None:
        """Lets go of its files, until it reads again."""
        for one, _ in self._open.values():
            one.close()
        self._open = {}

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _open={}, _process=-1)


class Plain(KeptOpen):
    """The rows of datasets of the same length, in one file or one after another in many."""

    ways: tuple[str, ...] = ()  # to read a batch, of those that torch's side has; none: all that rows have
    unequal: tuple[Any, ...] = ()  # fields whose samples differ in length
    drawn = False

    def __init__(
        self, paths: Sequence[str], names: Sequence[str], cached: Sequence[int | None] = (), whole: bool = False
    ) -> None:
        """`whole`: a file is a sample."""
        super().__init__(paths, names, cached)
        self.whole = whole
        self._shapes: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        lengths = [1] * len(paths) if whole else [self._data(file)[0].data.shape[0] for file in range(len(paths))]
        self._ends = [*accumulate(lengths)]

    def __len__(self) -> int:
        return self._ends[-1]

    def nbytes(self) -> int:
        """Of a sample."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.shapes())

    def again(self, cached: Sequence[int | None], _: bool = False) -> Plain:
        """The same with such chunk caches."""
        return Plain(self.paths, self.names, cached, self.whole)

    def room(self, indices: Sequence[int]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Of each array of such a batch its shape and type."""
        return {
            name: ((len(indices), *shape), dtype)
            for name, (shape, dtype) in zip(self.names, self.shapes(), strict=True)
        }

    def shapes(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Of a sample of each dataset, in the byte order of the machine, the only one that torch has."""
        if not self._shapes:  # h5py makes them anew whenever it is asked
            every = [one.data for one in self._data(0)]
            self._shapes = [(one.shape if self.whole else one.shape[1:], one.dtype.newbyteorder("=")) for one in every]
        return self._shapes

    def sample(self, index: int) -> Sample:
        """One sample, by one read of each dataset."""
        file, row = self._place(index)
        part = () if self.whole else row
        return {name: _native(one.data[part]) for name, one in zip(self.names, self._data(file), strict=True)}

    def batch(self, indices: Sequence[int]) -> Sample:
        """Several different samples, in the order asked. Each file is read by one ascending selection, for h5py."""
        order = np.argsort(indices, kind="stable")
        ascending = np.asarray(indices)[order]
        made = {name: np.empty(shape, dtype) for name, (shape, dtype) in self.room(indices).items()}
        at = np.searchsorted(ascending, [0, *self._ends])
        for file in np.flatnonzero(np.diff(at)).tolist():
            rows = ascending[at[file] : at[file + 1]] - (self._ends[file - 1] if file else 0)
            for name, one in zip(self.names, self._data(file), strict=True):
                made[name][order[at[file] : at[file + 1]]] = one.data[() if self.whole else rows]
        return made

    def straight(self, indices: Sequence[int], into: Sequence[NDArray[Any]]) -> None:
        """The samples, in the order of the file, each read to its place in the arrays of the batch.

        As read_direct does, but by h5py's own calls below it: its selections cost more than to read 64 KB.
        """
        for place in np.argsort(indices, kind="stable").tolist():
            file, row = self._place(indices[place])
            for one, out in zip(self._data(file), into, strict=True):
                read_rows(one, None if self.whole else row, out[place : place + 1])

    def rows(self, first: int, into: NDArray[Any]) -> None:
        """So many rows of the one dataset of the first file, from there on."""
        read_rows(self._data(0)[0], first, into)

    def windows(self, batches: Sequence[NDArray[np.int64]], memory: int, gap: int, piece: int) -> Iterator[Sample]:
        """The batches, by a reader who knows their order: memory is filled with the next uses, in one ascending pass
        over the file in which gaps of up to `gap` bytes are read along, and handed out; and again.

        Of the memory a piece is for what is read at once, and a batch for what is handed out. Rows of a chunk with
        filters are read together, where memory holds two such pieces: so each chunk is decoded once in a pass.
        """
        nbytes = self.nbytes()
        chunk = max(one.data.chunks[0] if one.data.chunks and _filters(one.data) else 1 for one in self._data(0))
        if 2 * chunk * nbytes > memory:
            chunk = 1
        gap, piece = max(gap, chunk * nbytes), max(1, piece // (chunk * nbytes)) * chunk * nbytes
        room = memory - piece - nbytes * max(len(one) for one in batches)
        slots = max(len(batches[0]), room // nbytes)
        kept = [np.empty((slots, *shape), dtype) for shape, dtype in self.shapes()]
        scratch = [np.empty((max(1, piece // nbytes), *shape), dtype) for shape, dtype in self.shapes()]
        order, size = np.concatenate(batches), len(batches[0])
        for first in range(0, len(order), slots // size * size):
            uses = order[first : first + slots // size * size]
            self._fill(uses, kept, scratch, max(1, gap // nbytes), chunk)
            for start in range(0, len(uses), size):
                yield {name: held[start : start + size].copy() for name, held in zip(self.names, kept, strict=True)}

    def _fill(self, uses: NDArray[np.int64], kept: Sequence[Any], scratch: Sequence[Any], gap: int, chunk: int) -> None:
        places = np.argsort(uses, kind="stable")
        rows, most = uses[places], len(scratch[0])
        at = 0
        while at < len(rows):
            end = at + 1  # a stretch: rows[at:end], and what lies between
            until = rows[at] // chunk * chunk + most
            while end < len(rows) and rows[end] - rows[end - 1] <= gap and rows[end] < until:
                end += 1
            first, count = int(rows[at]), int(rows[end - 1] - rows[at]) + 1
            for one, held, block in zip(self._data(0), kept, scratch, strict=True):
                read_rows(one, first, block[:count])
                held[places[at:end]] = block[rows[at:end] - first]
            at = end

    def _place(self, index: int) -> tuple[int, int]:
        """Its file, and its row there."""
        file = bisect.bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)


class Opened(NamedTuple):
    """A dataset, and what each of its reads needs: made once, for making them costs more than to read 64 KB."""

    data: Any
    id: Any
    file: Any  # its space, of which a read selects rows
    row: Any  # the space of one row in memory
    zeros: tuple[int, ...]
    dtype: Any  # as it is wanted in memory


def opened(data: Any) -> Opened:
    space = data.id.get_space()
    row = h5py.h5s.create_simple((1, *data.shape[1:]))
    dtype = h5py.h5t.py_create(data.dtype.newbyteorder("="))
    return Opened(data, data.id, space, row, (0,) * (len(data.shape) - 1), dtype)


def read_rows(of: Opened, first: int | None, out: NDArray[Any]) -> None:
    """As many rows as `out` has, from there on, into it; None: a dataset that is one sample."""
    if first is None:
        of.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out[0], of.dtype)
        return
    of.file.select_hyperslab((first, *of.zeros), out.shape)
    of.id.read(of.row if len(out) == 1 else h5py.h5s.create_simple(out.shape), of.file, out, of.dtype)


def _from_afar(url: str) -> FarFile:
    """The file, of which each read is one request, as fsspec makes them without a cache."""
    was = identity(url)

    def fill(at: int, out: memoryview) -> None:
        out[:] = fetched(url, at, len(out), was).data

    return FarFile(was[0], fill)


def _cached(file: Any, name: str, nbytes: int | None) -> Any:
    """The dataset, with so much chunk cache."""
    if nbytes is None:
        return file[name]
    chunk = math.prod(file[name].chunks) * file[name].dtype.itemsize
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(_prime(min(MOST_SLOTS, SLOTS_A_CHUNK * (nbytes // chunk + 1))), nbytes, 0.75)
    return h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))


def _chunks_nbytes(data: Any, rows: int) -> int:
    """Of all chunks that so many rows lie in at most, none of which lies beside another."""
    if not data.chunks:
        return 0
    counts: list[int] = [-(-size // chunk) for size, chunk in zip(data.shape, data.chunks, strict=True)]
    return min(rows, counts[0]) * math.prod([*counts[1:], *data.chunks]) * int(data.dtype.itemsize)


def _filters(data: Any) -> int:
    """How many it has."""
    return int(data.id.get_create_plist().get_nfilters())


def _prime(least: int) -> int:
    """The first prime from there on."""
    while any(least % divisor == 0 for divisor in range(2, math.isqrt(least) + 1)):
        least += 1
    return least


def _most_open() -> int:
    """Files, of the descriptors that this process may have."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _native(value: Any) -> NDArray[Any]:
    """The value in the byte order of the machine."""
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
