"""HeldBlocks: blocks of rows that are read ahead by native threads, in a bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from solar.errors import SolarError
from solar.io.reading.reader import Pending, Rows
from solar.io.system.waiting import WaitTimeout
from solar.values import Layout

Array = NDArray[np.int64]

ONE_BLOCK = 1 << 20  # bytes of a dataset that is one block
WAIT = 60.0  # seconds that a block may take; then h5py reads what was asked for, and says what is wrong


def is_one_block(layout: Layout) -> bool:
    """Returns whether a dataset is so small that it is read in one piece."""
    return layout.samples * layout.sample_nbytes <= ONE_BLOCK


class BlockLoad:
    """Blocks that one request reads, and the memory that they share."""

    __slots__ = ("blocks", "failed", "nbytes", "pending", "values")

    def __init__(self, pending: Pending, blocks: int) -> None:
        self.pending: Pending | None = pending
        self.values: NDArray[Any] | None = None
        self.nbytes = pending.nbytes
        self.blocks = blocks  # that are still held
        self.failed = False

    def wait(self) -> NDArray[Any] | None:
        """Waits for the rows. Returns None if they could not be read."""
        if self.pending is not None:
            try:
                self.values = self.pending.wait(WAIT)
            except (SolarError, WaitTimeout, OSError):
                self.failed = True
            self.pending = None
        return self.values


class HeldBlock:
    """A block of rows: its place in its load, how many coming batches need it, and whether it was ever used."""

    __slots__ = ("at", "load", "number", "source", "taken", "uses")

    def __init__(self, source: BlockSource, number: int, load: BlockLoad, at: int) -> None:
        self.source, self.number, self.load, self.at = source, number, load, at
        self.uses, self.taken = 1, False


class RowSource(Protocol):
    """Rows of a dataset that are in memory."""

    layout: Layout
    held: dict[int, HeldBlock]  # empty if it has no blocks

    def rows(self, start: int, stop: int) -> NDArray[Any] | None:
        """Returns these rows, as views or new arrays; None if some are not in memory."""


class BlockSource:
    """A dataset divided into blocks of rows.

    A block is what is worth reading at once: a chunk that must be decoded, all of a small dataset, else the rows of one
    read.
    """

    def __init__(self, layout: Layout, rows: int = 1, buffer: int | None = None) -> None:
        """`rows` is the length of one read. `buffer` is the loader's argument; 0 keeps nothing."""
        self.layout, self.samples, self.sample_nbytes = layout, layout.samples, layout.sample_nbytes
        filtered = any(form.filters for form in layout.forms)
        in_chunk = max((form.chunk[0] for form in layout.forms if form.filters and form.chunk), default=1)
        self.per_block = min(self.samples, max(1, in_chunk if filtered else rows))
        if is_one_block(layout):
            self.per_block = self.samples
        # When no coming batch needs them; what is not decoded is in the page cache, too.
        self.keep = self.per_block == self.samples or bool(filtered if buffer is None else buffer)
        self.reader = Rows(layout)
        self.held: dict[int, HeldBlock] = {}

    def blocks_of(self, starts: Array, rows: int) -> Array:
        """Returns the numbers of the blocks that these rows lie in. Rows out of range have none."""
        starts = starts[(starts >= 0) & (starts < self.samples)]
        first = starts // self.per_block
        last = (np.minimum(starts + rows, self.samples) - 1) // self.per_block
        most = int((last - first).max(initial=0))
        if not most:
            return np.unique(first)
        every = first[:, None] + np.arange(most + 1)
        return np.unique(every[every <= last[:, None]])

    def rows_in(self, block: int) -> int:
        return min(self.per_block, self.samples - block * self.per_block)

    def start(self, blocks: list[int]) -> Iterable[HeldBlock]:
        """Begins to read blocks: single rows in one request, others one by one, to be dropped one by one."""
        if self.per_block == 1:
            load = BlockLoad(self.reader.start(np.array(blocks, np.int64)), len(blocks))
            return [HeldBlock(self, block, load, at) for at, block in enumerate(blocks)]
        made = []
        for block in blocks:
            begin, rows = block * self.per_block, self.rows_in(block)
            load = BlockLoad(self.reader.start(np.arange(begin, begin + rows, dtype=np.int64)), 1)
            made.append(HeldBlock(self, block, load, 0))
        return made

    def rows(self, start: int, stop: int) -> NDArray[Any] | None:
        """Returns these rows; None if some are not in memory. Rows of several blocks are copied, else they are a view.

        The caller copies what it hands on.
        """
        block = start // self.per_block
        if (stop - 1) // self.per_block == block:
            return self._in_block(block, start, stop)
        parts = []
        while start < stop:
            end = min(stop, (block + 1) * self.per_block)
            if (part := self._in_block(block, start, end)) is None:
                return None
            parts.append(part)
            start, block = end, block + 1
        return np.concatenate(parts)

    def _in_block(self, block: int, start: int, stop: int) -> NDArray[Any] | None:
        held = self.held.get(block)
        if held is None:
            return None
        values = held.load.values if held.load.pending is None else held.load.wait()
        if values is None:
            return None
        held.taken = True
        begin = held.at - block * self.per_block
        return values[begin + start : begin + stop]


class HeldBlocks:
    """The blocks of all datasets, in at most `capacity` bytes.

    Blocks that coming batches need stay. Of the others, the one that was used most recently is dropped first: in an
    order that returns to each block once in an epoch, as many blocks as possible are then still there in the next
    epoch.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.nbytes = 0
        self._unused: dict[HeldBlock, None] = {}  # in the order of their last use

    def start(self, needed: dict[BlockSource, list[int]]) -> list[HeldBlock] | None:
        """Returns the blocks that a batch needs, and begins to read missing ones. None: there is no room now."""
        new = {source: [one for one in blocks if one not in source.held] for source, blocks in needed.items()}
        nbytes = sum(source.sample_nbytes * math.fsum(map(source.rows_in, blocks)) for source, blocks in new.items())
        found = [source.held[one] for source, blocks in needed.items() for one in blocks if one in source.held]
        for held in found:
            held.uses += 1
            self._unused.pop(held, None)
        if not self._make_room(int(nbytes)):
            self.release(found)
            return None
        for source, blocks in new.items():
            if not blocks:
                continue
            for held in source.start(blocks):
                source.held[held.number] = held
                found.append(held)
            self.nbytes += source.sample_nbytes * sum(map(source.rows_in, blocks))
        return found

    def release(self, blocks: Iterable[HeldBlock]) -> None:
        """Releases blocks that a batch no longer needs."""
        for held in blocks:
            held.uses -= 1
            if held.uses:
                continue
            if held.source.keep and not held.load.failed:
                self._unused[held] = None
            else:
                self._drop(held)

    def _make_room(self, nbytes: int) -> bool:
        while self.nbytes + nbytes > self.capacity and self._unused:
            self._drop(self._unused.popitem()[0])
        return self.nbytes + nbytes <= self.capacity

    def _drop(self, held: HeldBlock) -> None:
        self._unused.pop(held, None)
        if held.source.held.pop(held.number, None) is None:
            return
        held.load.blocks -= 1
        if not held.load.blocks:
            self.nbytes -= held.load.nbytes

    def forget(self, source: RowSource) -> None:
        """Drops all blocks of a dataset."""
        for held in list(source.held.values()):
            self._drop(held)
