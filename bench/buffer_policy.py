"""A given way of using memory, carried out by solar's own Run without the loader: for the policies of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.scene import FIELD, NBYTES, SHAPE
from solar import _native, inspect
from solar.io.reading.engine import Engine, source_of
from solar.planning.plan import Plan, plan_rows
from solar.planning.sweep import RetentionPolicy
from solar.planning.units import of_layout
from solar.values import Layout, Script, Storage

STAGED = 2  # batches put together that wait to be taken
AHEAD = 4  # batches before its own that a read is asked for: 256 requests in flight
SCRATCH = 8 << 20
GLANCE = 1.0


@dataclass(frozen=True)
class Carried:
    """The batches of all epochs one after another, and the plan that they follow, if it is one of solar's."""

    course: Plan | None
    batches: Iterator[NDArray[np.float32]]
    counts: Any  # of the run so far


def pinned_way(memory: int) -> RetentionPolicy:
    """As many samples as there is room for beside the batches, the first ones, for ever; the others read each time."""
    return RetentionPolicy(pinned=(memory - batches_nbytes()) // NBYTES, direct=True)


def batches_nbytes(batch: int = 64) -> int:
    """What the batches on their way and those that wait take; the memory of a reader is for them, too."""
    return (STAGED + AHEAD + 2) * batch * NBYTES + SCRATCH


def carried_out(
    path: Path, orders: list[NDArray[np.int64]], memory: int, storage: Storage, way: RetentionPolicy | None
) -> Carried:
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
        policy=way,
    )
    pages, stored = course.pages, course.kept == "stored"
    run = _run(layout, pages, course.page, stored, course.policy.direct, course.terms.ahead, storage)
    return Carried(course, _batches(run, orders, course.script), run.counts)


def _run(layout: Layout, pages: int, page: int, stored: bool, direct: bool, ahead: int, storage: Storage) -> Any:
    run = _native.Run(Engine.get(), STAGED, SCRATCH)
    run.part(source_of(layout, layout.swap, None), 0, pages, page, stored, direct, ahead, storage.gap)
    return run


def _batches(
    run: Any, orders: list[NDArray[np.int64]], script: Callable[[int], Script]
) -> Iterator[NDArray[np.float32]]:
    """Carries out the scripts, and gives the batches. An epoch is told before the one in front of it ends."""

    def append(epoch: int) -> None:
        one = script(epoch)
        arrays = one.rows, None, one.starts, one.last, one.loads, one.ends, one.start, one.start_ends, one.start_due
        run.append(np.diff(one.starts), [(*arrays, None, None)])

    append(0)
    for epoch, order in enumerate(orders):
        if epoch + 1 < len(orders):
            append(epoch + 1)
        for _ in order:
            while (taken := run.take(GLANCE)) is None:
                pass
            yield taken[0][0].view(np.float32).reshape(-1, *SHAPE)
    run.close(GLANCE)


def edge_reuse(path: Path, orders: list[NDArray[np.int64]], memory: int, storage: Storage) -> Carried:
    """The policy of SOLAR (Sun et al., PVLDB 16(1), 2022) for one rank: see solar.planning.policies.solar_paper.

    The C samples used last in an epoch stay, and serve the whole steps within the first C uses of the next one; what
    is missing is read step by step in the order of the file, joined over gaps that cost less than a request. Those that
    will not serve go at once, which is more than the policy knows.
    """
    batch = orders[0].shape[1]
    held = min(orders[0].size, (memory - batches_nbytes(batch)) // NBYTES)
    hits, kept = reused(orders, held)
    steps = [
        np.sort(row[~hit]) for order, hit in zip(orders, hits, strict=True) for row, hit in zip(order, hit, strict=True)
    ]
    layout = inspect(str(path), FIELD)
    run = _run(layout, held + (AHEAD + 2) * batch, NBYTES, False, False, AHEAD, storage)

    def script(epoch: int) -> Script:
        order = orders[epoch]
        first = epoch * len(order)
        # Step i issues what is used first AHEAD steps later; before any step, the start is read.
        loads = [steps[step] if step < len(steps) else steps[0][:0] for step in
                 range(first + 1 + AHEAD, first + 1 + AHEAD + len(order))]  # fmt: skip
        start = steps[: 1 + AHEAD] if epoch == 0 else []
        return Script(
            rows=order.ravel().astype(np.int32),
            starts=np.arange(len(order) + 1) * batch,
            last=(~kept[epoch]).ravel().astype(np.uint8),
            loads=_together(loads),
            ends=np.cumsum([0, *map(len, loads)]),
            start=_together(start),
            start_ends=np.cumsum([len(one) for one in start], dtype=np.int64),
            start_due=np.arange(len(start)),
        )

    return Carried(None, _batches(run, orders, script), run.counts)


def _together(rows: list[NDArray[np.int64]]) -> NDArray[np.int32]:
    return np.concatenate([np.empty(0, np.int32), *rows]).astype(np.int32)


Flags = list[NDArray[np.bool_]]  # of each use of each epoch [batch, place]


def reused(orders: list[NDArray[np.int64]], held: int) -> tuple[Flags, Flags]:
    """Which uses find their sample in memory, and after which it stays there for the next epoch."""
    uses, batch = orders[0].size, orders[0].shape[1]
    head = held if held == uses else held - held % batch
    hits, kept = [], []
    for epoch, order in enumerate(orders):
        flat, place = order.ravel(), np.arange(uses)
        before = orders[epoch - 1].ravel()[uses - held :] if epoch else flat[:0]
        after = orders[epoch + 1].ravel()[:head] if epoch + 1 < len(orders) else flat[:0]
        hits.append(((place < head) & np.isin(flat, before)).reshape(order.shape))
        kept.append(((place >= uses - held) & np.isin(flat, after)).reshape(order.shape))
    return hits, kept
