"""LandedBatches: batches that native code copies to a device, each as soon as it is made."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import torch

from solar import _native
from solar.device.finish import DeviceFinish
from solar.device.ring import SLOTS, Streams
from solar.io.reading.engine import COUNT_NAMES
from solar.loader.batch_queue import ended_first
from solar.loader.batch_sources import DirectSource, Left, NotDirect, Taken
from solar.loader.stats import Stats

if TYPE_CHECKING:
    from solar.device.copier import DeviceForm

log = logging.getLogger("solar")

Tensors = list[torch.Tensor]


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
        form: DeviceForm,
        finishes: list[DeviceFinish | None],
        stats: Stats,
        places: int,
    ) -> None:
        self._source, self._streams, self._device, self._form = source, streams, device, form
        self._finishes, self._stats, self._places = finishes, stats, places
        self.names = (*source.names, "device_bytes", "device_copy_ns", "device_wait_ns")
        self._more = (1,) * (len(source.names) - len(COUNT_NAMES))
        empty = [one.from_bytes(np.empty(0, np.uint8), 0) for one in source.rows]
        self._shapes = [(one.shape[1:], torch.from_numpy(one).dtype) for one in empty]
        self._plain = form.as_it_is and all(one is None for one in finishes)
        self._there = deque[Tensors]()  # where the next batches go
        self._lander: _native.Lander | None = None
        self._using = threading.RLock()  # the lander, which another thread may stop, or a signal handler
        self._stopped = False
        self._failure: Exception | None = None  # of the first batch that was not copied
        self._copied_ns = self._waited_ns = 0
        self._waiting_nbytes = places * source.nbytes  # which the loop has not asked for
        stats.landed(0, self._waiting_nbytes)
        ended_first(self)

    def take(self, seconds: float) -> Taken | None:
        with self._using:
            if self._lander is None and not self._start_landing(seconds):
                return None
            lander = self._lander
            if lander is None or not (self._there or self._place()):
                raise NotDirect
            try:
                counts = self._take_landing(lander, seconds)
            except Exception as error:
                self._fail(error)
                raise NotDirect from None
            if counts is None:
                return None
            tensors = self._there.popleft()
            self._source.handed()
            self._place()
        keep, nbytes = self._streams.keep, 0
        for tensor in tensors:
            keep(tensor)
            nbytes += tensor.nbytes
        before, self._copied_ns = self._copied_ns, lander.copied_ns()
        waited, self._waited_ns = self._waited_ns, 0
        counts = (*counts, *self._more, nbytes, self._copied_ns - before, waited)
        return (tensors if self._plain else self._make(tensors)), counts

    def _start_landing(self, seconds: float) -> bool:
        """Returns whether there is a lander. Raises NotDirect once it was stopped."""
        if self._stopped:
            raise NotDirect
        native = self._source.native(seconds, self.close)
        if native is None:
            return False
        self._lander = _native.Lander(self._device, self._streams.side, native, SLOTS)
        while len(self._there) < self._places and self._place():
            pass
        return True

    def _place(self) -> bool:
        """Makes tensors for the next batch that has none, and has it copied there. False: there is no such batch."""
        samples = self._source.next_samples(len(self._there))
        if not samples or self._lander is None:
            return False
        with self._streams.beside():
            tensors = [self._streams.room((samples, *shape), dtype) for shape, dtype in self._shapes]
        self._there.append(tensors)
        self._lander.begin([(one.data_ptr(), one.nbytes) for one in tensors])
        return True

    def _take_landing(self, lander: _native.Lander, seconds: float) -> tuple[int, ...] | None:
        """Returns the counts of the next batch when its copy has begun."""
        stream = self._streams.current()
        if not seconds:
            return lander.take(seconds, stream)
        copying, begin = lander.copying(), time.perf_counter_ns()
        counts = lander.take(seconds, stream)
        if copying:
            self._waited_ns += time.perf_counter_ns() - begin
        return counts

    def _make(self, tensors: Tensors) -> Tensors:
        """Returns what the Fields and the loader make of a batch on the device, in the loop's stream."""
        form, found = self._form, Tensors()
        with torch.no_grad():
            for tensor, finish in zip(tensors, self._finishes, strict=True):
                found.append(form.given(tensor if finish is None else finish(tensor, None)))
            if form.static is not None:
                self._streams.continued()  # what still reads the batch before comes first
                found = [form.static.place(number, one) for number, one in enumerate(found)]
        return found

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
        lander, self._lander = self._lander, None
        if lander is None:
            return
        left = lander.stop()
        try:
            lander.failed()
        except Exception as error:
            self._failure = error.with_traceback(None)
        self._stats.device_took((lander.copied_ns() - self._copied_ns) / 1e9, 0.0)
        self._there.clear()
        self._source.take_back(left, self._failure)
