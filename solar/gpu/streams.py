"""Streams: the operations that copying needs of an asynchronous device. Only CUDA has them here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Tensor = torch.Tensor


class Mark(Protocol):
    """A point in the work of a stream: torch.cuda.Event, or what a test has in its place."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float: ...


class Streams(Protocol):
    """A stream of copies beside that of the consumer, and what orders the two without either waiting for the host."""

    def pinned(self, nbytes: int) -> Tensor:
        """Host memory that the device copies from by itself. RuntimeError where there is none."""

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether the device copies from a tensor by itself."""

    def beside(self) -> AbstractContextManager[Any]:
        """Device work begun within goes to the stream of copies, and so does the memory it takes."""

    def there(self, host: Tensor) -> Tensor:
        """A tensor on the device, to which the copy of `host` is begun. Within `beside`."""

    def mark(self) -> Mark:
        """The work begun so far beside the consumer."""

    def follow(self, mark: Mark) -> None:
        """What the consumer begins from now on begins on the device after `mark`."""

    def keep(self, tensor: Tensor) -> None:
        """The tensor's memory is not used again before what the consumer will have begun with it is done."""

    def continued(self) -> None:
        """What the consumer begins from now on comes after all that it began before, also in another stream."""


class CudaStreams:
    """Streams of a CUDA device.

    Memory of what lands is taken while the stream of copies is current, so torch's allocator gives it out again to that
    stream alone, in its order. The consumer's kernels run in another stream: `follow` makes that wait for the copy,
    and `keep` (record_stream) makes the allocator wait, once the last reference is gone, for all that the consumer has
    begun until then. Without the one a kernel would read what is not there yet, without the other the next copy could
    write to what a kernel still reads.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._last: Any = None

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

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._side)
        return event

    def follow(self, mark: Mark) -> None:
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
    """The streams of a device; None where it has none that we know."""
    make = STREAMS.get(device.type)
    return None if make is None else make(device)


def named(given: str | int | torch.device) -> torch.device:
    """The device of this name, whether it is there or not. ValueError for what is no device's."""
    try:
        return torch.device(given)
    except RuntimeError as error:
        raise ValueError(f"device={given!r}: {error}") from None


def device_of(given: str | int | torch.device) -> torch.device:
    """The device, with its number where its kind has several. ValueError where there is none such."""
    device = named(given)
    if device.type != "cuda":
        return device
    found = torch.cuda.device_count()
    number = device.index if device.index is not None else torch.cuda.current_device() if found else 0
    if number >= found:
        raise ValueError(
            f"device={str(given)!r}: torch finds {found} CUDA devices here. Give device='cpu', or see "
            "torch.cuda.is_available()"
        )
    return torch.device("cuda", number)
