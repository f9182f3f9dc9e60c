"""Coming: a batch on its way to the user, from its bytes on. Each step is done by who waits, or ahead by a thread."""

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

from solar.io.machine.late import Late
from solar.torch.batch.pending import PendingBatch

GLANCE = 0.2  # seconds between looks at whether a batch is still wanted
UNWANTED = "the batch is no longer wanted"
FORKED = "this iterator's thread is in the process that it was forked from: make a new iterator"

profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]  # whether it runs

Get = Callable[["Coming", float | None], Any]  # what is there by then; Late if it is not
Act = Callable[["Coming", Any], Any]


class Coming:
    """A batch that the user will get: what `get` gives, after each of the steps. Of each is known how long it took.

    No step refers to it but as its argument: an error's traceback, or a cycle, would keep the batch's memory alive.
    """

    def __init__(self, pending: PendingBatch, samples: int, get: Get) -> None:
        self.pending, self.samples = pending, samples
        self.transform_seconds = self.collate_seconds = self.copy_seconds = 0.0
        self.missing = "it has not begun"  # where a thread makes it
        self._get: Get | None = get
        self._steps: list[Act] = []
        self._futures: list[Future[Any]] = []

    def then(self, act: Act) -> Coming:
        """Has this done, too, by who waits for it."""
        self._steps.append(act)
        return self

    def ahead(self, pool: Executor, act: Act, stopped: threading.Event, name: str) -> Coming:
        """Has a thread do all so far, and this, as soon as can be; `name` is what waiting for it is called."""
        get, steps, self._steps = self._get, self._steps, []
        assert get is not None, "it was forgotten"
        number, process = len(self._futures), os.getpid()
        self._futures.append(pool.submit(_ahead, self, get, [*steps, act], stopped))

        def result(coming: Coming, seconds: float | None) -> Any:
            if process != os.getpid():
                raise RuntimeError(FORKED)
            try:
                with span(name):
                    return coming._futures[number].result(seconds)
            except TimeoutError:
                if coming._futures[number].done():  # the user's own
                    raise
                raise Late(coming.missing) from None

        self._get = result
        return self

    def wait(self, seconds: float | None) -> Any:
        """The batch, when it is there. It may be asked for again where it is Late, or the user interrupts."""
        if self._get is None:
            raise RuntimeError(UNWANTED)
        data = self._get(self, seconds)
        for act in self._steps:
            data = act(self, data)
        return data

    def until(self, stopped: threading.Event, look: Callable[[], Any]) -> Any:
        """What `look` finds, in a thread; RuntimeError where the batch is wanted no more."""
        while not stopped.is_set() and self._get is not None:
            try:
                if found := look():
                    return found
            except Late as error:
                self.missing = str(error)
        raise RuntimeError(UNWANTED)

    def forget(self) -> None:
        """Nobody will ask for it. What a thread makes of it is let go once it is there; its error is kept by none."""
        futures, self._futures = self._futures, []
        self._get, self._steps = None, []
        for future in futures:
            future.add_done_callback(_let_go)


def _ahead(coming: Coming, get: Get, steps: list[Act], stopped: threading.Event) -> Any:
    [data] = coming.until(stopped, lambda: [get(coming, GLANCE)])
    for act in steps:
        data = act(coming, data)
    return data


def _let_go(future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        getattr(future.result(), "release", bool)()  # of memory of a device


# The interpreter joins a pool's threads at its end, before anything else: they must not wait for a read that stalls.
_running: weakref.WeakSet[Any] = weakref.WeakSet()


def ended_first(pool: Any) -> None:
    """Has a pool's `close` called when the program ends, before its threads are waited for."""
    _running.add(pool)


def _stop_all() -> None:
    for threads in list(_running):
        threads.close()


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # called before ThreadPoolExecutor's, which waits


def span(name: str) -> AbstractContextManager[Any]:
    """A range in torch's profiler, which costs next to nothing while it does not run."""
    return record_function(name) if profiling() else nullcontext()
