"""LandedBatches: batches that native code copies to a device, each as soon as it is made."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from solar import _native
from solar.device.finish import DeviceFinish
from solar.device.ring import SLOTS, Streams
from solar.io.reading.reader import Rows
from solar.loader.batch_sources import DirectSource
from solar.loader.lent import LentBatches, Make, stopped
from solar.loader.stats import Stats

if TYPE_CHECKING:
    from solar.device.copier import DeviceForm

log = logging.getLogger("solar")

Tensors = list[torch.Tensor]


class TensorQueue:
    """The tensors that the next batches go to, in order. A native thread copies each batch as soon as it is made."""

    def __init__(self, lander: _native.Lander, streams: Streams, rows: Sequence[Rows]) -> None:
        self._lander, self._streams = lander, streams
        empty = [one.from_bytes(np.empty(0, np.uint8), 0) for one in rows]
        self._shapes = [(one.shape[1:], torch.from_numpy(one).dtype) for one in empty]
        self.waiting = deque[Tensors]()
        self._came = deque[Any]()  # the counts of a batch received, and not yet handed out
        self._copied_ns = self._waited_ns = 0

    def append(self, samples: int) -> None:
        """Makes the tensors of another batch, and has it copied there."""
        tensors, target = list[torch.Tensor](), list[tuple[int, int]]()
        with self._streams.beside():
            for shape, dtype in self._shapes:
                tensor = self._streams.room((samples, *shape), dtype)
                tensors.append(tensor)
                target.append((tensor.data_ptr(), tensor.nbytes))
        self.waiting.append(tensors)
        self._lander.begin(target)

    def take(self, seconds: float) -> tuple[Tensors, tuple[int, ...]] | None:
        """Returns the next batch once its copy has begun, and its counts."""
        copying, begin = bool(seconds) and self._lander.copying(), time.perf_counter_ns()
        if not self._came:
            # In one statement: between two, Ctrl-C could lose the batch.
            self._came.extend(map(self._lander.take, (seconds,), (self._streams.current(),)))
        if copying:
            self._waited_ns += time.perf_counter_ns() - begin
        counts = self._came.popleft()
        if counts is None:
            return None
        tensors, keep, nbytes = self.waiting.popleft(), self._streams.keep, 0
        for tensor in tensors:
            keep(tensor)
            nbytes += tensor.nbytes
        return tensors, (*counts, nbytes, *self.times_ns())

    def times_ns(self) -> tuple[int, int]:
        """Returns how long copying took, and how long the loop waited for it, since this was called last."""
        before, self._copied_ns = self._copied_ns, self._lander.copied_ns()
        waited, self._waited_ns = self._waited_ns, 0
        return self._copied_ns - before, waited

    def stop(self) -> tuple[list[Any], Exception | None]:
        """Copies no more. Returns the batches that were not handed out, and the error after them."""
        found = stopped(self._lander)
        self.waiting.clear()
        return found


class LandedBatches(LentBatches):
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

        def begin(native: _native.Run | _native.ReadAhead) -> TensorQueue:
            return TensorQueue(_native.Lander(device, streams.side, native, SLOTS), streams, source.rows)

        super().__init__(source, begin, places, ("device_bytes", "device_copy_ns", "device_wait_ns"), make)
        self._stats = stats
        self._waiting_nbytes = places * source.nbytes  # which the loop has not asked for
        stats.landed(0, self._waiting_nbytes)

    def _fail(self, error: Exception) -> None:
        """Keeps an error until its batch is asked for. After one of the device, torch copies, or says what is wrong."""
        super()._fail(error)
        if self._failure is None:
            log.warning("batches are brought to the device by torch from now on, which is slower: %s", error)

    def _stop(self) -> None:
        if not self._stopped:
            self._stats.landed(0, -self._waiting_nbytes)
        queue = self._queue
        super()._stop()
        if isinstance(queue, TensorQueue):
            self._stats.device_took(queue.times_ns()[0] / 1e9, 0.0)


def maker(streams: Streams, form: DeviceForm, finishes: Sequence[DeviceFinish | None]) -> Make | None:
    """Returns what the Fields and the loader make of a batch on the device; None if they leave it as it is.

    It is begun in the loop's stream.
    """
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
