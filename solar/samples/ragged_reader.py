"""Reads samples of unequal length, and rows of sparse matrices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import ReadError, SolarError
from solar.io.reading.engine import Ticket
from solar.io.reading.reader import Pending, Rows
from solar.io.reading.stage import Tier
from solar.samples.pending import PendingField
from solar.samples.ragged import CSR, Ragged, RaggedRows
from solar.samples.ragged_batch import RaggedBatch, SparseBatch, dense_rows
from solar.samples.row_blocks import Cut, RowBlocks, most_uses
from solar.values import Layout

Places = NDArray[np.int64]
LONG_NBYTES = 512  # of a run of rows, on average, above which a copy of each is quicker than one of each row


class RaggedReader:
    """Reads the samples of a ragged field, or of a matrix, in this process."""

    plain = False  # what is read is put together here

    def __init__(self, columns: RaggedRows, page_cache: bool | None, tier: Tier | None = None) -> None:
        self.extents, self.layout = columns, columns.layouts[0]
        self.parts = [Rows(layout, True, page_cache, tier=tier, unit="row") for layout in columns.layouts]
        self._page_cache, self._tier = page_cache, tier

    @property
    def sample_nbytes(self) -> int:
        """The average bytes of a sample."""
        each = sum(rows.sample_nbytes for rows in self.parts)
        return each if self.extents.varying else int(each * (self.extents.length.mean() if len(self.extents) else 0))

    @cached_property
    def held(self) -> list[tuple[Layout, Any]]:
        """What a buffer holds of it: blocks from which samples are cut."""
        return [(own.layout, own) for own in self.extents.blocks]

    @property
    def held_rows(self) -> list[Rows]:
        """The readers of these blocks."""
        kept = self._page_cache, self._tier
        return [Rows(own.layout, True, kept[0], tier=kept[1], unit="block") for own in self.extents.blocks]

    def start(self, samples: Places) -> PendingField:
        """Starts reading these samples."""
        return start_ragged([self], [samples], [np.arange(len(samples))])


@dataclass(frozen=True)
class RaggedFieldReader:
    """Reads a ragged field, or a matrix, as FieldReader reads a dataset of rows."""

    columns: RaggedRows
    page_cache: bool | None = None
    tier: Tier | None = None

    @cached_property
    def rows(self) -> RaggedReader:
        """The reader of the samples."""
        return RaggedReader(self.columns, self.page_cache, self.tier)

    def start(self, numbers: Places) -> PendingField:
        """Starts reading these samples, and nothing else."""
        return self.rows.start(numbers)

    def without_conversion(self, page_cache: bool | None) -> RaggedFieldReader:
        """Itself: nothing is converted."""
        return self

    def started(self, requests: Sequence[Any], samples: int) -> list[PendingField]:
        """Starts to read samples of one data set, or of several into one batch."""
        readers, wanted, here = zip(*requests, strict=True)
        everywhere = [np.arange(len(one)) if at is None else at for one, at in zip(wanted, here, strict=True)]
        return [start_ragged([reader.rows for reader in readers], wanted, everywhere)]


def start_ragged(readers: Sequence[RaggedReader], samples: Sequence[Places], here: Sequence[Places]) -> PendingField:
    """Starts reading samples of one data set, or of several, which have these places in the batch."""
    first = readers[0].extents
    numbers = np.empty(sum(map(len, samples)), np.int64)
    whose = np.zeros(len(numbers), np.int64)
    for at, (one, places) in enumerate(zip(samples, here, strict=True)):
        numbers[places], whose[places] = one, at
    if first.varying:
        found, parts = _start_varying(readers, samples, here)
        return PendingField(parts, None, numbers, lambda _: varying_batch(found, first))
    lengths = np.empty(len(numbers), np.int64)
    for reader, one, places in zip(readers, samples, here, strict=True):
        lengths[places] = reader.extents.length[one]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    named = partial(_name_of, [reader.extents for reader in readers], whose, numbers)
    values, parts = [], list[Pending]()
    for number in range(len(first.layouts)):
        own = _room(readers[0].parts[number], offsets, named)
        for reader, one, places in zip(readers, samples, here, strict=True):
            parts.append(_start(reader, number, one, own, offsets[places]))
        values.append(own)
    return PendingField(parts, None, numbers, lambda _: make_ragged_batch(first, values, offsets, named))


class StretchReader(Pending):
    """Rows of samples that are being read. An error, which names a row, names the sample, too."""

    def __init__(self, columns: RaggedRows, samples: Places, *reading: Any) -> None:
        super().__init__(*reading)
        self._columns, self._samples = columns, samples

    def wait(self, seconds: float | None = None) -> NDArray[Any]:
        """As Pending's."""
        try:
            return super().wait(seconds)
        except SolarError as error:
            if (found := re.search(r", row (\d+)", str(error))) is None:
                raise
            begins, row = self._columns.begin[self._samples], int(found[1])
            of = self._samples[(begins <= row) & (row < begins + self._columns.length[self._samples])]
            if not len(of):  # read along with the rows of others
                raise
            error.args = (f"{error} (of {self._columns.where(int(of[0]))})", *error.args[1:])
            raise


def _room(rows: Rows, offsets: Places, named: Any) -> NDArray[Any]:
    """Memory for a batch's rows."""
    try:
        return rows.room(int(offsets[-1]))
    except (MemoryError, ValueError) as error:
        lengths = np.diff(offsets)
        raise ReadError(
            f"{named(int(lengths.argmax()))} has {int(lengths.max())} rows, and there is no memory for the "
            f"{len(lengths)} samples of its batch: ask for fewer at a time, or see "
            "whether what tells samples apart is damaged"
        ) from error


def _start(reader: RaggedReader, number: int, samples: Places, out: NDArray[Any], places: Places) -> Pending:
    """Starts reading the rows of these samples into `out`, each sample's from its place on."""
    rows, begins, counts = reader.parts[number], reader.extents.begin[samples], reader.extents.length[samples]
    total = int(counts.sum())
    if rows.plain and total:
        assert rows.source is not None, "plain rows are read natively"
        ticket = Ticket(rows.source, begins, out.reshape(-1).view(np.uint8), places, counts)
        return StretchReader(reader.extents, samples, out, ticket, total * rows.sample_nbytes)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows.start(np.repeat(begins, counts) + within, out, np.repeat(places, counts) + within)


def make_ragged_batch(own: RaggedRows, values: Sequence[NDArray[Any]], offsets: Places, named: Any) -> Any:
    """A batch of what was read."""
    if isinstance(own.given, Ragged):
        return RaggedBatch(values[0], offsets, own.given.form)
    return _matrix(own, values, offsets, named)


def _matrix(own: RaggedRows, values: Sequence[NDArray[Any]], offsets: Places, named: Any) -> Any:
    """A batch of rows of a matrix. ReadError where a column is not one of the matrix."""
    data, columns = values
    if len(columns) and (int(columns.max()) >= own.width or int(columns.min()) < 0):
        at = int(np.flatnonzero((columns < 0) | (columns >= own.width))[0])
        sample = int(np.searchsorted(offsets, at, side="right")) - 1
        raise ReadError(
            f"{named(sample)}: column {int(columns[at])} (value {at - int(offsets[sample])} of it), and the matrix has "
            f"{own.width}: its indices or its attribute shape are damaged"
        )
    if isinstance(own.given, CSR) and own.given.dense:
        return dense_rows(data, columns, offsets, own.width)
    return SparseBatch(data, columns, offsets, own.width)


def _name_of(of: Sequence[RaggedRows], whose: Places, numbers: Places, position: int) -> str:
    return of[int(whose[position])].where(int(numbers[position]))


# --- HDF5's variable-length type ----


def _start_varying(
    readers: Sequence[RaggedReader], samples: Sequence[Places], here: Sequence[Places]
) -> tuple[NDArray[Any], list[Pending]]:
    out = readers[0].parts[0].room(sum(map(len, samples)))
    trios = zip(readers, samples, here, strict=True)
    return out, [reader.parts[0].start(one, out, places) for reader, one, places in trios]


def varying_batch(found: NDArray[Any], own: RaggedRows) -> RaggedBatch:
    lengths = [len(one) for one in found]
    values = np.concatenate(found) if len(found) else np.empty(0)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return RaggedBatch(values.astype(own.dtype, copy=False), offsets, own.given.form)


# --- of a buffer, which holds blocks of rows ----


def row_blocks_of(read: Any) -> tuple[RowBlocks, ...]:
    """Returns the blocks of samples of unequal length; none of others."""
    return read.extents.blocks if isinstance(read.extents, RaggedRows) else ()


def most_blocks(datasets: Sequence[Any], batch: int) -> int:
    """Returns the places that a batch of so many samples has, at most, for the field that needs most."""
    most = batch
    for same in zip(*(dataset.reads for dataset in datasets), strict=True):
        for blocks in zip(*map(row_blocks_of, same), strict=True):
            most = max(most, most_uses(blocks, batch))
    return most


def unlike(datasets: Sequence[Any]) -> str:
    """Returns why one batch cannot have blocks of all these data sets; empty if it can."""
    for same in zip(*(dataset.reads for dataset in datasets), strict=True):
        for blocks in zip(*map(row_blocks_of, same), strict=True):
            if len({one.per for one in blocks}) > 1:
                return f"the chunks of {blocks[0].layout.name} differ from data set to data set"
    return ""


class InBlocks:
    """The samples of a batch that a run puts together of blocks: what is to be cut out of these."""

    def __init__(self, datasets: Sequence[Any], which: Places | None, samples: Places) -> None:
        self._datasets, self._samples = datasets, samples
        self._which = np.zeros(len(samples), np.int64) if which is None else which
        self._here = [np.flatnonzero(self._which == at) for at in range(len(datasets))]
        self._reads = list(zip(*(dataset.reads for dataset in datasets), strict=True))
        self._cuts = [self._cuts_of(same) for same in self._reads]
        self.places = max([len(samples), *(cut.blocks for cuts in self._cuts for cut in cuts)])

    def _cuts_of(self, same: Sequence[Any]) -> list[Cut]:
        """Of each Layout of a field, where the samples lie in the blocks of all data sets."""
        found = []
        for blocks in zip(*map(row_blocks_of, same), strict=True):
            begin, length = np.empty((2, len(self._samples), 2), np.int64)
            before = 0
            for own, here in zip(blocks, self._here, strict=True):
                cut = own.cut(self._samples[here])
                begin[here], length[here] = cut.begin + before * own.per, cut.length
                before += cut.blocks
            found.append(Cut(begin, length, before))
        return found

    def fields(self, came: Sequence[NDArray[Any]]) -> list[Any]:
        """Returns the fields of the batch, of what the run gave; in the order of `reads`."""
        found, values = [], iter(came)
        for same, cuts in zip(self._reads, self._cuts, strict=True):
            own = same[0].extents
            if not cuts:
                found.append(next(values)[: len(self._samples)])
                continue
            parts = [cut_rows(next(values), cut) for cut in cuts]
            offsets = np.concatenate(([0], np.cumsum(cuts[0].length.sum(axis=1))))
            named = partial(_name_of, [read.extents for read in same], self._which, self._samples)
            found.append(make_ragged_batch(own, parts, offsets, named))
        return found


def cut_rows(blocks: NDArray[Any], cut: Cut) -> NDArray[Any]:
    """Rows run after run: long runs are copied as they are, of short ones each row by its number."""
    there = cut.length.reshape(-1) > 0
    begin, length = cut.begin.reshape(-1)[there], cut.length.reshape(-1)[there]
    flat = blocks.reshape(-1, *blocks.shape[2:])
    ends = np.cumsum(length)
    if len(ends) and ends[-1] * flat[:1].nbytes > LONG_NBYTES * len(length):
        return np.concatenate([flat[b : b + n] for b, n in zip(begin.tolist(), length.tolist(), strict=True)])
    rows = np.repeat(begin - (ends - length), length) + np.arange(ends[-1] if len(ends) else 0)
    cut_out: NDArray[Any] = flat.take(rows, axis=0)
    return cut_out
