"""PlainPieces: samples that are no rows, read by h5py alone as an expert reads each kind of them, for comparison.

Windows and boxes are slices of a dataset. Ragged samples are stretches of its rows, those of a sparse matrix a stretch
of its values and one of its columns. A group is each of its datasets. Where samples lie is told beforehand, as an
expert has it in memory: the places of windows, the corners of boxes, an indptr, the names of groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.boxes import Boxes
from solar.extents import Extents
from solar.io.layout.groups import GroupNames
from solar.io.plain import Cache, KeptOpen, Opened
from solar.io.ragged import RAGGED_BY, Columns, Ragged
from solar.values import Layout

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
    """What h5py reads into, made once for each shape."""
    return h5py.h5s.create_simple(shape)


def read_box(of: Opened, begin: Sequence[int], out: NDArray[Any], stride: int = 1) -> None:
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
    own: Extents | Boxes | None

    unequal: ClassVar[None] = None

    @property
    def datasets(self) -> tuple[str, ...]:
        """Those that are kept open."""
        return (self.name,)

    @property
    def nbytes(self) -> int:
        """Of a sample."""
        return _nbytes(self.shape, self.dtype)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Those of a window; none of what is a row, or a box."""
        own = self.own.fields if isinstance(self.own, Extents) else ()
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
        assert isinstance(self.own, Extents), "only windows have steps"
        start, low, high = self.own.of(np.arange(len(self.own)))
        return bool(np.any(start + min(self.steps) < low) or np.any(start + max(self.steps) >= high))

    def room(self, samples: Numbers) -> Room:
        return {self.name: ((len(samples), *self.shape), self.dtype)}

    def read(self, pieces: PlainPieces, samples: Numbers, out: Arrays) -> None:
        """Each sample to its place, in the order of the files."""
        places, boxes = self._places(samples), out[0].reshape(len(samples), *self.box)
        rows = None
        if self.leaves or (pieces.span and self.steps):
            assert isinstance(self.own, Extents), "only windows have steps"
            rows = self.own.rows(samples) - self.first[places[:, 0]][:, None]
        corners, last = places.tolist(), -1
        for place in np.lexsort(places.T[::-1]).tolist():
            file, row, *rest = corners[place]
            if file != last:
                one, last = pieces.opened(file, self.name), file
            if rows is not None:
                _read_span(one, rows[place], boxes[place])
                continue
            for at, step, count, stride in self.runs:
                read_box(one, (row + step, *rest), boxes[place, at : at + count], stride)

    def _places(self, samples: Numbers) -> Numbers:
        """Of each sample its file, and where it begins along each axis of the dataset there."""
        found = np.zeros((len(samples), 1 + len(self.box)), np.int64)
        rows: Numbers = samples
        if isinstance(self.own, Boxes):
            rows, corners = self.own.of(samples)
            found[:, 2:] = corners[:, 2:]
        elif self.own is not None:
            rows = self.own.of(samples).start
        found[:, 0] = np.searchsorted(self.first, rows, side="right") - 1
        found[:, 1] = rows - self.first[found[:, 0]]
        return found


def _read_span(one: Opened, rows: Numbers, out: NDArray[Any]) -> None:
    """These rows by one slice, with all that lie between."""
    least, most = int(rows.min()), int(rows.max())
    block = np.empty((most + 1 - least, *out.shape[1:]), out.dtype)
    read_box(one, (least, *(0,) * (out.ndim - 1)), block)
    np.take(block, rows - least, axis=0, out=out)


@dataclass(frozen=True)
class ToldField:
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
        row = sum(map(_nbytes, self.shapes, self.dtypes))
        return row if self.length is None else int(row * self.length.mean()) if len(self.length) else 0

    def room(self, samples: Numbers) -> Room:
        rows = len(samples) if self.length is None else int(self.length[samples].sum())
        parts = zip(self.parts, self.shapes, self.dtypes, strict=True)
        found = {name: ((rows, *shape), dtype) for name, shape, dtype in parts}
        if self.unequal is not None:
            found[self.unequal.offsets] = (len(samples) + 1,), np.dtype(np.int64)
        return found

    def offsets(self, samples: Numbers, out: Arrays) -> Numbers:
        """Where each sample begins in the arrays of a batch, which has that where samples differ in length."""
        ends = np.cumsum(np.ones(len(samples), np.int64) if self.length is None else self.length[samples])
        found = np.concatenate(([0], ends))
        if self.length is not None:
            out[-1][:] = found
        return found

    def files(self, samples: Numbers) -> Numbers:
        return np.searchsorted(self.first, samples, side="right") - 1


@dataclass(frozen=True)
class RowsField(ToldField):
    """Stretches of rows: ragged samples, or rows of a sparse matrix."""

    begin: Numbers = field(kw_only=True)  # row of the file, of each sample
    datasets: tuple[str, ...] = field(kw_only=True)  # type: ignore[misc]

    def read(self, pieces: PlainPieces, samples: Numbers, out: Arrays) -> None:
        """Each sample to its place, in the order of the files."""
        offsets, begins, files = self.offsets(samples, out).tolist(), self.begin[samples], self.files(samples)
        for place in np.lexsort((begins, files)).tolist():
            at, end = offsets[place : place + 2]
            for name, values in zip(self.datasets, out[:-1], strict=True) if at < end else ():
                begin = int(begins[place]), *(0,) * (values.ndim - 1)
                read_box(pieces.opened(int(files[place]), name), begin, values[at:end])


@dataclass(frozen=True)
class MemberField(ToldField):
    """A dataset of each group."""

    groups: GroupNames = field(kw_only=True)

    def read(self, pieces: PlainPieces, samples: Numbers, out: Arrays) -> None:
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
class VaryingField(ToldField):
    """Arrays of HDF5's variable-length type."""

    def read(self, pieces: PlainPieces, samples: Numbers, out: Arrays) -> None:
        """By one ascending selection of each file."""
        offsets, order = self.offsets(samples, out).tolist(), np.argsort(samples, kind="stable")
        at = np.searchsorted(samples[order], self.first)
        for file in np.flatnonzero(np.diff(at)).tolist():
            here = order[at[file] : at[file + 1]]
            every = pieces.file(file)[self.name][samples[here] - self.first[file]]
            for place, one in zip(here.tolist(), every, strict=True):
                out[0][offsets[place] : offsets[place + 1]] = one


Kind = BoxField | RowsField | MemberField | VaryingField


def _nbytes(shape: Shape, dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


# --- all of them ----


@dataclass(eq=False)
class PlainPieces(KeptOpen):
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

    def again(self, cached: Sequence[int | None], span: bool = False) -> PlainPieces:
        """The same with such chunk caches."""
        return PlainPieces(self.files, self.fields, self.samples, self.drawn, self.chosen, some=cached, span=span)

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


def pieces_of(
    layouts: Mapping[str, Layout],
    own: Mapping[str, Extents | Boxes | Columns | None],
    groups: GroupNames | None = None,
    chosen: Numbers | None = None,
) -> PlainPieces:
    """What reads these fields. `groups`: whose datasets they are. `chosen`: the samples; None: all."""
    first = next(iter(layouts.values()))
    fields = [_field(name, layout, own.get(name), groups) for name, layout in layouts.items()]
    one = own.get(next(iter(layouts)))
    samples = len(chosen) if chosen is not None else first.samples if one is None else len(one)
    drawn = any(isinstance(lies, Boxes) and lies.places.drawn for lies in own.values())
    return PlainPieces(first.files, fields, samples, drawn, chosen)


def _field(name: str, layout: Layout, own: Extents | Boxes | Columns | None, groups: GroupNames | None) -> Kind:
    native = layout.dtype.newbyteorder("=")
    if groups is not None:
        of, length = (own.by_sample, own.length) if isinstance(own, Columns) else (layout, None)
        shapes = (layout.sample_shape,)
        return MemberField(name, (name,), shapes, (native,), length, of.first_of_files, groups=groups)
    if isinstance(own, Columns):
        return _of_columns(name, own)
    row = layout.sample_shape
    if isinstance(own, Boxes):
        return BoxField(name, own.shape, own.box, native, layout.first_of_files, own)
    if own is None:
        return BoxField(name, row, (1, *row), native, layout.first_of_files, None)
    return BoxField(name, (*own.shape, *row), (own.slots, *row), native, layout.first_of_files, own)


def _of_columns(name: str, own: Columns) -> Kind:
    first, parts = own.by_sample.first_of_files, (name, f"{name} columns")[: len(own.layouts)]
    shapes = tuple(one.sample_shape for one in own.layouts)
    dtypes = tuple(one.dtype.newbyteorder("=") for one in own.layouts)
    if isinstance(own.given, Ragged) and not any(getattr(own.given, word) for word in RAGGED_BY):
        return VaryingField(name, parts, shapes, dtypes, own.length, first)
    files = np.searchsorted(first, np.arange(len(own)), side="right") - 1
    begin, datasets = own.begin - own.layouts[0].part_first[files], tuple(one.name for one in own.layouts)
    return RowsField(name, parts, shapes, dtypes, own.length, first, own.width, begin=begin, datasets=datasets)
