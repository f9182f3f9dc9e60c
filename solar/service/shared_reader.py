"""SharedReader: jobs that read the same data, with one plan and one Run for all. SharedReaders: all of these.

One thread plans and gives the Run its steps, one takes its batches and announces them, and one frees what all have
copied.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from solar import _native
from solar.errors import ReadError, SolarError
from solar.io.channels.frames import Fault, Refused, close_all
from solar.io.system import quantities
from solar.io.system.quantities import enough, size
from solar.io.system.waiting import WaitTimeout
from solar.planning.budget import BufferTooSmall
from solar.planning.pass_uses import SampleUses
from solar.planning.served import least_of
from solar.service.cluster import Cluster, SingleNode
from solar.service.nodes import Nodes
from solar.service.pace import FOR_A_PLAN, FOR_BATCHES
from solar.service.scheduler import ENTRIES, PlannedStep, Scheduler
from solar.service.shared_data import SharedData
from solar.service.window import JobOrder, Member, Pace

log = logging.getLogger("solar")

TICK = 0.05
FAILURES = 2  # steps in a row that cannot be read: each is late by what trying again takes
SAYS_WHY = 1.0  # seconds: what another node sends may stop before its word comes that it ends this, which is no failure
BEGINS = 1  # batches of its own that each reads while it joins


class SharedReader(Scheduler):
    """The jobs that read one data set, with their part of the memory."""

    def __init__(
        self, opened: SharedData, memory: int, of_all: int, slack: float, cluster: Cluster | SingleNode | None = None
    ) -> None:
        super().__init__(opened, memory, slack, cluster or SingleNode(opened))
        self.of_all = of_all
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ending, self._ended = threading.Lock(), False
        self.failed = -math.inf, ""  # when and why it ended, if that was for steps that failed
        self._threads = [
            threading.Thread(target=self._guard, args=(do,), name=name, daemon=True)
            for name, do in (("solar-plan", self._conduct), ("solar-cry", self._cry), ("solar-keep", self._keep))
        ]
        for one in self._threads:
            one.start()
        self.cluster.begin(self._given_up)  # which may end it at once: with threads that it can wait for

    # --- who is there ----

    def join(self, name: str, process: int, first: SampleUses, most: int, lately: deque[float]) -> Member:
        """Adds a job that wants these batches. Raises Refused if there is no room."""
        if not int(first.sizes.max(initial=1)) <= most < 1 << 31:
            raise Fault("a batch is larger than told")
        with self.changed:
            if self._closing:
                raise Refused("the service ends, or divides its memory anew", again=True)
            slots = min(most, int(self.opened.slots(first).max()) * 5 // 4 + 1) if self.opened.apart else most
            cluster = slots + sum(one.slots for one in self.members if not one.left) + self.elsewhere
            wanted = cluster * self.opened.sample_nbytes
            if (least := least_of(wanted)) > self.memory:
                there = quantities.count(1 + sum(not one.left for one in self.members), "job")
                least = -(-least * self.of_all // self.memory)
                others = " and of those of other nodes" if self.elsewhere else ""
                ring = size(self.planner.ring)
                raise Refused(
                    f"the batches of {there}{others} on their way take {size(2 * wanted)}, and {ring} of "
                    f"the memory is for them: give --memory {enough(least)} or more",
                    again=True,
                )
            ledger = _native.Ledger(ENTRIES, len(self.opened.fields), most)
            member = Member(name, process, most, slots, ledger, JobOrder([first]), Pace(lately), BEGINS)
            self.members.append(member)
            self._tell()
        return member

    def admit(
        self, name: str, process: int, first: SampleUses, most: int, lately: deque[float]
    ) -> tuple[Member, list[int]]:
        """Adds a job as `join` does. Returns also descriptors of what it maps and rings, for the caller to close."""
        member, made = self.join(name, process, first, most, lately), list[int]()
        try:
            with self.changed:
                if self.bell < 0:  # else its number may be another file's by the time when it is sent
                    raise Refused("the service ends, or divides its memory anew", again=True)
                for one in (member.ledger.descriptor, member.ledger.line, self.pool.descriptor, self.bell):
                    made.append(os.dup(one))
        except BaseException:
            close_all(made)
            self.leave(member)
            raise
        return member, made

    def more(self, member: Member, uses: SampleUses) -> None:
        """Adds batches to the end of a job's order."""
        if int(uses.sizes.max()) > member.most or int(self.opened.slots(uses).max()) > member.slots:
            raise Refused("these batches are larger than those before", again=True)
        with self.changed:
            member.order.epochs.append(uses)
            self._tell()

    def leave(self, member: Member) -> None:
        """Removes a job."""
        with self.changed:
            member.left = True
            self.members = [one for one in self.members if one is not member]
            self._tell()
            self._ring()

    def _ring(self) -> None:
        with self.changed, suppress(OSError):
            if self.bell >= 0:
                os.eventfd_write(self.bell, 1)

    def _tell(self) -> None:
        self._changed_at = time.monotonic()
        self.changed.notify_all()

    def counts(self) -> dict[str, int]:
        """Returns what all its runs have read and handed on."""
        return self.queue.counts()

    def close(self, why: str = "the service ends") -> None:
        """Ends the reader. Its jobs continue by themselves, or join again."""
        with self._ending:
            if not self._ended:
                self._ended = True
                self._close(why)

    def _close(self, why: str) -> None:
        self._give_up(why)
        self.pool.close()
        self._ring()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)
        self._end_run()
        self.queue.announced.clear()
        with self.changed:  # a job may leave later, when this number is another file's
            os.close(self.bell)
            self.bell = -1

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            do()
        except BaseException as error:  # nobody else would see it, and jobs must not wait for a thread that is gone
            with self.changed:
                ended = self.changed.wait_for(lambda: self._closing, SAYS_WHY if self.cluster.ranks > 1 else 0)
            if ended:
                return
            log.error("the service goes on without these data: %r", error)
            self.failed = time.monotonic(), str(error)
            self._given_up(str(error))

    def _give_up(self, why: str) -> None:
        with self.changed:
            self._closing = True
            for one in self.members:
                one.detach(why)
            self.changed.notify_all()
        self.cluster.end(why)

    def _given_up(self, why: str) -> None:
        """Ends the reader at once, without waiting for a job: services of other nodes wait for its last message."""
        self._give_up(why)
        with suppress(RuntimeError):  # no thread can begin: the next to ask for these data, or the end, closes it
            threading.Thread(target=self.close, args=(why,), name="solar-close", daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether the reader has ended, by itself or not."""
        return self._closing

    # --- batches ----

    def _cry(self) -> None:
        """Takes batches from the Run, and announces them."""
        queue, failed = self.queue, 0  # steps in a row
        while True:
            with self.changed:
                self.changed.wait_for(self._may_cry)
                if self._closing:
                    return
                run = queue.run
            assert run is not None
            fields: list[Any] | None = None
            step = queue.given[0]
            try:
                fields, failed = run.wait(queue.taken, step.slots, TICK)[0], 0
            except WaitTimeout:
                continue
            except (SolarError, MemoryError) as error:
                if run.broken or self._closing:
                    raise
                failed = failed + 1 if isinstance(error, ReadError) else 0
                if failed == FAILURES:
                    raise
                log.info("a batch is left to each job: %s", error)
            run.let_go(queue.taken)
            queue.taken += 1
            with self.changed:
                queue.given.popleft()
                self._announce(fields, step)
                queue.announced.append((fields or [], step.shares))
                self.changed.notify_all()
            del fields, step  # or this batch would stay until the next one is there

    def _may_cry(self) -> bool:
        there = self.queue.run is not None and bool(self.queue.given)
        return self._closing or (there and len(self.queue.announced) < ENTRIES - 1)

    def _announce(self, fields: list[Any] | None, step: PlannedStep) -> None:
        """Tells each job where its samples lie: where each field begins. Parts of a field follow one another."""
        offsets, at = list[int](), 0
        for parts in self.opened.fields if fields is not None and step.shares else []:
            offsets.append(self.pool.offset(fields[at].reshape(-1)))  # type: ignore[index]
            at += len(parts)
        self.slack.steps += 1
        for one in step.shares:
            one.member.announced = one.number + 1
            if not one.member.left:
                one.member.ledger.announce(one.number, offsets, one.places, step.slots if fields is not None else 0)
                self.queue.handed += one.nbytes if fields is not None else 0

    def _keep(self) -> None:
        """Frees batches that all jobs have copied, and stops waiting for stragglers."""
        holders: list[Member] = []
        while not self._closing:
            select.select([self.bell], [], [], TICK)
            with suppress(BlockingIOError):
                os.eventfd_read(self.bell)
            with self.changed:
                there = [one for one in self.members if one.waiting]
                planned = any(one.announced < one.planned for one in there)
                waits = FOR_BATCHES if planned else FOR_A_PLAN if there else 0
                elsewhere = self.cluster.waiting(waits)
                room = len(self.queue.announced) < ENTRIES - 1
                self.slack.look(self.pool.waited, room, self.members, holders, elsewhere)
                self._give_back()
                holders = self._leave_behind()

    def _give_back(self) -> None:
        announced = self.queue.announced
        before = len(announced)
        while announced and all(one.member.done(one.number) for one in announced[0][1]):
            announced.popleft()
        if len(announced) != before:
            self.changed.notify_all()

    def _leave_behind(self) -> list[Member]:
        """Stops waiting for stragglers. Returns the jobs that had not made the oldest step."""
        announced = self.queue.announced
        oldest = announced[0][1] if announced else []
        holders = [s.member for s in oldest if not s.member.done(s.number)]
        for one in self.slack.behind(holders, self.members):
            one.detach(f"it held back others for {max(one.pace.held, one.pace.stood):.1f} s")
            log.info("%s is left behind: %s", one.name, one.why)
            self._tell()
        self._give_back()
        return holders


# SharedReaders: the data sets that jobs read at a time, each with its part of the memory.


RESTS = 30.0  # seconds for which data are left to their jobs that could not be read
SMALLEST_PART = 16  # no data set has less than one part of so many, as long as there are fewer


class SharedReaders:
    """A shared reader for each data set in use. The memory is divided anew when a data set is added."""

    def __init__(self, memory: int, slack: float, nodes: Nodes | None = None) -> None:
        self.memory, self.slack, self.nodes = memory, slack, nodes
        self._halls: dict[str, SharedReader] = {}  # by the facts of the data
        self._known: dict[
            str, SharedData
        ] = {}  # so, too: all that is wanted, also while its shared reader is made anew
        self._before = Counter[str]()  # counts of those that are over
        self._over = False
        self._lock = threading.Lock()

    def each(self) -> list[SharedReader]:
        """Returns the present readers."""
        return list(self._halls.values())

    def counts(self) -> dict[str, int]:
        """Returns what all readers so far have read and handed on."""
        found = self._before.copy()
        for one in self.each():
            found.update(one.counts())
        return found

    def known(self, facts: str) -> SharedData | None:
        """Returns these data if they are being read."""
        return self._known.get(facts)

    def of(self, data: SharedData, wanted: Collection[str]) -> SharedReader:
        """Returns the shared reader of these data. `wanted` are the facts about all data that jobs have opened.

        If the reader has to be made, readers whose part of the memory changes end, and their jobs join again. A reader
        without jobs is made anew if its part would change.
        """
        with self._lock:
            if self._over:
                raise Refused("the service ends")
            if self.nodes is not None:
                self.nodes.check(data)
            there = {facts: one for facts, one in self._known.items() if facts in wanted} | {data.facts: data}
            parts = dict(zip(there, memory_parts(self.memory, [one.nbytes for one in there.values()]), strict=True))
            self._known = there
            found = self._halls.get(data.facts)
            if found is not None and not found.over and (found.members or found.memory == parts[data.facts]):
                return found
            if found is not None and time.monotonic() < found.failed[0] + RESTS:
                raise Refused(
                    f"what is read of these data has failed, and is tried again after {RESTS:g} s: {found.failed[1]}",
                    again=True,
                )
            for facts in [facts for facts, one in self._halls.items() if one.memory != parts.get(facts) or one.over]:
                self._end(facts, "the memory of the service is divided anew")
            cluster = None if self.nodes is None else self.nodes.of(data)
            try:
                made = SharedReader(data, parts[data.facts], self.memory, self.slack, cluster)
            except BufferTooSmall as error:
                if cluster is not None:
                    cluster.end("the memory is too small for these data")
                least = -(-error.least * self.memory // parts[data.facts])
                raise Refused(f"--memory is too small for these data: give {enough(least)} or more") from None
            self._halls[data.facts] = made
            return made

    def close(self) -> None:
        """Ends all readers. Their jobs continue by themselves."""
        with self._lock:
            self._over = True  # who joins again now is refused
            for facts in list(self._halls):
                self._end(facts, "the service ends")

    def _end(self, facts: str, why: str) -> None:
        hall = self._halls.pop(facts)
        hall.close(why)
        self._before.update(hall.counts())


def memory_parts(memory: int, nbytes: list[int]) -> list[int]:
    """Returns what each of several data sets of so many bytes has of the memory: in proportion, but not too little.

    >>> memory_parts(800, [300, 100]), memory_parts(800, [10_000, 1]), memory_parts(800, [5])
    ([600, 200], [752, 47], [800])
    """
    shares = [max(one / sum(nbytes), 1 / SMALLEST_PART) for one in nbytes]
    return [int(memory * one / sum(shares)) for one in shares]
