"""Planning for very many ranks: the work grows with the uses and the ranks, not with their product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solar.cli import main
from solar.cli.compare import PlannedData, compare_policies, job_of
from solar.planning import job as planning
from solar.planning import policies, sharing
from solar.planning.job import NodePlan, plan_node
from solar.planning.sweep import total
from solar.planning.units import uniform
from solar.values import Storage, World

STORAGE = Storage(1e-3, 1e9, 500)
Calls = Counter[str]


def case(ranks: int, per_node: int, memory: int, samples: int = 4000, per_unit: int = 1) -> PlannedData:
    units = uniform(samples, 1000, per_unit=per_unit)
    return PlannedData("", units, World(0, ranks, 0, per_node), 2, memory, STORAGE, 0, 3, scratch=1000)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How often each function was called whose work grows with the uses of all ranks."""
    found: Calls = Counter()

    def counted(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def call(*given: Any, **more: Any) -> Any:
            found[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(module, name, call)

    for module, name in (
        (sharing, "divide_uses"),
        (sharing, "at_home"),
        (sharing, "by_turns"),
        (planning, "plan_rows"),
    ):
        counted(module, name)
    counted(policies, "_lru_misses")
    return found


def test_a_node_of_many_ranks_is_divided_once_an_epoch(calls: Calls) -> None:
    one = case(ranks=500, per_node=500, memory=64 << 20)
    plan_node(job_of([one], one.memory))
    assert calls["divide_uses"] <= 3 * one.epochs
    assert calls["by_turns"] <= one.epochs


def test_many_nodes_divide_the_epochs_among_ranks_once(calls: Calls) -> None:
    one = case(ranks=200, per_node=4, memory=8 << 20)
    compare_policies([one], job_of([one], one.memory))
    assert calls["at_home"] == one.epochs
    assert calls["divide_uses"] <= 3 * one.epochs * 50


def test_ranks_without_a_buffer_are_counted_together(calls: Calls) -> None:
    one = case(ranks=500, per_node=500, memory=0)
    compare_policies([one], job_of([one], 0))
    assert calls["plan_rows"] == 1
    assert calls["_lru_misses"] == 0


@pytest.mark.parametrize("per_unit", [1, 3])
@pytest.mark.parametrize(("ranks", "per_node"), [(1, 1), (3, 3), (7, 3), (40, 8)])
@pytest.mark.parametrize("uses", [1, 500, 1 << 20])
def test_ranks_counted_together_read_what_each_reads_alone(
    ranks: int, per_node: int, per_unit: int, uses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case(ranks, per_node, 0, samples=500, per_unit=per_unit)
    job = job_of([one], 0)
    monkeypatch.setattr(planning, "COUNTED_TOGETHER", uses)
    made = plan_node(job, job.nodes - 1)
    for epoch in range(2):
        order = one.order.of(epoch)
        every = [_alone(one, order, rank) for rank in range(ranks) if rank // per_node == job.nodes - 1]
        assert made.epochs[epoch] == [total(counts for plan in every for counts in plan.epochs[0])]
    assert made.uses == 2 * [sum(plan.uses[0] for plan in every)]


def _alone(one: PlannedData, order: np.ndarray[Any, Any], rank: int) -> NodePlan:
    """The plan of a process by itself that takes what this rank takes."""
    own = order[rank :: one.world.ranks]
    world, samples = World(0, 1), one.units.samples
    job = job_of([replace(one, world=world)], 0)
    given = replace(job.order, of=lambda epoch: own, uses=len(own), samples=samples, facts=("alone", rank))
    return plan_node(replace(job, order=given))


def test_an_lru_that_holds_nothing_is_not_followed(calls: Calls) -> None:
    one, settings = case(ranks=4, per_node=2, memory=0, per_unit=2), {"memory": 3999, "storage": STORAGE}
    found = policies.lru(one.order, one.units, one.world, **settings)
    assert (found.hits, found.reads, found.peak_bytes) == (0, 4000, 0)
    assert not calls["_lru_misses"]
    assert policies.lru(one.order, one.units, one.world, memory=4000, storage=STORAGE).peak_bytes
    assert calls["_lru_misses"] == 4


@pytest.mark.slow
def test_a_plan_for_a_hundred_thousand_ranks_comes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--samples", "1000", "--sample-bytes", "1k", "--ranks", "100000", "--memory", "0"]
    assert main(asked) == 0
    assert "100,000 ranks on 1 node" in capsys.readouterr().out
