"""The plan of one node over all epochs: the way is chosen once, each epoch is worked out when its turn comes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace

import numpy as np

from solar import _native
from solar.errors import PlanError
from solar.planner import costs, regions
from solar.planner.assign import Flow
from solar.planner.order import Order
from solar.planner.sweep import (
    Counts,
    Start,
    Terms,
    Way,
    always_nbytes,
    check_room,
    staging_nbytes,
    start_counts,
    start_of,
    swept_uses,
)
from solar.planner.units import Units
from solar.values import Plan, Storage, World


@dataclass(frozen=True, eq=False, repr=False)
class Course:
    """All epochs of a node's plan. It begins with empty memory and ends with it."""

    flow: Flow
    region: regions.Region
    way: Way
    terms: Terms
    epochs: range
    counts: tuple[Counts, ...]  # of each epoch
    start: Start  # what is read before anything else, and what that takes
    start_counts: Counts
    digest: str  # of all that it follows from
    marks: tuple[_native.Sweep, ...]  # where the sweep stands at the end of each epoch; none without a sweep

    def epoch(self, epoch: int) -> Plan:
        """What is read and dropped in this epoch, step by step."""
        if epoch not in self.epochs:
            raise PlanError(f"epoch {epoch}: this plan has epochs {self.epochs.start} to {self.epochs.stop - 1}")
        place = epoch - self.epochs.start
        uses, starts = swept_uses(self.region, self.way, self.flow.uses(self.region)(epoch))
        loads, ends, last = np.empty(0, np.int32), np.zeros(len(starts), np.int64), np.ones(len(uses), np.uint8)
        if self.marks:
            record = self.marks[place].copy().back(uses, starts, record=True)[1]
            assert record is not None
            loads, ends, last = record
        start = self.start if place == 0 else Start(self.start.items[:0], self.start.ends[:0], self.start.due[:0])
        return Plan(
            digest=hashlib.sha256(f"{self.digest} {epoch}".encode()).hexdigest(),
            epoch=epoch,
            region=(self.region.begin, self.region.end),
            begin=self.region.begin + self.way.pinned,
            whole=self.way.whole,
            direct=self.way.direct,
            ahead=self.terms.ahead,
            peak_bytes=self.counts[place].peak,
            loads=loads,
            ends=ends,
            uses=uses,
            starts=starts,
            last=last,
            start=start.items,
            start_ends=start.ends,
            start_due=start.due,
        )


def plan(
    order: Order,
    units: Units,
    world: World,
    *,
    batch: int,
    memory: int,
    storage: Storage,
    epochs: range,
    ahead: int = 1,
    drop_last: bool = False,
    way: Way | None = None,
) -> Course:
    """The plan of this rank's node for these epochs, by the cheapest way there is, unless one is given.

    With memory=0 nothing is kept; too little for the batches in use and on their way is a PlanError.

    >>> from solar.planner.order import distributed
    >>> from solar.planner.units import uniform
    >>> disk = Storage(latency=1e-3, bandwidth=1e9, iops=500)
    >>> made = plan(distributed(1000), uniform(1000, 65536), World(0, 1), batch=10, memory=16 << 20, storage=disk,
    ...             epochs=range(3))
    >>> sum(counts.reads for counts in made.counts) + made.start_counts.reads <= 3000
    True
    """
    if not epochs or epochs.step != 1 or (order.epochs is not None and epochs.stop > order.epochs):
        raise PlanError(
            f"epochs={epochs}: of an order that has {order.epochs or 'any number of'} epochs, one after another"
        )
    flow = Flow(order, units, world, batch, drop_last)
    region = regions.of_nodes(units, world)[world.rank // world.ranks_per_node]
    terms = flow.terms(memory, storage.gap, ahead, epochs)
    _check_memory(region, terms)
    if way is None and region.items:
        way = costs.choose(region, flow.uses(region), *costs.epochs_of(order), terms, storage)[0]
    return _course(flow, region, way or Way(direct=True), terms, epochs, storage)


def _check_memory(region: regions.Region, terms: Terms) -> None:
    least = staging_nbytes(region, terms)
    if 0 < terms.room < least:
        raise PlanError(
            f"memory={terms.room:,} bytes for {terms.ahead + 1} batches of {terms.batch} samples on this node: "
            f"they take {least:,}; give at least that, or 0 to keep nothing"
        )


def _course(flow: Flow, region: regions.Region, way: Way, terms: Terms, epochs: range, storage: Storage) -> Course:
    check_room(region, way, terms)
    always, uses = always_nbytes(region, way, terms), flow.uses(region)
    counts: list[Counts] = []
    marks: list[_native.Sweep] = []
    first = np.empty(0, np.int32)
    if way.direct or way.pinned == region.items:  # a node at home nowhere, too: there are fewer units than nodes
        units = region.native(0, whole=False) if region.items else None
        staging = staging_nbytes(region, terms) if way.direct else 0
        for epoch in epochs:
            swept, starts = swept_uses(region, replace(way, whole=False), uses(epoch))
            numbers = _native.direct(units, swept + np.int32(way.pinned), starts, terms.gap) if units else ()
            counts.append(Counts(*numbers)._replace(peak=always + staging))
    else:
        units = region.native(way.pinned, whole=way.whole)
        sweep = _native.Sweep(units, terms.room - always, way.burst, terms.ahead, terms.gap)
        for epoch in reversed(epochs):
            marks.insert(0, sweep.copy())
            one = Counts(*sweep.back(*swept_uses(region, way, uses(epoch)))[0])
            counts.insert(0, one._replace(peak=one.peak + always))
        first = sweep.residents()[1]
    start = start_of(first, region, way, uses(epochs.start), terms.gap)
    return Course(
        flow, region, way, terms, epochs, tuple(counts), start, start_counts(start, region, way, terms.gap),
        _digest(flow, region, way, terms, epochs, storage), tuple(marks),
    )  # fmt: skip


def _digest(flow: Flow, region: regions.Region, way: Way, terms: Terms, epochs: range, storage: Storage) -> str:
    """A name for exactly this plan: another order, place of the samples, world, memory or storage gives another one."""
    sha = hashlib.sha256()
    for fact in (
        *flow.order.facts,
        flow.world.ranks,
        flow.world.ranks_per_node,
        flow.batch,
        flow.drop_last,
        flow.exchange,
    ):
        sha.update(fact if isinstance(fact, bytes) else repr(fact).encode())
    for field in fields(Units):
        value = getattr(flow.units, field.name)
        sha.update(np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode())
    sha.update(repr((region.begin, region.end, way, terms, epochs, storage)).encode())
    return sha.hexdigest()
