"""Buffered: a loader's buffer over its life: what is planned, what runs, and which iterator takes its batches."""

from __future__ import annotations

import logging
import operator
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from solar.io.buffered import Running
from solar.io.quantities import in_words as size_in_words
from solar.planner.sweep import Counts, Way, total
from solar.torch.beneath import Beneath
from solar.torch.budget import FITS, Budget, Profile, Size, asked, auto, checked_storage, ranks_here, storage_of
from solar.torch.position import Course, Passage
from solar.torch.stats import Stats
from solar.torch.turn import Pace, Turn
from solar.torch.windows import Segment, Window, fit, in_words, layouts_of, pieces_of
from solar.values import Layout

log = logging.getLogger("solar")

USES = 5_000_000, 40_000_000  # that are planned together: at first, and later, while others run
SEGMENTS = 32, 256  # at most


class Queued(NamedTuple):
    """A segment that the run has, and no iterator has begun."""

    segment: Segment
    base: int  # number of its first batch in the run


class Buffered:
    """The buffer of a loader. One iterator at a time takes its batches from it; any other reads without.

    The run goes on from pass to pass as long as each takes the samples that were foreseen. Where it does not, or was
    left in its midst, the run ends and another begins.
    """

    def __init__(self, buffer: Size, epochs: int | None, storage: Profile, stats: Stats) -> None:
        if epochs is not None and operator.index(epochs) < 1:
            raise ValueError(f"epochs={epochs}: at least one, or None where nobody knows")
        self._nbytes = asked(buffer)
        self._epochs, self._storage, self._stats = epochs, checked_storage(storage), stats
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._chosen: int | None = None  # bytes, once it is known what is to be read
        self._ways: tuple[Any, Sequence[Way | None]] = (None, [])  # chosen last, and under which conditions
        self._forget()

    def _forget(self) -> None:
        self.running: Running | None = None
        self._window: Window | None = None  # the one that the run is told of, segment by segment
        self.planned = Counts()  # what all that was handed to the run takes, as planned
        self._queue: deque[Queued] = deque()
        self._later: Iterator[Callable[[], Segment]] = iter(())  # what comes after the windows
        self._work: _Work | None = None
        self._holder: Turn | None = None
        self._budget: Budget | None = None

    # --- an iterator begins, and ends ----

    def begin(
        self, beneath: Beneath, batches: Iterator[Any], passage: Passage, course: Course, pace: Pace
    ) -> Turn | None:
        """The batches of a pass, to be taken from the buffer; None where they are read without one."""
        if self._owner != os.getpid():  # a forked process makes its own
            self._reset()
        with self._lock:
            if self._chosen is None:
                self._chosen = self._choose(beneath, course.batch_size or 1, passage.order.fixed)
            if not self._chosen:
                return None
            if self._holder is not None and self._holder.orphaned:
                self._holder = None
                self._end()
            if self._holder is not None:
                log.info("another iterator of this loader takes batches from its buffer: this one reads without")
                return None
            left = None if self._epochs is None else max(0, self._epochs - course.epoch - 1)
            self._holder = Turn(self, beneath, batches, passage, course, pace, self._chosen, left)
        try:
            self._holder.draw()
        except BaseException:
            self._holder = None
            raise
        return self._holder

    def _choose(self, beneath: Beneath, batch: int, fixed: bool) -> int:
        """The bytes of the buffer, 0 for none. Says why."""
        if self._nbytes == 0:
            return 0
        layouts = layouts_of(beneath)
        if refused := next((said for layout in layouts if (said := _not_carried(layout))), ""):
            if self._nbytes is not None:
                log.info("no buffer: %s", refused)
            return 0
        if self._nbytes is not None:
            return max(1, self._nbytes // ranks_here())
        if not fixed:  # nobody has asked for a buffer, and it would draw from the sampler long before
            return 0
        nbytes, why = auto(layouts, batch, self._storage)
        log.log(logging.DEBUG if why == FITS else logging.INFO, "%s: %s", "a buffer" if nbytes else "no buffer", why)
        return nbytes

    def enter(self, turn: Turn, segment: Segment, amid: bool) -> tuple[Running, int] | None:
        """Has the run make these batches next, and plans what comes later. Gives the number of the first of them."""
        with self._lock:
            if self._work is not None:
                self._work.result()
            queued = self._queue.popleft() if self._queue else None
            if queued is not None and not queued.segment.same(segment):
                self._end()
                queued = None
            if queued is None:
                queued = self._begin(turn, segment, amid)
            if queued is None or self.running is None:
                return None
            self._work = _Work(self._go_on)
            return self.running, queued.base

    def leave(self, turn: Turn, whole: bool) -> None:
        """The iterator takes no more. The run goes on if it took all."""
        if self._owner != os.getpid() or self._holder is not turn:
            return
        if isinstance(threading.current_thread(), _Work):  # the garbage collector's doing: left to the next iterator
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

    # --- the run ----

    def _begin(self, turn: Turn, segment: Segment, amid: bool) -> Queued | None:
        """A new window from here on, for the run there is if it can carry that out, else for a new one.

        None amid a pass, whose run cannot be left: its batches are on their way.
        """
        budget, later = turn.budget(segment), chain([lambda: segment], turn.later())
        if budget != self._budget:
            if amid:
                return None
            self._end()
        makers = list(islice(later, max(1, min(SEGMENTS[0], USES[0] // len(segment.rows)))))
        window = self._planned(makers, turn.beneath, budget)
        if self.running is not None and not self._goes_on(window):
            if amid:
                return None
            self._end()
        if self.running is None:
            self._start(turn, window, budget)
        self._later, self._budget = later, budget
        return self._append(window)

    def _planned(self, makers: list[Callable[[], Segment]], beneath: Beneath, budget: Budget) -> Window:
        """The next window of these segments, by the ways of the last one, whose samples may have come to stay."""
        last, kind = self._window, (budget, len(makers) > 1)
        pieces = pieces_of(beneath) if last is None else last.pieces
        ways: Sequence[Way | None] = [None] * len(pieces)
        if last is not None:
            ways = last.ways
        elif self._ways[0] == kind:
            ways = self._ways[1]
        first = 0 if last is None else last.segments.stop
        storages = [storage_of(layout, self._storage)[0] for layout in layouts_of(beneath)]
        # In a thread of its own, for an error caught there keeps the frames of all callers alive, the iterator's too.
        window = _apart(partial(Window, makers, first, beneath, pieces, budget.parts, budget.batch, storages, ways))
        self._ways = kind, window.ways
        return window

    def _goes_on(self, window: Window) -> bool:
        """Whether the run there is can carry this window out after its last."""
        running, last = self.running, self._window
        return (
            running is not None and last is not None and last.ways == window.ways and fit(window.parts(), running.parts)
        )

    def _start(self, turn: Turn, window: Window, budget: Budget) -> None:
        self.running = Running(turn.rows(), window.parts(), budget.staged, budget.scratch)
        self._stats.held(self.running.nbytes)
        sources = dict.fromkeys(storage_of(layout, self._storage)[1] for layout in layouts_of(turn.beneath))
        log.info(
            "a buffer of %s with %d batches ready: %s; storage %s",
            size_in_words(budget.nbytes), budget.staged, in_words(window), ", ".join(sources),
        )  # fmt: skip

    def _append(self, window: Window) -> Queued:
        """Hands the next segment of the window to the run."""
        running = self.running
        assert running is not None
        number, before, self._window = window.next, self._window, window
        segment, base = window.segment(number), running.appended
        running.append(segment.sizes, window.told(number))
        self.planned = total([self.planned, *window.counts(number, before)])
        window.next = number + 1
        return Queued(segment, base)

    def _go_on(self, stopped: threading.Event) -> None:
        """What is done while an epoch runs: the next one is handed to the run, after planning if need be."""
        window, budget = self._window, self._budget
        assert window is not None
        assert budget is not None
        if window.next == window.segments.stop:
            most = max(1, min(SEGMENTS[1], USES[1] // len(window.segment(window.next - 1).rows)))
            makers = [_unless(stopped, make) for make in islice(self._later, most)]
            if not makers:
                return
            window = self._planned(makers, window.beneath, budget)
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
        return {name: self.__dict__[name] for name in ("_nbytes", "_epochs", "_storage", "_stats")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __del__(self) -> None:
        if getattr(self, "running", None) is not None and not sys.is_finalizing():
            self.close()


class _Stopped(Exception):
    """Nobody wants any more what a thread plans."""


class _Work(threading.Thread):
    """A thread that does one thing, and may be told to stop."""

    def __init__(self, do: Callable[[threading.Event], None]) -> None:
        super().__init__(name="solar-planning")
        self._do: Callable[[threading.Event], None] | None = do
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        assert self._do is not None
        try:
            self._do(self._stopped)
        except _Stopped:
            pass
        except Exception as error:  # raised where the result is asked for
            self._error = error
        finally:
            self._do = None

    def result(self) -> None:
        """Waits for the end. Raises what went wrong."""
        self.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopped.set()
        if threading.current_thread() is not self:
            self.join()


def _apart(make: Callable[[], Window]) -> Window:
    """What is made, in another thread."""
    made: list[Window] = []
    _Work(lambda _: made.append(make())).result()
    if not made:
        raise _Stopped
    return made[0]


def _unless(stopped: threading.Event, make: Callable[[], Segment]) -> Callable[[], Segment]:
    def made() -> Segment:
        if stopped.is_set():
            raise _Stopped
        return make()

    return made


def _not_carried(layout: Layout) -> str:
    """Why samples of this Layout cannot be kept; empty if they can."""
    where = f"{layout.paths[0]}: {layout.name}"
    if layout.reader != "direct":
        return f"{where} is read through libhdf5: {layout.reason}"
    return f"{where} has no bytes" if layout.nbytes == 0 else ""
