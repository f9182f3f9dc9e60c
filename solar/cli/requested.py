"""The requests of a plan as the engine makes them, where each is paid for: of files by URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from solar.blocks import Blocks
from solar.boxes import BoxBlocks
from solar.cli.compare import Answer, Case
from solar.io.read.reader import Rows
from solar.io.read.run import Asked, requests_of
from solar.planner.job import Job, NodePlan
from solar.values import Layout

COUNTED_EPOCHS = 8  # that are counted without a buffer, at most: one is nearly like another
Made = list[tuple[int, int]]  # requests and bytes of each epoch


def as_made(answered: Answer, job: Job, cases: Sequence[Case], layouts: Sequence[Layout]) -> Answer:
    """The same, with our requests and bytes counted by what reads, instead of the stretches that are planned.

    Of one process, and of rows and windows; without a buffer of rows that are not filtered, for what was decoded lately
    is not read again. Of all others, and of files here, the stretches stay.
    """
    plan, first = answered.plan, answered.first_epoch
    alone = job.world.ranks == 1 and not job.beside and any(one.far for one in layouts)
    cut = any(isinstance(case.extents, Blocks | BoxBlocks) for case in cases)
    if not alone or cut or plan is None or first is None:
        return answered
    rows = [Rows(one, native_order=True, mapped=False) for one in layouts]
    if plan.budget is not None:
        made = _of_buffer(plan, plan.budget.scratch, rows)
    elif len(job.firsts) == 1 and all(case.extents is None and not case.units.encoded for case in cases):
        made = _of_batches(job, rows)
    else:
        return answered
    later = made[1:] or made
    requests, nbytes = (sum(one) / len(later) for one in zip(*later, strict=True))
    ours = replace(answered.outcomes["solar"], requests=requests, bytes=nbytes)
    of_first = replace(first, requests=made[0][0], bytes=made[0][1])
    return replace(answered, first_epoch=of_first, outcomes=answered.outcomes | {"solar": ours})


def _of_buffer(plan: NodePlan, scratch: int, rows: Sequence[Rows]) -> Made:
    made = []
    for window in plan.windows:
        if window.segments.start == 0:  # a run begins
            asked = Asked(rows, window.parts(), scratch)
        for number in window.segments:
            told = window.told(number)
            made.append(asked.epoch(window.sizes(number, told), told))
    return made


def _of_batches(job: Job, rows: Sequence[Rows]) -> Made:
    made = []
    for epoch in range(min(job.epochs or 2, COUNTED_EPOCHS)):
        uses = job.uses(epoch)
        batches = [uses.rows[begin:end].astype(np.int64) for begin, end in pairwise(uses.starts.tolist())]
        found = [requests_of(one, batches) for one in rows]
        made.append((sum(number for number, _ in found), sum(nbytes for _, nbytes in found)))
    return made
