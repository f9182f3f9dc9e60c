"""SampleMap and HeldMap: what the reader, the planner, the buffer and the service ask about samples.

A `SampleMap` says which part of a dataset each sample of a field is; None: each sample is a row. A `HeldMap` says how
samples are made from what a buffer holds. Each kind of sample is a module of this folder, with classes that have these
methods, and a line in `SAMPLE_KINDS` (kinds.py). No other folder asks which kind it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solar.samples.row_windows import Listing, RowWindows
from solar.values import Layout

if TYPE_CHECKING:
    from solar.samples.random_rows import RandomRows

Numbers = NDArray[np.int64]


class LocatedRows(NamedTuple):
    """Where samples lie: each one's file by number, its first row in the file's dataset, and its part."""

    files: Numbers
    rows: Numbers
    parts: Numbers  # of the Layout


class SampleMap(Protocol):
    """Which part of a dataset each sample is."""

    kind: ClassVar[str]  # its name in SAMPLE_KINDS
    noun: ClassVar[str]  # what its samples are, for messages; empty: as rows are called
    at_rows: ClassVar[bool]  # a value of the row at which a sample begins is one of the sample

    def __len__(self) -> int: ...

    @property
    def digest(self) -> str:
        """Identifies exactly these samples."""

    @property
    def drawn(self) -> bool:
        """Whether each epoch has samples of its own. The number of sample i of epoch e is then e * samples + i."""

    def shape_in(self, layout: Layout) -> tuple[int, ...]:
        """Returns the shape of a sample of this dataset."""

    def nbytes_in(self, layout: Layout) -> int:
        """Returns the average bytes of a sample."""

    def first_rows(self, numbers: Numbers) -> Numbers:
        """Returns the row at which each sample begins, in `by_sample`."""

    def by_sample(self, layout: Layout) -> Layout:
        """Returns the layout whose rows `first_rows` counts."""

    @property
    def lengths(self) -> Numbers | None:
        """The rows of each sample, if they differ."""

    @property
    def windows(self) -> RowWindows | None:
        """The rows of samples that are windows of a dataset. Such fields of one dataset are read together."""

    @property
    def picks(self) -> RandomRows | None:
        """What picks the samples' rows from those that are read; None if all of them belong to samples."""

    @property
    def not_in_blocks(self) -> str:
        """Why no buffer can hold the dataset in blocks although it would have to; else empty."""

    def facts(self, layout: Layout) -> tuple[Any, ...]:
        """Returns what must be equal for samples of two datasets to be in one batch."""


class HeldMap(Protocol):
    """How samples are made from what a buffer holds of a dataset: rows, or blocks from which they are cut."""

    in_blocks: ClassVar[bool]  # samples are cut out of what is held, and may have that in common

    def __len__(self) -> int: ...

    @property
    def slots(self) -> int:
        """Returns about how many rows or blocks a sample uses."""

    @property
    def tables_nbytes(self) -> int:
        """Returns the bytes of the tables that a process keeps for it; 0 if they are small."""

    @property
    def windows(self) -> RowWindows | None:
        """The rows of samples that are windows: the run works out which these are."""

    def bytes_of(self, unit: int) -> int:
        """Returns the bytes of a sample in a batch, on average, if a row or a block has this many."""

    def wanted_bytes(self, layout: Layout, batch: int) -> int:
        """Returns the bytes that the batches of an epoch use, each counted for itself."""

    def rows_used(
        self, samples: NDArray[np.integer], starts: Numbers, epoch: int
    ) -> tuple[NDArray[np.int32] | Listing, Numbers]:
        """Returns the rows or blocks that each step uses, and where each step begins among them."""

    def longest_bytes(self, unit: int, samples: int) -> int:
        """Returns the bytes of the largest batch of this many samples."""

    def corners_of(self, samples: NDArray[np.integer], epoch: int) -> Numbers | None:
        """Returns where samples are cut from blocks, one per line; None if they are rows."""

    def lengths_of(self, samples: NDArray[np.integer]) -> Numbers | None:
        """Returns the rows of these samples if they differ in length. They then begin at any row of their batch."""


def first_rows(own: SampleMap | None, numbers: Numbers, samples: int) -> Numbers:
    """Returns the row at which each sample begins. `samples` are those of an epoch."""
    return numbers % max(1, samples) if own is None else own.first_rows(numbers)


def shape_in(own: SampleMap | None, layout: Layout) -> tuple[int, ...]:
    """Returns the shape of a sample."""
    return layout.sample_shape if own is None else own.shape_in(layout)


def nbytes_in(own: SampleMap | None, layout: Layout) -> int:
    """Returns the average bytes of a sample."""
    return layout.sample_nbytes if own is None else own.nbytes_in(layout)


def by_sample(own: SampleMap | None, layout: Layout) -> Layout:
    """Returns the layout in which each sample begins at a row of its own."""
    return layout if own is None else own.by_sample(layout)


def locate(own: SampleMap | None, layout: Layout, rows: Numbers) -> LocatedRows:
    """Returns the file, the row and the part in which each sample begins."""
    if own is None:
        return locate_rows(layout, rows)
    if own.lengths is None:
        return locate_rows(layout, own.first_rows(rows))
    unequal: Any = own  # its samples begin at rows that do not lie in a grid
    found: LocatedRows = unequal.locate(layout, rows)
    return found


def locate_rows(layout: Layout, rows: Numbers) -> LocatedRows:
    """Returns the file, the row in it, and the part of each of these rows of a layout."""
    files = np.searchsorted(layout.first_of_files, rows, side="right") - 1
    parts = np.searchsorted(layout.part_first, rows, side="right") - 1
    begins = layout.first_of_files[files] if layout.groups is None else layout.part_first[parts]
    return LocatedRows(files, rows - begins, parts)
