"""What the planner has to know of a loader's datasets: what is planned for itself, and where samples lie."""

from __future__ import annotations

import numpy as np

from solar.planner.pass_uses import SampleUses
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
