"""RowBlocks: the rows of a ragged dataset in blocks of equal size, as a buffer holds them.

Such samples are stretches of rows that may be a few bytes each, and a buffer holds, and a plan counts, things of one
size. So a Layout of rows is seen as one of blocks of rows, and a batch uses all blocks that its samples have part in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.values import Form, Layout

HELD_NBYTES = 16 << 10  # bytes of a block, at most, where a chunk is larger
SMALLER = 8  # a block is no smaller than one part of so many of that, but where samples are
TABLED = 64  # bytes that a block takes beside its own, in tables and in planning, about
# Bytes of each in a loader's plans and tables, about.
CHUNK_TABLED, BLOCK_TABLED, USE_TABLED, SAMPLE_TABLED = 60, 12, 16, 80
MOST_USES = 1 << 25  # of blocks, by all samples
SAMPLES_AT_ONCE = 1 << 13  # whose blocks are listed together: what that takes is gone before the next

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A Layout of rows as one of blocks, and which blocks samples have part in.

    Where chunks are decoded, a chunk has a whole number of blocks, or its last one is not full.

    Blocks are numbered part by part: a part is a file, or a sample that lies anywhere by itself. Where a part's rows
    are no multiple of a block's and lie one after another, its last block ends with them, and begins within the block
    before, or before the part. The rows from `tail` on are taken from that.
    """

    layout: Layout
    per: int  # rows of a block
    begin: Places  # first row of each sample
    length: Places
    first_row: Places  # of each part, and at last the number of rows
    first: Places  # block of each part, and at last the number of blocks
    tail: Places  # of each part: the first row that is in its last block alone
    chunk: int = 0  # rows of a chunk, whose last block may not be full; 0: blocks do not begin anew with each
    in_blocks: ClassVar[bool] = True
    windows: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.begin)

    @cached_property
    def counts(self) -> Places:
        """How many blocks each sample has part in."""
        low, high = self._ends(slice(None))
        counts: Places = np.where(self.length > 0, high - low + 1, 0)
        return counts

    @cached_property
    def slots(self) -> int:
        """How many blocks a sample has part in, on average."""
        return max(1, math.ceil(self.counts.mean())) if len(self) else 1

    @property
    def tables_nbytes(self) -> int:
        """The bytes, about, that a loader notes for chunks, blocks, and the samples and uses of blocks in an epoch."""
        listed = len(self.layout.chunk_offset) * CHUNK_TABLED + len(self) * SAMPLE_TABLED
        return listed + int(self.first[-1]) * BLOCK_TABLED + int(self.counts.sum()) * USE_TABLED

    def uses(self, samples: NDArray[np.integer], starts: Places) -> tuple[NDArray[np.int32], Places]:
        """Returns the blocks that each step touches, once each and in order, and where each step begins."""
        found, counts = [np.empty(0, np.int32)], [np.zeros(1, np.int64)]
        for first, last in _stretches(starts):
            blocks, each = self._used_blocks(
                samples[starts[first] : starts[last]], starts[first : last + 1] - starts[first]
            )
            found.append(blocks)
            counts.append(np.diff(each))
        return np.concatenate(found), np.cumsum(np.concatenate(counts))

    def bytes_of(self, unit: int) -> int:
        return round(float(self.length.mean()) * unit / self.per)

    def longest_bytes(self, unit: int, samples: int) -> int:
        return most_rows([self], samples) * (unit // self.per)

    def wanted_bytes(self, layout: Layout, batch: int) -> int:
        return layout.nbytes

    def rows_used(self, samples: NDArray[np.integer], starts: Places, epoch: int) -> tuple[NDArray[np.int32], Places]:
        return self.uses(samples, starts)

    def corners_of(self, samples: NDArray[np.integer], epoch: int) -> Places:
        """Returns two runs of rows for each sample, each a first row and a number of rows, and a 0.

        Rows are counted on from block to block. The 0 is for the row of the batch at which the sample begins.
        """
        begin, length = self.begin[samples], self.length[samples]
        part = self._part(begin)
        row, low = begin - self.first_row[part], self._block(begin, part)
        if self.chunk:  # no sample has part in three
            row %= self.chunk
            rest, behind = begin - row + self.chunk, np.zeros_like(row)
            last = low - row // self.per + -(-self.chunk // self.per)
        else:
            rest, last = self.tail[part], self.first[part + 1] - 1
            behind = np.maximum(begin, rest) - (self.first_row[part + 1] - self.per)
        body = np.clip(rest - begin, 0, length)
        found = np.zeros((len(begin), 5), np.int64)
        found[:, 0], found[:, 1] = np.where(body > 0, low * self.per + row % self.per, 0), body
        found[:, 2], found[:, 3] = np.where(length > body, last * self.per + behind, 0), length - body
        return found

    def lengths_of(self, samples: NDArray[np.integer]) -> Places:
        found: Places = self.length[samples]
        return found

    def _used_blocks(self, samples: NDArray[np.integer], starts: Places) -> tuple[NDArray[np.int32], Places]:
        """Returns what `uses` does of a few steps."""
        runs = self.corners_of(samples, 0)[:, :4].reshape(-1, 2)
        first, rows = runs.T
        last = np.where(rows > 0, (first + rows - 1) // self.per, -1)
        return _native.merge_ranges(first // self.per, last, 2 * starts, int(self.first[-1]))

    def _ends(self, samples: NDArray[np.integer] | slice) -> tuple[Places, Places]:
        """Returns the first and the last block of each; of those without rows any."""
        begin = self.begin[samples]
        part = self._part(begin)
        return self._block(begin, part), self._block(begin + np.maximum(self.length[samples], 1) - 1, part)

    def _part(self, row: Places) -> Places:
        part: Places = np.searchsorted(self.first_row, row, side="right") - 1
        return np.minimum(part, len(self.tail) - 1)  # of a sample without rows at the end

    def _block(self, row: Places, part: Places) -> Places:
        own = self.first[part] + self._blocks(row - self.first_row[part])
        block: Places = np.where(row >= self.tail[part], self.first[part + 1] - 1, own)
        return block

    def _blocks(self, rows: Places) -> Places:
        """Returns how many full ones come before so many rows of a part."""
        if not self.chunk:
            return rows // self.per
        return rows // self.chunk * -(-self.chunk // self.per) + rows % self.chunk // self.per


def _stretches(starts: Places) -> Iterator[tuple[int, int]]:
    """Yields the first and the last of so many steps that these have about SAMPLES_AT_ONCE samples."""
    steps, first = len(starts) - 1, 0
    while first < steps:
        behind = int(np.searchsorted(starts, starts[first] + SAMPLES_AT_ONCE, side="right")) - 1
        last = min(max(behind, first + 1), steps)
        yield first, last
        first = last


def most_rows(every: Sequence[RowBlocks], samples: int) -> int:
    """Returns the most rows that a batch of this many samples can have."""
    lengths = np.concatenate([one.length for one in every])
    least = max(0, len(lengths) - samples)
    return int(np.partition(lengths, least)[least:].sum()) if least < len(lengths) else 0


def why_not_blocks(layout: Layout) -> str:
    """Returns why rows of this Layout cannot be put into blocks; empty if they can."""
    where = f"{layout.paths[0]}: {layout.title}"
    if layout.reader != "direct":
        return f"{where} is read through libhdf5: {layout.reason}"
    if any(form.chunk[1:] != layout.sample_shape for form in layout.forms):
        return f"{where} has chunks across its rows"
    return "" if layout.nbytes else f"{where} has no bytes"


def blocks_of(layout: Layout, begin: Places, length: Places) -> RowBlocks:
    """Returns the blocks of these samples. REQUIRES: nothing that `why_not_blocks` says."""
    return _of_samples(layout, begin, length) if layout.spread else blocks_of_files(layout, begin, length)


def blocks_of_files(layout: Layout, begin: Places, length: Places) -> RowBlocks:
    """Those of few parts, which are files."""
    rows, size = np.diff(layout.part_first), layout.sample_nbytes
    chunked = [form.chunk[0] > 0 for form in layout.forms]
    alone = [int(n) for n, form in zip(rows, layout.part_form, strict=True) if n and not chunked[form]]
    lengths = length[length > 0]

    def uses(per: int) -> float:
        return float(((lengths - 1) / per + 1).sum())  # wherever samples begin

    every = math.gcd(*(form.chunk[0] for form in layout.forms))
    largest = min([max(1, HELD_NBYTES // size), *alone])
    cut = every if not alone and _may_be_cut(layout, every, int(length.max())) else 0
    fitting = (_divisors(every) if every else []) + ([1 << n for n in range(0, 64, 2)] if cut or not every else [])
    per = _per([one for one in fitting if one <= largest], size, int(length.max()), uses, 0 if alone else every)
    cut = cut if every % per else 0
    columns: dict[str, list[int]] = {"file": [], "form": [], "rows": [], "chunks": [], "tail": []}
    entries = [np.empty((0, 4), np.uint64)]  # index, offset, bytes, mask
    first = [0]
    for part, (n, form, file) in enumerate(zip(rows.tolist(), layout.part_form, layout.part_file, strict=True)):
        here = part_entries(layout, part)
        over = 0 if chunked[form] else n % per
        whole = n // cut * -(-cut // per) + -(-(n % cut) // per) if cut else -(-n // per)
        for skip, blocks in ((0, n // per), (n - per, 1)) if over else ((0, whole),):
            entries.append(here if chunked[form] else _part_of(here, skip, blocks * per, layout.sample_nbytes))
            for name, value in (("file", int(file)), ("form", int(form)), ("rows", blocks), ("chunks", len(here))):
                columns[name].append(value)
        first.append(sum(columns["rows"]))
        columns["tail"].append(int(layout.part_first[part + 1]) - over)
    index, offset, nbytes, mask = np.concatenate(entries).T
    made = replace(
        layout,
        shape=(first[-1], per, *layout.sample_shape),
        forms=tuple(block_form(form, per, size if cut else 0) for form in layout.forms),
        part_file=np.array(columns["file"], np.int32),
        part_form=np.array(columns["form"], np.int32),
        part_first=np.cumsum([0, *columns["rows"]]),
        part_chunks=np.cumsum([0, *columns["chunks"]]),
        chunk_index=np.ascontiguousarray(index),
        chunk_offset=np.ascontiguousarray(offset),
        chunk_nbytes=np.ascontiguousarray(nbytes),
        chunk_mask=mask.astype(np.uint32),
    )
    firsts, tails = np.array(first, np.int64), np.array(columns["tail"], np.int64)
    return RowBlocks(made, per, begin, length, layout.part_first, firsts, tails, cut)


def _may_be_cut(layout: Layout, rows: int, longest: int) -> bool:
    """Returns whether blocks may begin anew with each chunk: all chunks are alike, and are decoded."""
    alike = all(form.chunk[0] == rows and form.filters for form in layout.forms)
    return alike and longest <= rows and not layout.chunk_mask.any()


def _per(fitting: list[int], size: int, longest: int, uses: Callable[[int], float], whole: int = 0) -> int:
    """Rows of a block: those of which the blocks that samples have part in take least memory, all together.

    Where none is handy it is the largest; or `whole`, a chunk, where that is too small.
    """
    least = min(TABLED, longest * size)
    handy = [per for per in fitting if per * size >= least and uses(per) <= MOST_USES]
    if handy:
        return min(handy, key=lambda per: uses(per) * (per * size + TABLED))
    return whole if whole and max(fitting) * size * SMALLER < HELD_NBYTES else max(fitting)


def _divisors(number: int) -> list[int]:
    return [d for n in range(1, math.isqrt(number) + 1) if number % n == 0 for d in (n, number // n)]


def part_entries(layout: Layout, part: int) -> NDArray[np.uint64]:
    here = slice(int(layout.part_chunks[part]), int(layout.part_chunks[part + 1]))
    index = layout.chunk_index[here] if len(layout.chunk_index) else np.arange(here.stop - here.start)
    columns = (index, layout.chunk_offset[here], layout.chunk_nbytes[here], layout.chunk_mask[here])
    return np.stack([column.astype(np.uint64) for column in columns], axis=1)


def _part_of(entries: NDArray[np.uint64], skip: int, rows: int, row_nbytes: int) -> NDArray[np.uint64]:
    """Some rows of what lies in one piece, if it was written."""
    moved = entries.copy()
    moved[:, 1] += np.uint64(skip * row_nbytes)
    moved[:, 2] = rows * row_nbytes
    return moved


def block_form(form: Form, per: int, size: int) -> Form:
    """That of blocks, the last one of a chunk not full where the `size` of a row is told."""
    rows = form.chunk[0]
    return replace(form, chunk=(-(-rows // per), per, *form.chunk[1:]), nbytes=rows * size)


# --- where each sample is a part of its own ----


def _of_samples(layout: Layout, begin: Places, length: Places) -> RowBlocks:
    """Those of as many parts as there are samples."""
    rows, size = np.diff(layout.part_first), layout.sample_nbytes
    chunk = np.array([form.chunk[0] for form in layout.forms], np.int64)[layout.part_form]
    alone = chunk == 0
    written = alone & (rows > 0) & (np.diff(layout.part_chunks) > 0)
    base = layout.chunk_offset[layout.part_chunks[:-1][written]].astype(np.int64)
    room = int(((base + rows[written] * size) // size).min(initial=HELD_NBYTES))  # of a file, before a part's end
    every, largest = math.gcd(*{*chunk.tolist()}), max(1, min(HELD_NBYTES // size, room))
    lengths, times = np.unique(rows, return_counts=True)

    def uses(per: int) -> float:
        return float((times * -(-lengths // per)).sum())

    fitting = _divisors(every) if every else [one for n in range(32) for one in (1 << n, 3 << n)]
    per = _per([one for one in fitting if one <= largest], size, int(rows.max()), uses)
    first = _running(-(-rows // per))
    # What lies side by side in one file without chunks becomes one part.
    form, file = layout.part_form, layout.part_file
    goes_on = alone[1:] & alone[:-1] & (form[1:] == form[:-1]) & (file[1:] == file[:-1])
    at = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    joined = np.cumsum(np.concatenate(([0], ~goes_on)))  # which of these each part is in
    entries, of = _with_chunks(layout, *list_blocks(rows, per, size, np.flatnonzero(written), base), alone)
    entries[:, 0] += np.where(alone, first[:-1] - first[at][joined], 0)[of]
    index, offset, nbytes, mask = entries.T
    part_chunks = _running(np.bincount(joined[of], minlength=len(at)))
    if np.array_equal(index, np.arange(len(index)) - np.repeat(part_chunks[:-1], np.diff(part_chunks))):
        index = index[:0]  # all are there, in order
    made = replace(
        layout,
        shape=(int(first[-1]), per, *layout.sample_shape),
        forms=tuple(replace(form, chunk=(form.chunk[0] // per or 1, per, *form.chunk[1:])) for form in layout.forms),
        part_file=file[at],
        part_form=form[at],
        part_first=np.append(first[at], first[-1]),
        part_chunks=part_chunks,
        chunk_index=index.astype(np.uint64),
        chunk_offset=offset.astype(np.uint64),
        chunk_nbytes=nbytes.astype(np.uint64),
        chunk_mask=mask.astype(np.uint32),
        dataset_first=first[np.searchsorted(layout.part_first, layout.dataset_first)],
    )
    tail = layout.part_first[1:] - np.where(alone, rows % per, 0)
    return RowBlocks(made, per, begin, length, layout.part_first, first, tail)


def list_blocks(rows: Places, per: int, size: int, parts: Places, base: Places) -> tuple[Places, Places]:
    """Returns the blocks of these parts, which lie there without chunks, one by one; and the part that each is of.

    Before a part that is shorter than a block other bytes of the file are read, and never looked at.
    """
    counts = -(-rows[parts] // per)
    place = np.repeat(np.arange(len(parts)), counts)
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    of = parts[place]
    offset = base[place] + np.minimum(within * per, rows[of] - per) * size
    return np.stack((within, offset, np.full(len(of), per * size), np.zeros(len(of), np.int64)), axis=1), of


def _with_chunks(layout: Layout, own: Places, of: Places, alone: NDArray[np.bool_]) -> tuple[Places, Places]:
    """These entries of parts without chunks, with the chunks of others, in the order of parts; and of which each is."""
    counts = np.diff(layout.part_chunks)
    part = np.repeat(np.arange(len(counts)), counts)
    index = layout.chunk_index if len(layout.chunk_index) else np.arange(len(part)) - layout.part_chunks[part]
    columns = (index, layout.chunk_offset, layout.chunk_nbytes, layout.chunk_mask)
    chunks = np.stack([column.astype(np.int64) for column in columns], axis=1)[~alone[part]]
    of_entry = np.concatenate((of, part[~alone[part]]))
    order = np.argsort(of_entry, kind="stable")
    return np.concatenate((own, chunks))[order], of_entry[order]


def _running(counts: NDArray[Any]) -> Places:
    """Returns how many there are before each, and at last how many there are."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
