"""LandedBatches: batches that native code copies to a device, each as soon as it is made."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from solar import _native
from solar.device.finish import DeviceFinish
from solar.device.ring import SLOTS, Streams
from solar.io.reading.engine import COUNT_NAMES
from solar.io.reading.reader import Rows
from solar.loader.batch_queue import ended_first
from solar.loader.batch_sources import DirectSource, Left, NotDirect, Taken
from solar.loader.stats import Stats

if TYPE_CHECKING:
    from solar.device.copier import DeviceForm

log = logging.getLogger("solar")

Tensors = list[torch.Tensor]
Make = Callable[[Tensors], Tensors]  # begun in the loop's stream


class TensorQueue:
    """The tensors that the next batches go to, in order. A native thread copies each batch as soon as it is made."""

    def __init__(self, lander: _native.Lander, streams: Streams, rows: Sequence[Rows]) -> None:
        self._lander, self._streams = lander, streams
        empty = [one.from_bytes(np.empty(0, np.uint8), 0) for one in rows]
        self._shapes = [(one.shape[1:], torch.from_numpy(one).dtype) for one in empty]
        self._tensors = deque[Tensors]()
        self._copied_ns = self._waited_ns = 0

    def __len__(self) -> int:
        return len(self._tensors)

    def append(self, samples: int) -> None:
        """Makes the tensors of another batch, and has it copied there."""
        with self._streams.beside():
            tensors = [self._streams.room((samples, *shape), dtype) for shape, dtype in self._shapes]
        self._tensors.append(tensors)
        self._lander.begin([(one.data_ptr(), one.nbytes) for one in tensors])

    def take(self, seconds: float) -> tuple[Tensors, tuple[int, ...]] | None:
        """Returns the next batch once its copy has begun, and its counts."""
        copying, begin = bool(seconds) and self._lander.copying(), time.perf_counter_ns()
        counts = self._lander.take(seconds, self._streams.current())
        if copying:
            self._waited_ns += time.perf_counter_ns() - begin
        return None if counts is None else (self._tensors.popleft(), counts)

    def times_ns(self) -> tuple[int, int]:
        """Returns how long copying took, and how long the loop waited for it, since this was called last."""
        before, self._copied_ns = self._copied_ns, self._lander.copied_ns()
        waited, self._waited_ns = self._waited_ns, 0
        return self._copied_ns - before, waited

    def stop(self) -> tuple[list[Any], Exception | None]:
        """Copies no more. Returns the batches that were not handed out, and the error after them."""
        left, failure = self._lander.stop(), None
        try:
            self._lander.failed()
        except Exception as error:
            failure = error.with_traceback(None)
        self._tensors.clear()
        return left, failure


class LandedBatches:
    """The batches of a DirectSource on a device, at most `places` of them before the loop asks for them.

    A native thread waits for a batch, and begins its copy, in the stream of copies, to tensors that were made before.
    The loop then has its own stream wait for that copy, and whatever a Field or the loader does with the tensors on the
    device is begun in the loop's stream. So the loop waits only for the bytes of a batch, never for the device.
    """

    def __init__(
        self,
        source: DirectSource,
        streams: Streams,
        device: _native.Device,
        make: Make | None,
        stats: Stats,
        places: int,
    ) -> None:
        """`make` makes what the loop gets of the tensors of a batch; None: it gets them as they are."""
        self._source, self._streams, self._device, self._make = source, streams, device, make
        self._stats, self._places = stats, places
        self.names = (*source.names, "device_bytes", "device_copy_ns", "device_wait_ns")
        self._queue: TensorQueue | None = None
        self._using = threading.RLock()  # the queue, which another thread may stop, or a signal handler
        self._stopped = False
        self._failure: Exception | None = None  # of the first batch that was not copied
        self._waiting_nbytes = places * source.nbytes  # which the loop has not asked for
        stats.landed(0, self._waiting_nbytes)
        ended_first(self)

    def take(self, seconds: float) -> Taken | None:
        with self._using:
            queue = self._start_landing(seconds) if self._queue is None else self._queue
            if queue is None:
                return None
            if not (len(queue) or self._append_to(queue)):
                raise NotDirect
            try:
                found = queue.take(seconds)
            except Exception as error:
                self._fail(error)
                raise NotDirect from None
            if found is None:
                return None
            tensors, counts = found
            self._source.handed()
            self._append_to(queue)
        keep, nbytes = self._streams.keep, 0
        for tensor in tensors:
            keep(tensor)
            nbytes += tensor.nbytes
        more = (1,) * (len(self._source.names) - len(COUNT_NAMES))
        return (tensors if self._make is None else self._make(tensors)), (*counts, *more, nbytes, *queue.times_ns())

    def _start_landing(self, seconds: float) -> TensorQueue | None:
        """Returns the queue of the next batches; None if they are not ready. Raises NotDirect once it was stopped."""
        if self._stopped:
            raise NotDirect
        native = self._source.native(seconds, self.close)
        if native is None:
            return None
        lander = _native.Lander(self._device, self._streams.side, native, SLOTS)
        queue = self._queue = TensorQueue(lander, self._streams, self._source.rows)
        while len(queue) < self._places and self._append_to(queue):
            pass
        return queue

    def _append_to(self, queue: TensorQueue) -> bool:
        """Has the next batch that is in no queue copied. Returns False if there is none, or if it was stopped."""
        samples = self._source.next_samples(len(queue))
        if not samples or self._stopped:
            return False
        queue.append(samples)
        return True

    def _fail(self, error: Exception) -> None:
        """Keeps an error until its batch is asked for. After one of the device, torch copies, or says what is wrong."""
        self._stop()
        if self._failure is None:
            log.warning("batches are brought to the device by torch from now on, which is slower: %s", error)

    # --- the end ----

    def leave(self) -> list[Left]:
        self.close()
        return self._source.leave()

    def close(self) -> None:
        """Stops copying, and frees what was made and not handed out. Anybody may call it."""
        with self._using:
            self._stop()

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._stats.landed(0, -self._waiting_nbytes)
        queue, self._queue = self._queue, None
        if queue is None:
            return
        left, self._failure = queue.stop()
        self._stats.device_took(queue.times_ns()[0] / 1e9, 0.0)
        self._source.take_back(left, self._failure)


def maker(streams: Streams, form: DeviceForm, finishes: Sequence[DeviceFinish | None]) -> Make | None:
    """Returns what the Fields and the loader make of a batch on the device; None if they leave it as it is."""
    if form.as_it_is and all(one is None for one in finishes):
        return None

    def make(tensors: Tensors) -> Tensors:
        found = Tensors()
        with torch.no_grad():
            for tensor, finish in zip(tensors, finishes, strict=True):
                found.append(form.given(tensor if finish is None else finish(tensor, None)))
            if form.static is not None:
                streams.continued()  # what still reads the batch before comes first
                found = [form.static.place(number, one) for number, one in enumerate(found)]
        return found

    return make
