"""BatchMaker: makes batches of arrays by transform and collation, in this thread, in threads or in processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.profiler import record_function
from torch.utils.data import default_collate, default_convert

from solar.io.system.waiting import GLANCE, WaitTimeout
from solar.loader.batch_queue import UNWANTED, BatchFuture, ended_first
from solar.loader.collate import Collation, collated
from solar.samples.pending import PendingBatch, samples_of
from solar.samples.transform import SampleKeys, Transform, takes_rng, transformed_by_key

if TYPE_CHECKING:
    from solar.io.channels.worker_processes import Processes, Task

WAITING = "solar: wait for a batch being made"

profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]  # whether it runs


def span(name: str) -> AbstractContextManager[Any]:
    """Returns a range for torch's profiler. It costs almost nothing while the profiler is off."""
    return record_function(name) if profiling() else nullcontext()


@dataclass
class BatchMaker:
    """Makes a batch from arrays. It can be pickled if its functions can."""

    transform: Transform | None
    thread_safe: bool
    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    of_arrays: ClassVar[bool] = True  # it needs nothing but the arrays of a batch and the numbers of its samples

    def __post_init__(self) -> None:
        torchs_own = default_collate if self.auto_collation else default_convert
        # torch's own collation, of which is known what it does.
        self.collates_itself = self.collate_fn is torchs_own
        # It is done on the arrays as they were read; anything else gets the samples it expects.
        whole = self.transform is None and self.collates_itself
        self.collation = Collation(self.auto_collation) if whole else None
        self.in_python = not whole  # it calls the user's Python
        self.in_processes = self.in_python and not self.thread_safe  # if there are any
        self.takes_rng = takes_rng(self.transform)

    def transformed(self, arrays: Any, keys: SampleKeys | None) -> Any:
        """Returns the transformed samples; the arrays themselves if they can be collated whole."""
        if self.collation is not None:
            return arrays
        samples = samples_of(arrays)
        if self.transform is None:
            return samples
        assert keys is not None, "of each batch that is transformed"
        return transformed_by_key(self.transform, samples, keys, self.thread_safe, self.takes_rng)

    def make_here(self, keys: SampleKeys | None, future: BatchFuture, seconds: float | None) -> Any:
        """Waits for the bytes of a batch, and makes it in this thread."""
        if not profiling():
            return make_batch(self, keys, future, future.pending.arrived(seconds))
        with span("solar: wait for bytes"):
            arrived = future.pending.arrived(seconds)
        with span("solar: transform and collate"):
            return make_batch(self, keys, future, arrived)

    def collated(self, samples: Any) -> Any:
        if self.collation is not None:
            return self.collation(samples)
        if not self.auto_collation:
            return self.collate_fn(samples[0])
        return collated(samples) if self.collates_itself else self.collate_fn(samples)


def here(pending: PendingBatch, samples: int, making: BatchMaker, keys: SampleKeys | None) -> BatchFuture:
    """Returns a batch that is made in the consumer's thread when the loop takes it."""
    return BatchFuture(pending, samples, partial(making.make_here, keys))


def make_batch(making: BatchMaker, keys: SampleKeys | None, future: BatchFuture, arrived: list[Any]) -> Any:
    begin = time.perf_counter()
    samples = future.pending.converted(arrived)
    if making.in_python:
        samples = making.transformed(samples, keys)
    middle = time.perf_counter()
    data = making.collated(samples)
    future.collate_seconds = time.perf_counter() - middle
    if making.transform is not None or future.pending.converts:
        future.transform_seconds = middle - begin
    return data


class Threads:
    """Makes batches in threads as soon as they are read. With `processes` the threads only pass arrays on."""

    def __init__(self, making: BatchMaker, threads: int, processes: Processes | None = None) -> None:
        self._making = making
        self._processes = processes
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(threads, "solar-making")
        ended_first(self)

    def start(
        self, pending: PendingBatch, samples: int, keys: SampleKeys | None, of_batch: tuple[int, ...]
    ) -> BatchFuture:
        """Starts making a batch. `of_batch` seeds the random draws of its collation in another process."""
        future = BatchFuture(pending, samples, _wait_for_values)
        future.ahead(self._pool, partial(self._transform_batch, keys, of_batch), self._stopped, partial(span, WAITING))
        # The user vouches for the transform in threads, not for the collation: the consumer's thread collates.
        left = self._processes is None and not self._making.collates_itself
        return future.then(partial(collate_batch, self._making)) if left else future

    def _transform_batch(
        self, keys: SampleKeys | None, of_batch: tuple[int, ...], future: BatchFuture, arrived: list[Any]
    ) -> Any:
        future.missing = "its transform is not done"
        begin = time.perf_counter()
        data = self._act(future.pending.converted(arrived), keys, of_batch)
        future.transform_seconds = time.perf_counter() - begin
        return data

    def _act(self, arrays: Any, keys: SampleKeys | None, of_batch: tuple[int, ...]) -> Any:
        if self._processes is not None:
            return answer_batch(self._processes.submit((arrays, keys, of_batch)), self._stopped)
        samples = self._making.transformed(arrays, keys)
        return self._making.collated(samples) if self._making.collates_itself else samples

    def close(self) -> None:
        """Cancels batches that have not begun. Those that have begun finish by themselves."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _wait_for_values(future: BatchFuture, seconds: float | None) -> list[Any]:
    return future.pending.arrived(seconds)


def collate_batch(making: BatchMaker, future: BatchFuture, samples: Any) -> Any:
    begin = time.perf_counter()
    with span("solar: collate"):
        data = making.collated(samples)
    future.collate_seconds = time.perf_counter() - begin
    return data


def answer_batch(task: Task, stopped: threading.Event) -> Any:
    while not stopped.is_set():
        with suppress(WaitTimeout):
            return task.wait(GLANCE)
    raise RuntimeError(UNWANTED)
