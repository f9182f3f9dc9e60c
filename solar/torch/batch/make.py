"""What becomes of a batch between its bytes and the user: transform and collation, here, in threads or in processes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.profiler import record_function
from torch.utils.data import default_collate, default_convert

from solar.io.machine.late import Late
from solar.io.workers.processes import Processes, Task
from solar.torch.batch.collate import Collation, collated, samples_of
from solar.torch.batch.pending import PendingBatch
from solar.torch.batch.transform import Key, Transform, transformed_by_key

GLANCE = 0.2  # seconds between looks at whether a batch is still wanted
UNWANTED = "the batch is no longer wanted"

profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]  # whether it runs


@dataclass
class BatchMaker:
    """How a batch is made of arrays. It can be pickled when its functions can."""

    transform: Transform | None
    thread_safe: bool
    collate_fn: Callable[[Any], Any]
    auto_collation: bool

    def __post_init__(self) -> None:
        torchs_own = default_collate if self.auto_collation else default_convert
        # torch's own collation, of which is known what it does.
        self.collates_itself = self.collate_fn is torchs_own
        # It is done on the arrays as they were read; anything else gets the samples it expects.
        whole = self.transform is None and self.collates_itself
        self._collation = Collation(self.auto_collation) if whole else None
        self.in_python = not whole  # Python of the user's is called for it
        self.in_processes = self.in_python and not self.thread_safe  # if there are any

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
        if not self.auto_collation:
            return self.collate_fn(samples[0])
        return collated(samples) if self.collates_itself else self.collate_fn(samples)


class Coming(Protocol):
    """A batch that the user will get. After `wait`, what its parts took of the consumer's time."""

    pending: PendingBatch
    samples: int
    transform_seconds: float
    collate_seconds: float

    def wait(self, seconds: float | None) -> Any: ...

    def forget(self) -> None: ...


class Inline:
    """Makes the batch when it is asked for, in the consumer's thread."""

    def __init__(self, pending: PendingBatch, samples: int, making: BatchMaker, keys: Sequence[Key]) -> None:
        self.pending, self.samples = pending, samples
        self._making = making
        self._keys = keys
        self.transform_seconds = self.collate_seconds = 0.0

    def wait(self, seconds: float | None) -> Any:
        if not profiling():
            return self._made(self.pending.arrived(seconds))
        with span("solar: wait for bytes"):
            arrived = self.pending.arrived(seconds)
        with span("solar: transform and collate"):
            return self._made(arrived)

    def _made(self, arrived: list[Any]) -> Any:
        begin = time.perf_counter()
        making, pending = self._making, self.pending
        samples = pending.converted(arrived)
        if making.in_python:
            samples = making.transformed(samples, self._keys)
        middle = time.perf_counter()
        data = making.collated(samples)
        self.collate_seconds = time.perf_counter() - middle
        if making.transform is not None or pending.converts:
            self.transform_seconds = middle - begin
        return data

    def forget(self) -> None: ...


class Threads:
    """Makes batches in threads, as soon as their bytes are there; with `processes`, the threads only pass them on."""

    def __init__(self, making: BatchMaker, threads: int, processes: Processes | None = None) -> None:
        self._making = making
        self._processes = processes
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(threads, "solar-making")
        ended_first(self)

    def start(self, pending: PendingBatch, samples: int, keys: Sequence[Key], of_batch: tuple[int, ...]) -> InThread:
        """Starts making a batch; `of_batch` seeds what its collation draws in another process."""
        # The user vouches for the transform in threads, not for the collation: that is left to the consumer.
        left = None if self._processes is not None or self._making.collates_itself else self._making.collated
        coming = InThread(pending, samples, left)
        coming.future = self._pool.submit(_made, coming.progress, pending, self._act, keys, of_batch, self._stopped)
        return coming

    def _act(self, arrays: Any, keys: Sequence[Key], of_batch: tuple[int, ...]) -> Any:
        if self._processes is not None:
            return _answer(self._processes.submit((arrays, keys, of_batch)), self._stopped)
        samples = self._making.transformed(arrays, keys)
        return self._making.collated(samples) if self._making.collates_itself else samples

    def close(self) -> None:
        """Gives up what has not begun; what runs ends by itself."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class MakingProgress:
    """What a thread tells of the batch it makes. It is not the batch: an error's traceback would keep that alive."""

    missing: str = "it has not begun"
    seconds: float = 0.0


class InThread:
    """A batch that a thread makes."""

    future: Future[Any]

    def __init__(self, pending: PendingBatch, samples: int, collate: Callable[[Any], Any] | None) -> None:
        self.pending, self.samples = pending, samples
        self.transform_seconds = self.collate_seconds = 0.0
        self.progress = MakingProgress()
        self._collate = collate

    def wait(self, seconds: float | None) -> Any:
        try:
            with span("solar: wait for a batch being made"):
                made = self.future.result(seconds)
        except TimeoutError:
            if self.future.done():  # the transform's own
                raise
            raise Late(self.progress.missing) from None
        finally:
            self.transform_seconds = self.progress.seconds
        if self._collate is None:
            return made
        begin = time.perf_counter()
        with span("solar: collate"):
            data = self._collate(made)
        self.collate_seconds = time.perf_counter() - begin
        return data

    def forget(self) -> None:
        """Lets go of the future, which an error that it holds would keep alive with all that led to it."""
        self.__dict__.pop("future", None)


def _made(
    progress: MakingProgress,
    pending: PendingBatch,
    act: Callable[..., Any],
    keys: Sequence[Key],
    of_batch: tuple[int, ...],
    stopped: threading.Event,
) -> Any:
    arrived = None
    while arrived is None:
        if stopped.is_set():
            raise RuntimeError(UNWANTED)
        try:
            arrived = pending.arrived(GLANCE)
        except Late as error:
            progress.missing = str(error)
    progress.missing = "its transform is not done"
    begin = time.perf_counter()
    data = act(pending.converted(arrived), keys, of_batch)
    progress.seconds = time.perf_counter() - begin
    return data


def _answer(task: Task, stopped: threading.Event) -> Any:
    while not stopped.is_set():
        with suppress(Late):
            return task.wait(GLANCE)
    raise RuntimeError(UNWANTED)


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


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))
