"""Reads samples by h5py alone, as well as an expert gets them from it."""

from __future__ import annotations

import bisect
import math
import os
import resource
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.io.hdf5.groups import GroupNames
from solar.io.hdf5.guarded_child import FarFile
from solar.io.remote.fetch import fetched, identity
from solar.samples.protocol import SampleMap
from solar.samples.ragged import RAGGED_BY, RaggedRows
from solar.samples.row_windows import RowWindows
from solar.values import Layout, is_url

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
            one = h5py.File(open_url(path) if is_url(path) else path, "r", locking=False)
            wanted = zip(self.names, self.cached, strict=True)
            self._open[file] = one, [open_dataset(cached_dataset(one, name, nbytes)) for name, nbytes in wanted]
        return self._open[file]

    def close(self) -> None:
        """Lets go of its files, until it reads again."""
        for one, _ in self._open.values():
            one.close()
        self._open = {}

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _open={}, _process=-1)


class H5pySamples(KeptOpen):
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

    def again(self, cached: Sequence[int | None], _: bool = False) -> H5pySamples:
        """Returns the same with such chunk caches."""
        return H5pySamples(self.paths, self.names, cached, self.whole)

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
        """Yields the batches, by a reader who knows their order: memory is filled with the next uses, in one ascending
        pass over the file in which gaps of up to `gap` bytes are read along, and handed out; and again.

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


def open_dataset(data: Any) -> Opened:
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


def open_url(url: str) -> FarFile:
    """Returns the file, of which each read is one request, as fsspec makes them without a cache."""
    was = identity(url)

    def fill(at: int, out: memoryview) -> None:
        out[:] = fetched(url, at, len(out), was).data

    return FarFile(was[0], fill)


def cached_dataset(file: Any, name: str, nbytes: int | None) -> Any:
    """Returns the dataset, with so much chunk cache."""
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
    """Returns how many it has."""
    return int(data.id.get_create_plist().get_nfilters())


def _prime(least: int) -> int:
    """Returns the first prime from there on."""
    while any(least % divisor == 0 for divisor in range(2, math.isqrt(least) + 1)):
        least += 1
    return least


def _most_open() -> int:
    """Files, of the descriptors that this process may have."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _native(value: Any) -> NDArray[Any]:
    """Returns the value in the byte order of the machine."""
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


# H5pyPieces: samples that are no rows, read by h5py alone as an expert reads each kind of them, for comparison.
#
# Windows and boxes are slices of a dataset. Ragged samples are stretches of its rows, those of a sparse matrix a
# stretch of its values and one of its columns. A group is each of its datasets. Where samples lie is told beforehand,
# as an expert has it in memory: the places of windows, the corners of boxes, an indptr, the names of groups.


Numbers = NDArray[np.int64]
Shape = tuple[int, ...]
Room = dict[str, tuple[Shape, np.dtype[Any]]]  # of each array of a batch
Arrays = Sequence[NDArray[Any]]


class Unequal(NamedTuple):
    """A field whose samples differ in length, and the arrays of a batch that it is made of."""

    name: str
    parts: tuple[str, ...]  # values; of a matrix also their columns
    offsets: str
    width: int  # columns of the matrix; 0: it is none


class StepRun(NamedTuple):
    """Steps of a window, each as far behind the one before."""

    at: int  # the number of the first of them
    step: int  # that one
    rows: int
    stride: int


def runs_of(steps: Sequence[int]) -> list[StepRun]:
    """Steps as few slices.

    >>> runs_of((-1, 0, 1, 4, 6)), runs_of((3, 3))
    ([StepRun(at=0, step=-1, rows=3, stride=1), StepRun(at=3, step=4, rows=2, stride=2)], \
[StepRun(at=0, step=3, rows=1, stride=1), StepRun(at=1, step=3, rows=1, stride=1)])
    """
    found, at = list[StepRun](), 0
    while at < len(steps):
        end, stride = at + 1, steps[at + 1] - steps[at] if at + 1 < len(steps) else 1
        while stride > 0 and end < len(steps) and steps[end] - steps[end - 1] == stride:
            end += 1
        found.append(StepRun(at, steps[at], end - at, max(1, stride)))
        at = end
    return found


@lru_cache(64)
def space_of(shape: Shape) -> Any:
    """Returns what h5py reads into, made once for each shape."""
    return h5py.h5s.create_simple(shape)


def read_strided_box(of: Opened, begin: Sequence[int], out: NDArray[Any], stride: int = 1) -> None:
    """A box of a dataset from there on, as large as `out`, of each so many rows one."""
    of.file.select_hyperslab(tuple(begin), out.shape, None if stride == 1 else (stride, *(1,) * (out.ndim - 1)))
    of.id.read(space_of(out.shape), of.file, out, of.dtype)


# --- the kinds of fields ----


@dataclass(frozen=True)
class BoxField:
    """A field whose samples are boxes of a dataset: rows, windows of rows, boxes of volumes."""

    name: str
    shape: Shape  # of a sample
    box: Shape  # the same, with every axis of the dataset
    dtype: np.dtype[Any]
    first: Numbers  # row of each file, and at last their number
    own: Any  # a SampleMap of windows or boxes; None: each sample is a row

    unequal: ClassVar[None] = None

    @property
    def datasets(self) -> tuple[str, ...]:
        """Those that are kept open."""
        return (self.name,)

    @property
    def nbytes(self) -> int:
        """Of a sample."""
        return array_nbytes(self.shape, self.dtype)

    @property
    def windows(self) -> RowWindows | None:
        """The rows of windows; None of what is a row, or a box."""
        return None if self.own is None else self.own.windows

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Those of a window; none of what is a row, or a box."""
        own = () if self.windows is None else self.windows.fields
        return tuple(step for steps in own if steps is not None for step in steps)

    @cached_property
    def runs(self) -> list[StepRun]:
        return runs_of(self.steps) or [StepRun(0, 0, self.box[0], 1)]

    @property
    def gaps(self) -> bool:
        """Whether there are rows between its steps."""
        return len(self.runs) > 1 or self.runs[0].stride > 1

    @cached_property
    def leaves(self) -> bool:
        """Whether windows come to the end of their part, and have the row there again."""
        if not self.steps:
            return False
        assert self.windows is not None, "only windows have steps"
        start, low, high = self.windows.of(np.arange(len(self.windows)))
        return bool(np.any(start + min(self.steps) < low) or np.any(start + max(self.steps) >= high))

    def room(self, samples: Numbers) -> Room:
        return {self.name: ((len(samples), *self.shape), self.dtype)}

    def read(self, pieces: H5pyPieces, samples: Numbers, out: Arrays) -> None:
        """Each sample to its place, in the order of the files."""
        places, boxes = self._places(samples), out[0].reshape(len(samples), *self.box)
        rows = None
        if self.leaves or (pieces.span and self.steps):
            assert self.windows is not None, "only windows have steps"
            rows = self.windows.rows(samples) - self.first[places[:, 0]][:, None]
        corners, last = places.tolist(), -1
        for place in np.lexsort(places.T[::-1]).tolist():
            file, row, *rest = corners[place]
            if file != last:
                one, last = pieces.opened(file, self.name), file
            if rows is not None:
                _read_span(one, rows[place], boxes[place])
                continue
            for at, step, count, stride in self.runs:
                read_strided_box(one, (row + step, *rest), boxes[place, at : at + count], stride)

    def _places(self, samples: Numbers) -> Numbers:
        """Of each sample its file, and where it begins along each axis of the dataset there."""
        found = np.zeros((len(samples), 1 + len(self.box)), np.int64)
        rows: Numbers = samples
        if self.windows is not None:
            rows = self.windows.first_rows(samples)
        elif self.own is not None:
            rows, corners = self.own.of(samples)
            found[:, 2:] = corners[:, 2:]
        found[:, 0] = np.searchsorted(self.first, rows, side="right") - 1
        found[:, 1] = rows - self.first[found[:, 0]]
        return found


def _read_span(one: Opened, rows: Numbers, out: NDArray[Any]) -> None:
    """These rows by one slice, with all that lie between."""
    least, most = int(rows.min()), int(rows.max())
    block = np.empty((most + 1 - least, *out.shape[1:]), out.dtype)
    read_strided_box(one, (least, *(0,) * (out.ndim - 1)), block)
    np.take(block, rows - least, axis=0, out=out)


@dataclass(frozen=True)
class FieldSetting:
    """A field of which it is told in which file each sample lies, and, where these differ, how many rows it has."""

    name: str
    parts: tuple[str, ...]  # arrays of a batch: values; of a matrix also their columns
    shapes: tuple[Shape, ...]  # of a row of each; of the whole sample where all are alike
    dtypes: tuple[np.dtype[Any], ...]
    length: Numbers | None  # None: all are alike
    first: Numbers  # sample of each file, and at last their number
    width: int = 0  # columns of the matrix

    datasets: ClassVar[tuple[str, ...]] = ()  # those that are kept open
    gaps: ClassVar[bool] = False

    @property
    def unequal(self) -> Unequal | None:
        return None if self.length is None else Unequal(self.name, self.parts, f"{self.name} offsets", self.width)

    @property
    def nbytes(self) -> int:
        """Of a sample, on average."""
        row = sum(map(array_nbytes, self.shapes, self.dtypes))
        return row if self.length is None else int(row * self.length.mean()) if len(self.length) else 0

    def room(self, samples: Numbers) -> Room:
        rows = len(samples) if self.length is None else int(self.length[samples].sum())
        parts = zip(self.parts, self.shapes, self.dtypes, strict=True)
        found = {name: ((rows, *shape), dtype) for name, shape, dtype in parts}
        if self.unequal is not None:
            found[self.unequal.offsets] = (len(samples) + 1,), np.dtype(np.int64)
        return found

    def offsets(self, samples: Numbers, out: Arrays) -> Numbers:
        """Returns where each sample begins in the arrays of a batch, which has that where samples differ in length."""
        ends = np.cumsum(np.ones(len(samples), np.int64) if self.length is None else self.length[samples])
        found = np.concatenate(([0], ends))
        if self.length is not None:
            out[-1][:] = found
        return found

    def files(self, samples: Numbers) -> Numbers:
        return np.searchsorted(self.first, samples, side="right") - 1


@dataclass(frozen=True)
class RowsField(FieldSetting):
    """Stretches of rows: ragged samples, or rows of a sparse matrix."""

    begin: Numbers = field(kw_only=True)  # row of the file, of each sample
    datasets: tuple[str, ...] = field(kw_only=True)  # type: ignore[misc]

    def read(self, pieces: H5pyPieces, samples: Numbers, out: Arrays) -> None:
        """Each sample to its place, in the order of the files."""
        offsets, begins, files = self.offsets(samples, out).tolist(), self.begin[samples], self.files(samples)
        for place in np.lexsort((begins, files)).tolist():
            at, end = offsets[place : place + 2]
            for name, values in zip(self.datasets, out[:-1], strict=True) if at < end else ():
                begin = int(begins[place]), *(0,) * (values.ndim - 1)
                read_strided_box(pieces.opened(int(files[place]), name), begin, values[at:end])


@dataclass(frozen=True)
class MemberField(FieldSetting):
    """A dataset of each group."""

    groups: GroupNames = field(kw_only=True)

    def read(self, pieces: H5pyPieces, samples: Numbers, out: Arrays) -> None:
        """Each sample to its place, group after group."""
        offsets, files, kind = (
            self.offsets(samples, out).tolist(),
            self.files(samples),
            h5py.h5t.py_create(self.dtypes[0]),
        )
        for place in np.argsort(samples, kind="stable").tolist():
            here = out[0][offsets[place] : offsets[place + 1]]
            path = f"{self.groups[int(samples[place])]}/{self.name}"
            one = h5py.h5d.open(pieces.file(int(files[place])).id, path.encode(errors="surrogateescape"))
            if one.shape != (self.shapes[0] if self.length is None else here.shape):
                raise OSError(f"{pieces.paths[int(files[place])]}: {path} has another shape than before: {one.shape}")
            if here.size:
                one.read(h5py.h5s.ALL, h5py.h5s.ALL, here, kind)


@dataclass(frozen=True)
class VaryingField(FieldSetting):
    """Arrays of HDF5's variable-length type."""

    def read(self, pieces: H5pyPieces, samples: Numbers, out: Arrays) -> None:
        """By one ascending selection of each file."""
        offsets, order = self.offsets(samples, out).tolist(), np.argsort(samples, kind="stable")
        at = np.searchsorted(samples[order], self.first)
        for file in np.flatnonzero(np.diff(at)).tolist():
            here = order[at[file] : at[file + 1]]
            every = pieces.file(file)[self.name][samples[here] - self.first[file]]
            for place, one in zip(here.tolist(), every, strict=True):
                out[0][offsets[place] : offsets[place + 1]] = one


Kind = BoxField | RowsField | MemberField | VaryingField


def array_nbytes(shape: Shape, dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


# --- all of them ----


@dataclass(eq=False)
class H5pyPieces(KeptOpen):
    """Such samples of files, as torch's side asks for them. One that is drawn in each epoch has a number for each."""

    files: Sequence[str]
    fields: Sequence[Kind]
    samples: int
    drawn: bool = False
    chosen: Numbers | None = None  # of all, those that are samples here; None: all
    some: Sequence[int | None] = field(default=(), kw_only=True)
    span: bool = field(default=False, kw_only=True)  # reads the rows between the steps of windows along, and drops them

    def __post_init__(self) -> None:
        super().__init__(
            self.files, list(dict.fromkeys(name for own in self.fields for name in own.datasets)), self.some
        )

    def __len__(self) -> int:
        return self.samples

    @property
    def ways(self) -> tuple[str, ...]:
        """To read a batch."""
        return ("straight", "items", *(("span",) if any(own.gaps for own in self.fields) else ()))

    @property
    def unequal(self) -> tuple[Unequal, ...]:
        """The fields whose samples differ in length."""
        return tuple(own.unequal for own in self.fields if own.unequal is not None)

    def nbytes(self) -> int:
        """Of a sample, on average."""
        return sum(own.nbytes for own in self.fields)

    def again(self, cached: Sequence[int | None], span: bool = False) -> H5pyPieces:
        """Returns the same with such chunk caches."""
        return H5pyPieces(self.files, self.fields, self.samples, self.drawn, self.chosen, some=cached, span=span)

    def cache_nbytes(self, cache: Cache, batch: int, memory: int) -> list[int | None]:
        """As of rows, of which a sample has several."""
        most = max([1, *(own.box[0] for own in self.fields if isinstance(own, BoxField))])
        return super().cache_nbytes(cache, batch * most, memory)

    def room(self, indices: Sequence[int]) -> Room:
        """Of each array of such a batch its shape and type."""
        return {name: of for own in self.fields for name, of in own.room(self._of(indices)).items()}

    def _of(self, indices: Sequence[int]) -> Numbers:
        """Their numbers among all."""
        samples = np.asarray(indices, np.int64)
        return samples if self.chosen is None else self.chosen[samples]

    def straight(self, indices: Sequence[int], into: Arrays) -> None:
        """The samples, in the order of the files, each read to its place in the arrays of the batch."""
        samples, at = self._of(indices), 0
        for own in self.fields:
            arrays = 1 if own.unequal is None else len(own.unequal.parts) + 1
            own.read(self, samples, into[at : at + arrays])
            at += arrays

    def sample(self, index: int) -> dict[str, Any]:
        """One sample; of a field whose samples differ in length its rows."""
        arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in self.room([index]).items()}
        self.straight([index], [*arrays.values()])
        parts = {part for own in self.unequal for part in own.parts}
        offsets = {own.offsets for own in self.unequal}
        return {name: one if name in parts else one[0] for name, one in arrays.items() if name not in offsets}

    def opened(self, file: int, name: str) -> Opened:
        """A dataset of this file."""
        return self._data(file)[self.names.index(name)]

    def file(self, number: int) -> Any:
        """This file."""
        return self._file(number)[0]


def h5py_pieces(
    layouts: Mapping[str, Layout],
    own: Mapping[str, SampleMap | None],
    groups: GroupNames | None = None,
    chosen: Numbers | None = None,
) -> H5pyPieces:
    """Returns what reads these fields. `groups`: whose datasets they are. `chosen`: the samples; None: all."""
    first = next(iter(layouts.values()))
    fields = [field_by_kind(name, layout, own.get(name), groups) for name, layout in layouts.items()]
    one = own.get(next(iter(layouts)))
    samples = len(chosen) if chosen is not None else first.samples if one is None else len(one)
    drawn = any(lies is not None and lies.drawn for lies in own.values())
    return H5pyPieces(first.files, fields, samples, drawn, chosen)


def field_by_kind(name: str, layout: Layout, own: Any, groups: GroupNames | None) -> Kind:
    """Returns what reads a field, by the kind of its sample map."""
    native = layout.dtype.newbyteorder("=")
    if groups is not None:
        of, length = (layout, None) if own is None else (own.by_sample(layout), own.lengths)
        shapes = (layout.sample_shape,)
        return MemberField(name, (name,), shapes, (native,), length, of.first_of_files, groups=groups)
    kind = "rows" if own is None else own.kind
    if kind == "ragged":
        return _of_columns(name, own)
    row = layout.sample_shape
    if kind == "boxes":
        return BoxField(name, own.shape, own.box, native, layout.first_of_files, own)
    if kind == "rows":
        return BoxField(name, row, (1, *row), native, layout.first_of_files, None)
    return BoxField(name, (*own.shape, *row), (own.slots, *row), native, layout.first_of_files, own)


def _of_columns(name: str, own: RaggedRows) -> Kind:
    first, parts = own.by_sample(own.layouts[0]).first_of_files, (name, f"{name} columns")[: len(own.layouts)]
    shapes = tuple(one.sample_shape for one in own.layouts)
    dtypes = tuple(one.dtype.newbyteorder("=") for one in own.layouts)
    if len(own.layouts) == 1 and not any(getattr(own.given, word) for word in RAGGED_BY):
        return VaryingField(name, parts, shapes, dtypes, own.length, first)
    files = np.searchsorted(first, np.arange(len(own)), side="right") - 1
    begin, datasets = own.begin - own.layouts[0].part_first[files], tuple(one.name for one in own.layouts)
    return RowsField(name, parts, shapes, dtypes, own.length, first, own.width, begin=begin, datasets=datasets)
