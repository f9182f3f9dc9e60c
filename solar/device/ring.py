"""Pinned memory, and the operations of an asynchronous device that copying needs."""

from __future__ import annotations

import logging
import resource
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from solar import _native
from solar.errors import SolarError

Tensor = torch.Tensor


class StreamMark(Protocol):
    """A point in the work of a stream: torch.cuda.Event, or what a test has in its place."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float: ...


class Streams(Protocol):
    """A stream of copies beside that of the consumer, and what orders the two without the host waiting for either."""

    def pinned(self, nbytes: int) -> Tensor:
        """Returns host memory that the device copies from by itself. Raises RuntimeError if there is none."""

    def is_pinned(self, tensor: Tensor) -> bool:
        """Returns whether the device copies from a tensor by itself."""

    def beside(self) -> AbstractContextManager[Any]:
        """Inside the block, device work and memory belong to the stream of copies."""

    def there(self, host: Tensor) -> Tensor:
        """Returns a tensor on the device to which the copy of `host` has begun. Call it inside `beside`."""

    def mark(self) -> StreamMark:
        """Returns a mark of the work begun so far beside the consumer."""

    def follow(self, mark: StreamMark) -> None:
        """Makes what the consumer begins from now on wait on the device for `mark`."""

    def keep(self, tensor: Tensor) -> None:
        """Keeps the tensor's memory from being reused before everything that the consumer has begun with it is done."""

    def continued(self) -> None:
        """Makes what the consumer begins from now on come after all that it began before, also in another stream."""

    # --- for native code that copies ----

    @property
    def side(self) -> int:
        """Returns the stream of copies, as the device's driver knows it."""

    def native(self) -> _native.Device | None:
        """Returns what copies without Python; None if nothing does."""

    def address(self) -> str | None:
        """Returns the device's address on the PCI bus, if it is known."""

    def current(self) -> int:
        """Returns the consumer's stream."""

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised tensor on the device. Call it inside `beside`."""


CUDA_DRIVER = "libcuda.so.1"


class CudaStreams:
    """Streams of a CUDA device, or of an AMD GPU, which torch's build for ROCm names "cuda", too.

    Memory for copies is allocated while the stream of copies is current, so torch's allocator reuses it for that stream
    alone, in its order. The consumer's kernels run in another stream: `follow` makes that one wait for the copy, and
    `keep` (record_stream) makes the allocator wait, once the last reference is gone, for everything that the consumer
    has begun until then. Without the former a kernel would read what is not there yet, without the latter the next copy
    could overwrite what a kernel still reads.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._last: Any = None
        self._native: list[_native.Device | None] = []

    @property
    def side(self) -> int:
        return int(self._side.cuda_stream)

    def native(self) -> _native.Device | None:
        if not self._native:
            self._native.append(self._open_native())
        return self._native[0]

    def _open_native(self) -> _native.Device | None:
        slower = "batches are brought to the device by torch, which is slower: %s"
        if torch.version.hip is not None:  # an AMD GPU has no such driver, though another GPU's may be installed
            why = f"native code copies by CUDA's driver, and this torch is built for ROCm {torch.version.hip}"
            log.info(slower, why)
            return None
        try:
            return _native.Device(CUDA_DRIVER, self._device.index or 0)
        except SolarError as error:
            log.info(slower, error)
            return None

    def address(self) -> str | None:
        facts = torch.cuda.get_device_properties(self._device)
        parts: list[int] = [getattr(facts, f"pci_{name}_id", -1) for name in ("domain", "bus", "device")]
        return None if min(parts) < 0 else "{:04x}:{:02x}:{:02x}.0".format(*parts)

    def current(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def pinned(self, nbytes: int) -> Tensor:
        with torch.cuda.device(self._device):  # a thread begins on device 0, which may be another rank's
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.is_pinned()

    def beside(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._side)

    def there(self, host: Tensor) -> Tensor:
        made = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=self._device)
        return made.copy_(host, non_blocking=True)

    def mark(self) -> StreamMark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._side)
        return event

    def follow(self, mark: StreamMark) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)  # type: ignore[arg-type]

    def keep(self, tensor: Tensor) -> None:
        tensor.record_stream(torch.cuda.current_stream(self._device))

    def continued(self) -> None:
        now = torch.cuda.current_stream(self._device)
        if self._last is not None and self._last != now:
            now.wait_stream(self._last)
        self._last = now


# type of a device: what has streams. Any other is copied to while the consumer waits.
STREAMS: dict[str, Callable[[torch.device], Streams]] = {"cuda": CudaStreams}


def streams_of(device: torch.device) -> Streams | None:
    """Returns the streams of a device; None for a kind that we do not know."""
    make = STREAMS.get(device.type)
    return None if make is None else make(device)


def named_device(given: str | int | torch.device) -> torch.device:
    """Returns the device of this name, whether it exists or not. Raises ValueError for an invalid name."""
    try:
        return torch.device(given)
    except RuntimeError as error:
        raise ValueError(f"device={given!r}: {error}") from None


def device_of(given: str | int | torch.device) -> torch.device:
    """Returns the device, with its number if there are several. Raises ValueError if it does not exist."""
    device = named_device(given)
    if device.type != "cuda":
        return device
    found = torch.cuda.device_count()
    number = device.index if device.index is not None else torch.cuda.current_device() if found else 0
    if number >= found:
        of = "CUDA devices" if torch.version.hip is None else f"GPUs for ROCm {torch.version.hip}"
        raise ValueError(
            f"device={str(given)!r}: torch finds {found} {of} here. Give device='cpu', or see torch.cuda.is_available()"
        )
    return torch.device("cuda", number)


log = logging.getLogger("solar")

SLOTS = 2  # of pinned memory for what is copied there: one is filled while the other is copied from
ADOPTED_FROM = 64 << 10  # bytes; smaller ones are copied in no time
TENSOR_ALIGNMENT = 64  # bytes, at a multiple of which each tensor begins in a slot

_warned = threading.Event()  # that there is no pinned memory: said once


class PinnedPool:
    """Pinned memory that the process's pool of batches hands out first, as long as this loader needs it.

    Native threads then read into it, for whichever loader they read. It grows as batches pass that are not in it.
    """

    left: list[Tensor] = []  # noqa: RUF012  # what was in use when a loader ended

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._memory: list[Tensor] = []
        self._made: Counter[int] = Counter()  # of each tensor of a batch

    def take_the_place_of(self, number: int, tensor: Tensor, most: int) -> None:
        """Lets this tensor of the next batch be in pinned memory, if it is in the pool's, up to `most` pieces."""
        nbytes = _native.pool_nbytes(tensor.data_ptr()) if tensor.nbytes >= ADOPTED_FROM else 0
        if nbytes == 0 or self._made[number] >= most:
            return
        memory = pin_memory(self._streams, nbytes)
        if memory is None:
            self._made[number] = most  # nor will there be more
            return
        self._made[number] += 1
        self._memory.append(memory)
        _native.pool_adopt(memory.data_ptr(), nbytes)

    def close(self) -> None:
        """Frees what is not in use; the rest is freed when another loader ends."""
        PinnedPool.left += self._memory
        self._memory, self._made = [], Counter()
        PinnedPool.left[:] = [one for one in PinnedPool.left if not _native.pool_disown(one.data_ptr())]

    def __del__(self) -> None:
        self.close()  # or the pool would hand out what was freed


class Ring:
    """The memory that an iterator's batches are copied from: `adopted`, and SLOTS for what does not lie there."""

    def __init__(self, streams: Streams, adopted: PinnedPool, most: int) -> None:
        self._streams, self._adopted, self._most = streams, adopted, most
        self._slots: deque[Tensor] = deque()
        self.staged_nbytes = 0  # that the host copied

    def staged(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns the tensors in pinned memory; themselves if they are there already, or if nothing can be pinned.

        What was staged two calls ago is overwritten: it must have been copied to the device.
        """
        left = [number for number, one in enumerate(tensors) if not self._streams.is_pinned(one)]
        hosts = list(tensors)
        for number, host in zip(left, self._copy_row([tensors[number] for number in left]), strict=True):
            hosts[number] = host
            self._adopted.take_the_place_of(number, tensors[number], self._most)
        return hosts

    def _copy_row(self, tensors: list[Tensor]) -> list[Tensor]:
        strides = [torch.empty_like(one, device="meta").stride() for one in tensors]  # dense, as `to` would have them
        ends = [0]
        for one in tensors:
            ends.append(-(-(ends[-1] + one.nbytes) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT)
        slot = self._next(ends[-1]) if ends[-1] else None
        if slot is None:
            return tensors
        hosts = []
        for one, stride, at in zip(tensors, strides, ends, strict=False):
            flat = slot[at : at + one.nbytes].view(one.dtype)
            hosts.append(flat.as_strided(one.shape, stride, flat.storage_offset()).copy_(one))
            self.staged_nbytes += one.nbytes
        return hosts

    def _next(self, nbytes: int) -> Tensor | None:
        """Returns the slot that was used longest ago."""
        slot = self._slots.popleft() if len(self._slots) == SLOTS else None
        if slot is None or slot.nbytes < nbytes:
            del slot  # before its successor is taken
            slot = pin_memory(self._streams, nbytes)
        if slot is not None:
            self._slots.append(slot)
        return slot


def pin_memory(streams: Streams, nbytes: int) -> Tensor | None:
    """Returns this many bytes of pinned memory; None, with a warning about the limit, if there is none."""
    try:
        return streams.pinned(nbytes)
    except RuntimeError as error:
        _tell(nbytes, error)
        return None


def _tell(nbytes: int, error: RuntimeError) -> None:
    if _warned.is_set():
        return
    _warned.set()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} bytes"
    log.warning(
        "no pinned memory of %s bytes for batches on their way to the device (%s), so copies are slower and keep the "
        "host busy. The limit of locked memory (RLIMIT_MEMLOCK, `ulimit -l`) is %s: raise it, or give smaller batches",
        f"{nbytes:,}",
        str(error).splitlines()[0],
        limit,
    )
