"""Compares the cost of an epoch by each policy. Ours is what the loader plans. Pure functions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.io.reading.engine import GAP
from solar.io.reading.reader import Rows
from solar.io.reading.run import READ_PIECE, Asked, requests_of
from solar.io.system.cores import planned_threads
from solar.planning import policies, regions, torch_shuffles
from solar.planning.budget import AheadSpec, SampleBytes
from solar.planning.job import ALL_NODES, Job, NodePlan, plan_node
from solar.planning.pass_uses import SampleUses, in_lockstep
from solar.planning.planned_passes import Piece
from solar.planning.torch_shuffles import ShuffledUses
from solar.planning.units import Units, uniform
from solar.samplers.orders import EpochOrder, by_study
from solar.samples.protocol import HeldMap
from solar.values import BATCHES_AHEAD, Layout, Outcome, RowPacking, Storage, World

POLICY_NAMES = {
    "torch": "PyTorch",
    "lru": "LRU in each rank",
    "pinned": "pinned part",
    "solar_paper": "SOLAR, PVLDB 2022",
    "solar": "solar",
}
# What stands beside ours where samples are windows, and where there are several jobs.
ROW_NAMES = POLICY_NAMES | {"one_by_one": "one by one", "alone": "each alone", "page_cache": "over one page cache"}
# Seconds of a use that the LRU follows, that the other policies count, and that is planned: measured, and only shown.
FOLLOWED, COUNTED, PLANNED = 9e-7, 6e-7, 5e-8
MOST_LRU = 3_000_000  # uses that are followed one by one; more are followed on a smaller copy of the data set
ORDERS_KEPT = 4  # epochs whose order is kept


@dataclass(frozen=True)
class SampleDraw:
    """How samples are drawn, by one training or by several side by side."""

    weights: NDArray[np.float64] | None = field(default=None, compare=False)  # None: shuffled
    chosen: NDArray[np.int64] | None = field(default=None, compare=False)  # the samples there are; None: all
    mixed: EpochOrder | None = field(default=None, compare=False)  # the order of all sources of a mixture
    first: int = 0  # the number of the data set's first sample among those of all sources
    by: EpochOrder | None = field(default=None, compare=False)  # a mixed order of blocks; None: an exact shuffle
    jobs: int = 1  # such trainings side by side, the next with the next seed
    common: bool = False  # all with the same one
    study: tuple[int, float] | None = None  # what they have in common: its number, and the share of its stretches


@dataclass(frozen=True)
class PlannedData:
    """One question: a field of which data, on what machine, for what training."""

    name: str  # of the data set
    units: Units
    world: World
    batch: int
    memory: int  # of a node
    storage: Storage
    seed: int
    epochs: int
    scratch: int = 0  # the least memory that a read takes beside the buffer
    extents: HeldMap | None = None  # None: samples are rows
    packing: RowPacking | None = None  # how a buffer may hold its rows encoded
    drawn: SampleDraw = SampleDraw()

    def drawn_otherwise(self, **changes: Any) -> PlannedData:
        """Returns the same question about samples that are drawn otherwise."""
        return replace(self, drawn=replace(self.drawn, **changes))

    @property
    def samples(self) -> int:
        """The number of samples of all sources."""
        if self.drawn.mixed is not None:
            return self.drawn.mixed.samples
        if self.drawn.chosen is not None:
            return len(self.drawn.chosen)
        return self.units.samples if self.extents is None else len(self.extents)

    @property
    def ours(self) -> bool:
        """Whether only solar has such samples."""
        return self.extents is not None or self.drawn.chosen is not None or self.drawn.mixed is not None

    @property
    def sample_nbytes(self) -> int:
        """The average bytes of a sample."""
        unit = self.units.sample_nbytes
        return unit if self.extents is None else self.extents.bytes_of(unit)

    @cached_property
    def piece(self) -> Piece:
        """The field as the planner sees it, as if it were the only one."""
        return Piece(0, 0, regions.whole_region(self.units), self.extents, self.packing)

    @cached_property
    def orders(self) -> list[ShuffledUses]:
        """The shuffles of all epochs, for each job. The last ones made are kept."""
        most = max(1, ORDERS_KEPT // self.drawn.jobs)
        return [replace(made, of=lru_cache(most)(made.of)) for made in _orders(self, self.samples)]

    @property
    def order(self) -> ShuffledUses:
        """The order of the first job."""
        return self.orders[0]

    @property
    def scan_seconds(self) -> float:
        """The time for reading all of it, from one end to the other."""
        return self.storage.seconds(1, self.units.total_nbytes)

    @property
    def share(self) -> float:
        """The share of it that the memory of all nodes has room for."""
        nodes = -(-self.world.ranks // self.world.ranks_per_node)
        return self.memory * nodes / max(self.units.total_nbytes, 1)


@dataclass(frozen=True)
class Travel:
    """What travels between nodes in one epoch, if ranks exchange what they have no room for at home."""

    steps: int
    samples: int  # of all nodes, in the whole epoch
    nbytes: int
    most_nbytes: int  # that one node receives in one step


@dataclass(frozen=True)
class Answer:
    """The cost of each policy. `estimated` are those that were simulated on a smaller copy."""

    outcomes: dict[str, Outcome]
    first_batch: dict[str, float]
    estimated: tuple[str, ...]
    first_epoch: Outcome | None = None  # ours, with all that is read before the first batch
    plan: NodePlan | None = None  # the first node's, as its loaders make it
    plan_seconds: float = 0.0  # that an epoch of it took to be made
    nodes: int = 1  # that were planned; fewer than there are: the others were taken to be alike
    overflow_fraction: float = 0.0
    travel: Travel = Travel(0, 0, 0, 0)
    decoded: Mapping[str, float] = field(default_factory=dict)  # samples out of chunks, where there are several jobs


def _orders(case: PlannedData, samples: int) -> list[ShuffledUses]:
    """Returns the order of each job on this many samples."""
    seeds = [case.seed + (0 if case.drawn.common else number) for number in range(case.drawn.jobs)]
    made = [order_of_data(case, samples, seed) for seed in seeds]
    return made if case.drawn.chosen is None else [torch_shuffles.of_samples(one, case.drawn.chosen) for one in made]


def order_of_data(case: PlannedData, samples: int, seed: int) -> ShuffledUses:
    ranks = case.world.ranks
    if case.drawn.mixed is not None:
        return torch_shuffles.sampler_order(case.drawn.mixed, seed=seed, ranks=ranks)
    if case.drawn.by is not None:
        return torch_shuffles.sampler_order(case.drawn.by, seed=seed, ranks=ranks)
    if case.drawn.study is not None:
        return torch_shuffles.sampler_order(by_study(samples, *case.drawn.study), seed=seed, ranks=ranks)
    if case.drawn.weights is None:
        return torch_shuffles.distributed(samples, seed=seed, ranks=ranks)
    few = case.drawn.weights[:: len(case.drawn.weights) // samples][:samples]
    return torch_shuffles.weighted_order(few, seed=seed, ranks=ranks)


def scratch_of(units: Units) -> int:
    """Returns what a read takes beside the buffer, for a data set that does not exist yet."""
    if units.per_unit == 1 and not units.encoded:
        return min(units.sample_nbytes, READ_PIECE)
    return 2 * units.per_unit * units.sample_nbytes + units.stored_nbytes


def job_of(cases: Sequence[PlannedData], memory: int, ahead: int = BATCHES_AHEAD) -> Job:
    """Returns the Job of the loader: all fields of a sample together, with this much memory on each node."""
    one = cases[0]
    firsts = sorted({case.drawn.first for case in cases})
    fields = [case for case in cases if case.drawn.first == one.drawn.first]
    placed = [(*divmod(at, len(fields)), case) for at, case in enumerate(cases)]
    return Job(
        pieces=[replace(case.piece, dataset=source, field=at) for source, at, case in placed],
        storages=[case.storage for case in cases],
        fields=[SampleBytes(case.sample_nbytes) for case in fields],
        scratch=max(case.scratch for case in cases),
        order=one.order,
        beside=one.orders[1:],
        world=one.world,
        batch=one.batch,
        memory=memory,
        epochs=one.epochs,
        pace=AheadSpec(ahead, 0),
        threads=planned_threads(one.world.ranks_per_node),
        gap=GAP,
        firsts=firsts,
    )


def guessed_seconds(cases: Sequence[PlannedData]) -> float:
    """Returns about how long `compare_policies` takes on a core."""
    uses = [sum(one.uses for one in case.orders) for case in cases]
    world, epochs = cases[0].world, max(1, cases[0].epochs)
    nodes = -(-world.ranks // world.ranks_per_node)
    ours = PLANNED * epochs * sum(uses) * (1 if nodes * uses[0] > ALL_NODES else nodes)
    if any(case.ours for case in cases):
        return 2 * ours  # with memory, and without
    return ours + sum(min(2 * each, MOST_LRU) * FOLLOWED + each * COUNTED for each in uses)


def compare_policies(cases: Sequence[PlannedData], job: Job) -> Answer:
    """Returns the average cost of an epoch by each policy; if there are few epochs, over these."""
    begin = time.perf_counter()
    first = plan_node(job)
    seconds = (time.perf_counter() - begin) / len(first.epochs)
    plans = [first, *(plan_node(job, node) for node in range(1, _work_out(job)))]
    ours = any(case.ours for case in cases)
    exact = [case.drawn_otherwise(by=None) for case in cases]  # as others shuffle
    others, scaled = ({"one_by_one": _without(job)}, ()) if ours else _others(exact, first.ready)
    later, whole = ([one.outcome(epochs) for one in plans] for epochs in (first.later, range(1)))
    scan = sum(case.scan_seconds for case in cases)
    outcomes = others | {"solar": _of_nodes(later, job.nodes, scan)}
    away, travel = _travel(job)
    return Answer(
        outcomes, _first_batch(job, outcomes), scaled, _of_nodes(whole, job.nodes, scan), first, seconds, len(plans),
        away, travel,
    )  # fmt: skip


def outcome_by_order(cases: Sequence[PlannedData], job: Job, by: EpochOrder | None) -> tuple[Outcome, NodePlan]:
    """Returns the cost of our epoch in another order (None: an exact shuffle), and the plan of the first node."""
    other = replace(job, order=cases[0].drawn_otherwise(by=by).order)
    plans = [plan_node(other, node) for node in range(_work_out(other))]
    scan = sum(case.scan_seconds for case in cases)
    return _of_nodes([one.outcome(plans[0].later) for one in plans], job.nodes, scan), plans[0]


def _work_out(job: Job) -> int:
    """Returns how many nodes are planned: all, or only the first, which stands for the others."""
    return 1 if job.nodes * job.order.uses > ALL_NODES else job.nodes


def _without(job: Job) -> Outcome:
    """Returns the cost of reading each batch by itself."""
    alone = replace(job, memory=0)
    plans = [plan_node(alone, node) for node in range(_work_out(job))]
    later = [one.outcome(one.later) for one in plans]
    scan = sum(s.seconds(1, piece.units.total_nbytes) for piece, s in zip(job.pieces, job.storages, strict=True))
    return _of_nodes(later, job.nodes, scan)


def _of_nodes(found: list[Outcome], nodes: int, scan: float) -> Outcome:
    """Returns the cost of all nodes together, side by side on one storage; those that were planned stand for all."""
    summed = summed_up(found)
    whole = summed if len(found) == nodes else scaled(summed, nodes / len(found))
    return replace(whole, scans=whole.seconds / scan, peak_bytes=max(one.peak_bytes for one in found))


def _others(cases: Sequence[PlannedData], ready: int) -> tuple[dict[str, Outcome], tuple[str, ...]]:
    """Returns the cost of other policies, field by field, and which of them were simulated on a smaller copy.

    What is pinned leaves room for as many batches as our plan has: the `ready` ones and one in use.
    """
    found: dict[str, list[Outcome]] = {}
    scaled = set()
    for case in cases:
        of = case.order, case.units, case.world
        settings: dict[str, Any] = {"batch": case.batch, "storage": case.storage}
        cached: dict[str, Any] = settings | {"memory": case.memory}
        least, scale = cached_lately(case)
        scaled |= {"lru"} if scale != 1 else set()
        by = {
            "torch": policies.torch(*of, **settings),
            "lru": least,
            "pinned": policies.pinned(*of, **cached, ready=ready),
            "solar_paper": policies.solar_paper(*of, **cached),
        }
        for name, one in by.items():
            found.setdefault(name, []).append(one)
    scan = sum(case.scan_seconds for case in cases)
    summed = {name: summed_up(parts) for name, parts in found.items()}
    return {name: replace(one, scans=one.seconds / scan) for name, one in summed.items()}, tuple(sorted(scaled))


def summed_up(found: Sequence[Outcome]) -> Outcome:
    """Returns outcomes whose costs add up as one."""
    return Outcome(**{part.name: sum(getattr(one, part.name) for one in found) for part in fields(Outcome)})


def _travel(job: Job) -> tuple[float, Travel]:
    """Returns, for the second epoch, which stands for all: samples taken elsewhere than provided, and what travels."""
    uses = job.uses(1)
    steps = len(uses.starts) - 1
    if job.world.ranks == 1:
        return 0.0, Travel(steps, 0, 0, 0)
    own = job.sharing(0)
    taken, provided = job.who(1)
    far = own.node_of[taken] != own.node_of[provided]
    step = np.repeat(np.arange(steps), np.diff(uses.starts))[far]
    busiest = int(np.bincount(step * job.nodes + own.node_of[taken[far]]).max(initial=0))
    each = sum(field.read for field in job.fields)
    away = np.count_nonzero(taken != provided) / len(taken)
    return away, Travel(steps, len(step), len(step) * each, busiest * each)


def cached_lately(case: PlannedData, *, as_stored: bool = False) -> tuple[Outcome, float]:
    """Simulates a cache that drops what was used longest ago, use by use, on a smaller copy of a large data set.

    Returns its cost, and how many times smaller the copy is. An epoch fills the cache of a rank, unless all of them
    together hold the data set more than once. Several jobs have one cache.
    """
    epoch, room = max(1, min(case.epochs - 1, math.ceil(case.share))), case.memory
    uses = sum(one.uses for one in case.orders) * (epoch + 1)
    how: dict[str, Any] = {"storage": case.storage, "epoch": epoch, "as_stored": as_stored}
    if uses <= MOST_LRU:
        return policies.lru(_by_turns(case.orders, case), case.units, case.world, memory=room, **how), 1.0
    units = case.units
    count = max(1, int(units.samples * MOST_LRU / uses))
    stored = max(1, units.total_nbytes // units.units)
    copy = uniform(count, units.sample_nbytes, per_unit=units.per_unit, stored=stored)
    scale = units.samples / count
    small = _by_turns(_orders(case, count), case)
    done = policies.lru(small, copy, case.world, memory=int(room / scale), **how)
    return scaled(done, scale), scale


def _by_turns(orders: Sequence[ShuffledUses], case: PlannedData) -> ShuffledUses:
    """Returns the uses of several jobs as one order: step by step those of each job."""
    if len(orders) == 1:
        return orders[0]

    def of(epoch: int) -> NDArray[np.int32]:
        return in_lockstep(
            [SampleUses(None, one.of(epoch), torch_shuffles.steps(one, case.batch)) for one in orders]
        ).rows

    return replace(orders[0], uses=sum(one.uses for one in orders), of=of, facts=tuple(one.facts for one in orders))


def scaled(outcome: Outcome, scale: float) -> Outcome:
    """Returns the outcome for a data set this many times larger."""
    return Outcome(
        reads=round(outcome.reads * scale),
        requests=round(outcome.requests * scale),
        bytes=round(outcome.bytes * scale),
        scans=outcome.scans,
        seconds=outcome.seconds * scale,
        hits=round(outcome.hits * scale),
        peak_bytes=round(outcome.peak_bytes * scale),
    )


def _first_batch(job: Job, names: Iterable[str]) -> dict[str, float]:
    """Returns the time of the first step with empty memory: read one by one, or sorted and joined, as `names` says."""
    singly = joined = 0.0
    uses = job.uses(0)
    for piece, storage in zip(job.pieces, job.storages, strict=True):
        rows, starts = piece.rows(uses)
        if not starts[1]:
            continue
        first = torch_shuffles.of_sequences([rows[: int(starts[1])]] * 2, piece.units.samples)
        of = first, piece.units, job.world
        settings: dict[str, Any] = {"batch": job.batch * piece.slots, "storage": storage}
        singly += storage.latency + policies.torch(*of, **settings).seconds
        joined += storage.latency + policies.solar_paper(*of, **settings, memory=0).seconds
    return {name: joined if name in ("solar_paper", "solar", "one_by_one") else singly for name in names}


# The requests of a plan as the engine makes them, where each is paid for: of files by URL.


COUNTED_EPOCHS = 8  # that are counted without a buffer, at most: one is nearly like another
Made = list[tuple[int, int]]  # requests and bytes of each epoch


def as_made(answered: Answer, job: Job, cases: Sequence[PlannedData], layouts: Sequence[Layout]) -> Answer:
    """Returns the answer with our requests and bytes counted by the real reader, instead of the planned stretches.

    This is done for one process, and for rows and windows; without a buffer only for rows without filters, because what
    was decoded lately is not read again. For all others, and for local files, the stretches stay.
    """
    plan, first = answered.plan, answered.first_epoch
    alone = job.world.ranks == 1 and not job.beside and any(one.far for one in layouts)
    cut = any(case.piece.in_blocks for case in cases)
    if not alone or cut or plan is None or first is None:
        return answered
    rows = [Rows(one, native_order=True, mapped=False) for one in layouts]
    if plan.budget is not None:
        made = requests_of_buffer(plan, plan.budget.scratch, rows)
    elif len(job.firsts) == 1 and all(case.extents is None and not case.units.encoded for case in cases):
        made = _of_batches(job, rows)
    else:
        return answered
    later = made[1:] or made
    requests, nbytes = (sum(one) / len(later) for one in zip(*later, strict=True))
    ours = replace(answered.outcomes["solar"], requests=requests, bytes=nbytes)
    of_first = replace(first, requests=made[0][0], bytes=made[0][1])
    return replace(answered, first_epoch=of_first, outcomes=answered.outcomes | {"solar": ours})


def requests_of_buffer(plan: NodePlan, scratch: int, rows: Sequence[Rows]) -> Made:
    made = []
    for window in plan.windows:
        if window.segments.start == 0:  # a run begins
            index = Asked(rows, window.parts(), scratch)
        for number in window.segments:
            scripts = window.scripts(number)
            made.append(index.epoch(window.sizes(number), scripts))
    return made


def _of_batches(job: Job, rows: Sequence[Rows]) -> Made:
    made = []
    for epoch in range(min(job.epochs or 2, COUNTED_EPOCHS)):
        uses = job.uses(epoch)
        batches = [uses.rows[begin:end].astype(np.int64) for begin, end in pairwise(uses.starts.tolist())]
        found = [requests_of(one, batches) for one in rows]
        made.append((sum(number for number, _ in found), sum(nbytes for _, nbytes in found)))
    return made
