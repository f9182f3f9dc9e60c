"""The grid of chunks of a compressed dataset, and the tasks it is divided into. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

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
        """How many there are."""
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
        """Where a chunk begins."""
        place = []
        for count, part in zip(reversed(self.counts), reversed(self.chunk), strict=True):
            number, at = divmod(number, count)
            place.append(at * part)
        return tuple(reversed(place))

    def box(self, first: int, chunks: int = 1) -> Box:
        """The box of one chunk, or of several chunks of whole samples."""
        begin = self.begin(first)
        ends = (begin[0] + chunks * self.chunk[0], *(b + c for b, c in zip(begin[1:], self.chunk[1:], strict=True)))
        return tuple(slice(b, min(e, n)) for b, e, n in zip(begin, ends, self.shape, strict=True))

    def per_task(self, stored_rows: int = 1) -> int:
        """The number of chunks in a task.

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
        """All chunks in order, as tasks: (first chunk, number of chunks)."""
        each = self.per_task(stored_rows)
        for first in range(0, self.chunks, each):
            yield first, min(each, self.chunks - first)


def chunk_of(shape: tuple[int, ...], itemsize: int, samples: int | None = None) -> tuple[int, ...]:
    """The chunk shape for samples along axis 0: one a chunk, several if they are small, or a part of a large one.

    >>> chunk_of((500, 128, 128), 4)
    (1, 128, 128)
    >>> chunk_of((500, 3), 4)
    (500, 3)
    >>> chunk_of((8, 512, 512, 512), 4)
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
