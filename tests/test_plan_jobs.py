"""Several jobs on a node, planned as one: what a step of all uses, what that reads, and what theory says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_kit import Data, sweeps, torch_randperm

from solar.planning import pass_uses, torch_shuffles
from solar.planning.budget import BufferTooSmall, SampleBytes
from solar.planning.job import Job, NodePlan, followed, plan_node
from solar.planning.pass_uses import SampleUses, in_lockstep, once_a_step
from solar.planning.planned_passes import Piece
from solar.planning.regions import whole_region
from solar.planning.torch_shuffles import ShuffledUses
from solar.planning.units import uniform
from solar.samplers.orders import by_study
from solar.values import Storage, World

SEQUENTIAL = Storage(latency=0, bandwidth=1e9, iops=5)  # a request costs as much as 200 samples of a megabyte
LARGE = Storage(latency=0, bandwidth=1e9, iops=1e6)  # next to nothing: bytes decide


def job(orders: Sequence[ShuffledUses], samples: int, *, share: float, batch: int, epochs: int, **more: Any) -> Job:
    """Jobs whose batches take next to nothing, with memory for so large a share of samples of a megabyte.

    Of the memory of several a sixty-fourth is for steps, however small: it is given beside.
    """
    units = uniform(samples, 10**6)
    made: dict[str, Any] = {"storages": [SEQUENTIAL], "fields": [SampleBytes(0)], "scratch": 0} | more
    return Job(
        [Piece(0, 0, whole_region(units))], order=orders[0], beside=orders[1:], world=World(0, 1), batch=batch,
        memory=int(share * samples * 10**6 * (64 / 63 if len(orders) > 1 else 1)), epochs=epochs, **made,
    )  # fmt: skip


def own(samples: int, jobs: int) -> list[ShuffledUses]:
    return [torch_shuffles.distributed(samples, seed=seed) for seed in range(jobs)]


# --- the uses of all ----


@st.composite
def some_jobs(draw: st.DrawFn) -> list[SampleUses]:
    """Jobs of different lengths, batches and numbers of steps, of one data set or of several."""
    of_several = draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(1, 5))):
        sizes = draw(st.lists(st.integers(0, 6), max_size=8))
        rows = draw(st.lists(st.integers(0, 9), min_size=sum(sizes), max_size=sum(sizes)))
        which = np.array(draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))), np.int64)
        starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        found.append(SampleUses(which if of_several else None, np.array(rows, np.int32), starts, epoch=3))
    return found


def steps_of(uses: SampleUses) -> list[list[tuple[int, int]]]:
    which = np.zeros(len(uses.rows), int) if uses.which is None else uses.which
    pairs = [*zip(which.tolist(), uses.rows.tolist(), strict=True)]
    return [pairs[begin:end] for begin, end in zip(uses.starts[:-1], uses.starts[1:], strict=True)]


@settings(max_examples=150, deadline=None)
@given(some_jobs(), st.integers(1, 9))
def test_a_step_of_all_uses_what_each_does_and_every_sample_once(jobs: list[SampleUses], at_once: int) -> None:
    each = [steps_of(one) for one in jobs]
    wanted = [
        [use for steps in each for use in (steps[step] if step < len(steps) else [])]
        for step in range(max(map(len, each)))
    ]
    together = in_lockstep(jobs)
    assert steps_of(together) == wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pass_uses, "AT_ONCE", at_once)
        once = once_a_step(together)
    assert steps_of(once) == [[*dict.fromkeys(step)] for step in wanted]
    assert (once.epoch, once.rows.dtype, once.starts.dtype) == (3, np.int32, np.int64)


def test_one_job_is_itself() -> None:
    one = job(own(50, 1), 50, share=0.3, batch=7, epochs=2)
    assert one.uses(1).same(once_a_step(in_lockstep([one.uses(1)])))
    assert job([*own(50, 1), *own(50, 1)], 50, share=0.3, batch=7, epochs=2).uses(1).same(one.uses(1))


# --- what is read for them ----


def naive_steps(samples: int, seeds: Sequence[int], batch: int, epoch: int) -> list[list[int]]:
    """By torch's permutation alone: what each job's batch has, one job after another."""
    orders = [torch_randperm(samples, seed + epoch).tolist() for seed in seeds]
    return [[*dict.fromkeys(s for one in orders for s in one[at : at + batch])] for at in range(0, samples, batch)]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(20, 70), st.integers(1, 4), st.integers(1, 6), st.floats(0.15, 0.9), st.booleans(), st.integers(1, 3)
)
def test_reads_requests_and_bytes_are_those_of_a_simulation_of_its_own(
    samples: int, jobs: int, batch: int, share: float, common: bool, epochs: int
) -> None:
    """A head over a list, sample by sample, told nothing but the shuffles and the way that the plan chose."""
    orders = [torch_shuffles.distributed(samples, seed=0 if common else seed) for seed in range(jobs)]
    plan = plan_node(job(orders, samples, share=share, batch=batch, epochs=epochs))
    [window] = plan.windows
    [made] = window.plans
    seeds = [0] if common else range(jobs)
    naive = [naive_steps(samples, seeds, batch, epoch) for epoch in range(epochs)]
    assert plan.uses == [samples * jobs]
    kept, room = (
        made.policy.pinned,
        made.terms.room - 10**6 * made.policy.pinned,
    )  # what stays is no matter for the head
    swept = [[[item - kept for item in step if item >= kept] for step in steps] for steps in naive]
    data = Data([1] * samples, [10**6 * at for at in range(samples)], [10**6] * samples)
    every = [step for steps in swept for step in steps]
    if made.policy.direct:
        reads = [data.joined(sorted(step), made.terms.gap) for step in every]
        found = [sum(getattr(one, name) for one in made.counts) for name in ("reads", "requests", "bytes")]
        assert found == [sum(map(len, every)), *map(sum, zip(*reads, strict=True))]
        return
    epoch_of = [epoch for epoch, steps in enumerate(swept) for _ in steps] if made.policy.lasting else None
    issued, _, _ = sweeps(data, every, room, made.policy.burst, made.terms.ahead, epoch_of)
    first, requests, nbytes = 1, 0, 0
    for epoch, steps in enumerate(swept):
        here = issued[first : first + len(steps)]
        first += len(steps)
        loads = made.script(epoch).loads.tolist()
        assert loads == [item + kept for step in here for item in step]
        assert made.counts[epoch].reads == len(loads)
        requests, nbytes = requests + made.counts[epoch].requests, nbytes + made.counts[epoch].bytes
    assert (requests, nbytes) == data.joined([item for step in issued[1:] for item in step], made.terms.gap)
    assert sorted(made.script(0).start.tolist()) == [*range(kept), *(item + kept for item in issued[0])]
    outcome = plan.outcome(range(epochs))
    read = (kept + len([item for step in issued for item in step])) / epochs  # the start's, too
    assert (outcome.reads, outcome.hits) == (pytest.approx(read), pytest.approx(samples * jobs - read))


def test_one_order_for_all_costs_what_one_job_costs() -> None:
    [one] = own(3000, 1)
    all_ = plan_node(job([one] * 5, 3000, share=0.3, batch=16, epochs=4))
    assert all_.budget is not None
    alone = followed(
        one, uniform(3000, 10**6), SEQUENTIAL, batch=16, memory=all_.budget.parts, epochs=4
    )  # with as much memory for what is kept
    assert [window.plans[0].digest for window in all_.windows] == [window.plans[0].digest for window in alone.windows]
    assert all_.epochs == alone.epochs
    assert all_.outcome(all_.later).hits - alone.outcome(alone.later).hits == 4 * 3000


def test_memory_is_divided_as_a_service_divides_it() -> None:
    """A step of two and four jobs has their batches once; without room for two steps it is BufferTooSmall."""
    more = {"batch": 2, "epochs": 2, "fields": [SampleBytes(10**6)], "scratch": 10**5, "threads": 3}
    for jobs, part, steps in ((2, 32, 4), (4, 16, 4), (8, 16, 2)):
        plan = plan_node(job(own(600, jobs), 600, share=0.9, **more))
        budget = plan.budget
        assert budget is not None and budget.scratch >= 10**5
        assert (plan.batches_nbytes, budget.staged) == (
            budget.nbytes // part,
            budget.nbytes // part // (jobs * 2 * 10**6),
        )
        assert budget.staged >= steps
        assert budget.parts + plan.batches_nbytes + 3 * budget.scratch == budget.nbytes
    with pytest.raises(BufferTooSmall) as raised:
        plan_node(job(own(600, 8), 600, share=0.4, **more))
    assert raised.value.least == 2 * 8 * 8 * 2 * 10**6
    assert plan_node(job(own(600, 8), 600, share=0.45, **more)).batches_nbytes


# --- what the theory promises (planning.md) ----


def scans(plan: NodePlan) -> float:
    """Of an epoch once it is under way."""
    return plan.outcome(plan.later).scans


def filling(plan: NodePlan) -> float:
    """Of an epoch, on average of all, with what fills memory."""
    return plan.outcome(range(len(plan.epochs))).scans


def between_visits(f: float) -> float:
    """How often a unit is used from one visit of the head to the next: f = 1 - (1 - exp(-x)) / x."""
    low, high = 1e-6, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if 1 + math.expm1(-middle) / middle < f else (low, middle)
    return low


# The table of planning.md: each alone, all by one sweep. It counts what fills memory, too.
SIMULATED = {
    0.5: {2: (4.4, 1.76), 4: (17, 3.0), 8: (67, 5.45)},
    0.25: {2: (8.5, 3.85), 4: (33.5, 7.18), 8: (136, 13.8)},
}
ONE_ORDER = {0.5: (1.15, (1.16, 1.19, 1.24)), 0.25: (2.2, (2.25, 2.4, 2.7))}  # and a study's, of 2, 5 and 10 %


@pytest.mark.slow(every=5)
@pytest.mark.parametrize(("f", "jobs"), [(0.5, 2), (0.5, 4), (0.5, 8), (0.25, 2), (0.25, 4), (0.25, 8)])
def test_sweeps_for_all_cost_what_the_laws_say(f: float, jobs: int) -> None:
    samples, how = 20_000, {"batch": 16, "epochs": 4}
    together = plan_node(job(own(samples, jobs), samples, share=f, **how))
    assert 0.95 * jobs / between_visits(f) < scans(together) < 1.02 * jobs / (2 * f)
    alone = plan_node(job(own(samples, 1), samples, share=f / jobs, **how))
    assert jobs * scans(alone) == pytest.approx(jobs**2 / (2 * f), rel=0.07)
    assert (jobs * filling(alone), filling(together)) == pytest.approx(SIMULATED[f][jobs], rel=0.07)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("f", [0.25, 0.5])
def test_a_studys_order_costs_little_more_than_one_order_for_all(f: float) -> None:
    samples, how = 20_000, {"batch": 16, "epochs": 4}
    common = plan_node(job(own(samples, 1) * 8, samples, share=f, **how))
    assert 0.8 / (2 * f) < scans(common) < 1.02 / (2 * f)
    found = [common]
    for share in (0.02, 0.05, 0.1):
        of_study = [torch_shuffles.sampler_order(by_study(samples, 7, share), seed=seed) for seed in range(8)]
        found.append(plan_node(job(of_study, samples, share=f, **how)))
    one, studies = ONE_ORDER[f]
    assert [*map(filling, found)] == pytest.approx([one, *studies], rel=0.05)
    assert [*map(scans, found)] == sorted(map(scans, found))


@pytest.mark.parametrize("f", [0.25, 0.5])
def test_where_bytes_decide_all_read_what_none_has_and_sharing_gains_little(f: float) -> None:
    samples, jobs, how = 4000, 4, {"batch": 2, "epochs": 4, "storages": [LARGE]}
    together = scans(plan_node(job(own(samples, jobs), samples, share=f, **how)))
    alone = jobs * scans(plan_node(job(own(samples, 1), samples, share=f / jobs, **how)))
    common = scans(plan_node(job(own(samples, 1) * jobs, samples, share=f, **how)))
    assert together == pytest.approx(jobs * (1 - f), rel=0.05)
    assert alone == pytest.approx(jobs * (1 - f / jobs), rel=0.05)
    assert common == pytest.approx(1 - f, rel=0.08)
