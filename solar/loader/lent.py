"""LentBatches: batches that native code takes from a DirectSource and works on, before the loop asks for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from solar import _native
from solar.io.reading.engine import COUNT_NAMES, Engine
from solar.io.reading.reader import Rows
from solar.loader.batch_queue import ended_first
from solar.loader.batch_sources import DirectSource, Left, NotDirect, Taken
from solar.samples.field import Field


class WorkQueue(Protocol):
    """The batches that native code works on, oldest first."""

    waiting: deque[Any]  # one for each of them

    def append(self, samples: int) -> None:
        """Has another batch of so many samples worked on, as soon as it is made."""

    def take(self, seconds: float) -> tuple[list[Any], tuple[int, ...]] | None:
        """Returns the fields of the next batch, and its counts, within this time."""

    def stop(self) -> tuple[list[Any], Exception | None]:
        """Ends the work. Returns the batches that were not handed out, as they came, and the error after them."""


Begin = Callable[[_native.Run | _native.ReadAhead], WorkQueue]
Make = Callable[[list[Any]], list[Any]]


class LentBatches:
    """The batches of a DirectSource that native code works on, at most `places` of them before the loop asks."""

    def __init__(
        self, source: DirectSource, begin: Begin, places: int, names: tuple[str, ...], make: Make | None = None
    ) -> None:
        """`begin` makes the queue of what native code has; `names` are those of the counts that it adds.

        `make` makes what the loop gets of the fields of a batch; None: it gets them as they are.
        """
        self.names = (*source.names, *names)
        self._source, self._begin, self._places, self._make = source, begin, places, make
        self._queue: WorkQueue | None = None
        self._using = threading.RLock()  # the queue, which another thread may stop, or a signal handler
        self._stopped = False
        self._failure: Exception | None = None  # of the first batch that was not worked on
        self._more = (1,) * (len(source.names) - len(COUNT_NAMES))
        ended_first(self)

    def take(self, seconds: float) -> Taken | None:
        with self._using:
            queue = self._start(seconds) if self._queue is None else self._queue
            if queue is None:
                return None
            if not (queue.waiting or self._append_to(queue)):
                raise NotDirect
            try:
                found = queue.take(seconds)
            except Exception as error:
                self._fail(error)
                raise NotDirect from None
            if found is None:
                return None
            self._source.handed()
            self._append_to(queue)
        values = found[0] if self._make is None else self._make(found[0])
        return values, (*found[1][: len(COUNT_NAMES)], *self._more, *found[1][len(COUNT_NAMES) :])

    def _start(self, seconds: float) -> WorkQueue | None:
        """Returns the queue of the next batches; None if they are not ready. Raises NotDirect once it was stopped."""
        if self._stopped:
            raise NotDirect
        native = self._source.native(seconds, self.close)
        if native is None:
            return None
        queue = self._queue = self._begin(native)
        while len(queue.waiting) < self._places and self._append_to(queue):
            pass
        return queue

    def _append_to(self, queue: WorkQueue) -> bool:
        """Has the next batch that is in no queue worked on. Returns False if there is none, or if it was stopped."""
        samples = self._source.next_samples(len(queue.waiting))
        if not samples or self._stopped:
            return False
        queue.append(samples)
        return True

    def _fail(self, error: Exception) -> None:
        """Keeps an error until its batch is asked for."""
        self._stop()

    # --- the end ----

    def leave(self) -> list[Left]:
        self.close()
        return self._source.leave()

    def close(self) -> None:
        """Ends the work, and frees what was made and not handed out. Anybody may call it."""
        with self._using:
            self._stop()

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        queue, self._queue = self._queue, None
        if queue is None:
            return
        left, self._failure = queue.stop()
        self._source.take_back(left, self._failure)


Converts = tuple[tuple[int, ...], np.dtype[Any], _native.Conversion]  # what a sample becomes: its shape, dtype, and how


class ConvertedQueue:
    """Batches whose fields are converted by the engine's threads."""

    names = ("convert_wait_ns",)  # of the counts that it adds

    def __init__(
        self, rows: Sequence[Rows], converts: Sequence[Converts | None], native: _native.Run | _native.ReadAhead
    ) -> None:
        conversions = [None if one is None else one[2] for one in converts]
        self._native = _native.Converter(Engine.get(), native, conversions)
        self._fields = list(zip(rows, converts, strict=True))
        self.waiting = deque[int]()  # their sizes
        self._came = deque[Any]()  # received, and not yet handed out
        self._waited = 0

    def append(self, samples: int) -> None:
        self.waiting.append(samples)
        self._native.begin()

    def take(self, seconds: float) -> tuple[list[Any], tuple[int, ...]] | None:
        if not self._came:
            # In one statement: between two, Ctrl-C could lose the batch.
            self._came.extend(map(self._native.take, (seconds,)))
        found = self._came.popleft()
        if found is None:
            return None
        samples, values = self.waiting.popleft(), list[Any]()
        for (rows, converts), memory in zip(self._fields, found[0], strict=True):
            if converts is None:
                values.append(rows.from_bytes(memory, samples))
            else:
                values.append(np.ndarray((samples, *converts[0]), converts[1], memory))
        before, self._waited = self._waited, self._native.waited_ns()
        return values, (*found[1], self._waited - before)

    def stop(self) -> tuple[list[Any], Exception | None]:
        return stopped(self._native)


def stopped(native: _native.Lander | _native.Converter) -> tuple[list[Any], Exception | None]:
    """Ends native work. Returns the batches that were not handed out, as they came, and the error after them."""
    left = native.stop()
    try:
        native.failed()
    except Exception as error:
        return left, error.with_traceback(None)
    return left, None


def conversions(rows: Sequence[Rows], fields: Sequence[Field | None]) -> list[Converts | None] | None:
    """Returns how native code converts each field, None for those that stay as they are; None if it cannot."""
    found = list[Converts | None]()
    for one, field in zip(rows, fields, strict=True):
        if field is None:
            found.append(None)
            continue
        if not one.plain:
            return None
        converts = field.conversion(one.from_bytes(np.zeros(one.sample_nbytes, np.uint8), 1))
        if converts is None:
            return None
        found.append(converts)
    return found
