"""The grid of chunks of a compressed dataset, and the values that an h5py dataset stores."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar import _native

LARGEST_CHUNK = 16 << 20  # bytes of a chunk; larger samples are cut along their slowest axes
SMALLEST = 16 << 10  # bytes of a chunk; several smaller samples share one
TASK = 4 << 20  # bytes of a thread's task, at least
MOST_OF_A_CHUNK = 64 << 20  # bytes of a thread's task, at most, unless a chunk is larger

Box = tuple[slice, ...]


@dataclass(frozen=True)
class Grid:
    """A shape and the chunks it is cut into."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    itemsize: int

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return tuple(-(-length // part) for length, part in zip(self.shape, self.chunk, strict=True))

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return math.prod(self.counts)

    @property
    def chunk_nbytes(self) -> int:
        """The bytes of a whole chunk's values."""
        return math.prod(self.chunk) * self.itemsize

    @property
    def whole_rows(self) -> bool:
        """Whether a chunk holds whole samples."""
        return self.chunk[1:] == self.shape[1:]

    def begin(self, number: int) -> tuple[int, ...]:
        """Returns where a chunk begins."""
        place = []
        for count, part in zip(reversed(self.counts), reversed(self.chunk), strict=True):
            number, at = divmod(number, count)
            place.append(at * part)
        return tuple(reversed(place))

    def box(self, first: int, chunks: int = 1) -> Box:
        """Returns the box of one chunk, or of several chunks of whole samples."""
        begin = self.begin(first)
        ends = (begin[0] + chunks * self.chunk[0], *(b + c for b, c in zip(begin[1:], self.chunk[1:], strict=True)))
        return tuple(slice(b, min(e, n)) for b, e, n in zip(begin, ends, self.shape, strict=True))

    def per_task(self, stored_rows: int = 1) -> int:
        """Returns the number of chunks in a task.

        Tasks begin where the original's chunks of `stored_rows` rows begin, so that none of these is decoded twice.
        """
        if not self.whole_rows:
            return 1
        one = max(1, self.chunk_nbytes)
        each = math.lcm(self.chunk[0], max(1, stored_rows)) // self.chunk[0]
        if each * one > MOST_OF_A_CHUNK:
            each = 1
        return each * max(1, -(-TASK // (each * one)))

    def tasks(self, stored_rows: int = 1) -> Iterator[tuple[int, int]]:
        """Yields all chunks in order, as tasks: (first chunk, number of chunks)."""
        each = self.per_task(stored_rows)
        for first in range(0, self.chunks, each):
            yield first, min(each, self.chunks - first)


def chunk_shape(shape: tuple[int, ...], itemsize: int, samples: int | None = None) -> tuple[int, ...]:
    """Returns the chunk shape for samples along axis 0: one a chunk, several if they are small, or a part of a large
    one.

    >>> chunk_shape((500, 128, 128), 4)
    (1, 128, 128)
    >>> chunk_shape((500, 3), 4)
    (500, 3)
    >>> chunk_shape((8, 512, 512, 512), 4)
    (1, 16, 512, 512)
    """
    row = math.prod(shape[1:]) * itemsize
    if samples is None:
        samples = 1 if row >= SMALLEST else -(-SMALLEST // max(row, 1))
    chunk = [max(1, min(samples, shape[0], LARGEST_CHUNK // max(row, 1))), *shape[1:]]
    for axis in range(1, len(shape)):
        rest = math.prod(chunk[axis + 1 :]) * itemsize
        if chunk[axis] * rest <= LARGEST_CHUNK:
            break
        chunk[axis] = max(1, LARGEST_CHUNK // rest)
    return tuple(chunk)


# What an h5py dataset stores: values in their own type, to the bit, and where its chunks begin.


def chunk_begins(dataset: Any) -> Iterator[tuple[int, ...]]:
    """Returns where each stored chunk of an h5py DatasetID begins, in C order. The file must not be written meanwhile.

    libhdf5's own list of them is missing before 1.10.10, and mixes up the axes if a later one is unlimited.
    """
    file = h5py.h5i.get_file_id(dataset)
    path = os.fsdecode(h5py.h5f.get_name(dataset))
    name = (h5py.h5i.get_name(dataset) or b"?").decode("utf-8", "surrogateescape")
    address = h5py.h5o.get_info(dataset).addr + file.get_create_plist().get_userblock()
    grid = Grid(dataset.shape, dataset.get_create_plist().get_chunk(), 1)
    return (grid.begin(int(number)) for number in _native.chunk_table(path, name, address)[0])


def stored_values(dataset: Any, begin: tuple[int, ...], count: tuple[int, ...]) -> NDArray[Any]:
    """Returns values of an h5py DatasetID in their own type, bit for bit."""
    kind = dataset.get_type()
    values = np.empty(count, np.dtype((np.void, kind.get_size())))
    dataset.read(*spaces(dataset, begin, count), values, kind)
    return values


def spaces(dataset: Any, begin: tuple[int, ...], count: tuple[int, ...]) -> tuple[Any, Any]:
    """Returns the dataspaces of such values in memory and in the file."""
    if not count:
        return h5py.h5s.ALL, h5py.h5s.ALL
    there = dataset.get_space()
    there.select_hyperslab(begin, count)
    return h5py.h5s.create_simple(count), there


def slabs(shape: tuple[int, ...], itemsize: int, most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields boxes (begin, count) in C order that cover the shape, of at most `most` bytes, or one element each."""
    box = list(shape)
    for axis in range(len(box)):
        rest = math.prod(box[axis + 1 :]) * itemsize
        box[axis] = min(box[axis], max(1, most // max(rest, 1)))
        if box[axis] > 1:
            break
    counts = [-(-length // part) if part else 0 for length, part in zip(shape, box, strict=True)]
    for place in np.ndindex(*counts):
        begin = tuple(i * part for i, part in zip(place, box, strict=True))
        yield begin, tuple(min(part, n - b) for part, n, b in zip(box, shape, begin, strict=True))
