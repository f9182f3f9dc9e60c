"""The values of a dataset, a few chunks of its compressed form at a time."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError, LayoutError, ReadError, SolarError
from solar.io.codec.codec import FILTER
from solar.io.codec.grid import Box, Grid
from solar.io.codec.marks import Marks
from solar.io.codec.selection import Part
from solar.io.codec.skeleton import H5_ERRORS
from solar.io.hdf5 import guarded_reader
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
from solar.io.system.waiting import WaitTimeout

SAMPLED = 64  # chunks that represent the dataset
SAMPLED_NBYTES = 64 << 20  # bytes of their values, at most
READ_WITHIN = 600.0  # seconds that storage has for the values of some chunks


class Pieces:
    """Reads the values for chunks. Several threads may call it at the same time.

    The Reader reads whole samples, and its threads decode them; libhdf5 reads parts of large ones. libhdf5 decodes in a
    process of its own, so that a crashing filter is an error here.
    """

    def __init__(self, path: str, dataset: Any, part: Part) -> None:
        self._path, self._dataset, self._part = path, dataset, part
        self._grid = part.grid
        self._rows = rows_of_part(path, part) if self._grid.whole_rows else None

    def chunks(self, first: int, count: int) -> list[NDArray[Any]]:
        """Returns the values of some chunks, each in full shape: places outside the dataset repeat its edge."""
        values = self.values(first, count)
        each = self._grid.chunk[0]
        return [self._whole(values[i * each : (i + 1) * each]) for i in range(count)]

    def encoded(self, first: int, count: int) -> list[bytes]:
        """Returns the chunks themselves."""
        made = []
        for i, values in enumerate(self.chunks(first, count)):
            try:
                made.append(self._part.encoded(values))
            except CodecError as error:
                where = f"{self._path}: {self._part.name}, from {list(self._grid.begin(first + i))}"
                raise CodecError(f"{where}: {error}") from None
        return made

    def values(self, first: int, count: int) -> NDArray[Any]:
        """Returns the values of some chunks, as one array."""
        box = self._grid.box(first, count)
        try:
            if self._rows is not None:
                values = self._rows.start(np.arange(box[0].start, box[0].stop)).wait(READ_WITHIN)
            else:
                values = by_libhdf5(self._dataset, box)
        except WaitTimeout as late:
            advice = "give the same command again when it answers"
            raise ReadError(f"{self._path}: {self._part.name}: {late}; {advice}") from late
        except SolarError as error:
            raise self._blame(box, error) from None
        return np.ascontiguousarray(values, self._part.dtype)

    def _blame(self, box: Box, error: SolarError) -> SolarError:
        """Returns the error of the first original chunk that libhdf5 cannot read, by name."""
        direct = self._rows is not None and self._rows.layout.reader == "direct"
        if direct or self._dataset.chunks is None or not isinstance(error, ReadError):
            return error
        stored = Grid(self._dataset.shape, self._dataset.chunks, self._dataset.dtype.itemsize)
        sides = [
            range(side.start // part * part, side.stop, part) for side, part in zip(box, stored.chunk, strict=True)
        ]
        for begin in product(*sides):
            ends = (min(b + part, n) for b, part, n in zip(begin, stored.chunk, stored.shape, strict=True))
            try:
                by_libhdf5(self._dataset, tuple(map(slice, begin, ends)))
            except SolarError as found:
                advice = f"`solar verify {self._path}` names all of them, {self._part.name}:keep copies them as is"
                return type(found)(f"{found} (the chunk from {list(begin)}): {advice}")
        return error

    def _whole(self, piece: NDArray[Any]) -> NDArray[Any]:
        missing = [(0, part - have) for part, have in zip(self._grid.chunk, piece.shape, strict=True)]
        return np.pad(piece, missing, mode="edge") if any(after for _, after in missing) else piece

    def sampled(self) -> list[NDArray[Any]]:
        """Returns chunks from all over the dataset that represent it, always the same ones."""
        most = max(1, min(SAMPLED, SAMPLED_NBYTES // max(1, self._grid.chunk_nbytes), self._grid.chunks))
        numbers = sorted({int(at) for at in np.linspace(0, self._grid.chunks - 1, most)})
        return [self.chunks(number, 1)[0] for number in numbers]

    def extremes(self, first: int, count: int, marks: Marks) -> tuple[float | int, float | int]:
        """Returns the least and the largest measured number of some chunks; inf, -inf if there is none."""
        return marks.extremes(self.values(first, count).ravel())


def rows_of_part(path: str, part: Part) -> Rows | None:
    """Returns the Rows that read a part; None if only h5py in this process can read it."""
    try:
        layout = inspect(path, part.name, cache=None)
        return None if layout.reader == "none" else Rows(layout, native_order=True)
    except (LayoutError, CodecError):
        return None


def by_libhdf5(dataset: Any, box: Box) -> NDArray[Any]:
    """Returns a box of an open dataset as h5py reads it, in a separate process if it may have filters."""
    path, plan = dataset.file.filename, dataset.id.get_create_plist()
    if not plan.get_nfilters() and plan.get_layout() != h5py.h5d.VIRTUAL:
        try:
            return np.asarray(dataset[box])
        except H5_ERRORS as error:
            raise ReadError(f"{path}: {dataset.name}, from {[side.start for side in box]}: {error}") from error
    values = np.empty([side.stop - side.start for side in box], dataset.dtype)
    guarded_reader.read_box(path, dataset.name, box, values, math.prod(dataset.chunks or ()) * values.itemsize)
    return values


class Restored:
    """Reads a compressed dataset chunk by chunk with solar's decoders, or with libhdf5 where these cannot."""

    def __init__(self, dataset: Any, ours: bool) -> None:
        path = dataset.file.filename
        filters = _native.read_metadata(path, dataset.name)["datasets"][0]["filters"]
        self.dataset, self._filters = dataset, filters
        self.filters = [number for number, _, _ in filters]
        if ours is not (FILTER in self.filters) or dataset.chunks is None:
            raise LayoutError(f"{path}: {dataset.name} says that solar compressed it, and has other filters")
        self.grid = Grid(dataset.shape, dataset.chunks, dataset.dtype.itemsize)
        self.direct = inspect(path, dataset.name, cache=None).reader == "direct"

    def values(self, first: int, count: int) -> NDArray[Any]:
        """Returns the values of some chunks."""
        box = self.grid.box(first, count)
        if not self.direct:
            return by_libhdf5(self.dataset, box)
        out = np.empty([side.stop - side.start for side in box], self.dataset.dtype)
        for i in range(count):
            at = i * self.grid.chunk[0]
            rows = out[at : at + self.grid.chunk[0]]
            rows[...] = self._chunk(self.grid.begin(first + i))[tuple(slice(0, length) for length in rows.shape)]
        return out

    def _chunk(self, begin: tuple[int, ...]) -> NDArray[Any]:
        mask, stored = self.dataset.id.read_direct_chunk(begin)
        dtype = self.dataset.dtype
        try:
            raw = _native.decode(self._filters, dtype.itemsize, self.grid.chunk_nbytes, mask, stored)
        except CodecError as error:
            where = f"{self.dataset.file.filename}: {self.dataset.name}, from sample {begin[0]}"
            raise CodecError(f"{where}: {error}; `solar verify FILE` alone names all such chunks") from None
        return np.frombuffer(raw, dtype).reshape(self.grid.chunk)
