"""The processes that run transforms and collation in Python, set up as torch sets up its workers."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import worker as torchs

from solar.io.system.cores import own_cores
from solar.loader.batch import BatchMaker, Threads
from solar.samples.pending import leaves
from solar.samples.transform import Key, seed_global_generators

if TYPE_CHECKING:
    from solar.io.channels.worker_processes import Processes

# What only loaders with processes need is imported where they begin: most have none.
SLOW = 1.0  # seconds after which the log says what the program waits for
log = logging.getLogger("solar")


@dataclass
class WorkerTask:
    """What a process does with the arrays of a batch."""

    making: BatchMaker

    def __call__(self, payload: tuple[Any, Sequence[Key], tuple[int, ...]]) -> Any:
        """Makes the batch. Any process may get it, so its random draws depend on the batch alone."""
        arrays, keys, of_batch = payload
        samples = self.making.transformed(arrays, keys)
        if not self.making.collates_itself:
            seed_global_generators(of_batch)
        return self.making.collated(samples)


@dataclass
class WorkerStart:
    """What a process does first, as torch's workers do: one thread, seeds, worker info, worker_init_fn."""

    workers: int
    base_seed: int
    dataset: Any
    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        torch.set_num_threads(1)
        seed = self.base_seed + worker
        seed_global_generators((seed,))
        torch.manual_seed(seed)
        torchs._worker_info = torchs.WorkerInfo(id=worker, num_workers=self.workers, seed=seed, dataset=self.dataset)
        if self.init is not None:
            self.init(worker)


@dataclass
class WorkersWanted:
    """The arguments about processes that a loader had when its iterator was made."""

    count: int
    context: Any
    init: Callable[[int], None] | None
    persistent: bool
    dataset: Any

    @classmethod
    def of(cls, loader: Any) -> WorkersWanted:
        context, init = loader.multiprocessing_context, loader.worker_init_fn
        return cls(loader.num_workers, context, init, loader.persistent_workers, loader.dataset)


def start_workers(
    making: BatchMaker,
    first: Any,
    workers: Workers,
    wanted: WorkersWanted,
    base_seed: int,
    ahead: int,
    *,
    per_worker: int,
) -> tuple[Processes | None, Threads | None, int, int]:
    """Starts the processes and threads that make batches of this H5Dataset, if it needs any.

    Returns both, the number of threads, and how many batches are then to be read ahead.
    """
    processes = workers.start(making, wanted, base_seed) if making.in_processes and wanted.count > 0 else None
    if processes is not None:
        threads = wanted.count
    elif first.transform is not None and first.thread_safe:
        threads = wanted.count or own_cores()
    elif any(leaf is not None for leaf in leaves(first.fields)) and not making.in_python:
        threads = min(ahead, own_cores())
    else:
        return None, None, 0, ahead
    ahead = max(ahead, per_worker * wanted.count if making.in_python else 0, threads)
    return processes, Threads(making, threads, processes), threads, ahead


class Workers:
    """The processes of a loader: started for each iterator, or kept from one to the next if they are persistent."""

    def __init__(self) -> None:
        self._kept: Processes | None = None
        self._owner = os.getpid()

    def expect(self) -> None:
        """Begins to import what processes need, while the program does something else."""
        from solar.io.channels import fork_server

        fork_server.expected(self, __name__)

    def start(self, making: BatchMaker, wanted: WorkersWanted, base_seed: int) -> Processes | None:
        """Returns processes that make batches this way; None, with a line in the log, if they cannot be started."""
        if self._owner != os.getpid():  # a forked process cannot use its parent's processes
            self._kept, self._owner = None, os.getpid()
        if self._kept is not None:
            return self._kept
        from solar.io.channels import fork_server
        from solar.io.channels.worker_processes import Processes

        work = WorkerTask(making)
        start = WorkerStart(wanted.count, base_seed, wanted.dataset if wanted.init is not None else None, wanted.init)
        forked = wanted.context is not None and wanted.context.get_start_method() == "fork"
        if not forked and not _can_be_sent((work, start)):
            return None
        if wanted.context is None:
            fork_server.taken(__name__)
        # Logging it takes a thread: none may be started beside a fork.
        with nullcontext() if forked else _log_if_slow(wanted.count):
            processes = Processes(wanted.count, work, context=wanted.context, init=start, reducers=REDUCERS)
        if wanted.persistent:
            self._kept = processes
        return processes

    def release(self, processes: Processes) -> None:
        """Releases the processes of an iterator that has ended."""
        if processes is not self._kept:
            processes.close()

    def close(self) -> None:
        if self._kept is not None and self._owner == os.getpid():
            self._kept.close()
        self._kept = None

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _kept=None)


@contextmanager
def _log_if_slow(count: int) -> Iterator[None]:
    """Logs a line if the block takes long."""
    said = "still starting processes (%d) for transform and collation: torch is imported for them, once for the program"
    timer = threading.Timer(SLOW, log.info, (said, count))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _can_be_sent(what: Any) -> bool:
    from solar.io.channels.worker_processes import unsendable

    why = unsendable(what, REDUCERS)
    if not why:
        return True
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(("solar.", "torch.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"transform, collate_fn or worker_init_fn cannot be sent to another process ({why}), so num_workers has no "
        "effect and they run in this one: define them at the top of a module instead of in a function, or, if the "
        "transform may run in several threads at once, give the H5Dataset thread_safe=True",
        stacklevel=level,
    )
    return False


def tensor_as_array(tensor: torch.Tensor) -> Any:
    """Returns the array that shares a tensor's memory, as which the tensor is sent between processes without a copy."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad:
        return NotImplemented
    if tensor.dtype is torch.bfloat16:
        return _from_bits, (tensor.view(torch.int16).numpy(),)
    try:
        return torch.from_numpy, (tensor.numpy(),)
    except (TypeError, RuntimeError):
        return NotImplemented


def _from_bits(bits: Any) -> torch.Tensor:
    return torch.from_numpy(bits).view(torch.bfloat16)


REDUCERS: dict[type, Callable[[Any], Any]] = {torch.Tensor: tensor_as_array}
