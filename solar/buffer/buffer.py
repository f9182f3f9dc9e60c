"""LoaderBuffer: the buffer of a loader from its first epoch to its last."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from solar.buffer import buffer_size as sizing
from solar.buffer.buffer_memory import (
    BufferMemory,
    BufferOptions,
    RankMemory,
    batch_needs,
    choose_memory,
    those_of,
)
from solar.buffer.thread import Background, failed, in_background
from solar.errors import PlanError, ReadError
from solar.io.reading.run import Run
from solar.loader.stats import Stats
from solar.planning.budget import AheadSpec, Needs
from solar.samplers.epoch_position import Indices, SamplerState
from solar.samplers.index_stream import IndexStream
from solar.samples.source import SampleSource

if TYPE_CHECKING:  # without a buffer nothing is planned, and the planner is not loaded
    from solar.buffer.buffered_pass import BufferedPass
    from solar.buffer.planned_run import PassMaker, PassPlan, PlannedRun, QueuedPass, ServiceMaker
    from solar.planning.planned_passes import PlannedPasses
    from solar.planning.sweep import Counts

log = logging.getLogger("solar")


@dataclass(eq=False)
class BufferLease:
    """The buffer, lent to one pass: the run, and which of its batches belong to the pass."""

    run: Run
    base: int  # number of the first batch in the run
    orphaned: bool = False  # its pass was garbage-collected: the next pass ends the run


class LoaderBuffer:
    """The buffer of a loader. Its batches are made by a plan of its own, or by a service.

    One iterator at a time takes its batches from it; any other reads without it. The run continues from pass to pass as
    long as each pass uses the samples that were planned. If one does not, or is left before its end, the run ends and
    another begins.
    """

    def __init__(
        self,
        buffer: sizing.Size,
        epochs: int | None,
        storage: sizing.Profile,
        stats: Stats,
        exchange: str = "auto",
        balance: str | None = None,
        service: ServiceMaker | None = None,
    ) -> None:
        self.options = BufferOptions.checked(buffer, epochs, exchange, balance, service)
        self.storage, self._stats = sizing.checked_storage(storage), stats
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._memory: BufferMemory | None = None  # set once it is known what is read
        self._maker: PassMaker | None = None
        self._order_known = False, False  # whether the passes to come are guesses of ours, and whether they are known
        self._warned = False  # of what went wrong in the background
        self._work: Background | None = None
        self._queue: deque[QueuedPass] = deque()
        self._lease: BufferLease | None = None

    @property
    def running(self) -> Run | None:
        """The run that makes the batches, if there is one."""
        return None if self._maker is None else self._maker.run

    @property
    def planned_run(self) -> PlannedRun | None:
        """What plans the passes; None: a service does, or there is no buffer."""
        own: PlannedRun | None = None if self._maker is self.options.service else self._maker  # type: ignore[assignment]
        return own

    @property
    def memory(self) -> BufferMemory:
        return self._memory or BufferMemory()

    @property
    def planned(self) -> Counts | None:
        """What everything that the run was told costs, as planned."""
        return None if (own := self.planned_run) is None else own.planned

    @property
    def foreseen(self) -> bool:
        """Whether the order of the passes to come is known."""
        return self._order_known[1]

    @property
    def served(self) -> bool:
        """Whether a service has made batches."""
        return self.options.service is not None and self.options.service.served

    def share(self, source: SampleSource) -> float:
        """Returns the share of the data that the buffer has room for; 0: there is no buffer."""
        service = self.options.service
        nbytes = self.memory.nbytes if service is None or self._maker is not service else service.memory
        return min(1.0, nbytes / max(1, sum(one.stored_nbytes for one in source.layouts())))

    # --- an iterator begins, and ends ----

    def has_mates(self, order: IndexStream) -> bool:
        """Returns whether other ranks may be waiting for this one when a pass begins."""
        return self.options.nbytes != 0 and those_of(self.options.exchange, order) is not None

    def room(
        self, source: SampleSource, sampler_state: SamplerState, order: IndexStream, own: Callable[[int], Needs],
        replaced: ReadError | None,
    ) -> RankMemory | None:  # fmt: skip
        """Returns the memory of a pass that begins; None if its batches are read without the buffer."""
        if self._owner != os.getpid():  # a forked process makes its own
            self._reset()
        options, service = self.options, self.options.service
        with self._lock:
            epochs_left = options.epochs_after(sampler_state.epoch)
            if service is not None and service.lost:
                self._end()  # with what was prepared for the next pass
            if service is not None and service.connected(source, order, options.exchange):
                if self._is_held_by_another(None):
                    return None
                if self._maker is not service:
                    self._end()
                    self._maker = service
                self._order_known = order.guessed, False
                return RankMemory(None, sizing.SERVICE_NBYTES, 1, epochs_left)
            memory = self._memory
            if memory is None:
                self._memory = memory = choose_memory(
                    options, self.storage, source, sampler_state, order, own, replaced
                )
            if not memory.nbytes or self._is_held_by_another(None):
                return None
            if self.planned_run is None:
                from solar.buffer.planned_run import PlannedRun

                self._end()
                self._maker = PlannedRun(memory, self.storage, self._stats)
            if memory.rank_group is not None:
                memory.rank_group.replaced = replaced
            self._order_known = order.guessed, order.is_foreseen
            return RankMemory(memory.rank_group, memory.nbytes, memory.apart, epochs_left)

    def _is_held_by_another(self, lease: BufferLease | None) -> bool:
        """Returns whether another pass has the buffer. Ends the run of one that was garbage-collected."""
        if self._lease is not None and self._lease.orphaned:
            self._lease = None
            self._end()
        if self._lease is None or self._lease is lease:
            return False
        said, rank_group = "another iterator of this loader takes batches from its buffer", self.memory.rank_group
        if rank_group is not None and rank_group.balance == "uneven":
            raise PlanError(f'{said}, and with balance="uneven" there is no reading without: end that one first')
        log.info("%s: this one reads without", said)
        return True

    def enter(self, plan: PassPlan, lease: BufferLease | None) -> BufferLease | None:
        """Has the run make these batches next, and plans what comes later. None: they are read without the buffer.

        `lease`: they continue a pass that has the buffer already.
        """
        with self._lock:
            if self._is_held_by_another(lease):
                return None
            midway, appended = lease is not None, None if self.running is None else self.running.appended
            try:
                queued = self._next_pass(plan, midway)
                if queued is None or self.running is None:
                    return None
                self._lease = lease = lease or BufferLease(self.running, 0)
                lease.run, lease.base = self.running, queued.base
                self._work = in_background(self._append_later)
                return lease
            except BaseException:  # Ctrl-C, too: nobody takes what the run was told, or will be
                if not midway or self.running is None or self.running.appended != appended:
                    self._end()
                    self._lease = None
                raise

    def _next_pass(self, plan: PassPlan, midway: bool) -> QueuedPass | None:
        """Returns the segment of this plan as the run has it, or gets it now."""
        maker, rank_group = self._maker, self.memory.rank_group
        assert maker is not None, "room was given"
        if self.running is not None and not self._can_continue() and not midway:
            self._end()
        queued = self._queue.popleft() if self._queue else None
        if queued is not None and not queued.segment.same(plan.segment):
            self._end()
            queued = None
        if queued is not None and rank_group is not None:
            rank_group.check_files(self.running)
        if queued is None:
            try:
                queued = maker.begin(plan, midway)
            except PlanError as error:
                if self.options.nbytes is not None:
                    raise
                log.info("no buffer: %s", error)  # which nobody has asked for
                if not midway:
                    self._end()
                self.memory.nbytes, self.memory.weighed = 0, None
        return queued

    def _can_continue(self) -> bool:
        """Waits for planning in the background. Returns whether the run can continue from pass to pass."""
        work, running = self._work, self.running
        assert running is not None
        # Without work there was no thread to be had.
        error = work.error() if work is not None else None if self._queue else failed(self._append_later)
        self._work = None
        if error is not None:  # it was a guess: what begins now is planned afresh
            level, self._warned = logging.DEBUG if self._warned else logging.WARNING, True
            log.log(level, "the passes to come could not be planned beforehand: %r", error)
            return False
        if running.broken and self.memory.rank_group is None:  # other ranks may not know of it yet
            return False
        # Batches that nobody takes would be in the way.
        return running.released == (self._queue[0].base if self._queue else running.appended)

    def has_prepared(self, facts: Mapping[str, Any]) -> bool:
        """Waits for planning in the background. Returns whether the pass that begins was prepared, by what it follows
        from."""
        with self._lock:
            if self.running is None or self._is_held_by_another(None):
                return False
            if self._work is not None:
                self._work.wait()
            elif not self._queue:
                failed(self._append_later)
            return bool(self._queue) and self._queue[0].segment.facts == facts

    def _append_later(self, stopped: threading.Event) -> None:
        maker = self._maker
        assert maker is not None
        if (queued := maker.append_later(stopped)) is not None:
            self._queue.append(queued)

    def leave(self, lease: BufferLease, whole: bool) -> None:
        """Ends a pass. The run continues if the pass took all of its batches."""
        if self._owner != os.getpid() or self._lease is not lease:
            return
        if isinstance(threading.current_thread(), Background):  # the garbage collector's: left to the next iterator
            lease.orphaned = True
            return
        with self._lock:
            self._lease = None
            if not whole:
                self._end()

    def begin_anew(self, options: BufferOptions) -> None:
        """Ends the run, and forgets what is read. The next pass has a buffer by these options."""
        with self._lock:
            self._end()
            self._lease = None
            self.options = options
            self._reset()

    def close(self) -> None:
        """Ends the run, and the connection to a service. The next iterator begins anew."""
        if self._owner == os.getpid():
            with self._lock:
                self._end()
                self._lease = None
                if self.options.service is not None:
                    self.options.service.close()

    def _end(self) -> None:
        """Ends the present run, if there is one."""
        if self._work is not None:
            self._work.stop()
        if self._maker is not None:
            self._maker.end()
        self._work = None
        self._queue.clear()

    # --- what it says ----

    def advice(self, *, shuffled: bool = False, mixed: int = 0) -> str:
        """Describes what a buffer would gain, or what this one would gain from knowing more of the order.

        `shuffled`: the order is an exact shuffle. `mixed`: the window of a mixed order, in samples.
        """
        own, memory = self.planned_run, self.memory
        if own is None or own.window is None:
            nbytes, why = (0, "") if memory.nbytes or memory.weighed is None else memory.weighed()
            return f"A buffer (`buffer='25%'`, say) would help: {why}, as modelled." if nbytes else ""
        from solar.buffer import buffer_gain as gain

        window, alone, guessed = own.window, memory.rank_group is None, self._order_known[0]
        foreseen = gain.foresight(window, self.options.epochs) if guessed and len(window.segments) == 1 else ""
        other = gain.mixed_gain(window, self.options.epochs) if shuffled and alone and not foreseen else ""
        return " ".join(filter(None, (foreseen, other if not alone else _of_window(window, mixed) or other)))

    def held(self) -> str:
        """Describes how the buffer holds samples, unless it holds them as they are; or what a service did."""
        makers: list[PassMaker | None] = [self.options.service, self.planned_run]
        return next((said for one in makers if one is not None and (said := one.held())), "")

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the run out: a copy in another process has its own."""
        return {name: self.__dict__[name] for name in ("options", "storage", "_stats")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __del__(self) -> None:
        maker = self.__dict__.get("_maker")
        if maker is not None and maker.run is not None and not sys.is_finalizing():
            if self._work is not None:
                self._work.stop()
            maker.drop()
            self.close()


def _of_window(window: PlannedPasses, mixed: int) -> str:
    """Advises a smaller window of the mixed order if memory has no room for this one."""
    from solar.buffer.buffer_gain import fitting_window

    if mixed <= (fits := fitting_window(window)):
        return ""
    return (
        f"A window of the mixed order has {mixed:,} samples, and memory has room for {fits:,}: parts of it are read "
        f"again. With window={fits} or less, or more memory, less would be read."
    )


def begin_pass(
    buffer: LoaderBuffer,
    source: SampleSource,
    batches: Indices,
    sampler_state: SamplerState,
    pace: AheadSpec,
    replaced: ReadError | None,
) -> BufferedPass | None:
    """Returns a pass whose batches come from the buffer; None if they are read without it."""
    own = partial(batch_needs, source, pace)
    room = buffer.room(source, sampler_state, batches.position.order, own, replaced)
    if room is None:
        return None
    from solar.buffer.buffered_pass import BufferedPass

    return BufferedPass(buffer, room, source, batches, sampler_state, pace)
