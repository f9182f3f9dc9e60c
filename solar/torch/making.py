"""What becomes of a batch between its bytes and the user: transform and collation, here, in threads or in processes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.profiler import record_function
from torch.utils.data import default_collate, default_convert

from solar.io.processes import Processes
from solar.io.reader import Late
from solar.torch.collate import Collation, samples_of
from solar.torch.pending import PendingBatch
from solar.torch.transform import Key, Transform, transformed_by_key

GLANCE = 0.2  # seconds between looks at whether a batch is still wanted


@dataclass
class Making:
    """How a batch is made of arrays. It can be pickled when its functions can."""

    transform: Transform | None
    thread_safe: bool
    collate_fn: Callable[[Any], Any]
    auto_collation: bool

    def __post_init__(self) -> None:
        # torch's own collation is done on the arrays as they were read; any other gets the samples it expects.
        torchs_own = default_collate if self.auto_collation else default_convert
        whole = self.transform is None and self.collate_fn is torchs_own
        self._collation = Collation(self.auto_collation) if whole else None

    @property
    def in_python(self) -> bool:
        """Whether Python of the user's is called for it."""
        return self._collation is None

    def __call__(self, arrays: Any, keys: Sequence[Key]) -> Any:
        """The batch that the user gets."""
        return self.collated(self.transformed(arrays, keys))

    def transformed(self, arrays: Any, keys: Sequence[Key]) -> Any:
        """The samples, transformed; the arrays themselves where they are collated as they are."""
        if self._collation is not None:
            return arrays
        samples = samples_of(arrays)
        if self.transform is None:
            return samples
        return transformed_by_key(self.transform, samples, list(keys), self.thread_safe)

    def collated(self, samples: Any) -> Any:
        if self._collation is not None:
            return self._collation(samples)
        return self.collate_fn(samples if self.auto_collation else samples[0])


class Coming(Protocol):
    """A batch that the user will get. After `wait`, what its parts took of the consumer's time."""

    pending: PendingBatch
    samples: int
    transform_seconds: float
    collate_seconds: float

    def wait(self, seconds: float | None) -> Any: ...


class Inline:
    """Makes the batch when it is asked for, in the consumer's thread."""

    def __init__(self, pending: PendingBatch, samples: int, making: Making, keys: Sequence[Key]) -> None:
        self.pending, self.samples = pending, samples
        self._making = making
        self._keys = keys
        self.transform_seconds = self.collate_seconds = 0.0

    def wait(self, seconds: float | None) -> Any:
        with span("solar: wait for bytes"):
            arrived = self.pending.arrived(seconds)
        begin = time.perf_counter()
        with span("solar: transform"):
            samples = self._making.transformed(self.pending.converted(arrived), self._keys)
        middle = time.perf_counter()
        with span("solar: collate"):
            data = self._making.collated(samples)
        self.collate_seconds = time.perf_counter() - middle
        if self._making.transform is not None or self.pending.converts:
            self.transform_seconds = middle - begin
        return data


class Threads:
    """Makes batches in threads, as soon as their bytes are there; with `processes`, the threads only pass them on."""

    def __init__(self, making: Making, threads: int, processes: Processes | None = None) -> None:
        self._making = making
        self._processes = processes
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(threads, "solar-making")
        _running.add(self)

    def start(self, pending: PendingBatch, samples: int, keys: Sequence[Key]) -> InThread:
        coming = InThread(pending, samples)
        coming.future = self._pool.submit(coming.run, self._act, keys, self._stopped)
        return coming

    def _act(self, arrays: Any, keys: Sequence[Key], wanted: Callable[[], bool]) -> Any:
        if self._processes is None:
            return self._making(arrays, keys)
        task = self._processes.submit((arrays, keys))
        while wanted():
            with contextlib.suppress(TimeoutError):
                return task.wait(GLANCE)
        raise RuntimeError("the batch is no longer wanted")

    def close(self) -> None:
        """Gives up what has not begun; what runs ends by itself."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


class InThread:
    """A batch that a thread makes."""

    future: Future[Any]

    def __init__(self, pending: PendingBatch, samples: int) -> None:
        self.pending, self.samples = pending, samples
        self.transform_seconds = self.collate_seconds = 0.0
        self._missing = "it has not begun"

    def run(self, act: Callable[..., Any], keys: Sequence[Key], stopped: threading.Event) -> Any:
        arrived = None
        while arrived is None:
            if stopped.is_set():
                raise RuntimeError("the batch is no longer wanted")
            try:
                arrived = self.pending.arrived(GLANCE)
            except Late as error:
                self._missing = str(error)
        self._missing = "its transform is not done"
        begin = time.perf_counter()
        data = act(self.pending.converted(arrived), keys, lambda: not stopped.is_set())
        self.transform_seconds = time.perf_counter() - begin
        return data

    def wait(self, seconds: float | None) -> Any:
        try:
            with span("solar: wait for a batch being made"):
                return self.future.result(seconds)
        except TimeoutError:
            if self.future.done():  # the transform's own
                raise
            raise Late(self._missing) from None


# The interpreter joins a pool's threads at its end, before anything else: they must not wait for a read that stalls.
_running: weakref.WeakSet[Threads] = weakref.WeakSet()


def _stop_all() -> None:
    for threads in list(_running):
        threads.close()


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # called before ThreadPoolExecutor's, which waits


def span(name: str) -> AbstractContextManager[Any]:
    """A range in torch's profiler, which costs next to nothing while it does not run."""
    return record_function(name) if profiling() else nullcontext()


def profiling() -> bool:
    """Whether torch's profiler runs."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))
