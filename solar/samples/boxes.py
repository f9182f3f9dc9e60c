"""Boxes: samples that are boxes of volumes, as arithmetic on a few small arrays.

`index -> places` is known before anything is read, and the same in every process. Where places are drawn anew in each
epoch, a sample's number contains the epoch: sample i of epoch e is number e * samples + i.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.samples.row_windows import distinct

if TYPE_CHECKING:
    from solar.values import Layout

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
BLOCKS_AT_ONCE = 1 << 18  # blocks that are listed at a time, about, by whoever goes through those of all samples


@dataclass(frozen=True, eq=False)
class Places:
    """Places of samples in volumes, volume after volume, and part (file) after part.

    A volume is a part, or a row of one. Of its axes those that are cut are told here: how long they are, and how long a
    sample is along them. A place is (part, row of it, where it begins along each cut axis). In each volume of a part
    places are those of a grid, `step` apart, of which the last ends with the volume; or `per` that are drawn.

    >>> grid([1], [(10, 4)], (4, 4), (3, 4)).of(np.arange(3)).tolist()
    [[0, 0, 0, 0], [0, 0, 3, 0], [0, 0, 6, 0]]
    """

    first: Numbers  # sample of each part, and at last the number of samples
    counts: Numbers  # of each part: places along each cut axis; drawn: [per, 1, 1, ...]
    lengths: Numbers  # of each part: of each cut axis
    box: tuple[int, ...]  # of a sample, along each cut axis
    step: tuple[int, ...] = ()
    seed: int | None = None  # None: places are not drawn
    told: Numbers | None = None  # places that were told one by one; None: of the grid, or drawn

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def digest(self) -> str:
        """Identifies exactly these places."""
        sha = hashlib.sha256(repr((self.box, self.step, self.seed)).encode())
        for column in (self.first, self.counts, self.lengths, self.told):
            sha.update(b"-" if column is None else np.ascontiguousarray(column).data)
        return sha.hexdigest()

    @property
    def drawn(self) -> bool:
        """Whether each epoch has places of its own."""
        return self.seed is not None

    def of(self, numbers: Numbers) -> Numbers:
        """Returns the place of each sample, one per line."""
        epoch, samples = np.divmod(np.asarray(numbers, np.int64), max(1, len(self)))
        if self.told is not None:
            return self.told[samples]
        part = np.searchsorted(self.first, samples, side="right") - 1
        counts, room = self.counts[part], self.lengths[part] - np.array(self.box, np.int64)
        row, left = np.divmod(samples - self.first[part], counts.prod(1))
        if self.seed is None:
            found = np.empty_like(room)
            for axis in reversed(range(len(self.box))):
                left, found[:, axis] = np.divmod(left, counts[:, axis])
            found = np.minimum(found * np.array(self.step, np.int64), room)
        else:
            found = draw_places(self.seed, epoch, samples, room)
        return np.column_stack((part, row, found))

    def chosen(self, which: Numbers) -> Places:
        """Returns the places of these samples only."""
        listed = self.of(which)
        first = np.searchsorted(listed[:, 0], np.arange(len(self.first)))
        return replace(self, told=listed, first=first.astype(np.int64))


def grid(
    volumes: list[int], lengths: list[tuple[int, ...]], box: tuple[int, ...], step: tuple[int, ...]
) -> Places:  # fmt: skip
    """Returns the places of a grid in volumes. `volumes` counts those of each part, `lengths` has their axes."""
    own = np.array(lengths, np.int64)
    counts = -(-(own - np.array(box)) // np.array(step)) + 1
    return Places(first_samples(volumes, counts), counts, own, box, step)


def drawn_places(
    volumes: list[int], lengths: list[tuple[int, ...]], box: tuple[int, ...], per: int, seed: int
) -> Places:
    """Returns `per` places in each volume, drawn anew in each epoch."""
    own = np.array(lengths, np.int64)
    counts = np.ones_like(own)
    counts[:, 0] = per
    return Places(first_samples(volumes, counts), counts, own, box, seed=seed)


def listed_places(places: Numbers, parts: int, lengths: list[tuple[int, ...]], box: tuple[int, ...]) -> Places:
    """Returns places that are given one by one, in ascending order of their parts."""
    first = np.searchsorted(places[:, 0], np.arange(parts + 1)).astype(np.int64)
    return Places(first, np.empty((0, 0), np.int64), np.array(lengths, np.int64), box, told=places)


def first_samples(volumes: list[int], counts: Numbers) -> Numbers:
    return np.concatenate(([0], np.cumsum(np.array(volumes, np.int64) * counts.prod(1), dtype=np.int64)))


class Corners(NamedTuple):
    """Where samples lie in a dataset."""

    start: Numbers  # the row, along axis 0 of all parts, at which each begins
    corners: Numbers  # of each: the part, and where it begins along each axis of that


@dataclass(frozen=True, eq=False)
class Boxes:
    """Samples that are boxes of a dataset, at places that several datasets may share.

    Axis d of a box begins at column at[d] of its place, or so many places behind that; -1: it is the whole axis.

    >>> stack = Boxes(grid([1], [(7,)], (1,), (1,)), (5, 6, 1), (-1, -1, 2), (2,), np.array([0, 5]))
    >>> stack.shape, stack.of(np.array([4])).corners.tolist()
    ((5, 6), [[0, 0, 0, 4]])
    """

    places: Places
    box: tuple[int, ...]
    at: tuple[int, ...]
    left_out: tuple[int, ...]  # axes of length 1 that a sample does not have
    part_first: Numbers  # of the dataset
    behind: tuple[int, ...] = ()  # of each axis, if any: how far behind its place a box begins
    kind: ClassVar[str] = "boxes"
    noun: ClassVar[str] = "boxes"
    at_rows: ClassVar[bool] = False
    lengths: ClassVar[None] = None
    windows: ClassVar[None] = None
    picks: ClassVar[None] = None
    not_in_blocks: ClassVar[str] = ""

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def digest(self) -> str:
        """Identifies exactly these samples."""
        facts = self.places.digest, self.box, self.at, self.left_out, self.part_first.tolist(), self.behind
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return tuple(n for axis, n in enumerate(self.box) if axis not in self.left_out)

    @property
    def drawn(self) -> bool:
        """Whether each epoch has places of its own."""
        return self.places.drawn

    def shape_in(self, layout: Layout) -> tuple[int, ...]:
        return self.shape

    def nbytes_in(self, layout: Layout) -> int:
        return math.prod(self.box) * layout.dtype.itemsize

    def first_rows(self, numbers: Numbers) -> Numbers:
        return self.of(numbers).start

    def by_sample(self, layout: Layout) -> Layout:
        return layout

    def facts(self, layout: Layout) -> tuple[Any, ...]:
        return self.shape, None

    def of(self, numbers: Numbers) -> Corners:
        """Returns the place of each sample in the dataset."""
        places = self.places.of(numbers)
        corners = np.zeros((len(places), 1 + len(self.at)), np.int64)
        corners[:, 0] = places[:, 0]
        for axis, column in enumerate(self.at):
            if column >= 0:
                corners[:, 1 + axis] = places[:, column]
        corners[:, 1:] += np.array(self.behind or 0, np.int64)
        return Corners(self.part_first[corners[:, 0]] + corners[:, 1], corners)


@dataclass(frozen=True, eq=False)
class BoxBlocks:
    """Boxes of a dataset that a buffer holds as blocks: finds the blocks that each step touches.

    Blocks are numbered part after part, each part's in the order of its grid.

    >>> stack = Boxes(grid([1], [(7,)], (1,), (1,)), (5, 6, 1), (-1, -1, 2), (2,), np.array([0, 5]))
    >>> blocks = BoxBlocks(stack, (5, 3, 4), np.array([[1, 2, 2]]))
    >>> [found.tolist() for found in blocks.uses(np.array([3, 2, 6]), np.array([0, 2, 3]))]
    [[0, 2, 1, 3], [0, 2, 4]]
    """

    boxes: Boxes
    block: tuple[int, ...]  # shape
    tiles: Numbers  # of each part: blocks along each axis
    in_blocks: ClassVar[bool] = True
    tables_nbytes: ClassVar[int] = 0
    windows: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def slots(self) -> int:
        """Returns about how many blocks a sample touches."""
        edges = zip(self.boxes.box, self.block, self.tiles.max(0, initial=1).tolist(), strict=True)
        return max(1, math.ceil(math.prod(min(tiles, (n + block - 1) / block) for n, block, tiles in edges)))

    def numbers(self, samples: NDArray[np.integer], epoch: int) -> Numbers:
        """Adds the epoch to each sample number when places are drawn in each epoch."""
        own: Numbers = samples.astype(np.int64)
        return own + epoch * len(self.boxes) if self.boxes.places.drawn else own

    def bytes_of(self, unit: int) -> int:
        return unit // math.prod(self.block) * math.prod(self.boxes.box)

    def longest_bytes(self, unit: int, samples: int) -> int:
        return samples * self.bytes_of(unit)

    def wanted_bytes(self, layout: Layout, batch: int) -> int:
        return -(-len(self) // batch) * min(batch * self.slots, layout.samples) * layout.sample_nbytes

    def rows_used(self, samples: NDArray[np.integer], starts: Numbers, epoch: int) -> tuple[NDArray[np.int32], Numbers]:
        return self.uses(self.numbers(samples, epoch), starts)

    def corners_of(self, samples: NDArray[np.integer], epoch: int) -> Numbers:
        return self.boxes.of(self.numbers(samples, epoch)).corners

    def lengths_of(self, samples: NDArray[np.integer]) -> None:
        return None

    def uses(self, numbers: Numbers, starts: Numbers) -> tuple[NDArray[np.int32], Numbers]:
        """Returns the blocks that each step touches, once each and in order, and where each step begins."""
        counts, found = [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
        every = max(1, int(self.tiles.prod(1).sum()))
        for steps in self._some(starts):
            step = np.repeat(np.arange(len(steps) - 1), np.diff(steps))
            blocks, of = self._touch(self.boxes.of(numbers[steps[0] : steps[-1]]).corners)
            wanted = distinct(step[of] * every + blocks)
            found.append((wanted % every).astype(np.int32))
            counts.append(np.bincount(wanted // every, minlength=len(steps) - 1))
        return np.concatenate(found), np.cumsum(np.concatenate(counts))

    def _some(self, starts: Numbers) -> Iterator[Numbers]:
        """Yields where steps begin and the last one ends, some steps at a time."""
        most = max(1, BLOCKS_AT_ONCE // self.slots)
        cuts = np.searchsorted(starts, np.arange(0, int(starts[-1]) + most, most))
        for begin, end in pairwise(np.unique(np.append(cuts, len(starts) - 1)).tolist()):
            yield starts[begin : end + 1]

    def _touch(self, corners: Numbers) -> tuple[Numbers, Numbers]:
        """Returns each block that each box touches, and the number of the box."""
        part, begin = corners[:, 0], corners[:, 1:]
        low = begin // np.array(self.block)
        wide = (begin + np.array(self.boxes.box) - 1) // np.array(self.block) - low + 1
        counts = wide.prod(1)
        of = np.repeat(np.arange(len(counts)), counts)
        left = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        sizes = self.tiles.prod(1)
        found, stride = (np.cumsum(sizes) - sizes)[part[of]], np.ones(len(self.tiles), np.int64)
        for axis in reversed(range(len(self.block))):
            left, at = np.divmod(left, wide[of, axis])
            found += (low[of, axis] + at) * stride[part[of]]
            stride = stride * self.tiles[:, axis]
        return found, of


# --- places that are drawn ----

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio
MIXING = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64


def mix_words(words: Words) -> Words:
    """Returns a random-looking word for each word: the last step of splitmix64."""
    words = words + GOLDEN
    words = (words ^ (words >> np.uint64(30))) * MIXING[0]
    words = (words ^ (words >> np.uint64(27))) * MIXING[1]
    return words ^ (words >> np.uint64(31))


def draw_places(seed: int, epoch: Numbers, samples: Numbers, room: Numbers) -> Numbers:
    """Returns a number from 0 to `room` for each sample and axis, from (seed, epoch, sample, axis) alone."""
    words = mix_words(np.full(len(samples), seed % 2**64, np.uint64))
    words = mix_words(words ^ epoch.astype(np.uint64))
    words = mix_words(words ^ samples.astype(np.uint64))
    found = np.empty_like(room)
    for axis in range(room.shape[1]):
        words = mix_words(words)
        share = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        found[:, axis] = np.minimum((share * (room[:, axis] + 1)).astype(np.int64), room[:, axis])
    return found
