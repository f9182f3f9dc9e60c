"""BatchFuture: a batch that is being made. Each step runs in the thread that waits for it, or ahead in another."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.profiler import record_function

from solar.io.system import lifecycle
from solar.io.system.waiting import GLANCE, WaitTimeout
from solar.loader.way import FORKED
from solar.samples.pending import PendingBatch

UNWANTED = "the batch is no longer wanted"

profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]  # whether it runs

Get = Callable[["BatchFuture", float | None], Any]  # gives the value, or raises WaitTimeout after so many seconds
Act = Callable[["BatchFuture", Any], Any]


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

    def ahead(self, pool: Executor, act: Act, stopped: threading.Event, name: str) -> BatchFuture:
        """Has a thread do all steps so far, and this one. `name` is the cause of waiting for it."""
        get, steps, self._steps = self._get, self._steps, []
        assert get is not None, "it was forgotten"
        number, process = len(self._futures), os.getpid()
        self._futures.append(pool.submit(_ahead, self, get, [*steps, act], stopped))

        def result(future: BatchFuture, seconds: float | None) -> Any:
            if process != os.getpid():
                raise RuntimeError(FORKED)
            try:
                with span(name):
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


def span(name: str) -> AbstractContextManager[Any]:
    """Returns a range for torch's profiler. It costs almost nothing while the profiler is off."""
    return record_function(name) if profiling() else nullcontext()
