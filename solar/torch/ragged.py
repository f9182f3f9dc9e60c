"""Reads samples of unequal length, and rows of sparse matrices, for H5Dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError, ReadError
from solar.io.layout.hdf5 import Samples, check_counts, inspect
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.io.ragged import CSR, Columns, Ragged, columns_of
from solar.io.read.engine import Ticket
from solar.io.read.reader import Pending, Rows
from solar.torch.batch.pending import PendingField, leaves, mapped
from solar.torch.batch.ragged import RaggedBatch, SparseBatch, dense
from solar.values import Layout

Places = NDArray[np.int64]


def inspected(
    path: Paths, fields: Any, samples: Samples, cache: Folder, together: bool
) -> tuple[Any, list[Columns | None]]:
    """The Layouts of these fields, in their structure; and of each field that is ragged, where its samples lie."""
    columns: list[Columns | None] = []
    for field in leaves(fields):
        if isinstance(field, (Ragged, CSR)) and samples == "files":
            raise LayoutError(f'{field.name}: with samples="files" each file is one sample: read its parts as they are')
        own = columns_of(path, field, cache, together=together) if isinstance(field, (Ragged, CSR)) else None
        columns.append(own)
    if not any(columns):
        return inspect(path, mapped(fields, _named), samples=samples, cache=cache, together=together), columns
    rows = [_named(field) for field, own in zip(leaves(fields), columns, strict=True) if own is None]
    of_rows = iter(inspect(path, rows, samples=samples, cache=cache, together=together) if rows else ())
    layouts = [next(of_rows) if own is None else own.layouts[0] for own in columns]
    check_counts(by_sample(layouts, columns))
    in_order = iter(layouts)
    return mapped(fields, lambda _: next(in_order)), columns


def _named(field: Any) -> Any:
    return getattr(field, "name", field)


def by_sample(layouts: Sequence[Layout], columns: Sequence[Any]) -> list[Layout]:
    """The Layouts as if each sample were a row."""
    pairs = zip(layouts, columns, strict=True)
    return [own.by_sample if isinstance(own, Columns) else layout for layout, own in pairs]


class RaggedRows:
    """What reads the samples of a ragged field, or a matrix, in this process."""

    plain = False  # what is read is put together here

    def __init__(self, columns: Columns, page_cache: bool | None) -> None:
        self.extents, self.layout = columns, columns.layouts[0]
        self.parts = [Rows(layout, True, page_cache) for layout in columns.layouts]

    def start(self, samples: Places) -> PendingField:
        """Starts reading these samples."""
        return started([self], [samples], [np.arange(len(samples))])


@dataclass(frozen=True)
class RaggedReading:
    """What reads a ragged field, or a matrix; as Reading, of which there is one for each dataset of rows."""

    columns: Columns
    page_cache: bool | None = None

    @cached_property
    def rows(self) -> RaggedRows:
        """What reads it."""
        return RaggedRows(self.columns, self.page_cache)

    def straight(self, page_cache: bool | None) -> RaggedReading:
        """Itself: nothing is converted."""
        return self

    def started(self, asked: Sequence[Any], room: Any, number: int, places: Any) -> list[PendingField]:
        """The field of samples asked of one data set, or several: of each what reads it, its samples, their places."""
        readers, samples, here = zip(*asked, strict=True)
        everywhere = [np.arange(len(one)) if at is None else at for one, at in zip(samples, here, strict=True)]
        return [started([reader.rows for reader in readers], samples, everywhere)]


def started(readers: Sequence[RaggedRows], samples: Sequence[Places], here: Sequence[Places]) -> PendingField:
    """Starts reading samples of one data set, or of several, which have these places in the batch."""
    first = readers[0].extents
    numbers = np.empty(sum(map(len, samples)), np.int64)
    whose = np.zeros(len(numbers), np.int64)
    for at, (one, places) in enumerate(zip(samples, here, strict=True)):
        numbers[places], whose[places] = one, at
    if first.varying:
        found, parts = _started_varying(readers, samples, here)
        return PendingField(parts, None, numbers, lambda _: _of_varying(found, first))
    lengths = np.empty(len(numbers), np.int64)
    for reader, one, places in zip(readers, samples, here, strict=True):
        lengths[places] = reader.extents.length[one]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    values, parts = [], list[Pending]()
    for number in range(len(first.layouts)):
        own = readers[0].parts[number].room(int(offsets[-1]))
        for reader, one, places in zip(readers, samples, here, strict=True):
            parts.append(_start(reader, number, one, own, offsets[places]))
        values.append(own)
    if isinstance(first.given, Ragged):
        form = first.given.form
        return PendingField(parts, None, numbers, lambda _: RaggedBatch(values[0], offsets, form))
    named = partial(_name_of, [reader.extents for reader in readers], whose, numbers)
    return PendingField(parts, None, numbers, lambda _: _matrix(first, values, offsets, named))


def _start(reader: RaggedRows, number: int, samples: Places, out: NDArray[Any], places: Places) -> Pending:
    """Starts reading the rows of these samples into `out`, each sample's from its place on."""
    rows, begins, counts = reader.parts[number], reader.extents.begin[samples], reader.extents.length[samples]
    total = int(counts.sum())
    if rows.plain and total:
        assert rows.source is not None, "plain rows are read natively"
        ticket = Ticket(rows.source, begins, out.reshape(-1).view(np.uint8), places, counts)
        return Pending(out, ticket, total * rows.sample_nbytes)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows.start(np.repeat(begins, counts) + within, out, np.repeat(places, counts) + within)


def _matrix(own: Columns, values: Sequence[NDArray[Any]], offsets: Places, named: Any) -> Any:
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
        return dense(data, columns, offsets, own.width)
    return SparseBatch(data, columns, offsets, own.width)


def _name_of(of: Sequence[Columns], whose: Places, numbers: Places, position: int) -> str:
    return of[int(whose[position])].where(int(numbers[position]))


# --- HDF5's variable-length type ----


def _started_varying(
    readers: Sequence[RaggedRows], samples: Sequence[Places], here: Sequence[Places]
) -> tuple[NDArray[Any], list[Pending]]:
    out = readers[0].parts[0].room(sum(map(len, samples)))
    trios = zip(readers, samples, here, strict=True)
    return out, [reader.parts[0].start(one, out, places) for reader, one, places in trios]


def _of_varying(found: NDArray[Any], own: Columns) -> RaggedBatch:
    lengths = [len(one) for one in found]
    values = np.concatenate(found) if len(found) else np.empty(0)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return RaggedBatch(values.astype(own.dtype, copy=False), offsets, own.given.form)
