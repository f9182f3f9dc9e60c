"""A given way of using memory, carried out by solar's own Run without the loader: for the policies of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.buffer_data import FIELD, NBYTES, SHAPE
from solar import _native, inspect
from solar.io.engine import Engine, source_of
from solar.planner.course import Course, plan_rows
from solar.planner.sweep import Way
from solar.planner.units import of_layout
from solar.values import Storage

STAGED = 2  # batches put together that wait to be taken
AHEAD = 4  # batches before its own that a read is asked for: 256 requests in flight
SCRATCH = 8 << 20
GLANCE = 1.0


@dataclass(frozen=True)
class Carried:
    """The batches of all epochs one after another, and what was planned for each epoch."""

    course: Course
    batches: Iterator[NDArray[np.float32]]
    counts: Any  # of the run so far


def pinned_way(memory: int) -> Way:
    """As many samples as there is room for beside the batches, the first ones, for ever; the others read each time."""
    return Way(pinned=(memory - batches_nbytes()) // NBYTES, direct=True)


def batches_nbytes(batch: int = 64) -> int:
    """What the batches on their way and those that wait take; the memory of a reader is for them, too."""
    return (STAGED + AHEAD + 2) * batch * NBYTES + SCRATCH


def carried_out(path: Path, orders: list[NDArray[np.int64]], memory: int, storage: Storage, way: Way | None) -> Carried:
    """Each of the orders [batch, place] is an epoch. Without a way: the cheapest that the planner finds."""

    def rows_of(epoch: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        order = orders[epoch]
        return order.ravel().astype(np.int32), np.arange(len(order) + 1) * order.shape[1]

    layout = inspect(str(path), FIELD)
    course = plan_rows(
        rows_of,
        of_layout(layout),
        memory=memory - batches_nbytes(orders[0].shape[1]),
        storage=storage,
        epochs=range(len(orders)),
        ahead=AHEAD,
        facts=(),
        way=way,
    )
    run = _native.Run(Engine.get(), STAGED, SCRATCH)
    source, stored = source_of(layout, layout.swap, None), course.kept == "stored"
    run.part(source, 0, course.pages, course.page, stored, course.way.direct, course.terms.ahead, storage.gap)

    def append(epoch: int) -> None:
        one = course.script(epoch)
        arrays = (one.rows, None, one.starts, one.last, one.loads, one.ends, one.start, one.start_ends, one.start_due)
        run.append(np.diff(one.starts), [arrays])

    def batches() -> Iterator[NDArray[np.float32]]:
        append(0)
        for epoch, order in enumerate(orders):
            if epoch + 1 < len(orders):
                append(epoch + 1)  # so that the end of an epoch is none for the run
            for _ in order:
                while (taken := run.take(GLANCE)) is None:
                    pass
                yield taken[0][0].view(np.float32).reshape(-1, *SHAPE)
        run.close(GLANCE)

    return Carried(course, batches(), run.counts)
