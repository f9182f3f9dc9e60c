"""Scheduler: plans window by window what the jobs of a shared reader want, and gives it to a Run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.distributed.exchange import Exchange
from solar.planning.served import STEPS_TOLD
from solar.service.cluster import Cluster, SingleNode
from solar.service.pace import StragglerPolicy, typical
from solar.service.shared_data import SharedData
from solar.service.steps import Steps
from solar.service.window import (
    Member,
    Share,
    Wants,
    Window,
    WindowShare,
    admitted,
    fits,
    parcels_of,
    reach,
    shares_of,
    split_script,
    take_turns,
    wanted_by,
)  # fmt: skip
from solar.service.window_planner import WindowPlanner
from solar.values import PartScript, RunPart

ENTRIES = 64  # batches of a job that are announced together
MOST_TOLD = 2 * STEPS_TOLD  # steps that the Run is told of before it begins to read them
FEW_TOLD = 4  # of them where it has no room for more: whoever comes gets its batches after all that were told
SETTLES, GATHERS = 0.25, 0.02  # seconds without news after which the plan is changed; and where nobody is served yet


class PlannedStep(NamedTuple):
    """A step that is given to the Run."""

    slots: int  # samples that its memory has
    shares: list[Share]


class StepQueue:
    """The steps that the Run of a shared reader was given, and those that were announced and are not yet copied.

    Steps are put in and taken out while the lock of the shared reader is held.
    """

    def __init__(self) -> None:
        self.run: Steps | Exchange | None = None
        self.given: deque[PlannedStep] = deque()
        self.announced: deque[tuple[list[Any], list[Share]]] = deque()
        self.taken = 0  # steps of this Run
        self.head = -1.0  # the place of the last read that a Run was told of
        self.handed = 0  # bytes that jobs had of it
        self._before: dict[str, int] = {}  # counts of runs that are over

    def begin(self, run: Steps | Exchange) -> None:
        """Gives the steps to another Run from now on."""
        self.run, self.taken = run, 0

    def add_counts(self, run: Steps | Exchange) -> None:
        """Adds the counts of a Run that is over."""
        now = run.counts()
        self._before = {name: self._before.get(name, 0) + now[name] for name in now if not name.endswith("_bytes")}

    def counts(self) -> dict[str, int]:
        """Returns what all Runs have read and handed on."""
        now = {"handed": self.handed} | ({} if (run := self.run) is None else run.counts())
        return {name: now.get(name, 0) + self._before.get(name, 0) for name in now.keys() | self._before.keys()}


class Scheduler:
    """Plans what is held of one data set in its part of the memory, and gives it to the Run. One thread plans.

    With services on other nodes, all of them plan the same steps, and each reads what lies in its home region. Joint
    decisions follow from what each node sent, so all nodes reach the same ones.
    """

    def __init__(self, opened: SharedData, memory: int, slack: float, cluster: Cluster | SingleNode) -> None:
        self.slack = StragglerPolicy(slack)
        self.opened, self.cluster = opened, cluster
        self.members = list[Member]()
        self.elsewhere = 0  # samples of the batches of other nodes' jobs, as they told last
        self.planner = WindowPlanner(opened, memory, cluster)
        self.pool = _native.SharedPool(self.planner.ring)
        self.queue = StepQueue()
        self.changed = cluster.changed
        self._changed_at = 0.0  # when somebody came, left or told more last
        self._closing = False

    @property
    def memory(self) -> int:
        """The bytes of its part of the memory."""
        return self.planner.memory

    # --- when ----

    def _conduct(self) -> None:
        since: float | None = None
        while True:
            with self.changed:
                while not (here := self._here()) and not (self._closing or self.cluster.called):
                    self.changed.wait()
                if self._closing:
                    return
                changed_at = self._changed_at
            since = time.monotonic() if since is None else since
            window = self._window(here)
            if window is None:
                since = None
            else:
                parts = self.planner.parts
                fresh = self.queue.run is None or not parts or not fits(window.parts, parts)
                every = self.cluster.all({"news": self._news(changed_at, since), "fresh": fresh, **self.cluster.run()})
                if not any(one.value["news"] for one in every):
                    if any(one.value["fresh"] for one in every):
                        self._begin_run(window.parts, every[0].value)
                    self._carry_out(window)
                    since = None
            here.clear()  # or what the window is made by would keep them until the garbage is collected
            del window

    def _here(self) -> list[WindowShare]:
        """Returns the jobs that want batches which are not planned yet, and which batches."""
        there = [one for one in self.members if not one.left]
        for one, rate in zip(there, self.slack.rates(there), strict=True):
            one.skip(int(len(self.queue.given) * rate))
            one.order.forget(one.planned)
        there = [one for one in there if one.planned < one.order.known]
        return take_turns(there, self.slack.rates(there), others=self.cluster.ranks > 1)

    def _news(self, changed_at: float, since: float) -> bool:
        """Returns whether a job came, or sent more of its order, since then, so that planning has to begin again.

        If nobody is served yet, it waits a moment for that: jobs of one order that begin in one step stay side by side,
        and a plan for fewer jobs would soon be replaced.
        """
        with self.changed:
            while not (self._closing or self.queue.given) and self._changed_at == changed_at:
                if (left := min(since + SETTLES, changed_at + GATHERS) - time.monotonic()) <= 0:
                    return False
                self.changed.wait(left)
            return not self.queue.given and self._changed_at != changed_at and time.monotonic() < since + SETTLES

    # --- what ----

    def _window(self, here: list[WindowShare]) -> Window | None:
        """Returns the window to plan now, for all nodes; None if no job wants anything."""
        begin, nbytes = time.monotonic(), self.opened.sample_nbytes
        rows = max(piece.slots for piece in self.opened.pieces)
        pace = min(filter(None, (typical(one.member.pace.lately) for one in here)), default=0.0)
        own = wanted_by(here, rows, self.planner.ring // max(1, nbytes), pace)
        every = [Wants(**one.value) for one in self.cluster.all(own._asdict())]
        with self.changed:
            self.elsewhere = sum(one.slots for one in every) - own.slots
            paces = (one.pace for rank, one in enumerate(every) if rank != self.cluster.rank)
            self.slack.elsewhere = min(filter(None, paces), default=0.0)
        may = admitted(every)
        if not may[self.cluster.rank]:
            self._too_large(here)
            here = []
        every = [one for one, there in zip(every, may, strict=True) if there and one.steps]
        return self.planner.plan(here, every, begin) if every else None

    def _too_large(self, here: list[WindowShare]) -> None:
        with self.changed:
            for one in here:
                one.member.detach("the batches of the jobs of all nodes have no room on their way")

    # --- telling ----

    def _carry_out(self, window: Window) -> None:
        """Gives the Run a window, stretch by stretch, until jobs come or go or more of an order is known."""
        afresh, off, told, alone = True, False, False, self.cluster.ranks == 1
        with self.changed:
            self.slack.begin(window.costs)
            for member in window.members:
                member.member.rate = member.rate
        number, last = 0, window.passes.segments.stop - 1

        def news() -> bool:
            return alone and told and self._to_be_planned_anew(window, number / max(1, last))

        for number in window.passes.segments:
            scripts, made = window.passes.scripts(number), window.passes.segment(number)
            slots = made.sizes
            shares = shares_of(self.opened, window.members, number * window.length, len(slots))
            if afresh:
                terms = [(part.direct, part.ahead, part.gap) for part in window.parts]  # the Run may hold anything
                scripts = [one._replace(afresh=of) for one, of in zip(scripts, terms, strict=True)]
                afresh = False
            for begin, end, some in split_script(scripts, made.planned, partial(self._steps_to_tell, news)):
                with self.changed:
                    nobody = alone and all(one.member.left for one in window.members)
                    if self._closing or nobody or news():
                        return
                    steps = [
                        PlannedStep(*one) for one in zip(slots[begin:end].tolist(), shares[begin:end], strict=True)
                    ]
                    self._append(steps, slots[begin:end], some, parcels_of(made.parcels, begin, end))
                    told = True
                    off = off or self.slack.is_off(window.members)
                    if off and alone:
                        return
            anew = off or self._to_be_planned_anew(window, number / max(1, last))
            if any(one.value for one in self.cluster.all(anew)):
                return

    def _steps_to_tell(self, news: Callable[[], bool]) -> int:
        """Waits until the Run may be told of more steps, or for news. Returns of how many."""
        with self.changed:
            self.changed.wait_for(lambda: self._closing or len(self.queue.given) < self._most_told() or news())
            whole = self.cluster.ranks > 1 or len(self.queue.given) + STEPS_TOLD <= self._most_told()
            return STEPS_TOLD if whole else FEW_TOLD

    def _most_told(self) -> int:
        """Returns how many steps the Run may be told of: those that have room beside the announced ones, and a few.

        Where nodes plan together, a plan is changed only between segments, and all of one is told as soon as it can be.
        """
        given, announced = self.queue.given, len(self.queue.announced)
        if not given or self.cluster.ranks > 1:
            return MOST_TOLD
        room = self.planner.used // max(1, self.opened.sample_nbytes * given[-1].slots)
        return min(MOST_TOLD, max(FEW_TOLD, min(room, ENTRIES - 1) - announced))

    def _to_be_planned_anew(self, window: Window, done: float) -> bool:
        """Returns whether to plan the rest of a window anew, `done` of which is done, with what was sent since.

        That costs up to what memory holds, which is read again. So it waits until jobs that come together have all
        come, and, for orders of later epochs, until the window is nearly over, unless it has only just begun.
        """
        with self.changed:
            there = [one for one in window.members if not one.member.left]
            grown = [one for one in there if one.member.order.known > one.end]
            if any(one.member.planned + window.length >= one.end for one in grown):
                return True  # it would wait for its next batch until the window is over
            if time.monotonic() - self._changed_at < SETTLES:
                return False
            planned = [one.member for one in there]
            waits = any(one not in planned and not one.left and one.planned < one.order.known for one in self.members)
            return waits or len(there) < len(window.members) or (bool(grown) and not 0.25 < done < 0.75)

    def _append(
        self, steps: list[PlannedStep], slots: NDArray[np.int64], scripts: list[PartScript], parcels: Any
    ) -> None:
        queue = self.queue
        assert queue.run is not None
        for one in steps:
            for share in one.shares:
                share.member.planned = share.number + 1
        queue.given.extend(steps)
        queue.head = reach(scripts, self.opened.pieces[0].region.units.samples, queue.head)
        queue.run.append(slots, scripts, parcels)
        self.changed.notify_all()

    def _begin_run(self, parts: list[RunPart], how: dict[str, Any]) -> None:
        """Begins a Run that holds other data than the last one. The last one ends by itself."""
        with self.changed:
            self.changed.wait_for(lambda: self._closing or not self.queue.given)
            if self._closing:
                return
        # What travels has come everywhere: all end their Runs in one moment. All begin the next, or none does, also
        # where one ends now: who has an Exchange would wait for its end on one that has none.
        self.cluster.all(None, or_none=True)
        self._end_run()
        with self.changed:
            self.pool.use(self.planner.used)
            scratch = self.planner.budget.scratch
            made = Steps(self.opened.rows, parts, self.opened.fields, ENTRIES, scratch, self.pool)
            self.planner.parts = parts
            self.queue.begin(self.cluster.running(made, how))
            self.changed.notify_all()

    def _end_run(self) -> None:
        with self.changed:
            run, self.queue.run = self.queue.run, None
        if run is not None:
            self.queue.add_counts(run)
            run.close()
