"""BatchQueue: the batches of an epoch that are being made. BatchFuture: one of them. They need no torch."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any

from solar.buffer.buffer_memory import placed
from solar.errors import CodecError, ReadError, SolarError
from solar.io.system import lifecycle
from solar.io.system.waiting import GLANCE, WaitTimeout, submitted
from solar.loader.batch_sources import FORKED
from solar.loader.stats import Stats
from solar.samplers.epoch_position import EpochPosition
from solar.samples.pending import PendingBatch
from solar.samples.source import SampleSource, look_at_files

ITERATOR_CLOSED = "this iterator was closed with its loader"
UNWANTED = "the batch is no longer wanted"
UNREADABLE = (ReadError, CodecError)  # errors that a sample's own bytes can cause

Get = Callable[["BatchFuture", float | None], Any]  # gives the value, or raises WaitTimeout after so many seconds
Act = Callable[["BatchFuture", Any], Any]
Span = Callable[[], AbstractContextManager[Any]]


class LeftOutSample(Exception):
    """No sample of a batch could be read, so the batch is left out."""


class BatchFuture:
    """A batch that the user will get: `get` makes it, then each step changes it. It knows how long each step took.

    Steps receive the future as an argument and never hold a reference to it: an error's traceback, or a cycle, would
    keep its memory alive.
    """

    def __init__(self, pending: PendingBatch, samples: int, get: Get) -> None:
        self.pending, self.samples = pending, samples
        self.called: Any = ()  # the indices of its samples
        self.transform_seconds = self.collate_seconds = self.copy_seconds = 0.0
        self.missing = "it has not begun"  # what a thread that makes it waits for
        self._get: Get | None = get
        self._steps: list[Act] = []
        self._futures: list[Future[Any]] = []

    def then(self, act: Act) -> BatchFuture:
        """Adds a step, which runs in the thread that waits for the batch."""
        self._steps.append(act)
        return self

    def ahead(self, pool: Executor, act: Act, stopped: threading.Event, waiting: Span) -> BatchFuture:
        """Has a thread do all steps so far, and this one. The consumer waits for it within `waiting`."""
        get, steps, self._steps = self._get, self._steps, []
        assert get is not None, "it was forgotten"
        number, process = len(self._futures), os.getpid()
        self._futures.append(submitted(pool, _ahead, self, get, [*steps, act], stopped))

        def result(future: BatchFuture, seconds: float | None) -> Any:
            if process != os.getpid():
                raise RuntimeError(FORKED)
            try:
                with waiting():
                    return future._futures[number].result(seconds)
            except TimeoutError:
                if future._futures[number].done():  # the user's own
                    raise
                raise WaitTimeout(future.missing) from None

        self._get = result
        return self

    def wait(self, seconds: float | None) -> Any:
        """Waits for the batch. It may be called again after WaitTimeout, or after Ctrl-C."""
        if self._get is None:
            raise RuntimeError(UNWANTED)
        data = self._get(self, seconds)
        for act in self._steps:
            data = act(self, data)
        return data

    def until(self, stopped: threading.Event, look: Callable[[], Any]) -> Any:
        """Waits, in a thread, until `look` returns something. RuntimeError: the batch is no longer wanted."""
        while not stopped.is_set() and self._get is not None:
            try:
                if found := look():
                    return found
            except WaitTimeout as error:
                self.missing = str(error)
        raise RuntimeError(UNWANTED)

    def forget(self) -> None:
        """Gives the batch up. What a thread is still making is freed when it is done, and its error is dropped."""
        futures, self._futures = self._futures, []
        self._get, self._steps = None, []
        for future in futures:
            future.add_done_callback(_let_go)


def _ahead(future: BatchFuture, get: Get, steps: list[Act], stopped: threading.Event) -> Any:
    [data] = future.until(stopped, lambda: [get(future, GLANCE)])
    for act in steps:
        data = act(future, data)
    return data


def _let_go(future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        getattr(future.result(), "release", bool)()  # a batch on a device frees its memory


# At its end the interpreter first joins a pool's threads, so they must not wait for a read that stalls.
_running: weakref.WeakSet[Any] = weakref.WeakSet()


def ended_first(pool: Any) -> None:
    """Closes a pool when the program ends, before the interpreter waits for its threads."""
    _running.add(pool)


def stop_threads() -> None:
    for threads in list(_running):
        threads.close()


lifecycle.before_threads_end(stop_threads)  # before that of ThreadPoolExecutor, which waits


def failed_batch(error: Exception, samples: Any = ()) -> BatchFuture:
    """Returns a batch of these samples that could not be begun: waiting for it raises the error."""
    failed = BatchFuture(PendingBatch((), []), len(samples), partial(_fail, error))
    failed.called = samples
    return failed


def _fail(error: Exception, future: BatchFuture, seconds: float | None) -> Any:
    try:
        raise error
    finally:
        del error, future  # or the error and this frame, which is in its traceback, would keep each other alive


class BatchQueue:
    """The batches of an epoch that are being made, oldest first, as many as may be ahead of the loop.

    An error, also one of the sampler, takes the place of its batch and is raised in its turn, as in torch.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        position: EpochPosition,
        begin: Callable[[Any, int], BatchFuture],
        stats: Stats,
        ahead: int,
        ahead_nbytes: int,
    ) -> None:
        """`begin` starts a batch, by its indices and its number in the epoch. The others limit what is ahead."""
        self.indices, self.position, self.stats = indices, position, stats
        self.ahead, self.ahead_nbytes = ahead, ahead_nbytes
        self.begun = 0
        self.drained = self.sampler_failed = False
        self._begin = begin
        self._drawn: deque[Any] = deque()  # the indices of the next batch, if it is not begun yet
        self._futures: deque[BatchFuture] = deque()
        self._ahead_that_fit = 0  # in `ahead_nbytes`, if they are as large as the newest one

    def __len__(self) -> int:
        return len(self._futures)

    @property
    def oldest(self) -> BatchFuture:
        return self._futures[0]

    def fill(self) -> None:
        """Begins batches until `ahead` of them are being made besides the oldest, which the loop takes next."""
        while not self.drained and len(self._futures) <= min(self.ahead, self._ahead_that_fit):
            self.begin_next()

    def begin_next(self) -> None:
        """Begins the next batch; after Ctrl-C, the one that it was about to begin."""
        if not self._drawn:
            try:
                self._drawn.extend(islice(self.indices, 1))  # in one statement, so that none is lost
            except Exception as error:
                self.drained = self.sampler_failed = True
                self._futures.append(failed_batch(error))
                return
            if not self._drawn:
                self.drained = True
                return
        [indices] = self._drawn
        try:
            future = self._begin(indices, self.position.before[0] + self.begun + 1)
        except Exception as error:
            future = failed_batch(error, indices)
        self._futures.append(future)
        self._drawn.clear()
        self.begun += 1
        nbytes = future.pending.nbytes
        self.stats.held(nbytes)
        if future.pending.fields:  # not one that failed
            self._ahead_that_fit = max(0, self.ahead_nbytes // max(1, nbytes) - 1)

    def go_on(self, begun: Iterable[BatchFuture], indices: Iterator[Any], number: int) -> None:
        """Continues where `number` batches were begun by others, some of which are still being made."""
        for one in begun:
            self.stats.held(one.pending.nbytes)
            self._futures.append(one)
        self.indices, self.begun = indices, self.begun + number

    def take(self, wait: Callable[[BatchFuture], Any], dataset: Any, timeout: float) -> tuple[BatchFuture, Any]:
        """Takes the oldest batch as soon as `wait` returns its data, which are returned, too.

        If it failed it stays, to be dropped by `drop_failed`; so it does if Ctrl-C interrupts the wait. Errors name the
        rank, and a batch that takes longer than `timeout` by its number and the dataset.
        """
        try:
            data = wait(self._futures[0])
        except SolarError as error:
            raise placed(error) from error.__cause__
        except WaitTimeout as error:
            number = self.position.before[0] + self.position.batches
            text = f"batch {number} of {dataset} did not come in {timeout:g} s: {error}"
            raise placed(ReadError(text)) from None
        return self._drop(), data

    def replace_oldest(self, future: BatchFuture) -> None:
        old, self._futures[0] = self._futures[0], future
        self.stats.held(future.pending.nbytes)
        self._forget(old)

    def _drop(self) -> BatchFuture:
        if not self._futures:
            raise RuntimeError(ITERATOR_CLOSED)  # by another thread, meanwhile
        future = self._futures.popleft()
        if self._futures or not self.sampler_failed:  # the sampler's error comes last, and is no batch
            self.position.advance()
        return future

    def drop_failed(self) -> None:
        """Drops the oldest batch, so that the loop can go on with the next one."""
        self._forget(self._drop())

    def _forget(self, future: BatchFuture) -> None:
        self.stats.held(-future.pending.nbytes)
        future.forget()
        future.pending.forget()

    def clear(self) -> None:
        """Gives all batches up. No more are begun."""
        self.drained = True
        while self._futures:
            future = self._futures.pop()
            self.stats.held(-future.pending.nbytes)
            future.forget()


def begin_epoch(
    begin: Callable[[ReadError | None], None],
    files: SampleSource,
    source: SampleSource,
    buffer: Any,
    position: EpochPosition,
    timeout: float,
    *,
    gone: bool,
) -> None:
    """Calls `begin` for a new epoch after looking at the files. Raises an error if one was replaced.

    With `gone`, a file that was deleted is an error, too. `begin` gets the error and runs nevertheless if other ranks
    wait for this one: it tells them.
    """
    replaced = look_at_files(files, source, buffer, timeout, gone=gone)
    try:
        if replaced is None or buffer.has_mates(position.order):
            begin(replaced)
        if replaced is not None:
            raise placed(replaced)
    finally:
        del replaced  # or it and this frame, which is in its traceback, would keep each other alive
