"""Scheduler: plans window by window what the jobs of a shared reader want, and gives it to a Run."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.distributed.exchange import Exchange
from solar.io.system.cores import reading_threads
from solar.planning.budget import Budget
from solar.planning.pass_uses import PassUses
from solar.planning.planned_passes import PlannedPasses, passes_per_plan
from solar.planning.served import FOR_BATCHES, SEGMENTS, STEPS_TOLD, divided_for_steps, packable, ring_of, segment_steps
from solar.planning.sweep import RetentionPolicy
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
    stretch,
    take_turns,
    wanted_by,
)  # fmt: skip
from solar.values import PartScript, RunPart

ENTRIES = 64  # batches of a job that are announced together
AHEAD_STRETCHES = 2  # stretches that the Run is told of before it needs them
WINDOW_SEGMENTS = 2 * SEGMENTS
WINDOW_USES = 1 << 25
SETTLES, GATHERS = 0.25, 0.02  # seconds without news after which the plan is changed; and where nobody is served yet


class PlannedWindow(NamedTuple):
    """A window of steps that is given to the Run."""

    slots: int  # samples that its memory has
    shares: list[Share]


class Scheduler:
    """Plans what is held of one data set in its part of the memory, and gives it to the Run. One thread plans.

    With services on other nodes, all of them plan the same steps, and each reads what lies in its home region. Joint
    decisions follow from what each node sent, so all nodes reach the same ones.
    """

    def __init__(self, opened: SharedData, memory: int, slack: float, cluster: Cluster | SingleNode) -> None:
        self.slack = StragglerPolicy(slack)
        self.opened, self.memory, self.ring = opened, memory, memory // FOR_BATCHES
        self.members = list[Member]()
        self.cluster = cluster
        self.elsewhere = 0  # samples of the batches of other nodes' jobs, as they told last
        self._pieces = cluster.pieces(opened.pieces)
        self.budget = self._divide(self.ring)
        self.pool = _native.SharedPool(self.ring)
        self._used = 0  # bytes of the ring
        self.changed = threading.Condition()
        self.head = -1.0  # the place of the last read that a Run was told of
        self._policies, self._policies_for = (
            list[RetentionPolicy](),
            (0, 0, 0),
        )  # samples of a step, bytes of the ring, epochs
        self._policies_beyond = 0  # quarters of the next epoch that were known then
        self._parts: list[RunPart] = []
        self._run: Steps | Exchange | None = None
        self._before: dict[str, int] = {}  # counts of runs that are over
        self._steps: deque[PlannedWindow] = deque()
        self._taken = 0  # of this Run
        self._changed_at = 0.0  # when somebody came, left or told more last
        self._closing = False

    def _divide(self, ring: int) -> Budget:
        """Returns how memory is divided if this much of it is for steps."""
        nbytes, scratch = self.opened.sample_nbytes, self.opened.scratch
        return divided_for_steps(self.memory, ring, self._pieces, nbytes, scratch, reading_threads())

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
                fresh = self._run is None or not self._parts or not fits(window.parts, self._parts)
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
            one.skip(int(len(self._steps) * rate))
            one.order.forget(one.planned)
        there = [one for one in there if one.planned < one.order.known]
        return take_turns(there, self.slack.rates(there), others=self.cluster.ranks > 1)

    def _news(self, changed_at: float, since: float) -> bool:
        """Returns whether a job came, or sent more of its order, since then, so that planning has to begin again.

        If nobody is served yet, it waits a moment for that: jobs of one order that begin in one step stay side by side,
        and a plan for fewer jobs would soon be replaced.
        """
        with self.changed:
            while not (self._closing or self._steps) and self._changed_at == changed_at:
                if (left := min(since + SETTLES, changed_at + GATHERS) - time.monotonic()) <= 0:
                    return False
                self.changed.wait(left)
            return not self._steps and self._changed_at != changed_at and time.monotonic() < since + SETTLES

    # --- what ----

    def _window(self, here: list[WindowShare]) -> Window | None:
        """Returns the window to plan now, for all nodes; None if no job wants anything."""
        begin, nbytes = time.monotonic(), self.opened.sample_nbytes
        rows = max(piece.slots for piece in self.opened.pieces)
        pace = min(filter(None, (typical(one.member.pace.lately) for one in here)), default=0.0)
        own = wanted_by(here, rows, self.ring // max(1, nbytes), pace)
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
        if not every:
            return None
        longest, most = max(one.longest for one in every), sum(one.most for one in every)
        length, steps = segment_steps(longest), max(one.steps for one in every)
        steps = max(1, min(steps, WINDOW_SEGMENTS * length, WINDOW_USES // max(1, most)))
        segments = range(0, steps, length)
        of_nodes = self.cluster.uses(stretch(self.opened, here, at, min(at + length, steps)) for at in segments)
        sizes: list[int] = []  # of the largest step of each segment, as planning comes by

        def made(length: int, at: int) -> PassUses:
            end = min(at + length, steps)
            return self.cluster.divided(stretch(self.opened, here, at, end), of_nodes, at, end)

        def segment(at: int) -> PassUses:
            found = made(length, at)
            sizes.append(int(found.sizes.max(initial=0)))
            return found

        makers = [partial(segment, at) for at in segments]
        batch = sum(one.slots for one in every)
        if not self._used:
            self._pieces = self.cluster.pieces(self.opened.held(self.memory * self.cluster.ranks))
        makers[0]()
        self._make_room(batch * nbytes, sizes[0] * nbytes)
        pieces, kept = packable(self._pieces, self.budget.scratch), self.budget.parts
        # What is cheapest shows in epochs: of a sixteenth of one hardly anything comes again. Of as many jobs it stays.
        epochs, storages = range(0, steps, longest), self.opened.storages()
        # What lasts for a part of the next epoch may leave this one no room: of another part another way is cheaper.
        found, beyond = (batch, self._used, min(2, len(epochs))), max(0, min(4, round(4 * steps / longest) - 4))
        other = beyond != self._policies_beyond and any(policy.lasting for policy in self._policies)
        if other or self._policies_for != found:
            few = [partial(made, longest, at) for at in epochs][: passes_per_plan(most * longest, first=True)]
            none = [None] * len(pieces)
            self._policies = PlannedPasses(few, 0, pieces, kept, batch, storages, none, False).policies
            self._policies_for, self._policies_beyond = found, beyond
        passes = PlannedPasses(makers, 0, pieces, kept, batch, storages, self._policies, False, -(-longest // length))
        assert len(sizes) >= len(makers), "planning goes through all of them"
        spare = self._used // max(1, max(sizes) * nbytes) - 2
        parts = [
            replace(one, ahead=max(0, min(one.ahead, spare)) if one.direct else one.ahead) for one in passes.parts()
        ]
        starts = zip(storages, (plan.start_counts for plan in passes.plans), strict=True)
        costs = time.monotonic() - begin + sum(on.seconds(one.requests, one.bytes) for on, one in starts)
        return Window(here, length, passes, parts, costs)

    def _too_large(self, here: list[WindowShare]) -> None:
        with self.changed:
            for one in here:
                one.member.detach("the batches of the jobs of all nodes have no room on their way")

    def _make_room(self, most: int, step: int) -> None:
        """Gives the ring the memory that steps need. It never shrinks.

        A larger ring means a new Run, which reads again what is held. So room for two steps is enough, unless samples
        are read straight into them. Jobs of one order that drift apart want more in each step.
        """
        if self._parts and self._used >= max(most, 2 * step) and not any(one.direct for one in self._parts):
            return
        if (wanted := ring_of(self.memory, most, step)) > self._used:
            self._used, self.budget = wanted, self._divide(wanted)
            self._parts = []

    # --- telling ----

    def _carry_out(self, window: Window) -> None:
        """Gives the Run a window, stretch by stretch, until jobs come or go or more of an order is known."""
        afresh, off = True, False
        with self.changed:
            self.slack.begin(window.costs)
            for member in window.members:
                member.member.rate = member.rate
        last = window.passes.segments.stop - 1
        for number in window.passes.segments:
            scripts, made = window.passes.scripts(number), window.passes.segment(number)
            slots = made.sizes
            shares = shares_of(self.opened, window.members, number * window.length, len(slots))
            if afresh:
                terms = [(part.direct, part.ahead, part.gap) for part in window.parts]  # the Run may hold anything
                scripts = [one._replace(afresh=of) for one, of in zip(scripts, terms, strict=True)]
                afresh = False
            for begin, end, some in split_script(scripts, made.planned, STEPS_TOLD):
                with self.changed:
                    self.changed.wait_for(lambda: self._closing or len(self._steps) < AHEAD_STRETCHES * STEPS_TOLD)
                    nobody = self.cluster.ranks == 1 and all(one.member.left for one in window.members)
                    if self._closing or nobody:
                        return
                    steps = [
                        PlannedWindow(*one) for one in zip(slots[begin:end].tolist(), shares[begin:end], strict=True)
                    ]
                    self._append(steps, slots[begin:end], some, parcels_of(made.parcels, begin, end))
                    off = off or self.slack.is_off(window.members)
                    if off and self.cluster.ranks == 1:
                        return
            anew = off or self._to_be_planned_anew(window, number / max(1, last))
            if any(one.value for one in self.cluster.all(anew)):
                return

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
        self, steps: list[PlannedWindow], slots: NDArray[np.int64], scripts: list[PartScript], parcels: Any
    ) -> None:
        assert self._run is not None
        for one in steps:
            for share in one.shares:
                share.member.planned = share.number + 1
        self._steps.extend(steps)
        self.head = reach(scripts, self.opened.pieces[0].region.units.samples, self.head)
        self._run.append(slots, scripts, parcels)
        self.changed.notify_all()

    def _begin_run(self, parts: list[RunPart], how: dict[str, Any]) -> None:
        """Begins a Run that holds other data than the last one. The last one ends by itself."""
        with self.changed:
            self.changed.wait_for(lambda: self._closing or not self._steps)
            if self._closing:
                return
        # What travels has come everywhere: all end their Runs in one moment. All begin the next, or none does, also
        # where one ends now: who has an Exchange would wait for its end on one that has none.
        self.cluster.all(None, or_none=True)
        self._end_run()
        with self.changed:
            self.pool.use(self._used)
            made = Steps(self.opened.rows, parts, self.opened.fields, ENTRIES, self.budget.scratch, self.pool)
            self._parts, self._run, self._taken = parts, self.cluster.running(made, how), 0
            self.changed.notify_all()

    def _end_run(self) -> None:
        with self.changed:
            run, self._run = self._run, None
        if run is not None:
            now = run.counts()
            self._before = {name: self._before.get(name, 0) + now[name] for name in now if not name.endswith("_bytes")}
            run.close()
