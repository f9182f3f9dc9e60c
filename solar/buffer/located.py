"""Maps the samples of a loader to what the planner plans."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np

from solar.buffer.buffer_memory import held_of
from solar.planning.pass_uses import SampleUses
from solar.planning.planned_passes import Piece
from solar.planning.regions import whole_region
from solar.planning.units import of_layout
from solar.samplers.index_stream import Pass
from solar.samples.source import SampleSource

LOCATED = 1 << 18  # samples at a time, so that what looking for them takes does not grow with a pass


def pieces_of(source: SampleSource) -> list[Piece]:
    """Returns the pieces to plan: one for each dataset that is read."""
    return [
        Piece(at, number, whole_region(of_layout(layout)), extents)
        for at, dataset in enumerate(source.datasets)
        for number, (layout, extents) in enumerate(held_of(dataset))
    ]


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
