"""One data set on one machine, by the policy of each: what an epoch costs. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from solar.planner import order, policies, regions, simulate
from solar.planner.assign import Flow
from solar.planner.order import ShuffledUses
from solar.planner.sweep import KeepPolicy, backwards
from solar.planner.units import Units, uniform
from solar.values import Outcome, Storage, World

POLICY_NAMES = {
    "torch": "PyTorch",
    "lru": "LRU in each rank",
    "pinned": "pinned part",
    "solar_paper": "SOLAR, PVLDB 2022",
    "solar": "solar",
}
MOST_LRU = 3_000_000  # uses that are followed one by one; more are followed on a smaller copy of the data set
ORDERS_KEPT = 4  # epochs whose order is kept


@dataclass(frozen=True)
class Case:
    """One question: whose data, what machine, what training."""

    name: str  # of the data set
    units: Units
    world: World
    batch: int
    memory: int  # of a node
    storage: Storage
    seed: int
    epochs: int

    @cached_property
    def order(self) -> ShuffledUses:
        """The shuffles of all epochs, of which the last ones made are kept."""
        made = order.distributed(self.units.samples, seed=self.seed, ranks=self.world.ranks)
        return replace(made, of=lru_cache(ORDERS_KEPT)(made.of))

    @property
    def scan_seconds(self) -> float:
        """How long reading all of it takes, from one end to the other."""
        return self.storage.seconds(1, self.units.total_nbytes)

    @property
    def share(self) -> float:
        """How much of it the memory of all nodes has room for."""
        nodes = -(-self.world.ranks // self.world.ranks_per_node)
        return self.memory * nodes / max(self.units.total_nbytes, 1)


@dataclass(frozen=True)
class Travel:
    """What goes from node to node in one epoch, where ranks exchange what they have no room for at home."""

    steps: int
    samples: int  # of all nodes, in the whole epoch
    nbytes: int
    most_nbytes: int  # that one node receives in one step


@dataclass(frozen=True)
class Answer:
    """What each policy costs; `estimated` are those that were followed on a smaller copy."""

    outcomes: dict[str, Outcome]
    first_batch: dict[str, float]
    estimated: tuple[str, ...]
    plan_seconds: float
    overflow_fraction: float
    travel: Travel = Travel(0, 0, 0, 0)
    way: KeepPolicy | None = None  # of our plan, of its first node


def answer(case: Case) -> Answer:
    """What each policy makes of one case."""
    of = case.order, case.units, case.world
    settings: dict[str, Any] = {"batch": case.batch, "storage": case.storage}
    cached: dict[str, Any] = settings | {"memory": case.memory}
    least, scale = _lru(case)
    outcomes = {
        "torch": policies.torch(*of, **settings),
        "lru": least,
        "pinned": policies.pinned(*of, **cached),
        "solar_paper": policies.solar_paper(*of, **cached),
    }
    ours = simulate(*of, **cached)
    outcomes["solar"] = ours.outcome
    first, estimated = _first_batch(case, outcomes), ("lru",) if scale != 1 else ()
    seconds, travel = _plan_seconds(case, ours.way), _travel(case)
    return Answer(outcomes, first, estimated, seconds, ours.overflow_fraction, travel, ours.way)


def _travel(case: Case) -> Travel:
    """What travels in the second epoch, which stands for all."""
    flow = Flow(case.order, case.units, case.world, case.batch)
    _, samples, most = flow.overflow(1) if flow.nodes > 1 else (0, 0, 0)
    each = case.units.sample_nbytes
    return Travel(len(flow.starts) - 1, samples, samples * each, most * each)


def _plan_seconds(case: Case, way: KeepPolicy) -> float:
    """How long one epoch takes to plan on the first node, its order included; the way is known by then."""
    epochs = range(2)
    new = replace(case, seed=case.seed + len(epochs))  # its orders are not made yet
    flow = Flow(new.order, new.units, new.world, new.batch)
    terms = flow.terms(new.memory, new.storage.gap, 0, epochs[1:])
    node = regions.of_nodes(new.units, new.world)[0]
    planned = backwards(node, way, flow.uses(node), epochs, terms, record=True)
    next(planned)  # the last, which begins with nothing in memory
    begin = time.perf_counter()
    next(planned)
    return time.perf_counter() - begin


def _lru(case: Case) -> tuple[Outcome, float]:
    """Followed use by use, on a smaller copy of a large data set; how many times smaller.

    An epoch fills the cache of a rank, unless all of them together hold the data set more than once.
    """
    epoch, room = max(1, min(case.epochs - 1, math.ceil(case.share))), case.memory
    uses = case.order.uses * (epoch + 1)
    if uses <= MOST_LRU:
        done = policies.lru(case.order, case.units, case.world, memory=room, storage=case.storage, epoch=epoch)
        return done, 1.0
    units = case.units
    count = max(1, int(units.samples * MOST_LRU / uses))
    stored = max(1, units.total_nbytes // units.units)
    copy = uniform(count, units.sample_nbytes, per_unit=units.per_unit, stored=stored)
    scale = units.samples / count
    small = order.distributed(count, seed=case.seed, ranks=case.world.ranks)
    done = policies.lru(small, copy, case.world, memory=int(room / scale), storage=case.storage, epoch=epoch)
    return times(done, scale), scale


def times(outcome: Outcome, scale: float) -> Outcome:
    """The outcome on a data set so many times larger."""
    return Outcome(
        reads=round(outcome.reads * scale),
        requests=round(outcome.requests * scale),
        bytes=round(outcome.bytes * scale),
        scans=outcome.scans,
        seconds=outcome.seconds * scale,
        hits=round(outcome.hits * scale),
        peak_bytes=round(outcome.peak_bytes * scale),
    )


def _first_batch(case: Case, names: Iterable[str]) -> dict[str, float]:
    """How long the first step takes with nothing in memory: read singly, or sorted and joined by those that do so."""
    uses = min(case.batch * case.world.ranks, case.order.uses)
    first = order.given([case.order.of(0)[:uses]] * 2, case.units.samples)
    of = first, case.units, case.world
    settings: dict[str, Any] = {"batch": case.batch, "storage": case.storage}
    singly = case.storage.latency + policies.torch(*of, **settings).seconds
    joined = case.storage.latency + policies.solar_paper(*of, **settings, memory=0).seconds
    return {name: joined if name in ("solar_paper", "solar") else singly for name in names}


def together(answers: list[Answer], cases: list[Case]) -> Answer:
    """The fields of a sample as one: their costs add up."""
    if len(answers) == 1:
        return answers[0]
    scan = sum(case.scan_seconds for case in cases)
    outcomes = {}
    for name in answers[0].outcomes:
        parts = [one.outcomes[name] for one in answers]
        summed = {field.name: sum(getattr(part, field.name) for part in parts) for field in fields(Outcome)}
        summed["scans"] = summed["seconds"] / scan
        outcomes[name] = Outcome(**summed)
    first = {name: sum(one.first_batch[name] for one in answers) for name in answers[0].first_batch}
    estimated = sorted({name for one in answers for name in one.estimated})
    seconds = sum(one.plan_seconds for one in answers)
    overflow = max(one.overflow_fraction for one in answers)
    travels = [one.travel for one in answers]
    nbytes, most = sum(one.nbytes for one in travels), sum(one.most_nbytes for one in travels)
    travel = replace(max(travels, key=lambda one: one.samples), nbytes=nbytes, most_nbytes=most)
    return Answer(outcomes, first, tuple(estimated), seconds, overflow, travel, answers[0].way)
