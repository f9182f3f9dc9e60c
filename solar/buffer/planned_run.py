"""PlannedRun: plans windows of passes, and has a run carry them out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from solar.buffer import buffer_size as sizing
from solar.buffer.buffer_memory import BufferMemory, layouts_of_source, most_rows_per_sample, rows_of
from solar.buffer.buffer_size import GivenStorage
from solar.buffer.located import pieces_of
from solar.buffer.thread import apart, unless
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
from solar.samplers.index_stream import IndexStream
from solar.samples.source import SampleSource
from solar.values import Layout, RowPacking, Storage

if TYPE_CHECKING:
    from solar.buffer.rank_group import RankGroup

log = logging.getLogger("solar")


class QueuedPass(NamedTuple):
    """A segment that the run has and that no iterator has begun."""

    segment: PassUses
    base: int  # number of its first batch in the run


class PassPlan(NamedTuple):
    """What a pass wants of a buffer: these batches next."""

    source: SampleSource
    segment: PassUses
    later: Callable[[], Iterator[Callable[[], PassUses]]]  # the passes after it, as far as they are known
    needs: Callable[[], Needs]  # what its batches take of memory, beside what is kept; asked where a window begins
    batch: int  # samples of a batch, at most
    facts: Mapping[str, Any]  # what must be the same on all ranks


class PassMaker(Protocol):
    """Makes the batches of a loader's passes: a PlannedRun, or a service."""

    @property
    def run(self) -> Run | None: ...

    def begin(self, plan: PassPlan, midway: bool) -> QueuedPass | None:
        """Begins with these batches. Returns None if they come `midway` in a pass whose batches are being made."""

    def append_later(self, stopped: threading.Event) -> QueuedPass | None:
        """Prepares the next pass while this one runs, if it is known."""

    def end(self) -> None:
        """Ends the run, if there is one."""

    def drop(self) -> None:
        """Ends the run without waiting for others: the garbage collector may call it."""

    def held(self) -> str:
        """Describes how samples are held, if there is something to say about it."""


class ServiceMaker(PassMaker, Protocol):
    """A service as a loader sees it: it makes the batches as long as it is there, and has the memory."""

    @property
    def memory(self) -> int:
        """The bytes that the service has for these data."""

    @property
    def served(self) -> bool:
        """Whether a service has made batches."""

    @property
    def lost(self) -> bool:
        """Whether the service has gone since its run began."""

    def connected(self, source: SampleSource, order: IndexStream, exchange: str) -> bool:
        """Returns whether a service makes the batches of the pass that begins. Connects to one if need be."""

    def close(self) -> None:
        """Ends the connection."""


class PlannedRun:
    """Plans windows of passes, and hands them to a run pass by pass. If a run cannot go on with the next, it ends."""

    def __init__(self, memory: BufferMemory, storage: GivenStorage, stats: Stats) -> None:
        self.memory, self._storage, self._stats = memory, storage, stats
        self._policies: tuple[Any, Sequence[RetentionPolicy | None]] = (None, [])  # the last, and their conditions
        self._packings: list[RowPacking | None] | None = None  # of each piece, once it was tried
        self._reset()

    def _reset(self) -> None:
        self.run: Run | None = None
        self.window: PlannedPasses | None = None  # the one that the run is told of, segment by segment
        self.planned = Counts()  # what all that was handed to the run takes, as planned: of all ranks of the node
        self.planned_alone = Counts()  # what of the homes of other nodes this process reads by itself
        self._later: Iterator[Callable[[], PassUses]] = iter(())  # what comes after the windows
        self._pieces: list[Piece] = []  # of what is read
        self.budget: Budget | None = None

    def begin(self, plan: PassPlan, midway: bool) -> QueuedPass | None:
        """Plans from here on, for the present run if it can carry the plan out, else for a new one.

        Returns None in the middle of a pass whose run cannot end, because its batches are being made.
        """
        if (rank_group := self.memory.rank_group) is not None and self.run is not None:
            self.end()  # all ranks begin anew
        own = plan.needs()._replace(encodes=encoding_nbytes(self._read(plan.source)))
        needs = [own] if rank_group is None else rank_group.needs({**plan.facts, "buffer": self.memory.nbytes}, own)
        with nullcontext() if rank_group is None else rank_group.agreeing():
            found = self._window_of(plan, midway, needs)
        if found is None:
            return None
        window, self.budget, self._later = found
        if self.run is None:
            self._start(plan.source, window, self.budget)
        return self._append(window)

    def _window_of(
        self, plan: PassPlan, midway: bool, needs: list[Needs]
    ) -> tuple[PlannedPasses, Budget, Iterator[Callable[[], PassUses]]] | None:
        """Returns the window that begins here, the division of memory, and what comes after. May end the run."""
        segment, source, memory = plan.segment, plan.source, self.memory
        pieces, later = self._read(source), chain([lambda: segment], plan.later())
        every = wholes([piece.region for piece in pieces])
        budget = divide_memory(memory.nbytes, plan.batch, needs, every, tables_nbytes(pieces), memory.apart)
        if memory.rank_group is not None:
            memory.threads = sum(one.threads for one in needs)
        if budget != self.budget and self.run is not None:
            if midway:
                return None
            self.end()
        uses = len(segment.planned.rows) * most_rows_per_sample(source)
        held = self.window is not None and self.window.holds_all
        makers = list(islice(later, passes_per_plan(uses, first=True, held=held)))
        look = None if memory.rank_group is None else memory.rank_group.peers.check
        window = apart(lambda stopped: self._plan(makers, source, budget, stopped), look)
        if self.run is not None and not self._goes_on(window):
            if midway:
                return None
            self.end()
            window = apart(lambda stopped: self._plan(makers, source, budget, stopped), look)
        return window, budget, later

    def _plan(
        self,
        makers: list[Callable[[], PassUses]],
        source: SampleSource | None,
        budget: Budget,
        stopped: threading.Event,
    ) -> PlannedPasses:
        """Returns the next window of these segments. It keeps the last policies: samples may be in memory."""
        last, kind = self.window, (budget, len(makers) > 1)
        if last is not None:
            pieces, policies, storages = last.pieces, policies_after(last, len(makers)), last.storages
        else:
            assert source is not None, "what is read is told with the first passes"
            pieces = packable(self._read(source), budget.scratch)
            policies = list(self._policies[1]) if self._policies[0] == kind else [None] * len(pieces)
            storages, _ = self._storages(source)
        first = 0 if last is None else last.segments.stop
        makers = [unless(stopped, make) for make in makers]
        group = self.memory.rank_group
        share = None if group is None else group.shared_plans.of_run
        held = last is not None
        window = PlannedPasses(makers, first, pieces, budget.parts, budget.batch, storages, policies, held, share=share)
        self._policies = kind, window.policies
        return window

    def _storages(self, source: SampleSource) -> tuple[list[Storage], list[str]]:
        memory = self.memory
        return sizing.storages_of(layouts_of_source(source), self._storage, memory.threads, warm=memory.warm)

    def _read(self, source: SampleSource) -> list[Piece]:
        """Returns the pieces to plan."""
        if not self._pieces:
            memory, layouts = self.memory, layouts_of_source(source)
            found = pieces_of(source) if memory.rank_group is None else memory.rank_group.pieces()
            if self._packings is None:
                storages, _ = sizing.storages_of(layouts, self._storage, None, warm=memory.warm)
                self._packings = packings(found, layouts, storages, memory.nbytes, memory.rank_group)
            self._pieces = with_packings(found, self._packings)
        return self._pieces

    def _goes_on(self, window: PlannedPasses) -> bool:
        """Returns whether the present run can carry out this window after its last one."""
        last, run = self.window, self.run
        return last is not None and run is not None and goes_on(last, window, run.parts)

    def _start(self, source: SampleSource, window: PlannedPasses, budget: Budget) -> None:
        rank_group = self.memory.rank_group
        parts, begin = window.parts(), Running if rank_group is None else rank_group.running
        rows = rows_of(source) * (len(parts) // len(window.pieces))
        self.run = begin(rows, parts, budget.staged, budget.scratch, lends=budget.lends)
        self._stats.held(self.run.nbytes)
        _, sources = self._storages(source)
        log.info("a buffer of %s: %s; storage %s", budget.in_words(), in_words(window), ", ".join(sources))

    def _append(self, window: PlannedPasses) -> QueuedPass:
        """Hands the next segment of the window to the run."""
        run = self.run
        assert run is not None
        number, self.window = window.next, window
        segment, base = window.segment(number), run.appended
        scripts = window.scripts(number)
        run.append(window.sizes(number), scripts, segment.parcels)
        self.planned = total([self.planned, *window.counts(number)])
        self.planned_alone = total([self.planned_alone, *window.counts_alone(number)])
        window.next = number + 1
        return QueuedPass(segment, base)

    def append_later(self, stopped: threading.Event) -> QueuedPass | None:
        """Plans the next pass while this one runs, and hands it to the run; None: the next one begins another run."""
        window, budget = self.window, self.budget
        assert window is not None and budget is not None
        if window.next == window.segments.stop:
            uses, held = window.uses(window.next - 1), window.holds_all
            makers = list(islice(self._later, passes_per_plan(uses, first=False, held=held)))
            if not makers or not self._goes_on(window := self._plan(makers, None, budget, stopped)):
                return None
        return self._append(window)

    def end(self) -> None:
        run = self.run
        if run is not None:
            run.close()
            self._stats.held(-run.nbytes)
        self._stop_sharing()
        self._reset()

    def _stop_sharing(self) -> None:
        if self.memory.rank_group is not None:
            self.memory.rank_group.shared_plans.run_ends()

    def drop(self) -> None:
        run, self.run = self.run, None
        self._stop_sharing()
        if run is not None:
            run.drop()
            self._stats.held(-run.nbytes)

    def held(self) -> str:
        return "" if self.window is None else words_for_held(self.window.plans)


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
