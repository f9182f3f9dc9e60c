"""Units: the smallest things worth reading, which samples they hold, where they lie and what they take."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError
from solar.values import Form, Layout, RowPacking

Places = NDArray[np.int64]
FAR = 1 << 40  # bytes that are put between two files: no request reaches from one into the other
MOST_SAMPLES = 2**31 - 1  # samples of a data set, which plans number by 32 bits
PARTS_AT_ONCE = 1 << 13  # of a Layout, whose units are listed together: what that takes is gone before the next
PAGES = 32  # about so many to a unit that is held as it is stored
PAGE = range(8, 17)  # the power of two that a page may be


@dataclass(frozen=True, eq=False)
class Units:
    """Units in the order they lie in storage. The samples, numbered in that order too, are then called items.

    Item i is sample i where `item` is None, as nearly always. Units are alike where `first` is None: unit u holds
    the items [u * per_unit, (u + 1) * per_unit), at u * stored_nbytes. A unit of no bytes was never written: nothing
    is read for it.
    """

    samples: int
    per_unit: int  # the most samples a unit holds
    sample_nbytes: int  # of one sample in memory, decoded
    stored_nbytes: int  # of the largest unit in storage
    encoded: bool = False  # the stored bytes are not the samples' own, or are checked when they are read
    first: Places | None = None  # the first item of each unit, and at last the number of items
    offset: Places | None = None  # where each unit begins, counted over all files; beside `first`
    nbytes: Places | None = None  # what it takes there
    item: NDArray[np.int32] | None = None  # the item of each sample
    # Where a unit has several chunks: unit u has chunks [chunk_first[u], chunk_first[u + 1]), as they lie in storage.
    chunk_first: Places | None = None
    chunk_offset: Places | None = None
    chunk_nbytes: Places | None = None
    storable: bool = True  # memory may hold units as they are stored: all of them are whole chunks
    packing: RowPacking | None = None  # memory holds samples encoded so, instead of as they are
    decoded_later: bool = False  # samples are chunks as they are stored: whoever gets them decodes them

    @property
    def held_nbytes(self) -> int:
        """What memory takes for one sample."""
        return self.sample_nbytes if self.packing is None else self.packing.nbytes

    @property
    def units(self) -> int:
        """How many there are."""
        return -(-self.samples // self.per_unit) if self.first is None else len(self.first) - 1

    @property
    def total_nbytes(self) -> int:
        """The stored bytes of all units."""
        return self.units * self.stored_nbytes if self.nbytes is None else int(self.nbytes.sum())

    @property
    def page(self) -> int:
        """The bytes of a page: what is held as it is stored takes whole ones, each chunk its own."""
        power = round(math.log2(max(1, self.total_nbytes / self.units / PAGES)))
        return 1 << min(max(power, PAGE[0]), PAGE[-1])

    @cached_property
    def paged(self) -> Places | int:
        """What each unit takes in memory as it is stored, in whole pages; one number where units are alike."""
        if self.nbytes is None:
            return -(-self.stored_nbytes // self.page) * self.page
        if self.chunk_first is None or self.chunk_nbytes is None:
            return _in_pages(self.nbytes, self.page)
        ends = np.concatenate(([0], np.cumsum(_in_pages(self.chunk_nbytes, self.page))))
        return np.diff(ends[self.chunk_first])

    @cached_property
    def sample(self) -> NDArray[np.int32] | None:
        """The sample of each item; None where they are the same."""
        if self.item is None:
            return None
        found = np.empty(self.samples, np.int32)
        found[self.item] = np.arange(self.samples, dtype=np.int32)
        return found

    @cached_property
    def digest(self) -> str:
        """A name for exactly these units."""
        sha = hashlib.sha256()
        for one in fields(self):
            value = getattr(self, one.name)
            sha.update(np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode())
        return sha.hexdigest()


def uniform(samples: int, nbytes: int, *, per_unit: int = 1, stored: int | None = None) -> Units:
    """Units all alike: `samples` of `nbytes` each, `per_unit` in each, that take `stored` bytes (else: their samples').

    >>> uniform(10, 100, per_unit=4).units
    3
    """
    if not 0 < samples < 2**31 or nbytes < 1 or per_unit < 1 or (stored is not None and stored < 1):
        raise PlanError(
            f"{samples} samples of {nbytes} bytes, {per_unit} in a unit of {stored} bytes: each must be at least 1, "
            f"and a plan takes at most {2**31 - 1} samples"
        )
    own = nbytes * per_unit
    largest = max(own, stored or 0) * -(-samples // per_unit)
    if largest >= 2**62:
        raise PlanError(f"{samples} samples of {nbytes} bytes, {per_unit} in a unit: {largest} bytes are too many")
    return Units(samples, per_unit, nbytes, own if stored is None else stored, stored is not None and stored != own)


class UnitChunks(NamedTuple):
    """The units of one part, in the order of its samples: their chunks, as they lie in storage, one after another."""

    counts: Places  # samples of each unit
    chunks: Places  # chunks of each unit; none where nothing was written
    offset: Places  # of each chunk
    nbytes: Places


def of_layout(layout: Layout) -> Units:
    """Returns the units of a Layout: its samples if they lie by themselves, else the chunks."""
    if layout.samples == 0 or layout.sample_nbytes == 0:
        raise PlanError(f"{layout.name}: {layout.samples} samples of {layout.sample_nbytes} bytes: nothing to plan")
    one_array = [form.chunk[:1] for form in layout.forms] in ([], [(0,)]) and not layout.per_file
    known = layout.reader != "direct" or len(layout.chunk_offset) == 1  # else nothing was written
    if len(layout.part_file) == 0 or (len(layout.part_file) == 1 and one_array and known):
        return uniform(layout.samples, layout.sample_nbytes)  # no list of samples is needed
    bases = np.concatenate(([0], np.cumsum(layout.spans + FAR)[:-1]))
    alone = np.array([_row_by_row(form, layout.sample_shape) for form in layout.forms])[layout.part_form]
    runs = np.flatnonzero(np.diff(alone, prepend=not alone[0], append=not alone[-1])).tolist()
    alike = [
        (row_units if alone[part] else chunk_units)(layout, range(begin, min(begin + PARTS_AT_ONCE, end)), bases)
        for part, end in pairwise(runs)
        for begin in range(part, end, PARTS_AT_ONCE)
    ]
    found = UnitChunks(*(np.concatenate(columns) for columns in zip(*alike, strict=True)))
    return _evenly(layout, found) or listed_units(layout, found)


def not_carried(layout: Layout) -> str:
    """Returns why samples of this Layout cannot be kept; empty if they can."""
    where = f"{layout.paths[0]}: {layout.title}"
    if layout.reader != "direct":
        return f"{where} is read through libhdf5: {layout.reason}"
    if layout.samples > MOST_SAMPLES:
        return f"{where} has {layout.samples:,} samples, and plans number up to {MOST_SAMPLES:,}"
    return f"{where} has no bytes" if layout.nbytes == 0 else ""


def _evenly(layout: Layout, found: UnitChunks) -> Units | None:
    """Returns samples one after another from the first to the last: no list of them is needed."""
    size = layout.sample_nbytes
    alone = len(found.chunks) == layout.samples == len(found.offset) and not any(form.filters for form in layout.forms)
    if alone and np.all(found.nbytes == size) and np.all(np.diff(found.offset) == size):
        return uniform(layout.samples, size)
    return None


def listed_units(layout: Layout, found: UnitChunks) -> Units:
    """Units with a list of where they lie, in the order of storage; what was never written comes last."""
    counts, chunks, offset, nbytes = found
    if counts.max() == 1 == chunks.min() == chunks.max():
        return _list_rows_of_units(layout, offset, nbytes)
    chunk_first = np.concatenate(([0], np.cumsum(chunks)))
    begin = np.full(len(counts), np.iinfo(np.int64).max)
    begin[chunks > 0] = offset[chunk_first[:-1][chunks > 0]]
    place, item = np.argsort(begin, kind="stable"), None
    if np.any(place[1:] < place[:-1]):
        first = np.concatenate(([0], np.cumsum(counts)))[:-1]
        starts = np.concatenate(([0], np.cumsum(counts[place])[:-1]))
        moved = np.empty(len(place), np.int64)
        moved[place] = starts - first[place]
        item = (np.arange(layout.samples) + np.repeat(moved, counts)).astype(np.int32)
        from_place = np.repeat(chunk_first[:-1][place], chunks[place]) + number_in_groups(chunks[place])
        counts, chunks, offset, nbytes = counts[place], chunks[place], offset[from_place], nbytes[from_place]
        chunk_first, begin = np.concatenate(([0], np.cumsum(chunks))), begin[place]
    ends = np.concatenate(([0], np.cumsum(nbytes)))
    total = np.diff(ends[chunk_first])
    begin[chunks == 0] = int(offset.max(initial=0)) + FAR
    several = bool(chunks.max() > 1)
    return Units(
        layout.samples,
        int(counts.max()),
        layout.sample_nbytes,
        int(total.max()),
        any(form.filters for form in layout.forms),
        np.concatenate(([0], np.cumsum(counts))),
        begin,
        total,
        item,
        chunk_first if several else None,
        offset if several else None,
        nbytes if several else None,
        not any(_row_by_row(form, layout.sample_shape) for form in layout.forms),
        decoded_later=layout.stays_encoded,
    )


def _list_rows_of_units(layout: Layout, offset: Places, nbytes: Places) -> Units:
    """Returns what `listed_units` gives for units of one sample in one chunk each, which may be very many."""
    place, item = np.argsort(offset, kind="stable"), None
    if np.any(place[1:] < place[:-1]):
        item = np.empty(len(place), np.int32)
        item[place] = np.arange(len(place), dtype=np.int32)
        offset, nbytes = offset[place], nbytes[place]
    return Units(
        layout.samples,
        1,
        layout.sample_nbytes,
        int(nbytes.max()),
        any(form.filters for form in layout.forms),
        np.arange(len(place) + 1),
        offset,
        nbytes,
        item,
        storable=not any(_row_by_row(form, layout.sample_shape) for form in layout.forms),
        decoded_later=layout.stays_encoded,
    )


def _in_pages(nbytes: Places, page: int) -> Places:
    pages: Places = -(-nbytes // page)
    return pages * page


def number_in_groups(counts: Places) -> Places:
    """0, 1, 2, ... of each of these groups, one after another."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)


class PartChunks(NamedTuple):
    """The chunks of some parts. A line is all chunks that cover the same samples."""

    samples: Places  # of each part
    chunks: Places  # of each part
    rows: Places  # of each part: samples of a line
    first: Places  # line of each part, and at last how many there are
    line: Places  # of each chunk
    offset: Places
    nbytes: Places


def _chunks_of(layout: Layout, parts: range, bases: Places) -> PartChunks:
    samples = np.diff(layout.part_first[parts.start : parts.stop + 1])
    form = layout.part_form[parts.start : parts.stop]
    rows = np.array([form.chunk[0] for form in layout.forms], np.int64)[form]
    rows = np.where(rows > 0, rows, np.maximum(samples, 1))
    shape = layout.sample_shape
    across = [math.prod(-(-n // c) for n, c in zip(shape, form.chunk[1:], strict=True)) for form in layout.forms]
    first = np.concatenate(([0], np.cumsum(-(-samples // rows))))
    begin, end = int(layout.part_chunks[parts.start]), int(layout.part_chunks[parts.stop])
    chunks = np.diff(layout.part_chunks[parts.start : parts.stop + 1])
    part = np.repeat(np.arange(len(parts)), chunks)
    of_part = np.arange(begin, end) - layout.part_chunks[parts.start : parts.stop][part]
    index = layout.chunk_index[begin:end].astype(np.int64) if len(layout.chunk_index) else of_part
    there = samples[part] > 0
    line = first[part] + index // np.array(across, np.int64)[form][part]
    file = layout.chunk_file[begin:end] if len(layout.chunk_file) else layout.part_file[parts.start : parts.stop][part]
    offset = layout.chunk_offset[begin:end].astype(np.int64) + bases[file]
    nbytes = layout.chunk_nbytes[begin:end].astype(np.int64)
    return PartChunks(samples, chunks, rows, first, line[there], offset[there], nbytes[there])


def chunk_units(layout: Layout, parts: range, bases: Places) -> UnitChunks:
    """Returns the units of parts that are not read row by row: of each all chunks that cover the same samples."""
    samples, _, rows, first, line, offset, nbytes = _chunks_of(layout, parts, bases)
    order = np.lexsort((offset, line))
    order = order[nbytes[order] > 0]
    lines = np.diff(first)
    counts = np.repeat(rows, lines)
    counts[first[1:][lines > 0] - 1] = (samples - rows * (lines - 1))[lines > 0]
    return UnitChunks(counts, np.bincount(line[order], minlength=first[-1]), offset[order], nbytes[order])


def row_units(layout: Layout, parts: range, bases: Places) -> UnitChunks:
    """Rows alone, each with its own place in its chunk."""
    samples, chunks, rows, first, line, offset, _ = _chunks_of(layout, parts, bases)
    at = np.full(first[-1], -1)
    if layout.reader != "direct":
        known = (chunks == 0) & (samples > 0)
        at[first[:-1][known]] = bases[layout.part_file[parts.start : parts.stop][known]]  # where libhdf5 finds it
    at[line] = offset
    row, part = number_in_groups(samples), np.repeat(np.arange(len(parts)), samples)
    at = at[first[part] + row // rows[part]]
    there = at >= 0
    place = (at + row % rows[part] * layout.sample_nbytes)[there]
    return UnitChunks(
        np.ones(len(row), np.int8), there.astype(np.int8), place, np.full(len(place), layout.sample_nbytes)
    )


def _row_by_row(form: Form, shape: tuple[int, ...]) -> bool:
    """Returns whether each sample is one run of bytes as it is stored, and they lie side by side."""
    return not form.filters and form.chunk[1:] == shape
