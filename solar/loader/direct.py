"""DirectBatches: hands out batches that need no work between being read and reaching your loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from solar.io.system.waiting import SAID_AFTER, until
from solar.loader.batch import BatchMaker, here, profiling
from solar.loader.batch_queue import BatchFuture, failed_batch
from solar.loader.batch_sources import (
    Assemble,
    BatchFeed,
    DirectSource,
    NotDirect,
)
from solar.loader.stats import FOLDED
from solar.samplers.epoch_position import EpochPosition
from solar.samples.pending import PendingBatch


class DirectBatches:
    """Hands out batches as they are read. `hand_out` raises where one needs more work; then call `leave`.

    It makes no object that outlives a batch. Counting is left to Stats, which does it when it is asked or after several
    batches. `form` makes what the user gets of each array; None leaves it.
    """

    def __init__(
        self,
        source: DirectSource,
        feed: BatchFeed,
        assemble: Assemble,
        form: Callable[[Any], Any] | None,
        stats: Any,
        position: EpochPosition,
        waits: bool,
    ) -> None:
        self.source, self.feed = source, feed
        self._assemble, self._form = assemble, form
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
        came = feed.take(0.0)
        if came is None:
            if not self._waits:
                raise NotDirect
            came = until(feed.take, SAID_AFTER)
            if came is None:  # the queue says what it waits for
                raise NotDirect
        parts, counts = came
        there = time.perf_counter()
        data = self._assemble(parts if self._form is None else [*map(self._form, parts)])
        self._position.advance()
        now = time.perf_counter()
        self._noted.append(
            (
                asked_at - last if last else 0.0,
                there - asked_at,
                now - there,
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

    def leave(self, making: BatchMaker) -> list[BatchFuture]:
        """Returns the batches that are being read, so that the iterator can go on with them."""
        self._stats.held(-self._held)
        self._position.taken = self.source.called()  # the value: the method would keep the source
        return [begun_batch(pending, samples, making) for pending, samples in self.feed.leave()]


def begun_batch(pending: PendingBatch | Exception, samples: Any, making: BatchMaker) -> BatchFuture:
    """Returns a batch that is being read, or that failed, as one that is made when the loop takes it."""
    if isinstance(pending, Exception):
        return failed_batch(pending, samples)
    future = here(pending, len(samples), making, ())
    future.called = samples
    return future
