"""DeviceCopier: copies batches to a device ahead of need, through pinned memory and a stream of its own."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch

from solar.device.cache import DeviceCache, PendingRows
from solar.device.finish import DeviceFinish
from solar.device.landed import LandedBatches, maker
from solar.device.parts import is_plain, plain_parts, walked
from solar.device.resident import ResidentBatch, without_kept
from solar.device.ring import SLOTS, PinnedPool, Ring, StreamMark, Streams
from solar.io.system.waiting import GLANCE
from solar.loader.batch import span
from solar.loader.batch_queue import BatchFuture, ended_first
from solar.loader.batch_sources import DirectSource
from solar.loader.stats import Stats
from solar.samples.pending import leaves
from solar.samples.source import Array

Tensor = torch.Tensor

COPIES_AHEAD = 2  # batches on the device that nobody has asked for yet, at most


@dataclass
class DeviceForm:
    """The form of a batch's tensors: their device, floating-point type, memory order, and addresses."""

    device: torch.device
    dtype: torch.dtype | None = None
    channels_last: bool = False
    static: Static | None = None

    @property
    def as_it_is(self) -> bool:
        """Whether tensors stay as they come."""
        return self.dtype is None and not self.channels_last and self.static is None

    def given(self, tensor: Tensor) -> Tensor:
        """Returns the tensor with this type and memory order."""
        if self.dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        if self.channels_last and tensor.ndim in (4, 5):
            order = torch.channels_last if tensor.ndim == 4 else torch.channels_last_3d
            tensor = tensor.contiguous(memory_format=order)
        return tensor


class Static:
    """The same addresses for every batch of a loader: each is copied over the one before, in the consumer's stream."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def place(self, number: int, tensor: Tensor) -> Tensor:
        """Returns the values at the address of the same tensor of the batch before, if they fit there."""
        if number == len(self._kept):
            self._kept.append(torch.empty_like(tensor))
        kept = self._kept[number]
        if tensor.ndim and len(tensor) < len(kept) and tensor.shape[1:] == kept.shape[1:]:
            kept = kept[: len(tensor)]
        if kept.shape != tensor.shape or kept.dtype != tensor.dtype or kept.stride() != tensor.stride():
            kept = self._kept[number] = torch.empty_like(tensor)
        return kept.copy_(tensor)

    def __reduce__(self) -> tuple[type[Static], tuple[()]]:
        return type(self), ()  # a loader in another process has its own


@dataclass
class OnDeviceBatch:
    """A batch that is on the device, or being copied there."""

    batch: Any
    tensors: list[Tensor] = field(default_factory=list)  # those that landed beside the consumer
    mark: StreamMark | None = None  # when they are there; None: they are
    all_landed: bool = True  # False: there are parts that only their own `to` can move
    seconds: float = 0.0  # that the host took to begin it
    release: Callable[[], Any] = lambda: None  # it waits no more; to be called once or several times


class CopyTimer:
    """Counts how long the device took, for batches that have arrived there."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._marks: deque[tuple[StreamMark, StreamMark, StreamMark]] = deque()
        self._lock = threading.Lock()

    def add(self, begin: StreamMark, copied: StreamMark, finished: StreamMark) -> None:
        """Adds a batch that is on its way."""
        with self._lock:
            self._marks.append((begin, copied, finished))
        self.count()

    def count(self) -> None:
        with self._lock:
            while self._marks and self._marks[0][-1].query():
                begin, copied, finished = self._marks.popleft()
                self._stats.device_took(begin.elapsed_time(copied) / 1e3, copied.elapsed_time(finished) / 1e3)


class DeviceCopier:
    """Copies an iterator's batches to a device. What is pinned and waits there is bounded: Ring, COPIES_AHEAD.

    `start` has a thread wait for a batch and land it ahead of the loop; `land` does it in the caller's thread, for
    batches that the user's Python makes there. In both cases the host waits for the device only if SLOTS copies are
    under way.
    """

    def __init__(
        self,
        form: DeviceForm,
        streams: Streams | None,
        adopted: PinnedPool | None,
        stats: Stats,
        finishes: Any = None,
        ahead: int = COPIES_AHEAD,
        tier: DeviceCache | None = None,
    ) -> None:
        self._form, self._streams, self._stats, self._finishes, self._tier = form, streams, stats, finishes, tier
        # Of each batch on its way, of the one that was asked for last, and of those that are copied from.
        self.ring = None if streams is None or adopted is None else Ring(streams, adopted, ahead + 2 * (1 + SLOTS))
        # The copies begun last: when each is done, and what it copies.
        self._copies: deque[tuple[StreamMark, list[Tensor]]] = deque()
        self._timer = CopyTimer(stats)
        self._most = min(ahead, COPIES_AHEAD)
        self._places = threading.Semaphore(self._most)
        self._stopped = threading.Event()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def goes_by_itself(self) -> bool:
        """Whether the device copies while the consumer does something else."""
        return self._streams is not None

    @property
    def copies(self) -> int:
        """How many batches of the host's memory are held while they are copied."""
        return SLOTS if self.goes_by_itself else 0

    # --- on the way ----

    def landed_batches(self, source: DirectSource) -> LandedBatches | None:
        """Returns the batches of a direct source, copied by native code; None if they need more than that."""
        native = None if self._streams is None or self._tier is not None else self._streams.native()
        finishes = leaves(self._finishes)
        if native is None or self._streams is None or any(one is not None and one.decodes for one in finishes):
            return None
        make = maker(self._streams, self._form, finishes)
        return LandedBatches(source, self._streams, native, make, self._stats, self._most)

    def start(self, future: BatchFuture) -> BatchFuture:
        """Has a thread land the batch as soon as it is made and there is a place."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "solar-landing")  # one: batches land in their order
            ended_first(self)
        future.ahead(self._pool, self._land_in_place, self._stopped, partial(span, "solar: wait for a batch to land"))
        return future.then(self._take_landed)

    def _land_in_place(self, future: BatchFuture, data: Any) -> OnDeviceBatch:
        future.missing, places = "there is no place for it on the device", self._places
        future.until(self._stopped, lambda: places.acquire(timeout=GLANCE))
        future.missing = "it is on its way to the device"
        try:
            landed = self.land(data)
        except BaseException:
            places.release()
            raise
        counted_off = landed.release

        def released() -> None:
            counted_off()
            places.release()

        landed.release = _once(released)
        return landed

    def _take_landed(self, future: BatchFuture, landed: OnDeviceBatch) -> Any:
        future.copy_seconds = landed.seconds
        return self.handed_out(landed)

    def expected(self, future: BatchFuture, names: Array) -> BatchFuture:
        """Returns the batch as `start` and `land` take it: without the rows that are on the device."""
        if self._tier is None:
            return future
        return future.then(partial(without_kept, names, self._tier, self._finishes))

    def land(self, batch: Any) -> OnDeviceBatch:
        """Begins to copy the batch to the device, and what is done with it there."""
        if self._tier is None or not isinstance(batch, ResidentBatch):
            return self._land_tensors(batch, None)
        hosts = [host for host, how in plain_parts(batch.batch, self._finishes) if how is not None]
        with self._beside(), self._tier.joining(batch.names, batch.slots, hosts) as joining:
            return self._land_tensors(batch.batch, joining)

    def _land_tensors(self, batch: Any, joining: PendingRows | None) -> OnDeviceBatch:
        streams, ring = self._streams, self.ring
        if streams is None or ring is None:
            if joining is not None:
                joining.use(joining.indices.to(self._form.device))
            act = partial(self._move, joining=joining)
            return OnDeviceBatch(walked(batch, self._finishes, act), all_landed=False)
        begun = time.perf_counter()
        while len(self._copies) >= SLOTS:  # or a loop that is ahead of its device would have all pinned memory in use
            self._copies.popleft()[0].synchronize()
        found = [part for part, _ in plain_parts(batch, self._finishes)]
        if joining is not None:
            found.append(joining.indices)
        with torch.no_grad():
            hosts = ring.staged(found)
            with self._beside():
                begin = streams.mark()
                there = [streams.there(host) for host in hosts]
                copied = streams.mark()
                self._copies.append((copied, hosts))
                if joining is not None:
                    joining.use(there[-1])
                landed = OnDeviceBatch(batch, all_landed=True)
                pairs = iter(zip(there, found, strict=True))
                act = partial(self._finish, pairs=pairs, landed=landed, joining=joining)
                landed.batch = walked(batch, self._finishes, act)
                landed.mark = streams.mark()
        self._count(landed, sum(one.nbytes for one in there), (begin, copied, landed.mark))
        landed.seconds = time.perf_counter() - begun
        return landed

    def _beside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._streams is None else self._streams.beside()

    def _count(self, landed: OnDeviceBatch, sent: int, marks: tuple[StreamMark, StreamMark, StreamMark]) -> None:
        nbytes = sum(tensor.nbytes for tensor in landed.tensors)
        landed.release = _once(lambda: self._stats.landed(0, -nbytes))
        self._timer.add(*marks)
        self._stats.landed(sent, nbytes)

    def landed(self, data: Any) -> OnDeviceBatch:
        """Returns the batch on the device, brought there now unless that was done ahead."""
        return data if isinstance(data, OnDeviceBatch) else self.land(data)

    @staticmethod
    def copying(future: BatchFuture, data: Any) -> float:
        """Returns the seconds that the host took to bring a batch to the device."""
        return data.seconds if isinstance(data, OnDeviceBatch) else future.copy_seconds

    def handed_out(self, landed: OnDeviceBatch) -> Any:
        """Returns the batch, ready for whatever the consumer begins from now on in its stream."""
        streams, form, batch = self._streams, self._form, landed.batch
        if streams is not None and landed.mark is not None:
            streams.follow(landed.mark)
            for tensor in landed.tensors:
                streams.keep(tensor)
        if not landed.all_landed:
            batch = walked(batch, None, lambda part, _: _to(part, form))
        if form.static is not None:
            if streams is not None:
                streams.continued()  # what still reads the batch before comes first
            batch = _in_place(batch, form.static)
        landed.release()
        return batch

    def _move(self, part: Any, how: DeviceFinish | None, joining: PendingRows | None) -> Any:
        return (
            part
            if how is None or not is_plain(part)
            else make_on_device(part.to(self._form.device), part, how, joining)
        )

    def _finish(
        self,
        part: Any,
        how: DeviceFinish | None,
        pairs: Iterator[tuple[Tensor, Tensor]],
        landed: OnDeviceBatch,
        joining: PendingRows | None,
    ) -> Any:
        if not is_plain(part):
            landed.all_landed = False
            return part
        tensor, host = next(pairs)
        if how is not None:
            tensor = make_on_device(tensor, host, how, joining)
        landed.tensors.append(self._form.given(tensor))
        return landed.tensors[-1]

    # --- the end ----

    def close(self) -> None:
        """Lands no more. Copies under way end by themselves, and their memory is freed then."""
        self._stopped.set()
        self._timer.count()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def __del__(self) -> None:
        """Frees memory only after it has been copied: others would read into it."""
        for copied, _ in () if sys.is_finalizing() else self._copies:
            copied.synchronize()


def _once(act: Callable[[], Any]) -> Callable[[], Any]:
    acts = [act]
    return lambda: acts.pop()() if acts else None


def make_on_device(there: Tensor, host: Tensor, how: DeviceFinish, joining: PendingRows | None) -> Tensor:
    """Returns what is made on the device from rows that were copied, and from those that stayed."""
    facts = how.facts(host)
    if joining is not None:
        there, facts = joining.joined(there, facts)
    return how(there, facts)


def _to(part: Any, form: DeviceForm) -> Any:
    moved = part.to(form.device)
    return form.given(moved) if isinstance(moved, Tensor) else moved


def _in_place(batch: Any, static: Static) -> Any:
    numbers = count()
    with torch.no_grad():
        return walked(
            batch, None, lambda part, _: static.place(next(numbers), part) if isinstance(part, Tensor) else part
        )
