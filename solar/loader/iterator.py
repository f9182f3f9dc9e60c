"""EpochIterator: the batches of one epoch, read by the native engine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pin
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from solar.buffer.buffer import begin_pass
from solar.errors import ReadError, SolarError
from solar.io.channels.progress import waiting
from solar.io.reading.engine import Engine, Ticket
from solar.io.reading.run import Running
from solar.loader.batch import profiling, span
from solar.loader.batch_queue import (
    ITERATOR_CLOSED,
    UNREADABLE,
    BatchFuture,
    BatchQueue,
    LeftOutSample,
    begin_epoch,
    failed_batch,
)
from solar.loader.batch_sources import BatchFeed, ReaderBatches, assembly, direct_source
from solar.loader.direct import DirectBatches
from solar.loader.workers import BatchStarter
from solar.samplers.epoch_position import EpochPosition, Indices
from solar.samples.pending import NBYTES_AHEAD
from solar.samples.source import SampleSource

if TYPE_CHECKING:
    from solar.loader.skipping import SkippingSource

LEFT = object()  # in place of a batch: the queue goes on


class Draws(_BaseDataLoaderIter):
    """The last base class before torch's: restores the random state around torch's constructor, which draws from it.

    Several threads may call `next` on one iterator. They are served one at a time.
    """

    def __init__(self, loader: Any) -> None:
        self._turns = threading.RLock()
        with loader._sampler_state.torchs_draws():
            super().__init__(loader)
        self._base_seed: int = loader._sampler_state.base_seed(self._base_seed)
        self._restore(loader)

    def _restore(self, loader: Any) -> None:
        """Restores the random state. It is called between torch's draws and its first use of the dataset."""

    def __next__(self) -> Any:
        """Returns the next batch. It is torch's method without the profiler range while the profiler is off."""
        with self._turns:
            if self._dataset_kind != _DatasetKind.Map or profiling():
                return super().__next__()
            data: Any = self._next_data()
            self._num_yielded += 1
            return data


class EpochIterator(Draws):
    """One epoch, read by the native engine. The base class draws from the generators as torch's own iterators do.

    It has no reference to the loader, so either can be deleted first. While nothing needs to be done with batches after
    reading, it takes them from `_direct`, else from `_queue`, which `_starter` fills.
    """

    _queue: BatchQueue
    _starter: BatchStarter

    def __init__(self, loader: Any, source: SampleSource) -> None:
        self._direct: DirectBatches | None = None
        self._bar: Any = None
        self._closed = True  # until it has what it needs to be closed
        super().__init__(loader)
        position: EpochPosition = self._sampler_iter.position
        position.base_seed = self._base_seed
        if loader.num_workers > 0:
            self._sampler_iter.begin_beside_workers()
        self._files = source  # everything it reads, including what is kept on a device
        self._sampler_state, self._buffered = loader._sampler_state, loader._buffered
        self._starter = BatchStarter(loader, source, position)
        ahead, nbytes = loader.ahead or source.batches_ahead, NBYTES_AHEAD if loader.ahead is None else sys.maxsize
        begin = partial(_start, self._starter, self._auto_collation)  # it must not lead back to this iterator
        self._queue = BatchQueue(self._sampler_iter, position, begin, loader._stats, ahead, nbytes)
        self._skipping = _skipping(loader, source)
        pins = self._pin_memory and self._starter.landing is None  # landing has pinned memory of its own
        self._finish = _finisher(self._pin_memory_device if pins else None, loader.device_transform)
        self._handed_out: float | None = (
            None  # when the last batch was, 0.0: there is none that counts; None: nothing is prepared
        )
        self._bar, self._closed = loader._progress_bar(), False

    @property
    def position(self) -> EpochPosition:
        return self._queue.position

    # --- the consumer's side ----

    def __next__(self) -> Any:
        """Returns the next batch. It is torch's method without the profiler range while the profiler is off."""
        with self._turns:
            direct = self._direct
            if direct and (data := self._next_direct(direct, time.perf_counter())) is not LEFT:
                self._num_yielded += 1
                return data
            if profiling():
                return super().__next__()
            try:
                data = self._next_data() if self._handed_out else waited_for(self)
            except SolarError as error:  # its message matters, not its traceback
                raise error.with_traceback(None) from error.__cause__
            self._num_yielded += 1
            return data

    def _next_data(self) -> Any:
        queue = self._queue
        while True:
            asked_at = time.perf_counter()
            if self._direct is None:
                if self.position.finished:
                    raise StopIteration
                if self._closed:
                    raise RuntimeError(ITERATOR_CLOSED)
                if self._handed_out is None:
                    asked_at = self._prepare_counted(asked_at)
                elif self._handed_out:
                    queue.stats.busy(asked_at - self._handed_out)
            if (direct := self._direct) and (data := self._next_direct(direct, asked_at)) is not LEFT:
                return data
            queue.fill()
            if self._closed:  # while a batch was begun: by its sampler, a signal's handler or another thread
                self._release()
                raise RuntimeError(ITERATOR_CLOSED)
            if not queue:
                self._end()
            try:
                future, data = queue.take(self._wait_for, self._dataset, self._timeout)
            except LeftOutSample:
                queue.drop_failed()
                self._handed_out = 0.0  # the time since then does not count as training
                continue
            except Exception as error:
                if self._closed:  # by another thread, which ended what makes batches
                    raise RuntimeError(ITERATOR_CLOSED) from None
                queue.drop_failed()
                if type(error) is SolarError:  # a process is lost, and all processes of the loader with it
                    self._starter.close_processes()
                raise
            self._count(future, data, time.perf_counter() - asked_at)
            if not queue and not queue.drained:  # large batches: begin the next when this one is there
                queue.begin_next()
            if queue.drained and not queue:
                queue.stats.whole()
            return self._handed(self._on_device(data), future.pending.weight)

    def _next_direct(self, direct: DirectBatches, asked_at: float) -> Any:
        last = self._handed_out or 0.0
        try:
            data, self._handed_out = direct.hand_out(asked_at, last)
        except Exception:  # whatever it is, the queue meets it when that batch's turn comes
            self._leave_direct()
            if self._closed:
                raise RuntimeError(ITERATOR_CLOSED) from None
            self._queue.stats.busy(asked_at - last if last else 0.0)
            return LEFT
        if self._finish is None and self._bar is None:
            return data
        return self._handed(self._on_device(data), None)

    def _leave_direct(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:  # else it was closed by another thread
            begun = direct.leave(self._starter.begun)
            if self._skipping is not None and self._handed_out:
                self._skipping.handed_out()
            self._queue.go_on(begun, direct.source.indices, direct.source.begun)

    def _wait_for(self, future: BatchFuture) -> Any:
        """Waits for the oldest batch. If samples of it cannot be read and are to be skipped, makes it without them."""
        try:
            while True:
                try:
                    return self._result_of(future)
                except UNREADABLE as error:
                    of_sampler = self._queue.sampler_failed and len(self._queue) == 1
                    if self._skipping is None or of_sampler:
                        raise
                    samples = self._skipping.readable(future.called, error, self._timeout or None, self.position.epoch)
                future = self._starter.start_again(samples, self.position.before[0] + self.position.batches + 1)
                self._queue.replace_oldest(future)
        finally:
            del future  # or it and an error, whose traceback has this frame, would keep each other alive

    def _result_of(self, future: BatchFuture) -> Any:
        try:
            data, landing = future.wait(self._timeout or None), self._starter.landing
            # What cannot be decoded on the device is found here, where the batch can still be made anew.
            if landing is None or self._skipping is None:
                return data
            with span("solar: to the device"):
                return landing.land(data)
        finally:
            del future

    def _count(self, future: BatchFuture, data: Any, waited: float) -> None:
        """Counts a batch that arrived after this time."""
        stats, pending = self._queue.stats, future.pending
        if self._skipping is not None:
            self._skipping.handed_out()
        self.position.taken = future.called
        if self._starter.landing is not None:
            seconds = min(waited, self._starter.landing.copying(future, data))
            stats.waited("device copy", seconds)
            waited -= seconds
        stats.handed_out(
            future.samples, pending.nbytes, pending.counts(), waited, future.transform_seconds, future.collate_seconds
        )

    def _on_device(self, data: Any) -> Any:
        landing, finish = self._starter.landing_here, self._finish
        if landing is None and finish is None:
            return data
        begin = time.perf_counter()
        with span("solar: to the device"):
            if landing is not None:
                data = landing.handed_out(landing.landed(data))
            if finish is not None:
                data = finish(data)
        self._queue.stats.waited("device copy", time.perf_counter() - begin)
        return data

    def _handed(self, data: Any, weight: float | None) -> Any:
        """Returns a batch as the loop gets it now: with its weight, if ranks have different numbers of samples."""
        if self._bar is not None:
            self._bar.update()
        if weight is not None:
            from solar.loader.uneven import weight_batch

            data = weight_batch(data, weight)
        self._handed_out = time.perf_counter()
        return data

    # --- reading ahead ----

    def _prepare(self) -> None:
        """Starts threads and processes before the first batch. Raises if a file was replaced."""
        source, gone = self._starter.source, self._skipping is None
        begin_epoch(self._begin, self._files, source, self._buffered, self.position, self._timeout, gone=gone)
        self._handed_out = 0.0
        self._direct = self._direct_batches()

    def _direct_batches(self) -> DirectBatches | None:
        """Returns what hands out batches that need little work; None if they need more."""
        starter, landing, making = self._starter, self._starter.landing, self._starter.making
        more = self._finish is not None or self._bar is not None
        if landing is not None and (more or self._skipping is not None or making.in_python):
            return None
        if self._skipping is not None and making.in_python:
            return None  # what has failed may have to be made anew
        converts = None if starter.threads is None else starter.conversions()
        if starter.threads is not None and converts is None:
            return None
        made = {at: one[:2] for at, one in enumerate(converts or ()) if one is not None}
        source, in_python, collation = starter.source, starter.in_loop(), making.collation
        assemble = None if collation is None else assembly(source, collation.as_they_are, list, made)
        if assemble is None and in_python is None:
            return None
        queue, size = self._queue, self._sampler_state.batch_size or 0
        lent, ahead = landing is not None or converts is not None, (queue.ahead, queue.ahead_nbytes)
        found = direct_source(starter.buffered_pass, queue.indices, source, size, ahead, lent=lent)
        if found is None:
            return None
        feed: BatchFeed | None = found if landing is None else landing.landed_batches(found)
        if converts is not None and starter.pace is not None:
            from solar.loader.lent import ConvertedQueue, LentBatches  # only where there are Fields

            begin = partial(ConvertedQueue, found.rows, converts)
            feed = LentBatches(found, begin, starter.pace.threads, ConvertedQueue.names)
        if feed is None:
            return None
        form, waits = torch.from_numpy if landing is None else None, not self._timeout
        return DirectBatches(found, feed, assemble or list, form, in_python, queue.stats, self.position, waits)

    def _begin(self, replaced: ReadError | None) -> None:
        """Begins the epoch with or without the loader's buffer; again after Ctrl-C."""
        starter, queue = self._starter, self._queue
        if (pace := starter.pace) is None:
            pace = starter.start_workers(queue.ahead, self._skipping is not None)
            queue.ahead = pace.ahead
        if starter.buffered_pass is None:
            starter.buffered_pass = begin_pass(
                self._buffered, starter.source, self._sampler_iter, self._sampler_state, pace, replaced
            )
        buffered_pass = starter.buffered_pass
        if self._closed:  # by another thread, meanwhile: close what was started since, too
            self._release()
            raise RuntimeError(ITERATOR_CLOSED)
        if buffered_pass is not None:
            buffered_pass.draw()
            if self._closed:
                buffered_pass.leave()
                raise RuntimeError(ITERATOR_CLOSED)
            queue.indices, queue.ahead, queue.ahead_nbytes = buffered_pass, buffered_pass.ahead, sys.maxsize
        elif isinstance(queue.indices, Indices):
            queue.indices = queue.indices.known()

    def _prepare_counted(self, asked_at: float) -> float:
        """Prepares, and returns the time at which that was done. It does not count as waiting for the storage."""
        self._prepare()
        starter = self._starter
        cause = "plan" if starter.buffered_pass is not None else "start" if starter.threads is not None else ""
        if cause:
            begin, asked_at = asked_at, time.perf_counter()
            self._queue.stats.waited(cause, asked_at - begin)
        return asked_at

    # --- the end ----

    def _end(self) -> NoReturn:
        """Ends the epoch: no batch is left."""
        if not self._queue.sampler_failed:
            if not self.position.finished:
                self._sampler_state.finish(self.position)
                self._queue.stats.epoch()
            self._release()
            if self._skipping is not None:
                self._skipping.finish()
        raise StopIteration

    def close(self) -> None:
        """Drops the batches that are being made. The iterator yields no more."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        self._leave_direct()
        self._queue.clear()
        self._starter.close()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_queue"):
            self._release()


def _skipping(loader: Any, source: SampleSource) -> SkippingSource | None:
    """Returns what finds the readable samples of a batch: on the host, even if it is decoded elsewhere."""
    if loader.on_error == "raise":
        return None
    from solar.loader.skipping import skipping

    return skipping(loader, source)


def _finisher(pinned_for: str | None, device_transform: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Returns what is done with each batch in the loop's thread; None: nothing."""
    if pinned_for is None:
        return device_transform

    def finish(data: Any) -> Any:
        data = pin(data, pinned_for)  # type: ignore[no-untyped-call]
        return data if device_transform is None else device_transform(data)

    return finish


def _start(starter: BatchStarter, auto_collation: bool, indices: Any, number: int) -> BatchFuture:
    samples = indices if auto_collation else [indices]
    try:
        return starter.start(samples, number)
    except Exception as error:
        return failed_batch(error, samples)


# The progress of an epoch's first batch, which is shown while it is read.


def waited_for(passing: Any) -> Any:
    """Returns the first batch of an EpochIterator, and shows its progress meanwhile."""
    return waiting("reading the first batch", passing._next_data, percent(lambda: last_ticket(passing)), 100, "%")


def percent(last: Callable[[], int]) -> Callable[[], int | None]:
    """Returns a function that tells how much of the reading up to the engine's `last` ticket is done; None: unknown.

    Reads of another loader of this process count, too.
    """
    before, _ = Engine.progress(0)
    most: int | None = None

    def done() -> int | None:
        nonlocal most
        if (ticket := last()) > 0:
            of, all_ = (pieces - before for pieces in Engine.progress(ticket))
            most = max(most or 0, 100 * of // max(1, all_))
        return most

    return done


def last_ticket(passing: Any) -> int:
    """Returns the engine's last ticket that the oldest batch waits for; 0: there is none yet, or it is unknown."""
    try:
        if passing._starter.buffered_pass is not None:
            run = passing._starter.buffered_pass.run
            return run.due() if isinstance(run, Running) else 0
        if passing._direct is not None and isinstance(source := passing._direct.source, ReaderBatches):
            return max(source.tickets())
        works = (part.work for one in passing._queue.oldest.pending.fields for part in one.parts)
        return max((one.number for one in works if isinstance(one, Ticket)), default=0)
    except (AttributeError, IndexError, ValueError):  # it comes, or goes, meanwhile
        return 0
