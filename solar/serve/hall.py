"""Hall: jobs that read the same data. One plan over what all of them want, one Run, batches that each of them copies.

One thread plans and tells the Run, one takes its batches and announces them, one gives back what all have copied.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import ReadError, SolarError
from solar.io.machine.figures import size
from solar.io.read.engine import LAST_WAIT
from solar.io.read.run import columns, threads
from solar.io.serve.frames import Fault, Refused
from solar.planner.budget import Budget, Needs, divided
from solar.planner.packed import encoding_nbytes, packable
from solar.planner.pass_uses import PassUses, SampleUses
from solar.planner.planned_passes import PlannedPasses
from solar.planner.share import wholes
from solar.serve.cut import cut, reach
from solar.serve.member import Member, Share
from solar.serve.opened import SharedData
from solar.serve.pace import Slack
from solar.serve.window import FOR_BATCHES, Turn, Window, begun, fits, in_places, in_turn, ring_of, segment, shares_of
from solar.values import RunPart, Told

log = logging.getLogger("solar")

ENTRIES = 64  # batches of a job that are announced together
TOLD = 2  # stretches that the Run is told of before it needs them
STEPS_TOLD = 16  # steps, at least: joins and leaves change the plan behind those that were told
WINDOW_SEGMENTS = 32  # of a window, 16 to the longest epoch
WINDOW_USES = 1 << 25
TICK = 0.05
SETTLES, GATHERS = 0.25, 0.02  # seconds without news after which the plan is changed; and where nobody is served yet
FAILURES = 2  # steps in a row that cannot be read: each is late by what trying again takes
BEGINS = 1  # batches of its own that each reads while it joins


class Hall:
    """The jobs of one data set, with their part of all the memory."""

    def __init__(self, opened: SharedData, memory: int, of_all: int, slack: float) -> None:
        self.slack = Slack(slack)
        self.opened, self.members, self.of_all = opened, list[Member](), of_all
        self.memory, self.ring = memory, memory // FOR_BATCHES
        self._pieces = opened.pieces
        self.budget = self._divided(self.ring)
        self.pool = _native.SharedPool(self.ring)
        self._used = 0  # bytes of the ring
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.changed = threading.Condition()
        self.handed, self.head = 0, -1.0  # bytes that jobs had of it; the place of the last read that a Run was told of
        self._parts: list[RunPart] = []
        self._run: _native.Run | None = None
        self._before: dict[str, int] = {}  # counts of runs that are over
        self._steps: deque[list[Share]] = deque()  # the Run was told of
        self._held: deque[tuple[list[Any], list[Share]]] = deque()  # announced
        self._taken = 0  # of this Run
        self._told_at = 0.0  # when somebody came, left or told more last
        self._closing = False
        self._failed, self.failed = 0, (-math.inf, "")  # steps in a row; and when and why it ended for that
        self._threads = [
            threading.Thread(target=self._guarded, args=(do,), name=name, daemon=True)
            for name, do in (("solar-plan", self._conduct), ("solar-cry", self._cry), ("solar-keep", self._keep))
        ]
        for one in self._threads:
            one.start()

    def _divided(self, ring: int) -> Budget:
        """The memory, where so much of it is for steps."""
        scratch, encodes = self.opened.scratch, encoding_nbytes(self._pieces)
        own = Needs(ring, 0, scratch, threads(), 1, scratch > self.opened.sample_nbytes, encodes=encodes)
        return divided(self.memory, 1, [own], wholes([piece.region for piece in self._pieces]))

    # --- who is there ----

    def join(self, name: str, process: int, first: SampleUses, most: int, lately: deque[float]) -> Member:
        """A job that wants these batches, of up to so many samples, and what they took lately. Refused: no room."""
        if not int(first.sizes.max(initial=1)) <= most < 1 << 31:
            raise Fault("a batch is larger than told")
        with self.changed:
            if self._closing:
                raise Refused("the service ends, or divides its memory anew", again=True)
            slots = min(most, int(self.opened.slots(first).max()) * 5 // 4 + 1) if self.opened.apart else most
            together = slots + sum(one.slots for one in self.members if not one.left)
            wanted = 2 * together * self.opened.sample_nbytes
            if wanted > self.ring:
                there = 1 + sum(not one.left for one in self.members)
                least = FOR_BATCHES * wanted * self.of_all // self.memory
                raise Refused(
                    f"the batches of {there} job{'s' if there > 1 else ''} on their way take {size(wanted)}, and "
                    f"{size(self.ring)} of the memory is for them: give --memory {size(least)} or more",
                    again=True,
                )
            ledger = _native.Ledger(ENTRIES, len(self.opened.fields), most)
            member = Member(name, process, most, slots, ledger, [first], lately, BEGINS, BEGINS)
            self.members.append(member)
            self._tell()
        return member

    def more(self, member: Member, uses: SampleUses) -> None:
        """It wants these batches after all that it has told."""
        if int(uses.sizes.max()) > member.most or int(self.opened.slots(uses).max()) > member.slots:
            raise Refused("these batches are larger than those before", again=True)
        with self.changed:
            member.epochs.append(uses)
            self._tell()

    def leave(self, member: Member) -> None:
        """It takes no more."""
        with self.changed:
            member.left = True
            self.members = [one for one in self.members if one is not member]
            self._tell()
        with suppress(OSError):
            os.eventfd_write(self.bell, 1)

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        self.changed.notify_all()

    def counts(self) -> dict[str, int]:
        """What was read, by all runs, and handed on."""
        now = {"handed": self.handed} | ({} if (run := self._run) is None else run.counts())
        return {name: now.get(name, 0) + self._before.get(name, 0) for name in now.keys() | self._before.keys()}

    def close(self, why: str = "the service ends") -> None:
        """Ends it; the jobs go on by themselves, or join again."""
        self._give_up(why)
        self.pool.close()
        with suppress(OSError):
            os.eventfd_write(self.bell, 1)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)
        self._end_run()
        self._held.clear()
        os.close(self.bell)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except BaseException as error:  # nobody else would see it, and jobs must not wait for a thread that is gone
            if self._closing:
                return
            log.error("the service goes on without these data: %r", error)
            self.failed = time.monotonic(), str(error)
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        with self.changed:
            self._closing = True
            for one in self.members:
                one.detach(why)
            self.changed.notify_all()

    @property
    def over(self) -> bool:
        """Whether it has ended, of itself or not."""
        return self._closing

    # --- planning ----

    def _conduct(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._closing or self._here())
            since = time.monotonic()
            while True:
                with self.changed:
                    if self._closing:
                        return
                    told_at, here = self._told_at, self._here()
                window = self._window(here) if here else None
                if not (news := self._news(told_at, since)) and window is not None:
                    self._carry_out(window)
                here.clear()  # or what the window is made by would keep them until the garbage is collected
                if not news:
                    break

    def _here(self) -> list[Turn]:
        """Who wants batches that are not planned, and which."""
        there = [one for one in self.members if not one.left]
        for one, rate in zip(there, self.slack.rates(there), strict=True):
            one.skip(int(len(self._steps) * rate))
            one.forget()
        found = [one for one in there if one.planned < one.known]
        return in_turn(found, self.slack.rates(found))

    def _news(self, told_at: float, since: float) -> bool:
        """Whether somebody came, or told of more, since then, so that what was planned meanwhile is planned anew.

        Where nobody is served yet a moment is waited for that: jobs of one order that begin in one step stay side by
        side; and what is planned for less is planned anew soon.
        """
        with self.changed:
            while not (self._closing or self._steps) and self._told_at == told_at:
                if (left := min(since + SETTLES, told_at + GATHERS) - time.monotonic()) <= 0:
                    return False
                self.changed.wait(left)
            return not self._steps and self._told_at != told_at and time.monotonic() < since + SETTLES

    def _window(self, here: list[Turn]) -> Window:
        length = max(STEPS_TOLD, -(-max(one.member.longest for one in here) // (WINDOW_SEGMENTS // 2)))
        steps = 1 + max(int(one.steps[-1]) for one in here)
        each = sum(one.member.most for one in here) * max(piece.slots for piece in self.opened.pieces)
        steps = max(1, min(steps, WINDOW_SEGMENTS * length, WINDOW_USES // max(1, each)))
        sizes: list[int] = []  # of the largest step of each segment, as planning comes by

        def made(at: int) -> PassUses:
            found = segment(here, at, min(at + length, steps))
            sizes.append(int(self.opened.slots(found.planned).max(initial=0)))
            return found

        makers = [partial(made, at) for at in range(0, steps, length)]
        batch = sum(one.member.slots for one in here)
        if not self._used:
            self._pieces = self.opened.held(self.memory)
        nbytes = self.opened.sample_nbytes
        makers[0]()
        self._make_room(batch * nbytes, sizes[0] * nbytes)
        pieces, kept = packable(self._pieces, self.budget.scratch), self.budget.parts
        none, storages = [None] * len(pieces), self.opened.storages()
        passes = PlannedPasses(makers, 0, pieces, kept, batch, storages, none, False)
        assert len(sizes) >= len(makers), "planning goes through all of them"
        return Window(here, length, passes, max(sizes))

    def _make_room(self, most: int, step: int) -> None:
        """Gives the ring what steps need. It never gets less. A Run that keeps what it gets has to end."""
        if (wanted := ring_of(self.memory, most, step)) > self._used:
            self._used, self.budget = wanted, self._divided(wanted)
            self._parts = []

    def _carry_out(self, window: Window) -> None:
        """Tells the Run of a window, stretch by stretch, until who is there or what is known changes."""
        parts = window.passes.parts()
        spare = self._used // max(1, window.step * self.opened.sample_nbytes)
        parts = [replace(one, ahead=max(0, min(one.ahead, spare - 2)) if one.direct else one.ahead) for one in parts]
        if self._run is None or not self._parts or not fits(parts, self._parts):
            self._begin_run(parts)
        afresh = True
        with self.changed:
            self.slack.begin()
            for turn in window.members:
                turn.member.rate = turn.rate
        last = window.passes.segments.stop - 1
        for number in window.passes.segments:
            told = window.passes.told(number)
            uses = window.passes.segment(number).planned
            within, slots = self.opened.within(uses), self.opened.slots(uses)
            told = in_places(told, window.passes.pieces, uses.which, within)
            shares = shares_of(self.opened, window.members, number * window.length, uses, within)
            if afresh:
                terms = [(part.direct, part.ahead, part.gap) for part in parts]  # the Run may hold anything
                told = [one._replace(afresh=of) for one, of in zip(told, terms, strict=True)]
                afresh = False
            for begin, end, some in cut(told, uses, STEPS_TOLD):
                with self.changed:
                    self.changed.wait_for(lambda: self._closing or len(self._steps) < TOLD * STEPS_TOLD)
                    if self._closing or not any(not one.member.left for one in window.members):
                        return
                    self._append(slots[begin:end], shares[begin:end], some)
                    if self.slack.is_off(window.members):
                        return
            if self._to_be_planned_anew(window, number / max(1, last)):
                return

    def _to_be_planned_anew(self, window: Window, done: float) -> bool:
        """Whether the rest of a window, of which so much is done, is to be planned with what was told since.

        That costs up to what memory holds, read again: so it waits until those who come together have come, and for
        what is told of later epochs until the window is nearly over, if it has not just begun.
        """
        with self.changed:
            there = [one for one in window.members if not one.member.left]
            grown = [one for one in there if one.member.known > one.end]
            if any(one.member.planned + window.length >= one.end for one in grown):
                return True  # it would wait for its next batch until the window is over
            if time.monotonic() - self._told_at < SETTLES:
                return False
            planned = [one.member for one in there]
            waits = any(one not in planned and not one.left and one.planned < one.known for one in self.members)
            return waits or len(there) < len(window.members) or (bool(grown) and not 0.25 < done < 0.75)

    def _append(self, slots: NDArray[np.int64], shares: list[list[Share]], told: list[Told]) -> None:
        assert self._run is not None
        for one in shares:
            for share in one:
                share.member.planned = share.number + 1
            self._steps.append(one)
        self.head = reach(told, self.opened.pieces[0].region.units.samples, self.head)
        self._run.append(np.ascontiguousarray(slots), [columns(one) for one in told])
        self.changed.notify_all()

    def _begin_run(self, parts: list[RunPart]) -> None:
        """A Run whose parts hold other things than those of the last one, which is let come to its end."""
        with self.changed:
            self.changed.wait_for(lambda: self._closing or not self._steps)
            self._end_run()
            if self._closing:
                return
            self.pool.use(self._used)
            made = begun(self.opened.rows, parts, ENTRIES, self.budget.scratch, self.pool)
            self._parts, self._run, self._taken = parts, made, 0
            self.changed.notify_all()

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            now = run.counts()
            self._before = {name: self._before.get(name, 0) + now[name] for name in now if not name.endswith("_bytes")}
            run.close(LAST_WAIT)

    # --- batches ----

    def _cry(self) -> None:
        """Takes what the Run makes, and announces it."""
        while True:
            with self.changed:
                self.changed.wait_for(self._may_cry)
                if self._closing:
                    return
                run = self._run
            assert run is not None
            fields: list[Any] | None = None
            try:
                came = run.take(TICK)
                if came is None:
                    continue
                fields, self._failed = came[0], 0
                del came  # or these batches would stay until the next one is there
            except (SolarError, MemoryError) as error:
                if run.counts()["steps"] <= self._taken:
                    raise
                self._failed = self._failed + 1 if isinstance(error, ReadError) else 0
                if self._failed == FAILURES:
                    raise
                log.info("a batch is left to each job: %s", error)
            self._taken += 1
            with self.changed:
                shares = self._steps.popleft()
                self._announce(fields, shares)
                self._held.append((fields or [], shares))
                self.changed.notify_all()
            del fields

    def _may_cry(self) -> bool:
        return self._closing or (self._run is not None and bool(self._steps) and len(self._held) < ENTRIES - 1)

    def _announce(self, fields: list[Any] | None, shares: list[Share]) -> None:
        offsets = [] if fields is None else [self.pool.offset(one) for one in fields]
        self.slack.steps += 1
        samples = 0 if fields is None else len(fields[0]) // max(1, sum(self.opened.fields[0]))
        for one in shares:
            one.member.announced = one.number + 1
            if not one.member.left:
                one.member.ledger.announce(one.number, offsets, one.places, samples)
                self.handed += one.nbytes if fields else 0

    def _keep(self) -> None:
        """Gives back what all have copied, and leaves those behind who hold back others."""
        while not self._closing:
            select.select([self.bell], [], [], TICK)
            with suppress(BlockingIOError):
                os.eventfd_read(self.bell)
            with self.changed:
                self.slack.look(self.pool.waited, len(self._held) < ENTRIES - 1, self.members)
                self._give_back()
                self._leave_behind()

    def _give_back(self) -> None:
        before = len(self._held)
        while self._held and all(one.member.done(one.number) for one in self._held[0][1]):
            self._held.popleft()
        if len(self._held) != before:
            self.changed.notify_all()

    def _leave_behind(self) -> None:
        oldest = self._held[0][1] if self._held else []
        for one in self.slack.behind([s.member for s in oldest if not s.member.done(s.number)], self.members):
            one.detach(f"it held back others for {max(one.held, one.stood):.1f} s")
            log.info("%s is left behind: %s", one.name, one.why)
            self._tell()
        self._give_back()
