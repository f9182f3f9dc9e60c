"""EpochIterator: the batches of one epoch, read by the native engine."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data._utils.pin_memory import pin_memory as pin
from torch.utils.data.dataloader import _BaseDataLoaderIter

from solar.buffer.buffered_pass import AheadSpec, BufferedPass, batch_needs
from solar.buffer.rank_group import placed
from solar.errors import PlanError, ReadError, SolarError
from solar.io.system.waiting import WaitTimeout
from solar.loader.batch import Threads, here
from solar.loader.batch_future import BatchFuture, profiling, span
from solar.loader.direct import DirectBatches, direct_source
from solar.loader.first_batch import waited_for
from solar.loader.skipping import UNREADABLE, LeftOutSample, skipping
from solar.loader.workers import WorkersWanted, start_workers
from solar.samplers.epoch_position import EpochPosition
from solar.samplers.samplers import check_no_rank_is_without
from solar.samples.pending import NBYTES_AHEAD, PendingBatch
from solar.samples.source import SampleSource, look_at_files
from solar.samples.transform import Key

if TYPE_CHECKING:
    from solar.device.copier import DeviceCopier
    from solar.io.channels.worker_processes import Processes

ITERATOR_CLOSED = "this iterator was closed with its loader"


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
        with self._turns:
            return super().__next__()


class EpochIterator(Draws):
    """One epoch, read by the native engine. The base class draws from the generators as torch's own iterators do.

    It has no reference to the loader, so either can be deleted first.
    """

    def __init__(self, loader: Any, source: SampleSource) -> None:
        self._futures: deque[BatchFuture | Exception] = deque()
        self._buffered_pass: BufferedPass | None = None  # set if batches come from the loader's buffer
        self._pace: AheadSpec | None = None
        self._direct: DirectBatches | None = None
        self._landing: DeviceCopier | None = None
        self._lands_ahead = False  # in a thread of its own
        self._threads: Threads | None = None
        self._processes: Processes | None = None
        self._bar: Any = None
        self._drained = self._closed = self._prepared = self._sampler_failed = False
        super().__init__(loader)
        self.position: EpochPosition = self._sampler_iter.position
        self.position.base_seed = self._base_seed
        if loader.num_workers > 0:
            self._sampler_iter.begin_beside_workers()
        self._files = source  # everything it reads, including what is kept on a device
        self._sampler_state, self._stats, self._buffered = loader._sampler_state, loader._stats, loader._buffered
        self._indices: Iterator[Any] = self._sampler_iter
        self._making = loader._making(source)
        on_device = loader._on_device.native_landing(source, self._making, loader._stats, loader.ahead)
        self._landing, self._source = on_device
        self._skipping = skipping(loader, source)  # it looks for bad samples on the host, also if decoded elsewhere
        self._device_transform = loader.device_transform
        self._workers, self._prefetch_factor = loader._workers, loader.prefetch_factor
        self._wanted = WorkersWanted.of(loader)
        self._started = 0  # batches
        self._ahead = loader.ahead or source.batches_ahead
        self._nbytes_ahead = NBYTES_AHEAD if loader.ahead is None else sys.maxsize
        self._most = 0  # how many batches as large as the newest may be ahead of the oldest
        self._bar, self._handed_out = loader._progress_bar(), 0.0  # the time when the last batch was

    # --- the consumer's side ----

    def __next__(self) -> Any:
        """Returns the next batch. It is torch's method without the profiler range while the profiler is off."""
        with self._turns:
            direct = self._direct
            if direct and (data := self._next_direct(direct, time.perf_counter())) is not None:
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
        while True:
            asked_at = time.perf_counter()
            if self._direct is None:
                if self.position.finished:
                    raise StopIteration
                if self._closed:
                    raise RuntimeError(ITERATOR_CLOSED)
                if not self._prepared:
                    asked_at = self._prepare_counted(asked_at)
                elif self._handed_out:
                    self._stats.busy(asked_at - self._handed_out)
            if (direct := self._direct) and (data := self._next_direct(direct, asked_at)) is not None:
                return data
            # With the one that takes the place of the oldest: when that is there, the consumer waits for nothing else.
            while not self._drained and len(self._futures) <= min(self._ahead, self._most):
                self._start_one()
            if not self._futures:
                self._end()
            try:
                pending, data = self._take_oldest(asked_at)
            except LeftOutSample:
                self._handed_out = 0.0  # the time since then does not count as training
                continue
            if not self._futures and not self._drained:  # large batches: begin the next when this one is there
                self._start_one()
            if self._drained and not self._futures:
                self._stats.whole()
            if self._bar is not None:
                self._bar.update()
            data = self._on_device(data)
            if pending.weight is not None:
                from solar.loader.uneven import weight_batch  # only where ranks have different numbers of samples

                data = weight_batch(data, pending.weight)
            self._handed_out = time.perf_counter()
            return data

    def _next_direct(self, direct: DirectBatches, asked_at: float) -> Any:
        last = self._handed_out
        try:
            data, self._handed_out = direct.hand_out(asked_at, last)
            return data
        except Exception:  # whatever it is, the long way meets it when that batch's turn comes
            self._leave_direct()
        if self._closed:
            raise RuntimeError(ITERATOR_CLOSED)
        self._stats.busy(asked_at - last if last else 0.0)
        return None

    def _leave_direct(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:  # else it was closed by another thread
            self._futures.extend(direct.leave(self._making))
            self._indices, self._started = direct.source.indices, self._started + direct.source.begun

    def _take_oldest(self, asked_at: float) -> tuple[PendingBatch, Any]:
        """Takes the oldest batch. It is removed even if it failed, but not if Ctrl-C interrupts the wait."""
        future = self._futures[0]
        try:
            data = self._wait_for(future)
        except Exception as error:
            del future  # or it and the error, whose traceback has this frame, would keep each other alive
            self._drop_failed(error)
            raise
        future = self._drop()
        assert not isinstance(future, Exception)
        if self._skipping is not None:
            self._skipping.handed_out()
        waited, pending = time.perf_counter() - asked_at, future.pending
        self.position.taken = future.called
        if self._landing is not None:
            seconds = min(waited, self._landing.copying(future, data))
            self._stats.waited("device copy", seconds)
            waited -= seconds
        self._stats.handed_out(
            future.samples, pending.nbytes, pending.counts(), waited, future.transform_seconds, future.collate_seconds
        )
        return pending, data

    def _wait_for(self, future: BatchFuture | Exception) -> Any:
        try:
            while True:
                try:
                    return self._result_of(future)
                except UNREADABLE as error:
                    if self._skipping is None or (self._sampler_failed and len(self._futures) == 1):  # the sampler's
                        raise
                    samples = self._skipping.readable(error, self._timeout or None, self.position.epoch)
                future = self._make_again(samples)
        except SolarError as error:
            raise placed(error) from error.__cause__
        except WaitTimeout as error:
            number = self.position.before[0] + self.position.batches
            text = f"batch {number} of {self._dataset} did not come in {self._timeout:g} s: {error}"
            raise placed(ReadError(text)) from None
        finally:
            del future

    def _result_of(self, future: BatchFuture | Exception) -> Any:
        try:
            if isinstance(future, Exception):
                raise future
            data = future.wait(self._timeout or None)
            # What cannot be decoded on the device is found here, where the batch can still be made anew.
            if self._landing is None or self._skipping is None:
                return data
            with span("solar: to the device"):
                return self._landing.land(data)
        finally:
            del future

    def _make_again(self, samples: list[Any]) -> BatchFuture:
        """Makes the oldest batch, which failed, again from these of its samples, without the buffer."""
        number = self.position.before[0] + self.position.batches + 1
        anew = self._begin_batch(self._source, samples, number)
        self._forget(self._futures[0])
        self._futures[0] = anew
        self._stats.held(anew.pending.nbytes)
        return anew

    def _forget(self, future: BatchFuture | Exception) -> None:
        if isinstance(future, Exception):
            return
        self._stats.held(-future.pending.nbytes)
        future.forget()
        if self._buffered_pass is not None:
            self._buffered_pass.forget(future.pending)

    def _drop_failed(self, error: Exception) -> None:
        self._forget(self._drop())
        if type(error) is SolarError:  # a process is lost, and all processes of the loader with it
            self._workers.close()

    def _drop(self) -> BatchFuture | Exception:
        """Removes and returns the oldest batch."""
        if not self._futures:
            raise RuntimeError(ITERATOR_CLOSED)  # by another thread, meanwhile
        future = self._futures.popleft()
        if self._skipping is not None:
            self._skipping.dropped()
        if self._futures or not self._sampler_failed:  # the sampler's error comes last, and is no batch
            self.position.advance()
        return future

    def _on_device(self, data: Any) -> Any:
        landing = None if self._lands_ahead else self._landing
        pins = self._pin_memory and self._landing is None  # landing has pinned memory of its own
        if landing is None and not pins and self._device_transform is None:
            return data
        begin = time.perf_counter()
        with span("solar: to the device"):
            if landing is not None:
                data = landing.handed_out(landing.landed(data))
            if pins:
                data = pin(data, self._pin_memory_device)  # type: ignore[no-untyped-call]
            if self._device_transform is not None:
                data = self._device_transform(data)
        self._stats.waited("device copy", time.perf_counter() - begin)
        return data

    # --- reading ahead ----

    def _prepare(self) -> None:
        """Starts threads and processes before the first batch. Raises if a file was replaced."""
        replaced = look_at_files(self._files, self._source, self._buffered, self._timeout, gone=self._skipping is None)
        try:
            if replaced is None or self._buffered.has_mates(self.position.order):
                self._begin_pass(replaced)
            if replaced is not None:
                raise placed(replaced)
        finally:
            del replaced  # or it and this frame, which is in its traceback, would keep each other alive
        self._prepared = True
        more = (self._threads, self._skipping, self._bar, self._device_transform)
        if any(one is not None for one in more) or (self._pin_memory and self._landing is None):
            return
        collation, size = self._making.collation, self._sampler_state.batch_size or 0
        ahead = self._ahead, self._nbytes_ahead
        found = direct_source(self._buffered_pass, self._indices, self._source, collation, size, ahead)
        if found is not None:
            feed = found if self._landing is None else self._landing.landed_batches(found)
            if feed is not None:
                self._direct = DirectBatches(found, feed, self._stats, self.position, waits=not self._timeout)

    def _begin_pass(self, replaced: ReadError | None) -> None:
        """Begins the epoch with or without the loader's buffer. Tells the other ranks if a file was replaced."""
        if self._pace is None:
            self._pace = self._start_makers()
        if self._buffered_pass is None:
            source, pace, sampler_state = self._source, self._pace, self._sampler_state
            room = self._buffered.room(
                source, sampler_state, self.position.order, partial(batch_needs, source, pace), replaced
            )
            if room is not None:
                self._buffered_pass = BufferedPass(
                    self._buffered, room, source, self._sampler_iter, self.position, sampler_state, pace
                )
        buffered_pass = self._buffered_pass
        if self._closed:  # by another thread, meanwhile: close what was started since, too
            self._release()
            raise RuntimeError(ITERATOR_CLOSED)
        if buffered_pass is not None:
            buffered_pass.draw()
            self._indices, self._ahead = buffered_pass, buffered_pass.ahead
            self._nbytes_ahead = sys.maxsize  # it has a size

    def _prepare_counted(self, asked_at: float) -> float:
        """Prepares, and returns the time at which that was done. It does not count as waiting for the storage."""
        self._prepare()
        cause = "plan" if self._buffered_pass is not None else "start" if self._threads is not None else ""
        if cause:
            begin, asked_at = asked_at, time.perf_counter()
            self._stats.waited(cause, asked_at - begin)
        return asked_at

    def _start_makers(self) -> AheadSpec:
        if self._making.in_python:
            check_no_rank_is_without(self._index_sampler.cutter)
        self._processes, self._threads, threads, self._ahead = start_workers(
            self._making, self._source.first, self._workers, self._wanted, self._base_seed, self._ahead,
            per_worker=self._prefetch_factor or 2,
        )  # fmt: skip
        if self._landing is not None and self._landing.goes_by_itself:
            # Not where Python of the user's runs in the loop's thread: it is called there, when the batch is asked for.
            by_others = self._processes is not None or (self._threads is not None and self._making.collates_itself)
            # Nor where a batch may be made anew: it would stand behind those that wait for it to be taken.
            self._lands_ahead = (by_others or not self._making.in_python) and self._skipping is None
        return AheadSpec(self._ahead, threads, 0 if self._landing is None else self._landing.copies)

    def _start_one(self) -> None:
        """Starts the next batch. An error is raised when that batch's turn comes, as in torch."""
        try:
            indices = next(self._indices)
            self._started += 1
        except StopIteration:
            self._drained = True
            return
        except Exception as error:
            self._drained = self._sampler_failed = True
            self._futures.append(error)
            if self._skipping is not None:
                self._skipping.started(())
            return
        try:
            samples = indices if self._auto_collation else [indices]
            if self._skipping is not None:
                self._skipping.started(samples)
            shares = self._buffered_pass is not None and self._buffered_pass.rank_group is not None
            if not len(samples) and self._making.in_python and shares:
                from solar.loader.uneven import EMPTY_BATCH

                raise PlanError(EMPTY_BATCH)
            source = self._source if self._buffered_pass is None else self._buffered_pass
            future = self._begin_batch(source, samples, self.position.before[0] + self._started)
            if self._lands_ahead and self._landing is not None:
                future = self._landing.start(future)
        except Exception as error:
            self._futures.append(error)
            return
        nbytes = future.pending.nbytes
        self._stats.held(nbytes)
        self._futures.append(future)
        self._most = max(0, self._nbytes_ahead // max(1, nbytes) - 1)

    def _begin_batch(self, source: SampleSource | BufferedPass, samples: Any, number: int) -> BatchFuture:
        pending, called = source.start(samples, self.position.epoch)
        keys = self._keys(called.tolist()) if self._making.transform is not None else ()
        if self._threads is None:
            future = here(pending, len(samples), self._making, keys)
        else:
            [of_batch] = self._keys([number])
            future = self._threads.start(pending, len(samples), keys, (*of_batch, *called[:1].tolist()))
        future.called = samples
        return future if self._landing is None else self._landing.expected(future, called)

    def _keys(self, names: list[int]) -> list[Key]:
        """Returns the seeds of the samples' random numbers. They do not depend on ranks, threads or resuming."""
        shared = getattr(self._sampler_state.with_epochs, "seed", None)
        seed = shared if isinstance(shared, int) else self._base_seed
        position = self.position
        return [(seed, position.epoch, position.repeat, name) for name in names]

    # --- the end ----

    def _end(self) -> NoReturn:
        """Ends the epoch: no batch is left."""
        if not self._sampler_failed:
            if not self.position.finished:
                self._sampler_state.finish(self.position)
                self._stats.epoch()
            self._release()
            if self._skipping is not None:
                self._skipping.finish()
        raise StopIteration

    def close(self) -> None:
        """Drops the batches that are being made. The iterator yields no more."""
        self._closed = self._drained = True
        self._release()

    def _release(self) -> None:
        self._leave_direct()
        while self._futures:
            future = self._futures.pop()
            if not isinstance(future, Exception):
                self._stats.held(-future.pending.nbytes)
                future.forget()
        if self._landing is not None:
            self._landing.close()
        if self._buffered_pass is not None:
            self._buffered_pass.leave()
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            self._workers.release(self._processes)
        if self._bar is not None:
            self._bar.close()
        self._buffered_pass = self._threads = self._processes = self._bar = None

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._release()
