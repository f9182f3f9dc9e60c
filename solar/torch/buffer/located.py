"""What the planner has to know of a loader's datasets, and what a pass asks of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from solar.io.read.reader import Rows
from solar.planner.budget import Needs
from solar.planner.pass_uses import PassUses, SampleUses
from solar.planner.planned_passes import Piece
from solar.planner.regions import whole
from solar.planner.units import of_layout
from solar.torch.batch.pending import leaves
from solar.torch.order.stream import Pass
from solar.torch.source import SampleSource
from solar.values import Layout


def layouts_of(beneath: SampleSource) -> list[Layout]:
    """Of each H5Dataset each field, as the pieces of `pieces_of` are."""
    return beneath.layouts()


def pieces_of(beneath: SampleSource) -> list[Piece]:
    """What is planned for itself: of each H5Dataset each field."""
    fields = len(leaves(beneath.first.layouts))
    layouts = layouts_of(beneath)
    return [Piece(at // fields, at % fields, whole(of_layout(layout))) for at, layout in enumerate(layouts)]


def located(beneath: SampleSource, made: Pass) -> SampleUses:
    """The samples of a pass, where they lie. Raises what the datasets raise for indices that they do not have."""
    samples, starts = made
    which, rows = beneath.locate(samples)
    return SampleUses(None if len(beneath.datasets) == 1 else which, rows.astype(np.int32), starts.astype(np.int64))


def rows_of(beneath: SampleSource) -> list[Rows]:
    """What reads each part: of each H5Dataset each field."""
    return [leaf.rows for dataset in beneath.datasets for leaf in dataset.opened()]


class Queued(NamedTuple):
    """A segment that the run has, and no iterator has begun."""

    segment: PassUses
    base: int  # number of its first batch in the run


class PassPlan(NamedTuple):
    """What a pass asks of a buffer: these batches, made next."""

    beneath: SampleSource
    segment: PassUses
    later: Callable[[], Iterator[Callable[[], PassUses]]]  # the passes after it, as far as they are known
    needs: Callable[[], Needs]  # what its batches take of memory, beside what is kept; asked where a window begins
    batch: int  # samples of a batch, at most
    facts: Mapping[str, Any]  # what must be the same on all ranks
