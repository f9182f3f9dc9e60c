"""Buffered: a loader's buffer over its life: what is planned, what runs, and which iterator takes its batches."""

from __future__ import annotations

import logging
import operator
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from itertools import chain, islice
from typing import Any, NamedTuple

from solar.errors import PlanError, ReadError
from solar.io.exchange.exchanged import Exchange
from solar.io.ranks.peers import Peers
from solar.io.read.run import Running
from solar.planner.budget import Budget, Needs
from solar.planner.pass_uses import PassUses
from solar.planner.planned_passes import PlannedPasses, goes_on, in_words, planned_together
from solar.planner.sweep import Counts, KeepPolicy, total
from solar.planner.units import not_carried
from solar.torch.buffer.budget import (
    FITS,
    Profile,
    Size,
    asked,
    auto,
    checked_storage,
    ranks_here,
    storage_of,
)  # fmt: skip
from solar.torch.buffer.buffered_pass import AheadSpec, BufferedPass, needs
from solar.torch.buffer.group import RankGroup, checked, those_of
from solar.torch.buffer.located import layouts_of, pieces_of
from solar.torch.buffer.thread import Background, apart, begun, failed, unless
from solar.torch.monitor.stats import Stats
from solar.torch.order.position import EpochPosition, SamplerState
from solar.torch.order.stream import IndexStream
from solar.torch.source import SampleSource

log = logging.getLogger("solar")

BUFFER_ATTRIBUTES = ("_nbytes", "_asked", "_epochs", "_storage", "_stats", "_exchange", "_balance")  # of a copy


class Queued(NamedTuple):
    """A segment that the run has, and no iterator has begun."""

    segment: PassUses
    base: int  # number of its first batch in the run


class Buffered:
    """The buffer of a loader. One iterator at a time takes its batches from it; any other reads without.

    The run goes on from pass to pass as long as each takes the samples that were foreseen. Where it does not, or was
    left in its midst, the run ends and another begins.
    """

    def __init__(
        self,
        buffer: Size,
        epochs: int | None,
        storage: Profile,
        stats: Stats,
        exchange: str = "auto",
        balance: str | None = None,
    ) -> None:
        checked(exchange, balance)
        if epochs is not None and operator.index(epochs) < 1:
            raise ValueError(f"epochs={epochs}: at least one, or None where nobody knows")
        self._nbytes, self._asked = asked(buffer), str(buffer)
        self._epochs, self._storage, self._stats = epochs, checked_storage(storage), stats
        self._exchange, self._balance = exchange, balance
        if self._nbytes in (0, None) and balance in ("equal", "uneven"):
            raise PlanError(
                f"balance={balance!r} divides a data set among buffers, and buffer={buffer!r} is "
                f"{'none' if self._nbytes == 0 else 'one only where it pays'}: give buffer= a size, such as '25%'"
            )
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._chosen: int | None = None  # bytes, once it is known what is to be read
        self._weighed: Callable[[], tuple[int, str]] | None = None  # what a buffer gains, where one is possible
        self._together: RankGroup | None = None
        self._threads: int | None = None  # that decode, of all ranks of the node, where they read together
        self._ways: tuple[Any, Sequence[KeepPolicy | None]] = (None, [])  # chosen last, and under which conditions
        self._warned = False  # of what went wrong in the background
        self._forget()

    def _forget(self) -> None:
        self.running: Running | Exchange | None = None
        self._window: PlannedPasses | None = None  # the one that the run is told of, segment by segment
        self.planned = Counts()  # what all that was handed to the run takes, as planned: of all ranks of the node
        self.planned_alone = Counts()  # what of the homes of other nodes this process reads by itself
        self._queue: deque[Queued] = deque()
        self._later: Iterator[Callable[[], PassUses]] = iter(())  # what comes after the windows
        self._work: Background | None = None
        self._holder: BufferedPass | None = None
        self._budget: Budget | None = None

    def share(self, beneath: SampleSource) -> float:
        """How much of the data the buffer has room for; 0: there is none."""
        return min(1.0, (self._chosen or 0) / max(1, sum(one.stored_nbytes for one in beneath.layouts())))

    # --- an iterator begins, and ends ----

    def has_mates(self, order: IndexStream) -> bool:
        """Whether other ranks may wait for this one when a pass begins."""
        return self._nbytes != 0 and those_of(self._exchange, order) is not None

    def begin(
        self, beneath: SampleSource, batches: Iterator[Any], passage: EpochPosition, course: SamplerState,
        pace: AheadSpec, replaced: ReadError | None,
    ) -> BufferedPass | None:  # fmt: skip
        """The batches of a pass, to be taken from the buffer; None where they are read without one."""
        if self._owner != os.getpid():  # a forked process makes its own
            self._reset()
        with self._lock:
            if self._chosen is None:
                self._chosen = self._choose(beneath, course, passage.order, pace)
            if not self._chosen or self._held_by_another(None):
                return None
            if self._together is not None:
                self._together.replaced = replaced
            left = None if self._epochs is None else max(0, self._epochs - course.epoch - 1)
            return BufferedPass(self, beneath, batches, passage, course, pace, self._chosen, left, self._together)

    def _held_by_another(self, turn: BufferedPass | None) -> bool:
        if self._holder is not None and self._holder.orphaned:
            self._holder = None
            self._end()
        if self._holder is None or self._holder is turn:
            return False
        said = "another iterator of this loader takes batches from its buffer"
        if self._together is not None and self._together.balance == "uneven":
            raise PlanError(f'{said}, and with balance="uneven" there is no reading without: end that one first')
        log.info("%s: this one reads without", said)
        return True

    def _choose(self, beneath: SampleSource, course: SamplerState, order: IndexStream, pace: AheadSpec) -> int:
        """The bytes of the buffer, of all ranks of the node if they have one together, 0 for none. Says why."""
        layouts = layouts_of(beneath)
        if refused := next((said for layout in layouts if (said := not_carried(layout))), ""):
            if self._nbytes:
                log.info("no buffer: %s", refused)
            return 0
        left = self._nbytes == 0 or (self._nbytes is None and not order.fixed)
        found = None if left else those_of(self._exchange, order)
        ranks = ranks_here() if found is None else 1  # that have a buffer each
        batch, all_ = course.batch_size or 1, 1 if found is None else found.ranks
        own = needs(beneath, pace, batch)
        self._weighed = cache(partial(auto, layouts, batch * all_, self._storage, own, ranks=ranks))
        if left:
            return 0  # where nobody has asked for a buffer, it would draw from the sampler long before
        if self._nbytes is not None:
            nbytes = max(1, self._nbytes // ranks)
        else:
            nbytes, why = self._weighed()
            log.log(logging.DEBUG if why == FITS else logging.INFO, "%s buffer: %s", "a" if nbytes else "no", why)
        try:
            self._together = self._met(found, beneath, course, order, nbytes) if nbytes else None
        except PlanError as error:
            if self._nbytes is not None or self._exchange != "auto":
                raise
            log.warning("no buffer, which nobody has asked for: %s", error)
            self._weighed = None
            return 0
        return nbytes if self._together is None else self._together.nbytes

    def advice(self) -> str:
        """What a buffer would gain where there is none, by what decides whether one is taken; empty if nothing."""
        nbytes, why = (0, "") if self._chosen or self._weighed is None else self._weighed()
        return f"A buffer (`buffer='25%'`, say) would help: {why}, as modelled." if nbytes else ""

    def _met(
        self, found: Peers | None, beneath: SampleSource, course: SamplerState, order: IndexStream, nbytes: int
    ) -> RankGroup | None:
        """Those who share the samples, if there are any, after they have found each other to be of one mind."""
        if found is None:
            if self._balance in ("equal", "uneven"):
                raise PlanError(
                    f"balance={self._balance!r} divides samples among ranks by where they lie: it takes a PlanSampler "
                    "or DistributedSampler over several ranks, a batch_size, and torch.distributed or MPI initialised"
                )
            return None
        facts = {name: getattr(course.cutter, name) for name in ("batch_size", "drop_last")}
        facts |= {"buffer": self._asked, "epochs": self._epochs}
        wanted = self._nbytes is not None or self._exchange != "auto"
        return RankGroup(found, beneath, order, self._exchange, self._balance, facts, nbytes, wanted)

    def enter(self, turn: BufferedPass, segment: PassUses, amid: bool) -> tuple[Running | Exchange, int, int] | None:
        """Has the run make these batches next, and plans what comes later.

        Gives the run, the number of the first of them in it, and how many batches wait there.
        """
        with self._lock:
            if self._held_by_another(turn):
                return None
            self._holder = turn
            appended = None if self.running is None else self.running.appended
            try:
                queued = self._next(turn, segment, amid)
                if queued is None or self.running is None or self._budget is None:
                    return None
                self._work = begun(self._go_on)
                return self.running, queued.base, self._budget.staged
            except BaseException:  # Ctrl-C, too: nobody takes what the run was told, or will be
                if not amid or self.running is None or self.running.appended != appended:
                    self._end()
                    self._holder = None
                raise

    def _next(self, turn: BufferedPass, segment: PassUses, amid: bool) -> Queued | None:
        """This segment, as the run is told of it."""
        if self.running is not None and not self._foretold() and not amid:
            self._end()
        queued = self._queue.popleft() if self._queue else None
        if queued is not None and not queued.segment.same(segment):
            self._end()
            queued = None
        if queued is not None and self._together is not None:
            self._together.check_files(self.running)
        if queued is None:
            try:
                queued = self._begin(turn, segment, amid)
            except PlanError as error:
                if self._nbytes is not None:
                    raise
                log.info("no buffer: %s", error)  # which nobody has asked for
                self._chosen, self._weighed = 0, None
        return queued

    def _foretold(self) -> bool:
        """Waits for what is planned in the background. Gives whether the run can go on from pass to pass."""
        work, running, self._work = self._work, self.running, None
        assert running is not None
        error = failed(self._go_on) if work is None else work.error()  # None: there was no thread to be had
        if error is not None:  # it was a guess: what begins now is planned afresh
            level, self._warned = logging.DEBUG if self._warned else logging.WARNING, True
            log.log(level, "the passes to come could not be planned beforehand: %r", error)
            return False
        # Batches that nobody takes would be in the way.
        return running.given == (self._queue[0].base if self._queue else running.appended)

    def leave(self, turn: BufferedPass, whole: bool) -> None:
        """The iterator takes no more. The run goes on if it took all."""
        if self._owner != os.getpid() or self._holder is not turn:
            return
        if isinstance(threading.current_thread(), Background):  # the garbage collector's: left to the next iterator
            turn.orphaned = True
            return
        with self._lock:
            self._holder = None
            if not whole:
                self._end()

    def close(self) -> None:
        """Ends the run. The next iterator begins another one."""
        if self._owner == os.getpid():
            with self._lock:
                self._end()

    def _begin(self, turn: BufferedPass, segment: PassUses, amid: bool) -> Queued | None:
        """A new window from here on, for the run there is if it can carry that out, else for a new one.

        None amid a pass, whose run cannot be left: its batches are on their way.
        """
        if self._together is not None and self.running is not None:
            self._end()  # all ranks begin anew
        needs = turn.needs(segment)
        with nullcontext() if self._together is None else self._together.agreeing():
            found = self._begun(turn, segment, amid, needs)
        if found is None:
            return None
        window, budget, later = found
        if self.running is None:
            self._start(turn, window, budget)
        self._later, self._budget = later, budget
        return self._append(window)

    def _begun(
        self, turn: BufferedPass, segment: PassUses, amid: bool, needs: list[Needs]
    ) -> tuple[PlannedPasses, Budget, Iterator[Callable[[], PassUses]]] | None:
        """The window that begins here, how memory is divided, and what comes after it. Ends a run that cannot go on."""
        budget, later = turn.budget(segment, needs), chain([lambda: segment], turn.later())
        if self._together is not None:
            self._threads = sum(one.threads for one in needs)
        if budget != self._budget:
            if amid:
                return None
            self._end()
        makers = list(islice(later, planned_together(len(segment.planned.rows), first=True)))
        window = apart(lambda stopped: self._planned(makers, turn.beneath, budget, stopped))
        if self.running is not None and not self._goes_on(window):
            if amid:
                return None
            self._end()
            window = apart(lambda stopped: self._planned(makers, turn.beneath, budget, stopped))
        return window, budget, later

    def _planned(
        self,
        makers: list[Callable[[], PassUses]],
        beneath: SampleSource | None,
        budget: Budget,
        stopped: threading.Event,
    ) -> PlannedPasses:
        """The next window of these segments, by the ways of the last one, whose samples may have come to stay."""
        last, kind = self._window, (budget, len(makers) > 1)
        if last is not None:
            pieces, ways, storages = last.pieces, list[KeepPolicy | None](last.ways), last.storages
        else:
            assert beneath is not None, "what is read is told with the first passes"
            pieces = pieces_of(beneath) if self._together is None else self._together.pieces()
            ways = list(self._ways[1]) if self._ways[0] == kind else [None] * len(pieces)
            storages = [storage_of(layout, self._storage, self._threads)[0] for layout in layouts_of(beneath)]
        first = 0 if last is None else last.segments.stop
        makers = [unless(stopped, make) for make in makers]
        window = PlannedPasses(makers, first, pieces, budget.parts, budget.batch, storages, ways, last is not None)
        self._ways = kind, window.ways
        return window

    def _goes_on(self, window: PlannedPasses) -> bool:
        """Whether the run there is can carry this window out after its last."""
        last, running = self._window, self.running
        return last is not None and running is not None and goes_on(last, window, running.parts)

    def _start(self, turn: BufferedPass, window: PlannedPasses, budget: Budget) -> None:
        parts, together = window.parts(), self._together
        rows = turn.rows() * (len(parts) // len(window.pieces))
        if together is None:
            self.running = Running(rows, parts, budget.staged, budget.scratch)
        else:
            self.running = together.running(rows, parts, budget.staged, budget.scratch)
        self._stats.held(self.running.nbytes)
        sources = dict.fromkeys(storage_of(layout, self._storage)[1] for layout in layouts_of(turn.beneath))
        log.info("a buffer of %s: %s; storage %s", budget.in_words(), in_words(window), ", ".join(sources))

    def _append(self, window: PlannedPasses) -> Queued:
        """Hands the next segment of the window to the run."""
        running = self.running
        assert running is not None
        number, self._window = window.next, window
        segment, base = window.segment(number), running.appended
        if isinstance(running, Exchange):
            assert segment.parcels is not None, "ranks that exchange samples know what"
            running.append(segment.sizes, window.told(number), segment.parcels)
        else:
            running.append(segment.sizes, window.told(number))
        self.planned = total([self.planned, *window.counts(number)])
        self.planned_alone = total([self.planned_alone, *window.counts_alone(number)])
        window.next = number + 1
        return Queued(segment, base)

    def _go_on(self, stopped: threading.Event) -> None:
        """What is done while an epoch runs: the next one is handed to the run, after planning if need be."""
        window, budget = self._window, self._budget
        assert window is not None
        assert budget is not None
        if window.next == window.segments.stop:
            uses = len(window.segment(window.next - 1).planned.rows)
            makers = list(islice(self._later, planned_together(uses, first=False)))
            if not makers:
                return
            window = self._planned(makers, None, budget, stopped)
            if not self._goes_on(window):
                return  # the next pass begins another run
        self._queue.append(self._append(window))

    def _end(self) -> None:
        """Ends the run there is, if there is one."""
        work, running, holder = self._work, self.running, self._holder
        if work is not None:
            work.stop()
        if running is not None:
            running.close()
            self._stats.held(-running.nbytes)
        self._forget()
        self._holder = holder

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has a run of its own."""
        return {name: self.__dict__[name] for name in BUFFER_ATTRIBUTES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __del__(self) -> None:
        if getattr(self, "running", None) is not None and not sys.is_finalizing():
            if isinstance(self.running, Exchange):  # which waits for other ranks if it is closed, not if it is dropped
                self.running = None
            self.close()
