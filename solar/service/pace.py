"""StragglerPolicy: measures how fast each job is, and decides how long it may delay the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from solar.service.window import Member, WindowShare

SLACK, LONGEST = 2.0, 5  # seconds that one may hold back others; so many times that, where four of its batches take it
IN_TURN = 8  # one part of so many of it, where its own process waits for another loader's batch
ALIKE = 1.5  # paces that differ by less are planned as one, so that who wants the same stays side by side
TOLERATED = 0.2  # of the time: who holds back others for a larger part of it has used up the slack some day
PAUSE = 8  # times what a batch takes mostly: of a longer break no more than that counts
LEAST_SECONDS = 2e-3  # seconds of a batch: who takes less is as fast as all who do, and as processors have time
FOR_A_PLAN, FOR_BATCHES = 1, 2  # what jobs of a node wait for, if for anything: a plan, or batches that are planned
KNOWN, STEPS_KNOWN = 4, 8  # batches, and steps, of which a pace is told
STEPS_FIRST = 16  # after which a plan may be changed for paces alone

clock = time.monotonic


def typical(seconds: Sequence[float]) -> float:
    """Returns the typical seconds of a batch; 0 if unknown. A break is no pace.

    >>> typical([0.1, 0.1, 0.4, 0.2]), typical([1, 1, 1, 1, 1, 60]), typical([0.1])
    (0.2, 2.1666666666666665, 0.0)
    """
    if len(seconds) < KNOWN:
        return 0.0
    most = PAUSE * max(LEAST_SECONDS, median(seconds))
    return sum(min(one, most) for one in seconds) / len(seconds)


def step_of(seconds: Sequence[float], reading: float) -> float:
    """Returns the seconds of a step when nobody is delayed."""
    return max(LEAST_SECONDS, reading, min(filter(None, seconds), default=0.0))


def rates(seconds: Sequence[float], reading: float) -> list[float]:
    """Returns how many batches a step each job gets, from the seconds of its own batches.

    The fastest has one in each, and nobody is to be faster than what can be read. Who is not known yet is fast.

    >>> rates([0.01, 0.03, 0.031, 0], 0), rates([0.01, 0.03, 0.031, 0], 0.03), rates([0.01, 0.012], 0)
    ([1.0, 0.3333333333333333, 0.3333333333333333, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0])
    """
    step = group = step_of(seconds, reading)
    found = {}
    for one in sorted(set(seconds)):
        if one > ALIKE * group:
            group = one
        found[one] = step / group
    return [found[one] for one in seconds]


class StragglerPolicy:
    """Decides how long a job may delay the others, by what was measured since the last plan."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = self._room = clock()  # of the last look, and when one more could be announced last
        self._changes = 0  # of the plan, for paces alone
        self._wanted = 0.0
        self.elsewhere = 0.0  # seconds that the fastest job of other nodes takes for a batch
        self.begin()

    def begin(self, costs: float = 0.0) -> None:
        """Begins with a new plan, whose making and first reads took `costs` seconds, as will those of the next."""
        self._costs = costs
        self.steps = 0  # that were there since then
        self._passed = self._full = self._lost = 0.0  # seconds: all, without room, and in which one held back others
        self._step = self._wanted  # seconds that a step takes, as planned; 0: that is not known

    def look(
        self, waited: float, room: bool, members: Sequence[Member], holders: Sequence[Member], elsewhere: int = 0
    ) -> None:
        """Notes what has happened since the last call.

        `waited` is for how long there has been no room for another step; `room`: there is room to announce one;
        `holders` had not made the oldest step that was kept at the last call; `elsewhere`: what jobs of other
        nodes wait for, FOR_A_PLAN or FOR_BATCHES; 0 for nothing.
        """
        now = clock()
        passed, self._at = now - self._at, now
        if room:
            self._room = now
        full = min(max(waited, now - self._room), passed) if holders else 0.0  # or all room is being read into
        waiting = [one for one in members if one.waiting] if full else []
        planned = [one for one in waiting if one.announced < one.planned]  # the others wait for a plan

        def waits_for(one: Member, others: Sequence[Member], least: int) -> bool:
            return elsewhere >= least or any(other is not one for other in others)

        for one in members:
            made, holds = one.pace.look(now, one.ledger), full if one in holders else 0.0
            one.pace.stood = (
                one.pace.stood + holds if holds and not made and waits_for(one, waiting, FOR_A_PLAN) else 0.0
            )
            if holds and waits_for(one, planned, FOR_BATCHES) and self._is_late(one):
                one.pace.held += holds
            else:
                one.pace.held = max(0.0, one.pace.held - passed * TOLERATED / (1 - TOLERATED))
        self._passed += passed
        self._full += full
        self._lost += full if planned or elsewhere == FOR_BATCHES else 0.0

    def behind(self, holders: list[Member], members: Sequence[Member]) -> list[Member]:
        """Returns the jobs that the others no longer wait for. `holders` still need the oldest step."""
        return [one for one in holders if max(one.pace.held, one.pace.stood) > self._of(one, members)]

    def _of(self, member: Member, members: Sequence[Member]) -> float:
        """Returns how many seconds a job may still delay the others."""
        beside = (one for one in members if one is not member and one.process == member.process)
        least = self.seconds / (IN_TURN if any(one.waiting for one in beside) else 1)
        return min(max(least, 4 * typical(member.pace.lately)), LONGEST * self.seconds)

    def _is_late(self, member: Member) -> bool:
        """Returns whether a job is slower than planned. The job that sets the pace of all never is."""
        own = typical(member.pace.lately)
        return not own or own * member.rate > ALIKE * self._step

    def rates(self, members: Sequence[Member]) -> list[float]:
        """Returns how many batches per step each job gets."""
        reading = (self._passed - self._full) / self.steps if self.steps >= STEPS_KNOWN else 0.0
        seconds = [typical(one.pace.lately) for one in members]
        self._wanted = step_of([*seconds, self.elsewhere], reading) if any(seconds) else 0.0
        return rates([*seconds, self.elsewhere], reading)[:-1]

    def is_off(self, turns: Sequence[WindowShare]) -> bool:
        """Returns whether to plan anew because paces changed: a job delays others, or could go faster.

        Planning anew costs up to what memory holds, which is read again. So this is checked after some steps, then
        after twice as many, and so on up to a quarter of an epoch, and done once the present plan has cost as much. It
        is checked, too, where somebody has lost the slack, then twice that, and so on: slow steps take long to be some.
        """
        there = [one for one in turns if not one.member.left]
        longest = max((one.member.order.longest for one in there), default=0)
        few = self.steps < min(STEPS_FIRST << self._changes, max(STEPS_FIRST, longest // 4))
        if few and self._lost <= self.seconds * 2**self._changes:
            return False
        pairs = [(one.rate, rate) for one, rate in zip(there, self.rates([one.member for one in there]), strict=True)]
        slower = any(rate * ALIKE < planned for planned, rate in pairs) and self._lost > TOLERATED * self._passed
        gains = [self._passed * (1 - planned / rate) for planned, rate in pairs if rate > ALIKE * planned]
        off = max([self._lost if slower else 0.0, *gains]) > self._costs
        self._changes = min(self._changes + off, 30)
        return off
