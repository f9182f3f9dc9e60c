"""Reads samples of unequal length, and rows of sparse matrices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import ReadError, SolarError
from solar.io.reading.engine import Ticket
from solar.io.reading.reader import Pending, Rows
from solar.io.reading.stage import Tier
from solar.samples.pending import PendingField
from solar.samples.ragged import CSR, Ragged, RaggedRows
from solar.samples.ragged_batch import RaggedBatch, SparseBatch, dense_rows
from solar.samples.row_blocks import RowBlocks, most_rows
from solar.values import Layout

Places = NDArray[np.int64]


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
        return [RowsInBlocks(own.layout, self._page_cache, self._tier) for own in self.extents.blocks]

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
    # As unsigned numbers, those below 0 are too large, too: the columns are looked at once.
    if len(columns) and int(columns.view(f"u{columns.itemsize}").max()) >= own.width:
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


def largest_batch(datasets: Sequence[Any], batch: int) -> dict[int, tuple[int, int]]:
    """Returns the bytes of the largest batch of so many samples, of each piece whose samples are of unequal length: as
    it is read, and what is made of it (0: nothing is).

    Pieces are numbered as those of one data set are.
    """
    found, piece = dict[int, tuple[int, int]](), 0
    for same in zip(*(dataset.reads for dataset in datasets), strict=True):
        every = [*zip(*map(row_blocks_of, same), strict=True)]
        for at, blocks in enumerate(every):
            row = blocks[0].layout.sample_nbytes // blocks[0].per
            read = most_rows(blocks, batch) * row
            found[piece] = read, 0 if at else _made_nbytes(same[0].extents, read, batch)
            piece += 1
        piece += not every
    return found


def _made_nbytes(own: RaggedRows, read: int, batch: int) -> int:
    """Returns the bytes of a batch that is made of what is read: padded, at least as much; of a matrix, with zeros."""
    if isinstance(own.given, Ragged):
        return read if own.given.batch == "padded" else 0
    return batch * own.width * own.dtype.itemsize if own.given.dense else 0


def unlike(datasets: Sequence[Any]) -> str:
    """Returns why one batch cannot have blocks of all these data sets; empty if it can."""
    for same in zip(*(dataset.reads for dataset in datasets), strict=True):
        for blocks in zip(*map(row_blocks_of, same), strict=True):
            if len({one.per for one in blocks}) > 1:
                return f"the chunks of {blocks[0].layout.name} differ from data set to data set"
    return ""


class RowsInBlocks(Rows):
    """The rows that a run cuts out of the blocks of a Layout, as many as its samples have."""

    def __init__(self, layout: Layout, page_cache: bool | None, tier: Tier | None) -> None:
        super().__init__(layout, True, page_cache, tier=tier, unit="block")
        assert self.source is not None, "blocks are read directly"
        self._cut, self._page_cache = _native.Boxes(self.source), page_cache

    @property
    def boxes(self) -> _native.Boxes:
        return self._cut

    @property
    def blocks(self) -> Rows:
        """The reader of the blocks."""
        return Rows(self.layout, True, self._page_cache, tier=self.tier, unit="block")

    def from_bytes(self, memory: NDArray[np.uint8], samples: int) -> NDArray[Any]:
        """Returns the rows that are in this memory."""
        row = self.sample_nbytes // self.sample_shape[0]
        return np.ndarray((memory.nbytes // row, *self.sample_shape[1:]), self.dtype, memory)

    def room(self, samples: int) -> NDArray[Any]:
        """Returns memory for this many rows."""
        return self.from_bytes(_native.take(max(1, samples * self.sample_nbytes // self.sample_shape[0])), samples)


FieldsOfRun = Callable[[Places | None, Places, Sequence[NDArray[Any]]], list[Any]]


def fields_of_run(datasets: Sequence[Any]) -> FieldsOfRun:
    """Returns a function that makes the fields of a batch, as `by_field` takes them, of what a run gave.

    It gets the data set of each sample, None if there is one; the samples; and arrays, of a matrix two.
    """
    reads = [*zip(*(dataset.reads for dataset in datasets), strict=True)]
    every = [[read.extents for read in same] if row_blocks_of(same[0]) else [] for same in reads]
    arrays = [1 if same[0].rows is None else len(same[0].fields) for same in reads]

    def fields(which: Places | None, samples: Places, came: Sequence[NDArray[Any]]) -> list[Any]:
        values, found = iter(came), list[Any]()
        for own, several in zip(every, arrays, strict=True):
            found += [_of_run(own, which, samples, values)] if own else islice(values, several)
        return found

    return fields


def _of_run(
    own: Sequence[RaggedRows], which: Places | None, samples: Places, came: Iterator[NDArray[Any]]
) -> RaggedBatch | SparseBatch | NDArray[Any]:
    """Returns a ragged field of a batch."""
    of = np.zeros(len(samples), np.int64) if which is None else which
    offsets = np.zeros(len(samples) + 1, np.int64)
    for number, one in enumerate(own):
        here = slice(None) if which is None else of == number
        offsets[1:][here] = one.length[samples[here]]
    np.cumsum(offsets, out=offsets)
    parts = [next(came)[: offsets[-1]] for _ in own[0].layouts]
    found: RaggedBatch | SparseBatch | NDArray[Any] = make_ragged_batch(
        own[0], parts, offsets, partial(_name_of, own, of, samples)
    )
    return found
