"""RowWindows: samples that are rows, or windows of rows, as arithmetic over a few small arrays.

`index -> extents` is known before anything is read, and is the same for whoever asks: the reader, the planner, another
rank. Nothing here lists all samples, or all their rows: a stretch of rows costs four numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native

if TYPE_CHECKING:
    from solar.values import Layout

Rows = NDArray[np.int64]
Steps = tuple[int, ...] | None  # rows of a field, counted from its sample's place; None: the row there, as it is
EXPANDED = 1 << 18  # rows that are listed at a time, at most, by whoever goes through all of them


class Runs(NamedTuple):
    """The extents of some samples: of each, rows `start`, `start + step`, ... held within [low, high)."""

    start: Rows
    low: Rows
    high: Rows


@dataclass(frozen=True, eq=False)
class RowWindows:
    """Samples at anchors: rows that lie `every` apart in stretches of a dataset, one stretch after another.

    Sample i lies in the last stretch s with first[s] <= i, at the row anchor[s] + (i - first[s]) * every. A field of it
    is the rows at its steps from there, joined in that order; None: that row itself. Rows never leave [low[s],
    high[s]): where a window would, the row at that end comes again. Fields of one dataset are read together: their
    rows are those of one field after another.

    >>> found = windows(np.array([0, 4]), np.array([4, 9]), every=2, reach=(-1, 1)).of_fields(((-1, 0), (1,)))
    >>> len(found), found.rows(np.array([0, 1, 2])).tolist()
    (3, [[0, 1, 2], [4, 5, 6], [6, 7, 8]])
    """

    first: Rows  # sample of each stretch that has any, and at last the number of samples
    anchor: Rows  # of that first sample
    low: Rows
    high: Rows
    every: int = 1
    fields: tuple[Steps, ...] = (None,)
    kind: ClassVar[str] = "windows"
    noun: ClassVar[str] = "windows"
    at_rows: ClassVar[bool] = True
    lengths: ClassVar[None] = None
    picks: ClassVar[None] = None
    not_in_blocks: ClassVar[str] = ""
    drawn: ClassVar[bool] = False
    in_blocks: ClassVar[bool] = False
    tables_nbytes: ClassVar[int] = 0

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # each process makes its own native form

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The rows of a sample in each field."""
        return tuple(1 if steps is None else len(steps) for steps in self.fields)

    @property
    def slots(self) -> int:
        """How many rows make up a sample."""
        return sum(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """What comes before a row's own shape in that of a sample; of several fields: of all their rows."""
        return () if self.fields == (None,) else (self.slots,)

    def of_fields(self, fields: tuple[Steps, ...]) -> RowWindows:
        """Returns the same places, for fields of these steps."""
        return replace(self, fields=fields)

    def of(self, samples: NDArray[Any]) -> Runs:
        """Returns where each of these samples has its anchor, and the stretch it lies in."""
        samples = np.asarray(samples, np.int64)
        if len(self.anchor) == 1:  # as nearly always
            return Runs(self.anchor[0] + samples * self.every, self.low, self.high)
        at = np.searchsorted(self.first, samples, side="right") - 1
        return Runs(self.anchor[at] + (samples - self.first[at]) * self.every, self.low[at], self.high[at])

    def rows(self, samples: NDArray[Any]) -> Rows:
        """Returns the rows of each of these samples, one line for each."""
        start, low, high = self.of(samples)
        found: Rows = start[:, None] + self._steps
        if self._leaves:
            np.clip(found, low[:, None], high[:, None] - 1, out=found)
        return found

    def joined(self, samples: NDArray[Any]) -> Rows:
        """Returns the same rows one after another: all samples of the first field, then all of the second."""
        found = self.rows(samples)
        if len(self.fields) == 1:
            return found.reshape(-1)
        ends = np.cumsum(self.sizes).tolist()
        return np.concatenate([found[:, begin:end].reshape(-1) for begin, end in pairwise([0, *ends])])

    def places(self, positions: NDArray[Any], samples: Any) -> NDArray[Any]:
        """Returns where the rows of samples go that have these places among so many samples; -1: nowhere, with all its
        rows.

        Memory has all samples of the first field, then all of the second.
        """
        before, own, within = (column.astype(positions.dtype) for column in self._in_fields)
        samples = np.broadcast_to(np.asarray(samples, positions.dtype), positions.shape)
        spread: NDArray[Any] = samples[:, None] * before + positions[:, None] * own + within
        spread[positions < 0] = -1
        return spread.reshape(-1)

    def parts(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Returns what each field has of the memory of some samples, which is of (samples, *shape, *a row's shape)."""
        if len(self.fields) == 1:
            return [values]
        row = values.shape[2:]
        rows = values.reshape(len(values) * self.slots, *row)
        found, begin = [], 0
        for steps, size in zip(self.fields, self.sizes, strict=True):
            end = begin + len(values) * size
            found.append(rows[begin:end].reshape(len(values), *(() if steps is None else (size,)), *row))
            begin = end
        return found

    def every_row(self, samples: NDArray[Any]) -> Iterator[Rows]:
        """Yields the rows of these samples, some at a time."""
        for begin in range(0, len(samples), self._at_once):
            yield self.rows(samples[begin : begin + self._at_once]).reshape(-1)

    # As a SampleMap and a HeldMap (protocol.py): a buffer holds the rows of a dataset as they are.

    def shape_in(self, layout: Layout) -> tuple[int, ...]:
        return (*self.shape, *layout.sample_shape)

    def nbytes_in(self, layout: Layout) -> int:
        return self.slots * layout.sample_nbytes

    def first_rows(self, numbers: Rows) -> Rows:
        return self.of(numbers % max(1, len(self))).start

    def by_sample(self, layout: Layout) -> Layout:
        return layout

    def facts(self, layout: Layout) -> tuple[Any, ...]:
        return self.shape_in(layout), self.fields

    @property
    def windows(self) -> RowWindows:
        return self

    def bytes_of(self, unit: int) -> int:
        return self.slots * unit

    def wanted_bytes(self, layout: Layout, batch: int) -> int:
        return layout.nbytes

    def rows_used(self, samples: NDArray[np.int32], starts: Rows, epoch: int) -> tuple[Listing, Rows]:
        return Listing(self, samples), starts * self.slots

    def longest_bytes(self, unit: int, samples: int) -> int:
        return samples * self.bytes_of(unit)

    def corners_of(self, samples: NDArray[np.integer], epoch: int) -> None:
        return None

    def lengths_of(self, samples: NDArray[np.integer]) -> None:
        return None

    @cached_property
    def native(self) -> _native.Extents:
        """The same for whoever carries plans out."""
        columns = (self.first, self.anchor, self.low, self.high)
        first, anchor, low, high = (np.ascontiguousarray(column, np.int64) for column in columns)
        return _native.Extents(first, anchor, low, high, self.every, self._steps, np.array(self.sizes, np.int64))

    @cached_property
    def digest(self) -> str:
        """A name for exactly these samples."""
        sha = hashlib.sha256(repr((self.every, self.fields)).encode())
        for column in (self.first, self.anchor, self.low, self.high):
            sha.update(np.ascontiguousarray(column).data)
        return sha.hexdigest()

    @cached_property
    def _steps(self) -> Rows:
        return np.array([step for steps in self.fields for step in ((0,) if steps is None else steps)], np.int64)

    @cached_property
    def _in_fields(self) -> tuple[Rows, Rows, Rows]:
        """Of each row of a sample: the rows of a sample in fields before its own, in that, and before it in that."""
        sizes = np.array(self.sizes, np.int64)
        before = np.repeat(np.cumsum(sizes) - sizes, sizes)
        return before, np.repeat(sizes, sizes), np.arange(len(before)) - before

    @property
    def _at_once(self) -> int:
        return max(1, EXPANDED // self.slots)

    @cached_property
    def _leaves(self) -> bool:
        """Whether any window would leave its stretch."""
        if not len(self.anchor):
            return False
        last = self.anchor + (np.diff(self.first) - 1) * self.every
        least, most = self._steps.min(), self._steps.max()
        return bool(np.any(self.anchor + least < self.low) or np.any(last + most >= self.high))


@dataclass(frozen=True, eq=False)
class Listing:
    """The rows of samples, sample by sample, in the 32 bits by which plans number them. A slice of it is made when it
    is asked for: of all there are never all at once."""

    extents: RowWindows
    samples: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.samples) * self.extents.slots

    def __getitem__(self, part: slice) -> NDArray[np.int32]:
        begin, end, _ = part.indices(len(self))
        slots = self.extents.slots
        first, last = begin // slots, max(begin // slots, -(-end // slots))
        rows = self.extents.rows(self.samples[first:last]).astype(np.int32).reshape(-1)
        return rows[begin - first * slots : max(end, begin) - first * slots]


def windows(
    begins: NDArray[Any], ends: NDArray[Any], *, every: int, reach: tuple[int, int], pad: bool = False
) -> RowWindows:
    """Returns the places of windows in these stretches of rows, which reach from `reach[0]` to `reach[1]` from their
    anchors.

    Anchors are rows of a stretch, the first one that is possible and each `every`-th after it. Windows lie within their
    stretch; with `pad` anchors are all its rows.
    """
    begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
    before, behind = (0, 0) if pad else (max(0, -reach[0]), max(0, reach[1]))
    anchor, room = begins + before, ends - begins - before - behind  # rows that can be anchors
    there = room > 0
    counts = -(-room[there] // every)
    first = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    return RowWindows(first, anchor[there], begins[there], ends[there], every)


def windows_at(starts: NDArray[Any], rows: int, steps: Steps = None) -> RowWindows:
    """Returns windows that begin at these rows of a dataset of so many rows, one for each sample.

    >>> found = windows_at(np.array([4, 5, 6, 0, 9]), 10, (0, 1))
    >>> len(found.anchor), found.rows(np.arange(5)).tolist()
    (3, [[4, 5], [5, 6], [6, 7], [0, 1], [9, 9]])
    """
    starts = np.ascontiguousarray(starts, np.int64)
    apart = np.diff(starts)
    every = int(apart[0]) if len(apart) and apart[0] > 0 and (apart == apart[0]).all() else 1
    begins = np.append(0, np.flatnonzero(apart != every) + 1)
    low, high = np.zeros(len(begins), np.int64), np.full(len(begins), rows, np.int64)
    return RowWindows(np.append(begins, len(starts)), starts[begins], low, high, every, (steps,))


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Each of these whole numbers once, in order: numpy.unique, which hashes them, takes up to 100 times as long.

    >>> distinct(np.array([7, 3, 7, 1])).tolist()
    [1, 3, 7]
    """
    ordered = np.sort(values, axis=None)
    new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    found: NDArray[Any] = ordered[new]
    return found
