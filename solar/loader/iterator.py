"""EpochIterator: the batches of one epoch, read by the native engine."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data._utils.pin_memory import pin_memory as pin

from solar.buffer.buffered_pass import AheadSpec, BufferedPass, batch_needs
from solar.buffer.rank_group import placed
from solar.errors import PlanError, ReadError, SolarError
from solar.io.system.waiting import WaitTimeout
from solar.loader.batch import Threads, here
from solar.loader.batch_future import BatchFuture, profiling, span
from solar.loader.direct import DirectBatches, way_of
from solar.loader.first_batch import waited_for
from solar.loader.skipping import UNREADABLE, LeftOutSample, skipping
from solar.loader.workers import WorkersWanted, start_workers
from solar.samplers.epoch_position import Draws, EpochPosition
from solar.samplers.samplers import check_no_rank_is_without
from solar.samples.pending import NBYTES_AHEAD, PendingBatch
from solar.samples.source import SampleSource, look_at_files
from solar.samples.transform import Key

if TYPE_CHECKING:
    from solar.device.copier import DeviceCopier
    from solar.io.channels.worker_processes import Processes

ITERATOR_CLOSED = "this iterator was closed with its loader"


class EpochIterator(Draws):
    """One epoch through the native engine. The base class draws from the generators as torch's own iterators do.

    It has no reference to the loader, so either can be deleted first."""

    def __init__(self, loader: Any, beneath: SampleSource) -> None:
        self._coming: deque[BatchFuture | Exception] = deque()
        self._turn: BufferedPass | None = None  # set if batches come from the loader's buffer
        self._pace: AheadSpec | None = None
        self._straight: DirectBatches | None = None
        self._landing: DeviceCopier | None = None
        self._lands_ahead = False  # in a thread of its own
        self._threads: Threads | None = None
        self._processes: Processes | None = None
        self._bar: Any = None
        self._drained = self._closed = self._prepared = self._sampler_failed = False
        super().__init__(loader)
        self.passage: EpochPosition = self._sampler_iter.passage
        self.passage.base_seed = self._base_seed
        if loader.num_workers > 0:
            self._sampler_iter.begin_beside_workers()
        self._files = beneath  # everything it reads, including what is kept on a device
        self._course, self._stats, self._buffered = loader._course, loader._stats, loader._buffered
        self._indices: Iterator[Any] = self._sampler_iter
        self._making = loader._making(beneath)
        on_device = loader._on_device.native_landing(beneath, self._making, loader._stats, loader.ahead)
        self._landing, self._beneath = on_device
        self._skipping = skipping(loader, beneath)  # it looks for bad samples on the host, also if decoded elsewhere
        self._device_transform = loader.device_transform
        self._workers, self._prefetch_factor = loader._workers, loader.prefetch_factor
        self._wanted = WorkersWanted.of(loader)
        self._started = 0  # batches
        self._ahead = loader.ahead or beneath.batches_ahead
        self._nbytes_ahead = NBYTES_AHEAD if loader.ahead is None else sys.maxsize
        self._most = 0  # how many batches as large as the newest may be ahead of the oldest
        self._bar, self._handed_out = loader._progress_bar(), 0.0  # the time when the last batch was

    # --- the consumer's side ----

    def __next__(self) -> Any:
        """The next batch. torch's method, without its profiler range while the profiler is off."""
        with self._turns:
            straight = self._straight
            if straight and (data := self._handed_straight(straight, time.perf_counter())) is not None:
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
            asked = time.perf_counter()
            if self._straight is None:
                if self.passage.finished:
                    raise StopIteration
                if self._closed:
                    raise RuntimeError(ITERATOR_CLOSED)
                if not self._prepared:
                    asked = self._prepared_since(asked)
                elif self._handed_out:
                    self._stats.busy(asked - self._handed_out)
            if (straight := self._straight) and (data := self._handed_straight(straight, asked)) is not None:
                return data
            # With the one that takes the place of the oldest: when that is there, the consumer waits for nothing else.
            while not self._drained and len(self._coming) <= min(self._ahead, self._most):
                self._start_one()
            if not self._coming:
                self._end()
            try:
                pending, data = self._taken(asked)
            except LeftOutSample:
                self._handed_out = 0.0  # the time since then does not count as training
                continue
            if not self._coming and not self._drained:  # large batches: begin the next when this one is there
                self._start_one()
            if self._drained and not self._coming:
                self._stats.whole()
            if self._bar is not None:
                self._bar.update()
            data = self._on_device(data)
            if pending.weight is not None:
                from solar.loader.uneven import weight_batch  # only where ranks have different numbers of samples

                data = weight_batch(data, pending.weight)
            self._handed_out = time.perf_counter()
            return data

    def _handed_straight(self, straight: DirectBatches, asked: float) -> Any:
        last = self._handed_out
        try:
            data, self._handed_out = straight.hand_out(asked, last)
            return data
        except Exception:  # whatever it is, the long way meets it when that batch's turn comes
            self._leave_straight()
        if self._closed:
            raise RuntimeError(ITERATOR_CLOSED)
        self._stats.busy(asked - last if last else 0.0)
        return None

    def _leave_straight(self) -> None:
        straight, self._straight = self._straight, None
        if straight is not None:  # else it was closed by another thread
            self._coming.extend(straight.leave(self._making))
            self._indices, self._started = straight.way.indices, self._started + straight.way.begun

    def _taken(self, asked: float) -> tuple[PendingBatch, Any]:
        """Takes the oldest batch. It is removed, also if it failed, but not if Ctrl-C ends the waiting."""
        coming = self._coming[0]
        try:
            data = self._waited_for(coming)
        except Exception as error:
            del coming  # or it and the error, whose traceback has this frame, would keep each other alive
            self._failed(error)
            raise
        coming = self._drop()
        assert not isinstance(coming, Exception)
        if self._skipping is not None:
            self._skipping.handed_out()
        waited, pending = time.perf_counter() - asked, coming.pending
        self.passage.taken = coming.called
        if self._landing is not None:
            seconds = min(waited, self._landing.copying(coming, data))
            self._stats.waited("device copy", seconds)
            waited -= seconds
        self._stats.handed_out(
            coming.samples, pending.nbytes, pending.counts(), waited, coming.transform_seconds, coming.collate_seconds
        )
        return pending, data

    def _waited_for(self, coming: BatchFuture | Exception) -> Any:
        try:
            while True:
                try:
                    return self._made(coming)
                except UNREADABLE as error:
                    if self._skipping is None or (self._sampler_failed and len(self._coming) == 1):  # the sampler's
                        raise
                    samples = self._skipping.readable(error, self._timeout or None, self.passage.epoch)
                coming = self._made_anew(samples)
        except SolarError as error:
            raise placed(error) from error.__cause__
        except WaitTimeout as error:
            number = self.passage.before[0] + self.passage.batches
            text = f"batch {number} of {self._dataset} did not come in {self._timeout:g} s: {error}"
            raise placed(ReadError(text)) from None
        finally:
            del coming

    def _made(self, coming: BatchFuture | Exception) -> Any:
        try:
            if isinstance(coming, Exception):
                raise coming
            data = coming.wait(self._timeout or None)
            # What cannot be decoded on the device is found here, where the batch can still be made anew.
            if self._landing is None or self._skipping is None:
                return data
            with span("solar: to the device"):
                return self._landing.land(data)
        finally:
            del coming

    def _made_anew(self, samples: list[Any]) -> BatchFuture:
        """The oldest batch, which failed, made again from these of its samples. They are not read by the buffer."""
        number = self.passage.before[0] + self.passage.batches + 1
        anew = self._begun(self._beneath, samples, number)
        self._forget(self._coming[0])
        self._coming[0] = anew
        self._stats.held(anew.pending.nbytes)
        return anew

    def _forget(self, coming: BatchFuture | Exception) -> None:
        if isinstance(coming, Exception):
            return
        self._stats.held(-coming.pending.nbytes)
        coming.forget()
        if self._turn is not None:
            self._turn.forget(coming.pending)

    def _failed(self, error: Exception) -> None:
        self._forget(self._drop())
        if type(error) is SolarError:  # a process is lost, and all processes of the loader with it
            self._workers.close()

    def _drop(self) -> BatchFuture | Exception:
        """Removes the oldest batch, and gives it."""
        if not self._coming:
            raise RuntimeError(ITERATOR_CLOSED)  # by another thread, meanwhile
        coming = self._coming.popleft()
        if self._skipping is not None:
            self._skipping.dropped()
        if self._coming or not self._sampler_failed:  # the sampler's error comes last, and is no batch
            self.passage.advance()
        return coming

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
        """Starts threads and processes for the first batch; again after Ctrl-C. A replaced file is an error."""
        replaced = look_at_files(self._files, self._beneath, self._buffered, self._timeout, gone=self._skipping is None)
        try:
            if replaced is None or self._buffered.has_mates(self.passage.order):
                self._begin_pass(replaced)
            if replaced is not None:
                raise placed(replaced)
        finally:
            del replaced  # or it and this frame, which is in its traceback, would keep each other alive
        self._prepared = True
        more = (self._threads, self._skipping, self._bar, self._device_transform)
        if any(one is not None for one in more) or (self._pin_memory and self._landing is None):
            return
        collation, size = self._making.collation, self._course.batch_size or 0
        ahead = self._ahead, self._nbytes_ahead
        found = way_of(self._turn, self._indices, self._beneath, collation, size, ahead)
        if found is not None:
            feed = found if self._landing is None else self._landing.landed_batches(found)
            if feed is not None:
                self._straight = DirectBatches(found, feed, self._stats, self.passage, waits=not self._timeout)

    def _begin_pass(self, replaced: ReadError | None) -> None:
        """Begins the epoch with or without the loader's buffer; tells the other ranks if a file was replaced."""
        if self._pace is None:
            self._pace = self._started_making()
        if self._turn is None:
            beneath, pace, course = self._beneath, self._pace, self._course
            room = self._buffered.room(
                beneath, course, self.passage.order, partial(batch_needs, beneath, pace), replaced
            )
            if room is not None:
                self._turn = BufferedPass(self._buffered, room, beneath, self._sampler_iter, self.passage, course, pace)
        turn = self._turn
        if self._closed:  # by another thread, meanwhile: close what was started since, too
            self._release()
            raise RuntimeError(ITERATOR_CLOSED)
        if turn is not None:
            turn.draw()
            self._indices, self._ahead, self._nbytes_ahead = turn, turn.ahead, sys.maxsize  # it has a size

    def _prepared_since(self, asked: float) -> float:
        """The time when all was prepared. Counts the preparation, which is not waiting for the storage."""
        self._prepare()
        cause = "plan" if self._turn is not None else "start" if self._threads is not None else ""
        if cause:
            begin, asked = asked, time.perf_counter()
            self._stats.waited(cause, asked - begin)
        return asked

    def _started_making(self) -> AheadSpec:
        if self._making.in_python:
            check_no_rank_is_without(self._index_sampler.cutter)
        self._processes, self._threads, threads, self._ahead = start_workers(
            self._making, self._beneath.first, self._workers, self._wanted, self._base_seed, self._ahead,
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
            self._coming.append(error)
            if self._skipping is not None:
                self._skipping.started(())
            return
        try:
            samples = indices if self._auto_collation else [indices]
            if self._skipping is not None:
                self._skipping.started(samples)
            if not len(samples) and self._making.in_python and self._turn is not None and self._turn.together:
                from solar.loader.uneven import EMPTY_BATCH

                raise PlanError(EMPTY_BATCH)
            source = self._beneath if self._turn is None else self._turn
            coming = self._begun(source, samples, self.passage.before[0] + self._started)
            if self._lands_ahead and self._landing is not None:
                coming = self._landing.start(coming)
        except Exception as error:
            self._coming.append(error)
            return
        nbytes = coming.pending.nbytes
        self._stats.held(nbytes)
        self._coming.append(coming)
        self._most = max(0, self._nbytes_ahead // max(1, nbytes) - 1)

    def _begun(self, source: SampleSource | BufferedPass, samples: Any, number: int) -> BatchFuture:
        pending, called = source.start(samples, self.passage.epoch)
        keys = self._keys(called.tolist()) if self._making.transform is not None else ()
        if self._threads is None:
            coming = here(pending, len(samples), self._making, keys)
        else:
            [of_batch] = self._keys([number])
            coming = self._threads.start(pending, len(samples), keys, (*of_batch, *called[:1].tolist()))
        coming.called = samples
        return coming if self._landing is None else self._landing.expected(coming, called)

    def _keys(self, names: list[int]) -> list[Key]:
        """The seeds of the samples' random numbers. They do not depend on ranks, threads or resuming."""
        shared = getattr(self._course.with_epochs, "seed", None)
        seed = shared if isinstance(shared, int) else self._base_seed
        passage = self.passage
        return [(seed, passage.epoch, passage.repeat, name) for name in names]

    # --- the end ----

    def _end(self) -> NoReturn:
        """Ends the epoch: there is no batch left."""
        if not self._sampler_failed:
            if not self.passage.finished:
                self._course.finish(self.passage)
                self._stats.epoch()
            self._release()
            if self._skipping is not None:
                self._skipping.finish()
        raise StopIteration

    def close(self) -> None:
        """Drops the batches on their way. The iterator gives no more."""
        self._closed = self._drained = True
        self._release()

    def _release(self) -> None:
        self._leave_straight()
        while self._coming:
            coming = self._coming.pop()
            if not isinstance(coming, Exception):
                self._stats.held(-coming.pending.nbytes)
                coming.forget()
        if self._landing is not None:
            self._landing.close()
        if self._turn is not None:
            self._turn.leave()
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            self._workers.release(self._processes)
        if self._bar is not None:
            self._bar.close()
        self._turn = self._threads = self._processes = self._bar = None

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._release()
