"""BatchStarter: starts batches. Workers: the processes that run transforms and collation in Python."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import worker as torchs

from solar.buffer.buffer_memory import AheadSpec
from solar.errors import PlanError
from solar.io.system.cores import own_cores
from solar.loader.batch import BatchMaker, Threads, here
from solar.loader.batch_queue import BatchFuture
from solar.loader.batch_sources import reads_each_field
from solar.loader.direct import MakeInPython
from solar.samplers.epoch_position import EpochPosition
from solar.samplers.samplers import check_no_rank_is_without
from solar.samples.dataset import decodes_to_float32
from solar.samples.pending import TENSOR_KINDS, PendingBatch, arranged, for_user, leaves
from solar.samples.source import SampleSource
from solar.samples.transform import SampleKeys, Words, seed_global_generators

if TYPE_CHECKING:
    from solar.buffer.buffered_pass import BufferedPass
    from solar.device.copier import DeviceCopier
    from solar.io.channels.worker_processes import Processes
    from solar.loader.lent import Converts

# What only loaders with processes need is imported where they begin: most have none.
SLOW = 1.0  # seconds after which the log says what the program waits for
log = logging.getLogger("solar")


@dataclass
class WorkerTask:
    """What a process does with the arrays of a batch."""

    making: BatchMaker

    def __call__(self, payload: tuple[Any, SampleKeys | None, tuple[int, ...]]) -> Any:
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
    per_worker: int  # batches that each process makes ahead

    @classmethod
    def of(cls, loader: Any) -> WorkersWanted:
        context, init = loader.multiprocessing_context, loader.worker_init_fn
        count, persistent, ahead = loader.num_workers, loader.persistent_workers, loader.prefetch_factor or 2
        return cls(count, context, init, persistent, loader.dataset, ahead)


class BatchStarter:
    """Starts batches: has them read, then made here, in threads or in processes, and copied to a device."""

    def __init__(self, loader: Any, source: SampleSource, position: EpochPosition) -> None:
        self.making: BatchMaker = loader._making(source)
        on_device = loader._on_device.native_landing(source, self.making, loader._stats, loader.ahead)
        self.landing: DeviceCopier | None = on_device[0]
        self.source: SampleSource = on_device[1]  # what is read: not what stays on a device
        self.buffered_pass: BufferedPass | None = None  # set if batches come from the loader's buffer
        self.pace: AheadSpec | None = None  # set once threads and processes have been started
        self.threads: Threads | None = None
        self._processes: Processes | None = None
        self._lands_ahead = False  # in a thread of its own
        self._workers, self._wanted = loader._workers, WorkersWanted.of(loader)
        self._position, self._sampler_state = position, loader._sampler_state

    def start_workers(self, ahead: int, skips: bool) -> AheadSpec:
        """Starts the threads and processes that make batches, if any are needed. `skips`: a batch may be made again."""
        first, making, wanted = self.source.first, self.making, self._wanted
        if making.in_python:
            check_no_rank_is_without(self._sampler_state.cutter)
        if making.in_processes and wanted.count > 0 and self._processes is None:  # else Ctrl-C came after that
            self._processes = self._workers.start(making, wanted, self._position.base_seed)
        if self._processes is not None:
            threads = wanted.count
        elif first.transform is not None and first.thread_safe:
            threads = wanted.count or own_cores()
        elif any(leaf is not None for leaf in leaves(first.fields)) and not making.in_python:
            threads = min(ahead, own_cores())
        else:
            threads = 0
        if threads:
            ahead = max(ahead, wanted.per_worker * wanted.count if making.in_python else 0, threads)
            self.threads = self.threads or Threads(making, threads, self._processes)
        if self.landing is not None and self.landing.goes_by_itself:
            # Not where Python of the user's runs in the loop's thread: it is called there, when the batch is asked for.
            by_others = self._processes is not None or (self.threads is not None and making.collates_itself)
            # Nor where a batch may be made anew: it would stand behind those that wait for it to be taken.
            self._lands_ahead = (by_others or not making.in_python) and not skips
        self.pace = AheadSpec(ahead, threads, 0 if self.landing is None else self.landing.copies)
        return self.pace

    @property
    def landing_here(self) -> DeviceCopier | None:
        """What copies batches to a device in the loop's thread; None if they are copied ahead, or not at all."""
        return None if self._lands_ahead else self.landing

    def start(self, samples: Any, number: int) -> BatchFuture:
        """Starts the next batch of these samples."""
        buffered_pass = self.buffered_pass
        shares = buffered_pass is not None and buffered_pass.rank_group is not None
        if not len(samples) and self.making.in_python and shares:
            from solar.loader.uneven import EMPTY_BATCH

            raise PlanError(EMPTY_BATCH)
        future = self._start(self.source if buffered_pass is None else buffered_pass, samples, number)
        return self.landing.start(future) if self._lands_ahead and self.landing is not None else future

    def start_again(self, samples: list[Any], number: int) -> BatchFuture:
        """Starts a batch again, of these samples, without the buffer."""
        return self._start(self.source, samples, number)

    def _start(self, source: SampleSource | BufferedPass, samples: Any, number: int) -> BatchFuture:
        pending, called = source.start(samples, self._position.epoch)
        keys = self._keys(called)
        threads = self.threads  # another thread may close it
        if threads is None:
            future = here(pending, len(samples), self.making, keys)
        else:
            of_batch = (*self._words(), number, *called[:1].tolist())
            future = threads.start(pending, len(samples), keys, of_batch)
        future.called = samples
        return future if self.landing is None else self.landing.expected(future, called)

    def conversions(self) -> list[Converts | None] | None:
        """Returns how native code converts the fields, if its threads can do all that those here would; else None."""
        from solar.loader.lent import conversions  # only where there are Fields

        in_python = self.making.in_python or self._processes is not None or self.landing is not None
        if in_python or not reads_each_field(self.source):
            return None
        first = self.source.first
        if self.buffered_pass is None and decodes_to_float32(first):
            return None  # which takes less
        return conversions([one.rows for one in first.opened()], leaves(first.fields))

    def in_loop(self) -> MakeInPython | None:
        """Returns what makes batches by the user's Python in the loop's thread; None if they need more than that."""
        making, first, words = self.making, self.source.first, self._words()
        if not making.in_python or not making.of_arrays or self.threads is not None:
            return None
        if self.buffered_pass is None and decodes_to_float32(first):
            return None  # which takes less
        if not reads_each_field(self.source):
            return None

        fields, structure = leaves(first.fields), first.layouts
        converts = any(field is not None for field in fields)
        arrange = partial(_arranged, structure) if isinstance(structure, (dict, tuple)) else itemgetter(0)
        numeric = all(one.rows.dtype.kind in TENSOR_KINDS for one in first.opened()) and not converts

        def make(parts: list[Any], numbers: Any) -> tuple[Any, float]:
            if converts:
                both = zip(fields, parts, strict=True)
                parts = [part if field is None else field.convert(part, rows=numbers) for field, part in both]
            if not numeric:
                parts = [*map(for_user, parts)]
            samples = making.transformed(arrange(parts), (words, numbers))
            transformed = time.perf_counter()
            return making.collated(samples), transformed

        return make

    def begun(self, pending: PendingBatch, samples: Any) -> BatchFuture:
        """Returns a batch that is being read for the loop, as one that is made when the loop takes it."""
        future = here(pending, len(samples), self.making, self._keys(pending.fields[0].rows))
        future.called = samples
        return future

    def _keys(self, numbers: Any) -> SampleKeys | None:
        return None if self.making.transform is None else (self._words(), numbers)

    def _words(self) -> Words:
        """Returns what random numbers follow from, beside the sample: not from ranks, threads or resuming."""
        position, shared = self._position, getattr(self._sampler_state.with_epochs, "seed", None)
        seed = shared if isinstance(shared, int) else position.base_seed or 0
        return seed, position.epoch, position.repeat

    def close_processes(self) -> None:
        """Closes the processes that the loader keeps, after one of them was lost."""
        self._workers.close()

    def close(self) -> None:
        if self.landing is not None:
            self.landing.close()
        if self.buffered_pass is not None:
            self.buffered_pass.leave()
        if self.threads is not None:
            self.threads.close()
        if self._processes is not None:
            self._workers.release(self._processes)
        self.buffered_pass = self.threads = self._processes = None


def _arranged(structure: Any, parts: list[Any]) -> Any:
    return arranged(structure, iter(parts))


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
