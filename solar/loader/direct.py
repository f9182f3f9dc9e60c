"""DirectBatches: hands out batches that need no work between being read and reaching your loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from solar.io.system.waiting import SAID_AFTER, until
from solar.loader.batch import profiling
from solar.loader.batch_queue import BatchFuture, failed_batch
from solar.loader.batch_sources import Assemble, BatchFeed, DirectSource, NotDirect, Taken
from solar.loader.stats import FOLDED
from solar.samplers.epoch_position import EpochPosition
from solar.samples.pending import PendingBatch

# What the user's own Python makes of the arrays of a batch and the numbers of its samples, in the thread of the loop;
# and when the transform was done.
MakeInPython = Callable[[list[Any], Any], tuple[Any, float]]


class DirectBatches:
    """Hands out batches as they are read. `hand_out` raises where one needs more work; then call `leave`.

    It makes no object that outlives a batch. Counting is left to Stats, which does it when it is asked or after several
    batches. `form` makes what the user gets of each array; None leaves it. `in_python`, if it is not None, makes the
    batch in place of `assemble`: what it raises comes in the turn of its batch, and Ctrl-C in it loses no batch.
    """

    def __init__(
        self,
        source: DirectSource,
        feed: BatchFeed,
        assemble: Assemble,
        form: Callable[[Any], Any] | None,
        in_python: MakeInPython | None,
        stats: Any,
        position: EpochPosition,
        waits: bool,
    ) -> None:
        self.source, self.feed = source, feed
        self._assemble, self._form, self._in_python = assemble, form, in_python
        self._kept: Taken | Exception | None = None  # what `in_python` makes a batch of, or what it raised
        self._left = False
        self._stats, self._position, self._waits = stats, position, waits
        self._noted, self._held = stats.noted, source.ahead * source.nbytes  # between two batches
        position.taken = source.called  # who asks calls it
        stats.held(self._held + source.nbytes)  # the most at a time: the next is begun before one is handed out
        stats.held(-source.nbytes)

    def hand_out(self, asked_at: float, last: float) -> tuple[Any, float]:
        """Returns the next batch, and the time at which it was handed out.

        `asked` is when the loop asked for it, `last` when the loop got the one before; 0: there was none.
        """
        source, feed = self.source, self.feed
        if profiling():  # the queue has its ranges
            raise NotDirect
        kept = self._kept
        came = feed.take(0.0) if kept is None or isinstance(kept, Exception) else kept
        if came is None:
            if not self._waits:
                raise NotDirect
            came = until(feed.take, SAID_AFTER)
            if came is None:  # the queue says what it waits for
                raise NotDirect
        parts, counts = came
        there = transformed = time.perf_counter()
        if self._in_python is None:
            data = self._assemble(parts if self._form is None else [*map(self._form, parts)])
        else:
            self._kept = came
            data, transformed = self._made_in_python(self._in_python, parts)
        self._position.advance()
        now = time.perf_counter()
        self._noted.append(
            (
                asked_at - last if last else 0.0,
                there - asked_at,
                transformed - there,
                now - transformed,
                source.samples,
                source.nbytes,
                feed.names,
                counts,
            )
        )
        if source.drained:
            before, self._held = self._held, source.left
            self._stats.held(self._held - before)
        if source.ended:
            self._stats.whole()
        elif len(self._noted) >= FOLDED:
            self._stats.fold()
        return data, now

    def _made_in_python(self, make: MakeInPython, parts: list[Any]) -> tuple[Any, float]:
        try:
            made = make(parts, self.source.numbers())
        except Exception as error:
            self._kept = error
            raise NotDirect from None
        if self._left:  # meanwhile, by another thread
            raise NotDirect
        self._kept = None
        return made

    def leave(self, future: Callable[[PendingBatch, Any], BatchFuture]) -> list[BatchFuture]:
        """Returns the batches that are being read, so that the iterator can go on with them.

        `future` has a batch, of these indices, made when the loop takes it.
        """
        self._left = True
        self._stats.held(-self._held)
        called = self._position.taken = self.source.called()  # the value: the method would keep the source
        begun = list[BatchFuture]()
        kept, self._kept = self._kept, None
        if isinstance(kept, Exception):
            begun.append(failed_batch(kept, called))
        elif kept is not None and self._in_python is not None:
            begun.append(_interrupted(self._in_python, kept, self.source))
        for pending, samples in self.feed.leave():
            begun.append(failed_batch(pending, samples) if isinstance(pending, Exception) else future(pending, samples))
        return begun


def _interrupted(make: MakeInPython, came: Taken, source: DirectSource) -> BatchFuture:
    """Returns a batch that was interrupted while it was made, as one that is made anew when the loop takes it."""
    pending = PendingBatch((), [])
    pending.nbytes, numbers = source.nbytes, source.numbers()
    future = BatchFuture(pending, source.samples, lambda future, seconds: make(came[0], numbers)[0])
    future.called = source.called()
    return future
