"""Join, leave and slack of a service: a model of which every order of events is tried, and solar follows its traces."""

from __future__ import annotations

import random
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import shared_steps as model
from models.shared_steps import ROOM, SLACK, Event, State

from solar.planning.pass_uses import SampleUses
from solar.service.pace import StragglerPolicy
from solar.service.scheduler import PlannedStep, StepQueue
from solar.service.shared_reader import ENTRIES, SharedReader
from solar.service.window import JobOrder, Member, Pace, shares_of

TRACES, LENGTH = 400, 40


@pytest.mark.parametrize(("jobs", "batches"), [(2, 4), pytest.param(3, 5, marks=pytest.mark.slow)])
def test_in_every_order_of_events_nobody_waits_for_ever_and_room_and_slack_are_kept(
    jobs: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `batches` each job reads the first by itself."""
    monkeypatch.setattr(model, "KNOWN", batches)
    states, left, good = {model.begin(jobs)}, deque([model.begin(jobs)]), set[State]()
    behind = 0
    while left:
        state = left.popleft()
        assert not model.problem(state), (model.problem(state), state)
        assert not model.wait_without_end(state, good), state
        for event in model.events(state):
            after = model.after(state, event)
            behind += event[0] == "tick" and gone(after) > gone(state)
            if after not in states:
                states.add(after)
                left.append(after)
    assert behind > 50  # jobs were left behind
    assert len(states) > 1000


def gone(state: State) -> int:
    return sum(job.left for job in state.jobs)


# --- solar, event by event ----


class Service:
    """A shared reader without threads, files or clock: its own methods are called, one for each event of the model."""

    def __init__(self, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("solar.service.pace.clock", lambda: self.now)
        monkeypatch.setattr("solar.service.scheduler.reach", lambda *_: 0.0)
        self.jobs: list[Member | None] = [None] * jobs
        self.counts = [0] * jobs
        self.holders: list[Member] = []
        self.reader = reader = object.__new__(SharedReader)
        reader.slack = StragglerPolicy(float(SLACK))
        reader.members, reader.queue = [], StepQueue()
        reader.changed, reader.bell, reader._closing = threading.Condition(), -1, False
        reader.cluster = SimpleNamespace(ranks=1, waiting=lambda _: False)  # type: ignore[assignment]
        reader.queue.run = SimpleNamespace(append=lambda *_: None)  # type: ignore[assignment]
        data: Any = SimpleNamespace(fields=[[4]], pieces=[SimpleNamespace()])
        data.counts, data.within = (lambda uses: uses.sizes[:, None]), (lambda uses: None)
        data.pieces[0].region = SimpleNamespace(units=SimpleNamespace(samples=1))
        reader.opened = data
        reader.pool = SimpleNamespace(waited=0.0, offset=lambda _: 0)  # type: ignore[assignment]

    def do(self, event: Event) -> None:
        with self.reader.changed:
            self._do(*event)

    def _do(self, what: str, at: int) -> None:
        if what in ("plan", "announce", "tick"):
            getattr(self, what)()
            return
        if what == "join":
            self.join(at)
            return
        member = self.jobs[at]
        assert member is not None
        if what == "leave":
            self.reader.leave(member)
        elif what == "ask":
            member.ledger.waits = member.ledger.made + 1
        else:
            member.ledger.made += 1
        if what in ("leave", "take", "alone"):
            self.keep()

    def join(self, at: int) -> None:
        rows = np.arange(model.KNOWN, dtype=np.int32)
        uses = SampleUses(None, rows, np.arange(model.KNOWN + 1))
        ledger: Any = SimpleNamespace(made=1, waits=0, waited=0.0, announce=lambda *_: None, gone=lambda _: None)
        self.jobs[at] = member = Member(str(at), at, 1, 1, ledger, JobOrder([uses]), Pace(deque(maxlen=32)), 1)
        self.reader.members.append(member)

    def plan(self) -> None:
        here = self.reader._here()
        steps = 1 + max((int(one.steps[-1]) for one in here if len(one.steps)), default=-1)
        made = [PlannedStep(1, shares) for shares in shares_of(self.reader.opened, here, 0, steps)]
        self.reader._append(made, np.ones(steps, np.int64), [], None)

    def announce(self) -> None:
        assert self.reader._may_cry()
        step = self.reader.queue.given.popleft()
        self.reader._announce(None, step)
        self.reader.queue.announced.append(([], step.shares))

    def tick(self) -> None:
        self.now += 1.0
        self.keep()

    def keep(self) -> None:
        """What its thread does when it is rung, or some time has passed."""
        reader = self.reader
        full = len(reader.queue.announced) >= ROOM and bool(reader.queue.given)
        reader.slack.look(
            1000.0 if full else 0.0, len(reader.queue.announced) < ENTRIES - 1, reader.members, self.holders
        )
        reader._give_back()
        self.holders = reader._leave_behind()

    def state(self) -> tuple[Any, ...]:
        """What the model has, too."""
        jobs = tuple(None if one is None or one.left else facts_of(one) for one in self.jobs)
        steps = tuple(numbers(step.shares) for step in self.reader.queue.given)
        return jobs, steps, tuple(numbers(shares) for _, shares in self.reader.queue.announced)


def numbers(shares: list[Any]) -> tuple[tuple[int, int], ...]:
    return tuple((int(one.member.name), one.number) for one in shares)


def facts_of(member: Member) -> tuple[int, int, int, float, float]:
    return member.ledger.made, member.planned, member.announced, round(4 * member.pace.held), round(member.pace.stood)


def facts(state: State) -> tuple[Any, ...]:
    jobs = tuple(
        (job.made, job.planned, job.announced, job.held, job.stood) if job.there else None for job in state.jobs
    )
    return jobs, state.steps, state.kept


@pytest.mark.parametrize("seed", range(3))
def test_solar_comes_to_the_state_of_the_model_after_each_event(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, behind = random.Random(seed), 0
    for _ in range(TRACES):
        state, service, trace = model.begin(3), Service(3, monkeypatch), list[Event]()
        for _ in range(LENGTH):
            if not (possible := list(model.events(state))):
                break
            weights = [0.1 if what == "leave" else 3.0 if what == "tick" else 1.0 for what, _ in possible]
            [event] = draw.choices(possible, weights)
            before, state = state, model.after(state, event)
            trace.append(event)
            behind += event[0] == "tick" and gone(state) > gone(before)
            service.do(event)
            assert service.state() == facts(state), trace
    assert behind > 20
