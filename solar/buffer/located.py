"""Maps the samples of a loader to what the planner plans, and says what a pass wants of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from solar.buffer import buffer_size as sizing
from solar.errors import PlanError
from solar.io.reading.reader import Rows
from solar.io.reading.run import Run
from solar.planning.budget import Needs
from solar.planning.pass_uses import PassUses, SampleUses
from solar.planning.planned_passes import Piece
from solar.planning.regions import whole_region
from solar.planning.units import MOST_SAMPLES, not_carried, of_layout
from solar.samplers.index_stream import Pass
from solar.samples.dataset import H5Dataset
from solar.samples.source import SampleSource
from solar.values import Layout, Storage

LOCATED = 1 << 18  # samples at a time, so that what looking for them takes does not grow with a pass


def layouts_of_source(source: SampleSource) -> list[Layout]:
    """Returns the layout of each dataset that is read, in the order of `pieces_of`."""
    return source.layouts()


def pieces_of(source: SampleSource) -> list[Piece]:
    """Returns the pieces to plan: one for each dataset that is read."""
    return [
        Piece(at, number, whole_region(of_layout(layout)), extents)
        for at, dataset in enumerate(source.datasets)
        for number, (layout, extents) in enumerate(held_of(dataset))
    ]


def held_of(dataset: H5Dataset) -> list[tuple[Layout, Any]]:
    """Returns the layouts of a dataset that a buffer holds, each with its map."""
    return [one for opened in dataset.opened() for one in opened.rows.held]


def not_held(source: SampleSource, buffer: str) -> str:
    """Returns why no buffer can hold these samples; empty if one can. Raises PlanError if the user asked for one."""
    if source.boxes:
        return _boxes_not_held(source)
    if not source.ragged:
        return next((said for layout in layouts_of_source(source) if (said := not_carried(layout))), "")
    reasons = [
        not_carried(read.layout) if read.extents is None or read.extents.lengths is None else read.extents.not_in_blocks
        for dataset in source.datasets
        for read in dataset.reads
    ]
    from solar.samples.ragged_reader import unlike

    why = next(filter(None, reasons), "") or unlike(source.datasets)
    if not why or not buffer:
        return why
    raise PlanError(
        f"buffer={buffer}: {source.first} has samples of unequal length, which no buffer holds here: "
        f"{why}. Leave buffer= away, and each batch is read by itself"
    )


def _boxes_not_held(source: SampleSource) -> str:
    """Returns why no buffer holds the blocks of these boxes; empty if one can."""
    many = next((one for one in source.datasets if one.numbers > MOST_SAMPLES), None)
    if many is not None:
        return f"{many}: plans number up to {MOST_SAMPLES:,} samples"
    held = (layout for dataset in source.datasets for layout, _ in held_of(dataset))
    return next((said for layout in held if (said := not_carried(layout))), "")


def worthwhile_bytes(
    source: SampleSource, batch: int, storage: Storage | None, needs: Needs, ranks: int, epochs: int | None
) -> tuple[int, str]:
    """Chooses the bytes of a buffer if the user gave none, or 0, and says why."""
    if not (source.boxes or source.ragged):
        reads = [(read.layout, read.rows) for one in source.datasets for read in one.reads]
        return sizing.auto(reads, batch, storage, needs, ranks, epochs)
    held = [one for dataset in source.datasets for one in held_of(dataset)]
    wanted = sum(layout.nbytes if own is None else own.wanted_bytes(layout, batch) for layout, own in held)
    tables = sum(own.tables_nbytes for _, own in held if own is not None)
    return sizing.all_of_it([layout for layout, _ in held], wanted, storage, needs, ranks, epochs, tables)


def most_rows_per_sample(source: SampleSource) -> int:
    """Returns the rows of a sample in the field that has most of them."""
    return max(1 if extents is None else extents.slots for _, extents in held_of(source.first))


def located(source: SampleSource, made: Pass, epoch: int = 0) -> SampleUses:
    """Returns where the samples of an epoch's pass lie. Raises what datasets raise for indices that do not exist."""
    samples, starts = made
    which = None if len(source.datasets) == 1 else np.empty(len(samples), np.int64)
    rows = samples if samples.dtype == np.int32 else np.empty(len(samples), np.int32)
    for begin in range(0, len(samples), LOCATED):
        here = slice(begin, begin + LOCATED)
        datasets, found = source.locate(samples[here])
        if which is not None:
            which[here] = datasets
        if rows is samples and not np.array_equal(found, samples[here]):
            rows = samples.copy()  # else they are the same, and so is their memory
        if rows is not samples:
            rows[here] = found
    return SampleUses(which, rows, starts.astype(np.int64, copy=False), epoch=epoch if source.draws else 0)


def used_by(source: SampleSource, dataset: Sized) -> SampleUses | None:
    """Returns all samples of a dataset as one step; None if they are all samples of the source."""
    if source.plain:
        return None
    return located(source, (np.arange(len(dataset)), np.array([0, len(dataset)])))


def rows_of(source: SampleSource) -> list[Rows]:
    """Returns the reader of each piece."""
    return [rows for dataset in source.datasets for one in dataset.opened() for rows in one.rows.held_rows]


@dataclass(eq=False)
class HeldData:
    """The buffer while one pass has it: the run, and which of its batches belong to the pass."""

    run: Run
    base: int  # number of the first batch in the run
    orphaned: bool = False  # nobody was there to leave it properly


class QueuedPass(NamedTuple):
    """A segment that the run has and that no iterator has begun."""

    segment: PassUses
    base: int  # number of its first batch in the run


class PassPlan(NamedTuple):
    """What a pass wants of a buffer: these batches next."""

    source: SampleSource
    segment: PassUses
    later: Callable[[], Iterator[Callable[[], PassUses]]]  # the passes after it, as far as they are known
    needs: Callable[[], Needs]  # what its batches take of memory, beside what is kept; asked where a window begins
    batch: int  # samples of a batch, at most
    facts: Mapping[str, Any]  # what must be the same on all ranks
