"""Jobs of unequal speed: each is planned at its own pace, and nobody holds back others for longer than the slack."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from serve_kit import PATIENT, scan, serving, soon

from solar import DataLoader, H5Dataset, PlanSampler
from solar.planning.pass_uses import SampleUses, shared_steps
from solar.service.pace import StragglerPolicy, rates, typical
from solar.service.scheduler import FEW_TOLD
from solar.service.shared_reader import SharedReader
from solar.service.window import JobOrder, Member, Pace, own_of, shares_of, take_turns

_ = scan  # a fixture


def of(uses: SampleUses, process: int = 0) -> Member:
    """A member whose job has made nothing, and waits for nothing."""
    ledger: Any = SimpleNamespace(made=0, waits=0, waited=0.0)
    return Member("", process, 4, 4, ledger, JobOrder([uses]), Pace(deque(maxlen=32)))


def order(draw: np.random.Generator, batches: int) -> SampleUses:
    sizes = draw.integers(1, 5, batches)
    return SampleUses(None, draw.integers(0, 50, sizes.sum()).astype(np.int32), np.concatenate(([0], np.cumsum(sizes))))


# --- what is planned ----


@pytest.mark.parametrize("seed", range(6))
def test_at_any_rates_each_has_all_its_batches_in_order_one_in_a_step(seed: int) -> None:
    draw = np.random.default_rng(seed)
    members = [of(order(draw, int(draw.integers(1, 60)))) for _ in range(4)]
    wanted = [1.0, *draw.uniform(0.05, 1, 3)]
    members[1].planned = min(5, members[1].order.known - 1)  # some of it was planned before
    turns = take_turns(members, wanted)
    steps, data = 1 + max(int(one.steps[-1]) for one in turns), SimpleNamespace(fields=[[4]])
    data.counts, data.within = (lambda uses: uses.sizes[:, None]), (lambda uses: None)
    seen: dict[int, list[int]] = {id(one): [] for one in members}
    for begin in range(0, steps, 7):
        end = min(begin + 7, steps)
        uses = shared_steps(own_of(turns, begin, end))[0]
        shares = shares_of(data, turns, begin, end - begin)  # type: ignore[arg-type]
        assert len(shares) == end - begin == len(uses.sizes) and all(shares)  # no step is empty
        for step, own in enumerate(shares):
            assert len({id(one.member) for one in own}) == len(own)
            there = uses.rows[uses.starts[step] : uses.starts[step + 1]]
            for one in own:
                whole = one.member.order.epochs[0]
                rows = whole.rows[whole.starts[one.number] : whole.starts[one.number + 1]]
                assert np.array_equal(there[one.places], rows) and one.nbytes == 4 * len(rows)
                seen[id(one.member)].append(one.number)
        for turn, own in zip(turns, own_of(turns, begin, end), strict=True):
            assert int(own.starts[-1]) == len(own.rows) and turn.member.order.stretch(0, 1).sizes[0] > 0
    for one in members:
        assert seen[id(one)] == list(range(one.planned, one.order.known))


def test_who_has_a_third_of_the_pace_has_every_third_step_while_the_others_are_there() -> None:
    draw = np.random.default_rng(1)
    fast, slow = of(order(draw, 30)), of(order(draw, 30))
    own = take_turns([fast, slow], [1.0, 1 / 3])
    assert own[0].steps.tolist() == list(range(30))
    assert own[1].steps[:10].tolist() == list(range(1, 30, 3))
    assert own[1].steps[10:].tolist() == list(range(30, 50))  # and then each step is its own


def test_paces_that_are_nearly_alike_stay_side_by_side() -> None:
    assert rates([0.1, 0.11, 0.124], 0) == [1, 1, 1]
    assert rates([0.1, 0.2, 0.24, 0.4], 0) == [1, 0.5, 0.5, 0.25]
    assert rates([0.1, 0.2], 0.2) == [1, 1]  # reading is slower than both
    assert rates([0.0, 0.2], 0) == [1, 1]  # the first one's is not known
    assert rates([0.00001, 0.0004], 0) == [1, 1]
    assert typical([0.1] * 31 + [600]) < 0.13  # a break is no pace


# --- who holds back whom ----


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(at=0.0)
    monkeypatch.setattr("solar.service.pace.clock", lambda: now.at)
    return now


def looks(
    slack: StragglerPolicy, clock: Any, seconds: float, members: list[Member], holders: list[Member]
) -> list[Member]:
    """Those who are left behind after so long, in which there was no room if somebody is waited for."""
    for _ in range(10):
        clock.at += seconds / 10
        slack.look(seconds if holders else 0.0, True, members, holders)
    return slack.behind(holders, members)


def test_who_holds_back_others_for_longer_than_the_slack_is_left_behind(clock: SimpleNamespace) -> None:
    both = [of(order(np.random.default_rng(0), 9), process=number) for number in range(2)]
    slack = StragglerPolicy(2.0)
    assert looks(slack, clock, 60.0, both, [both[0]]) == []  # nobody waits for it
    both[1].ledger.waits = both[1].planned = 3
    assert looks(slack, clock, 1.9, both, [both[0]]) == []
    assert looks(slack, clock, 0.2, both, [both[0]]) == [both[0]]


def test_who_goes_on_is_not_left_behind_for_one_who_is_not_planned_yet(clock: SimpleNamespace) -> None:
    both = [of(order(np.random.default_rng(0), 9), process=number) for number in range(2)]
    slack = StragglerPolicy(2.0)
    both[1].ledger.waits = 3
    for _ in range(9):
        both[0].ledger.made += 1
        assert looks(slack, clock, 0.4, both, [both[0]]) == []
    assert looks(slack, clock, 2.3, both, [both[0]]) == [both[0]]  # it stands still


def test_a_little_is_forgiven(clock: SimpleNamespace) -> None:
    both = [of(order(np.random.default_rng(0), 9), process=number) for number in range(2)]
    slack = StragglerPolicy(2.0)
    both[1].ledger.waits = both[1].planned = 3
    for _ in range(50):  # a sixth of the time, in all for 50 seconds
        assert looks(slack, clock, 1.0, both, [both[0]]) == []
        assert looks(slack, clock, 5.0, both, []) == []
    found = [looks(slack, clock, 1.0, both, [both[0]]) or looks(slack, clock, 1.0, both, []) for _ in range(5)]
    assert found[0] == [] and found[-1] == [both[0]]  # half of it is too much


def test_who_takes_from_two_in_turn_is_not_waited_for_as_long(clock: SimpleNamespace) -> None:
    both = [of(order(np.random.default_rng(0), 9)) for _ in range(2)]
    slack = StragglerPolicy(2.0)
    both[1].ledger.waits = both[1].planned = 3
    assert looks(slack, clock, 0.2, both, [both[0]]) == []
    assert looks(slack, clock, 0.1, both, [both[0]]) == [both[0]]


@pytest.mark.parametrize("held", [True, False])
def test_a_plan_is_changed_for_paces_now_and_then(held: bool, clock: SimpleNamespace) -> None:
    """After 16 steps, 32, 64, ... and a quarter of an epoch, however often paces change, or when the slack was lost.

    A step takes a second here, and the slack is 2 s, then 4 s, 8 s, ...: which is sooner than so many steps.

    Where nobody holds a step, all room is being read into: then no pace costs anything.
    """
    both = [of(order(np.random.default_rng(0), 1000), process=number) for number in range(2)]
    slack, changes = StragglerPolicy(2.0), list[int]()
    for one in both:
        one.ledger.waits = one.planned = 1
    turns = take_turns(both, slack.rates(both))
    for step in range(2000):
        for number, one in enumerate(both):  # who is slow takes turns, with each plan
            one.pace.lately.extend([1.0 if number == len(changes) % 2 else 0.1] * 32)
        clock.at += 1.0
        slack.steps += 1
        slack.look(1.0, True, both, [both[len(changes) % 2]] if held else [])
        if slack.is_off(turns):
            changes.append(step)
            turns = take_turns(both, slack.rates(both))
            slack.begin()
    gaps = [later - one for one, later in pairwise([-1, *changes])]
    assert bool(gaps) == held
    assert not gaps or (gaps[:7] == [3, 5, 9, 17, 33, 65, 129] and set(gaps[7:]) == {250})


@pytest.mark.parametrize("becomes", ["slower", "faster"])
def test_a_plan_is_changed_when_it_has_cost_as_much_as_another(becomes: str, clock: SimpleNamespace) -> None:
    both = [of(order(np.random.default_rng(0), 1000), process=number) for number in range(2)]
    slack, steps = StragglerPolicy(2.0), 0
    for one in both:
        one.ledger.waits = one.planned = 1
        one.pace.lately.append(0.1)
    turns = [one._replace(rate=0.5 if becomes == "faster" else 1.0) for one in take_turns(both, [1.0, 1.0])]
    for number, one in enumerate(both):
        one.pace.lately.extend([1.0 if number and becomes == "slower" else 0.1] * 32)
    slack.rates(both)
    slack.begin(100.0)
    while not slack.is_off(turns):
        steps += 1
        clock.at += 1.0
        slack.steps += 1
        slack.look(1.0, True, both, [both[1]])
    assert steps == (101 if becomes == "slower" else 201)  # who could be twice as fast loses half of the time


def test_slow_steps_need_not_be_many_until_a_plan_is_changed(clock: SimpleNamespace) -> None:
    """One whose batches take 5 s delays another by the slack, and not by sixteen of its batches; then by twice that."""
    both = [of(order(np.random.default_rng(0), 1000), process=number) for number in range(2)]
    slack, changes, turns = StragglerPolicy(12.0), list[float](), list[Any]()
    for number, one in enumerate(both):
        one.ledger.waits = one.planned = 1
        one.pace.lately.extend([5.0 * number or 0.1] * 32)
    while len(changes) < 3:
        turns = turns or take_turns(both, [1.0, 1.0])
        slack.steps += 1
        clock.at += 5.0
        slack.look(5.0, True, both, [both[1]])
        if slack.is_off(turns):
            changes.append(clock.at)
            slack.begin()
    assert np.diff([0.0, *changes]).tolist() == [15.0, 25.0, 50.0]


# --- trainings ----


def batches(data: Any, seed: int, service: Path | None, each: Any = lambda: None) -> tuple[list[Any], dict[str, int]]:
    """Those of two epochs, and how many of them a service has read."""
    named = None if service is None else str(service)
    with DataLoader(data, 8, sampler=PlanSampler(data, seed=seed), service=named, buffer=0) as loader:
        seen = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            for one in loader:
                seen.append(one.clone())
                each()
        run: Any = loader._buffered.running
        return seen, {} if run is None else run.counts()


def same(found: list[Any], data: Any, seed: int) -> bool:
    whole, _ = batches(data, seed, None)
    return len(found) == len(whole) and all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))


def test_a_training_that_takes_one_batch_while_another_takes_three_is_planned_so(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step they would stand still: the first one could go no further than memory for steps allows."""
    data, taken, found = H5Dataset(scan, "x"), [0, 0], dict[int, Any]()
    changed = threading.Condition()
    monkeypatch.setattr("solar.service.scheduler.SETTLES", 0.0)  # 250 ms are many batches here
    monkeypatch.setattr("solar.service.pace.IN_TURN", 1)  # as if they were of two processes

    def train(number: int) -> None:
        def each() -> None:
            if number == 0:
                time.sleep(0.004)  # what a training does with a batch: its pace is not that of reading
            with changed:
                taken[number] += 1
                begun = taken[0]
                changed.notify_all()
                changed.wait_for(lambda: number == 0 or over or taken[0] >= begun + 3)

        found[number] = batches(data, number, service.path, each)

    over = False
    with serving(scan, where=tmp_path, memory=1 << 18, slack=0.5) as service:
        both = [threading.Thread(target=train, args=(number,)) for number in range(2)]
        for one in both:
            one.start()
        assert soon(lambda: any(one["rate"] < 0.7 for one in service.status()["jobs"]))
        both[0].join(60)
        assert not both[0].is_alive() and taken[1] < 150
        with changed:
            over = True
            changed.notify_all()
        both[1].join(60)
        assert not both[1].is_alive()
    assert found[0][1]["alone"] <= 1 and found[1][1]["alone"] < 100
    assert all(same(found[number][0], data, number) for number in range(2))


def test_who_comes_beside_a_slow_training_waits_for_few_of_its_batches(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches come after all steps that are planned and have no room yet: these are few."""
    data, there = H5Dataset(scan, "x"), threading.Event()
    monkeypatch.setattr("solar.service.scheduler.SETTLES", 0.0)

    def come() -> None:
        with DataLoader(data, 8, sampler=PlanSampler(data, seed=2), service=str(service.path), buffer=0) as loader:
            begun = iter(loader)
            for _ in range(3):  # the first one it reads by itself
                next(begun)
            there.set()

    with (
        serving(scan, where=tmp_path, memory=1 << 18, slack=60.0) as service,
        DataLoader(data, 8, sampler=PlanSampler(data, seed=1), service=str(service.path), buffer=0) as loader,
    ):
        slow = iter(loader)
        for _ in range(20):
            next(slow)
        time.sleep(0.2)  # until no more is told, for want of room
        newcomer = threading.Thread(target=come)
        newcomer.start()
        taken = 0
        while not there.wait(0.05):
            next(slow)
            taken += 1
        newcomer.join()
    assert 0 < taken <= 3 * FEW_TOLD


def test_who_is_left_behind_over_and_over_comes_back_ever_more_seldom(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it changes the plan of all: so some times a pass, and at the next one it comes back at once."""
    monkeypatch.setattr("solar.service.scheduler.SETTLES", 0.0)  # as above
    joins, join = list[int](), SharedReader.join
    monkeypatch.setattr(SharedReader, "join", lambda self, *more: joins.append(taken[0]) or join(self, *more))
    data, taken = H5Dataset(scan, "x"), [0]
    with serving(scan, where=tmp_path, slack=PATIENT) as service:

        def each() -> None:
            taken[0] += 1
            for hall in service._halls.each():  # none before the first has joined
                with hall.changed:
                    for one in hall.members:
                        if one.ledger.made > 2:
                            one.detach("the test says so")

        found, counts = batches(data, 0, service.path, each)
    passes = [[one for one in joins if one // 150 == number] for number in range(2)]
    assert all(1 < len(one) <= 9 for one in passes)
    assert counts["served"] > 30 and same(found, data, 0)
