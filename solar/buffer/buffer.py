"""LoaderBuffer: the buffer of a loader from its first epoch to its last."""

from __future__ import annotations

import logging
import operator
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice
from typing import Any

from solar.buffer import buffer_size as sizing
from solar.buffer.located import (
    HeldData,
    PassPlan,
    QueuedPass,
    layouts_of_source,
    most_rows_per_sample,
    not_held,
    pieces_of,
    rows_of,
    worthwhile_bytes,
)
from solar.buffer.rank_group import RankGroup, RankMemory, check_alone, check_exchange, those_of
from solar.buffer.thread import Background, apart, failed, in_background, unless
from solar.errors import PlanError, ReadError
from solar.io.reading.run import Run, Running
from solar.io.system.cores import reading_threads
from solar.loader.stats import Stats
from solar.planning.budget import Budget, Needs, divide_memory, wholes
from solar.planning.pass_uses import PassUses
from solar.planning.plan import Plan
from solar.planning.planned_passes import (
    Piece,
    PlannedPasses,
    goes_on,
    in_words,
    packed_ratio,
    passes_per_plan,
    policies_after,
)
from solar.planning.served import encoding_nbytes, packable, tables_nbytes
from solar.planning.sweep import Counts, RetentionPolicy, total
from solar.samplers.epoch_position import SamplerState
from solar.samplers.index_stream import IndexStream
from solar.samples.source import SampleSource
from solar.values import Layout, RowPacking, Storage


def packings(
    pieces: Sequence[Piece],
    layouts: Sequence[Layout],
    storages: Sequence[Storage],
    memory: int,
    rank_group: RankGroup | None,
) -> list[RowPacking | None]:
    """Returns how each piece may be held packed in this memory; None if it may not.

    Ranks that read together pack only if all of them found the same.
    """
    from solar.io.reading.trial import may_be_packed, on_cores, try_packing

    pairs = zip(pieces, layouts, strict=True)
    # Blocks are cut where they lie.
    packable = [may_be_packed(one) and not own.in_blocks for own, one in pairs]
    if not any(packable):
        return [None] * len(pieces)
    share = memory / sum(piece.region.items * piece.units.sample_nbytes for piece in pieces)
    found = [
        try_packing(layout, storage, share) if may and share < 1 else None
        for layout, storage, may in zip(layouts, storages, packable, strict=True)
    ]
    if rank_group is None:
        return [on_cores(one, reading_threads()) for one in found]
    pages = {str(at): one.nbytes if one else 0 for at, one in enumerate(found)}
    least = rank_group.least({"cores": reading_threads(), **pages, **{f"-{at}": -page for at, page in pages.items()}})
    most = {at: -least[f"-{at}"] for at in pages}
    cores = least["cores"] * len(rank_group.names)
    return [on_cores(one, cores) if least[at] == most[at] else None for at, one in zip(pages, found, strict=True)]


def with_packings(pieces: Sequence[Piece], found: Sequence[RowPacking | None]) -> list[Piece]:
    """Returns the pieces, each with the packing that a trial found for it."""
    return [replace(piece, packing=how) for piece, how in zip(pieces, found, strict=True)]


def words_for_held(plans: Sequence[Plan]) -> str:
    """Describes how pieces hold samples, unless they hold them as they are."""
    said = packed_ratio(plans)
    return said and f"The buffer holds samples {said}: encoded when they are read, decoded when they are used."


log = logging.getLogger("solar")

BUFFER_ATTRIBUTES = ("_nbytes", "_as_requested", "_epochs", "storage", "_stats", "_exchange", "_balance")  # of a copy


class LoaderBuffer:
    """The buffer of a loader. It plans passes, and runs the plans.

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
    ) -> None:
        check_exchange(exchange, balance)
        if epochs is not None and operator.index(epochs) < 1:
            raise ValueError(f"epochs={epochs}: at least one, or None where nobody knows")
        self._nbytes, self._as_requested = sizing.requested_bytes(buffer), str(buffer)
        self._epochs, self.storage, self._stats = epochs, sizing.checked_storage(storage), stats
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
        self._nbytes_chosen: int | None = None  # bytes, once it is known what is to be read
        self._apart = 1  # processes of this node that have a buffer of that size each
        self._warm = False  # chosen for what the page cache holds; ranks together may see that differently
        self._weighed: Callable[[], tuple[int, str]] | None = None  # what a buffer gains, where one is possible
        self._rank_group: RankGroup | None = None
        self._threads: int | None = None  # that decode, of all ranks of the node, where they read together
        self._policies: tuple[Any, Sequence[RetentionPolicy | None]] = (
            None,
            [],
        )  # chosen last, and under which conditions
        self._packings: list[RowPacking | None] | None = None  # of each piece, once it was tried
        self._guessed = False  # the passes to come are guesses of ours
        self._warned = False  # of what went wrong in the background
        self._forget()

    def _forget(self) -> None:
        self.running: Run | None = None
        self._window: PlannedPasses | None = None  # the one that the run is told of, segment by segment
        self.planned = Counts()  # what all that was handed to the run takes, as planned: of all ranks of the node
        self.planned_alone = Counts()  # what of the homes of other nodes this process reads by itself
        self._queue: deque[QueuedPass] = deque()
        self._later: Iterator[Callable[[], PassUses]] = iter(())  # what comes after the windows
        self._pieces: list[Piece] = []  # of what is read
        self._work: Background | None = None
        self._holder: HeldData | None = None
        self._budget: Budget | None = None

    def share(self, source: SampleSource) -> float:
        """Returns the share of the data that the buffer has room for; 0: there is no buffer."""
        return min(1.0, (self._nbytes_chosen or 0) / max(1, sum(one.stored_nbytes for one in source.layouts())))

    # --- an iterator begins, and ends ----

    def has_mates(self, order: IndexStream) -> bool:
        """Returns whether other ranks may be waiting for this one when a pass begins."""
        return self._nbytes != 0 and those_of(self._exchange, order) is not None

    def room(
        self, source: SampleSource, sampler_state: SamplerState, order: IndexStream, own: Callable[[int], Needs],
        replaced: ReadError | None,
    ) -> RankMemory | None:  # fmt: skip
        """Returns the memory of a pass that begins; None if its batches are read without the buffer."""
        if self._owner != os.getpid():  # a forked process makes its own
            self._reset()
        with self._lock:
            if self._nbytes_chosen is None:
                self._nbytes_chosen = self._choose(source, sampler_state, order, own, replaced)
            if not self._nbytes_chosen or self._serve_held_by_other(None):
                return None
            if self._rank_group is not None:
                self._rank_group.replaced = replaced
            self._guessed, self.foreseen = order.guessed, order.is_foreseen
            left = None if self._epochs is None else max(0, self._epochs - sampler_state.epoch - 1)
            return RankMemory(self._rank_group, self._nbytes_chosen, self._apart, left)

    def _serve_held_by_other(self, hold: HeldData | None) -> bool:
        if self._holder is not None and self._holder.orphaned:
            self._holder = None
            self._end()
        if self._holder is None or self._holder is hold:
            return False
        said = "another iterator of this loader takes batches from its buffer"
        if self._rank_group is not None and self._rank_group.balance == "uneven":
            raise PlanError(f'{said}, and with balance="uneven" there is no reading without: end that one first')
        log.info("%s: this one reads without", said)
        return True

    def _choose(
        self, source: SampleSource, sampler_state: SamplerState, order: IndexStream, own: Callable[[int], Needs],
        replaced: ReadError | None,
    ) -> int:  # fmt: skip
        """Chooses the bytes of the buffer (of all ranks of the node that share one), 0 for none, and logs why."""
        layouts = layouts_of_source(source)
        if refused := not_held(source, self._as_requested if self._nbytes else ""):
            if self._nbytes:
                log.info("no buffer: %s", refused)
            return 0
        left = self._nbytes == 0 or (self._nbytes is None and not order.fixed)
        found = None if left else those_of(self._exchange, order)
        ranks = sizing.ranks_here() if found is None else 1  # that have a buffer each
        batch, all_ = sampler_state.batch_size or 1, 1 if found is None else found.ranks
        self._weighed = cache(
            partial(worthwhile_bytes, source, batch * all_, self.storage, own(batch), ranks, self._epochs)
        )
        if left:
            return 0  # where nobody has asked for a buffer, it would draw from the sampler long before
        if self._nbytes is not None:
            self._apart, nbytes = ranks, max(1, self._nbytes // ranks)
        else:
            nbytes, why = self._weighed()
            self._warm = found is None and sizing.fit_page_cache(layouts, ranks)
            level = logging.DEBUG if why == sizing.FITS else logging.INFO
            log.log(level, "%s buffer: %s", "a" if nbytes else "no", why)
        try:
            self._rank_group = None
            if nbytes and found is None:
                check_alone(self._balance)
            elif nbytes and found is not None:
                facts = {name: getattr(sampler_state.cutter, name) for name in ("batch_size", "drop_last")}
                facts |= {"buffer": self._as_requested, "epochs": self._epochs}
                of, wanted = (source, order, self._exchange, self._balance), self._nbytes or self._exchange != "auto"
                self._rank_group = RankGroup(found, *of, facts, nbytes, bool(wanted), replaced)
        except PlanError as error:
            if self._nbytes is not None or self._exchange != "auto":
                raise
            log.warning("no buffer, which nobody has asked for: %s", error)
            self._weighed = None
            return 0
        return nbytes if self._rank_group is None else self._rank_group.nbytes

    def advice(self, *, shuffled: bool = False, mixed: int = 0) -> str:
        """Describes what a buffer would gain, or what this one would gain from knowing more of the order.

        `shuffled`: the order is an exact shuffle. `mixed`: the window of a mixed order, in samples.
        """
        window = self._window
        if window is not None:
            foreseen = sizing.foresight(window, self._epochs) if self._guessed and len(window.segments) == 1 else ""
            alone = self._rank_group is None
            other = sizing.mixed_gain(window, self._epochs) if shuffled and alone and not foreseen else ""
            if mixed > (fits := sizing.fitting_window(window)) and alone:
                other = (
                    f"A window of the mixed order has {mixed:,} samples, and memory has room for {fits:,}: parts of it "
                    f"are read again. With window={fits} or less, or more memory, less would be read."
                )
            return " ".join(filter(None, (foreseen, other)))
        nbytes, why = (0, "") if self._nbytes_chosen or self._weighed is None else self._weighed()
        return f"A buffer (`buffer='25%'`, say) would help: {why}, as modelled." if nbytes else ""

    served = foreseen = False  # a service has made batches; the order of the passes to come is known

    def held(self) -> str:
        """Describes how the buffer holds samples, unless it holds them as they are."""
        return "" if self._window is None else words_for_held(self._window.plans)

    def enter(self, plan: PassPlan, hold: HeldData | None) -> HeldData | None:
        """Has the run make these batches next, and plans what comes later. Returns None if they are read without the
        buffer.

        `hold`: they continue a pass that has the buffer already.
        """
        with self._lock:
            if self._serve_held_by_other(hold):
                return None
            amid, appended = hold is not None, None if self.running is None else self.running.appended
            try:
                queued = self._give_up_buffer(plan, amid)
                if queued is None or self.running is None:
                    return None
                self._holder = hold = hold or HeldData(self.running, 0)
                hold.run, hold.base = self.running, queued.base
                self._work = in_background(self._append_later)
                return hold
            except BaseException:  # Ctrl-C, too: nobody takes what the run was told, or will be
                if not amid or self.running is None or self.running.appended != appended:
                    self._end()
                    self._holder = None
                raise

    def _give_up_buffer(self, plan: PassPlan, amid: bool) -> QueuedPass | None:
        """Returns the segment of this plan as the run gets it."""
        if self.running is not None and not self._foretold() and not amid:
            self._end()
        queued = self._queue.popleft() if self._queue else None
        if queued is not None and not queued.segment.same(plan.segment):
            self._end()
            queued = None
        if queued is not None and self._rank_group is not None:
            self._rank_group.check_files(self.running)
        if queued is None:
            try:
                queued = self._new_window(plan, amid)
            except PlanError as error:
                if self._nbytes is not None:
                    raise
                log.info("no buffer: %s", error)  # which nobody has asked for
                self._nbytes_chosen, self._weighed = 0, None
        return queued

    def _foretold(self) -> bool:
        """Waits for planning in the background. Returns whether the run can continue from pass to pass."""
        work, running, self._work = self._work, self.running, None
        assert running is not None
        error = failed(self._append_later) if work is None else work.error()  # None: there was no thread to be had
        if error is not None:  # it was a guess: what begins now is planned afresh
            level, self._warned = logging.DEBUG if self._warned else logging.WARNING, True
            log.log(level, "the passes to come could not be planned beforehand: %r", error)
            return False
        # Batches that nobody takes would be in the way.
        return running.released == (self._queue[0].base if self._queue else running.appended)

    def leave(self, hold: HeldData, whole: bool) -> None:
        """Ends a pass. The run continues if the pass took all of its batches."""
        if self._owner != os.getpid() or self._holder is not hold:
            return
        if isinstance(threading.current_thread(), Background):  # the garbage collector's: left to the next iterator
            hold.orphaned = True
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

    def _new_window(self, plan: PassPlan, amid: bool) -> QueuedPass | None:
        """Plans from here on, for the present run if it can carry the plan out, else for a new one.

        Returns None in the middle of a pass whose run cannot end, because its batches are being made.
        """
        if (rank_group := self._rank_group) is not None and self.running is not None:
            self._end()  # all ranks begin anew
        own = plan.needs()._replace(encodes=encoding_nbytes(self._read(plan.source)))
        needs = [own] if rank_group is None else rank_group.needs({**plan.facts, "buffer": self._nbytes_chosen}, own)
        with nullcontext() if rank_group is None else rank_group.agreeing():
            found = self._window_of(plan, amid, needs)
        if found is None:
            return None
        window, self._budget, self._later = found
        if self.running is None:
            self._start(plan.source, window, self._budget)
        return self._append(window)

    def _window_of(
        self, plan: PassPlan, amid: bool, needs: list[Needs]
    ) -> tuple[PlannedPasses, Budget, Iterator[Callable[[], PassUses]]] | None:
        """Returns the window that begins here, the division of memory, and what comes after. May end a run."""
        segment, source = plan.segment, plan.source
        pieces, later = self._read(source), chain([lambda: segment], plan.later())
        every = wholes([piece.region for piece in pieces])
        budget = divide_memory(self._nbytes_chosen or 0, plan.batch, needs, every, tables_nbytes(pieces), self._apart)
        if self._rank_group is not None:
            self._threads = sum(one.threads for one in needs)
        if budget != self._budget and self.running is not None:
            if amid:
                return None
            self._end()
        uses = len(segment.planned.rows) * most_rows_per_sample(source)
        makers = list(islice(later, passes_per_plan(uses, first=True)))
        window = apart(lambda stopped: self._plan(makers, source, budget, stopped))
        if self.running is not None and not self._goes_on(window):
            if amid:
                return None
            self._end()
            window = apart(lambda stopped: self._plan(makers, source, budget, stopped))
        return window, budget, later

    def _plan(
        self,
        makers: list[Callable[[], PassUses]],
        source: SampleSource | None,
        budget: Budget,
        stopped: threading.Event,
    ) -> PlannedPasses:
        """Returns the next window of these segments. It keeps the last policies: samples may be in memory."""
        last, kind = self._window, (budget, len(makers) > 1)
        if last is not None:
            pieces, ways, storages = last.pieces, policies_after(last, len(makers)), last.storages
        else:
            assert source is not None, "what is read is told with the first passes"
            pieces = packable(self._read(source), budget.scratch)
            ways = list(self._policies[1]) if self._policies[0] == kind else [None] * len(pieces)
            storages, _ = sizing.storages_of(layouts_of_source(source), self.storage, self._threads, warm=self._warm)
        first = 0 if last is None else last.segments.stop
        makers = [unless(stopped, make) for make in makers]
        window = PlannedPasses(makers, first, pieces, budget.parts, budget.batch, storages, ways, last is not None)
        self._policies = kind, window.policies
        return window

    def _read(self, source: SampleSource) -> list[Piece]:
        """Returns the pieces to plan."""
        if not self._pieces:
            found = pieces_of(source) if self._rank_group is None else self._rank_group.pieces()
            if self._packings is None:
                storages, _ = sizing.storages_of(layouts_of_source(source), self.storage, None, warm=self._warm)
                self._packings = packings(
                    found, layouts_of_source(source), storages, self._nbytes_chosen or 0, self._rank_group
                )
            self._pieces = with_packings(found, self._packings)
        return self._pieces

    def _goes_on(self, window: PlannedPasses) -> bool:
        """Returns whether the present run can carry out this window after its last one."""
        last, running = self._window, self.running
        return last is not None and running is not None and goes_on(last, window, running.parts)

    def _start(self, source: SampleSource, window: PlannedPasses, budget: Budget) -> None:
        parts, begin = window.parts(), Running if self._rank_group is None else self._rank_group.running
        rows = rows_of(source) * (len(parts) // len(window.pieces))
        self.running = begin(rows, parts, budget.staged, budget.scratch, lends=budget.lends)
        self._stats.held(self.running.nbytes)
        _, sources = sizing.storages_of(layouts_of_source(source), self.storage, self._threads, warm=self._warm)
        log.info("a buffer of %s: %s; storage %s", budget.in_words(), in_words(window), ", ".join(sources))

    def _append(self, window: PlannedPasses) -> QueuedPass:
        """Hands the next segment of the window to the run."""
        running = self.running
        assert running is not None
        number, self._window = window.next, window
        segment, base = window.segment(number), running.appended
        scripts = window.scripts(number)
        running.append(window.sizes(number, scripts), scripts, segment.parcels)
        self.planned = total([self.planned, *window.counts(number)])
        self.planned_alone = total([self.planned_alone, *window.counts_alone(number)])
        window.next = number + 1
        return QueuedPass(segment, base)

    def _append_later(self, stopped: threading.Event) -> None:
        """Plans the next epoch while this one runs, and hands it to the run."""
        window, budget = self._window, self._budget
        assert window is not None and budget is not None
        if window.next == window.segments.stop:
            uses = window.uses(window.next - 1)
            makers = list(islice(self._later, passes_per_plan(uses, first=False)))
            if not makers or not self._goes_on(window := self._plan(makers, None, budget, stopped)):
                return  # the next pass begins another run
        self._queue.append(self._append(window))

    def _end(self) -> None:
        """Ends the present run, if there is one."""
        work, running, holder = self._work, self.running, self._holder
        if work is not None:
            work.stop()
        if running is not None:
            running.close()
            self._stats.held(-running.nbytes)
        self._forget()
        self._holder = holder

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the run out: a copy in another process has its own."""
        return {name: self.__dict__[name] for name in BUFFER_ATTRIBUTES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __del__(self) -> None:
        running = getattr(self, "running", None)
        if running is not None and not sys.is_finalizing():
            if self._work is not None:
                self._work.stop()
            running.drop()
            self.running = None
            self.close()
