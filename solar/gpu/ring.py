"""Ring: pinned memory for batches that are copied to a device. Most are read directly into it."""

from __future__ import annotations

import logging
import resource
import threading
from collections import Counter, deque

import torch

from solar import _native
from solar.gpu.streams import Streams

Tensor = torch.Tensor
log = logging.getLogger("solar")

SLOTS = 2  # of pinned memory for what is copied there: one is filled while the other is copied from
ADOPTED_FROM = 64 << 10  # bytes; smaller ones are copied in no time
TENSOR_ALIGNMENT = 64  # bytes, at a multiple of which each tensor begins in a slot

_told = threading.Event()  # that there is no pinned memory: said once


class Adopted:
    """Pinned memory that the process's pool of batches hands out before other, as long as this loader needs it.

    Native threads then read to it, whoever they read for. It comes to be as batches that are not in it pass by.
    """

    left: list[Tensor] = []  # noqa: RUF012  # what was in use when a loader ended

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._memory: list[Tensor] = []
        self._made: Counter[int] = Counter()  # of each tensor of a batch

    def take_the_place_of(self, number: int, tensor: Tensor, most: int) -> None:
        """Next time this tensor of a batch may be in pinned memory, if it is in the pool's; up to so many pieces."""
        nbytes = _native.pool_nbytes(tensor.data_ptr()) if tensor.nbytes >= ADOPTED_FROM else 0
        if nbytes == 0 or self._made[number] >= most:
            return
        memory = pinned(self._streams, nbytes)
        if memory is None:
            self._made[number] = most  # nor will there be more
            return
        self._made[number] += 1
        self._memory.append(memory)
        _native.pool_adopt(memory.data_ptr(), nbytes)

    def close(self) -> None:
        """Frees what is not in use; what is, when another loader ends."""
        Adopted.left += self._memory
        self._memory, self._made = [], Counter()
        Adopted.left[:] = [one for one in Adopted.left if not _native.pool_disown(one.data_ptr())]

    def __del__(self) -> None:
        self.close()  # or the pool would hand out what was freed


class Ring:
    """The memory that an iterator's batches are copied from: `adopted`, and SLOTS for what does not lie there."""

    def __init__(self, streams: Streams, adopted: Adopted, most: int) -> None:
        self._streams, self._adopted, self._most = streams, adopted, most
        self._slots: deque[Tensor] = deque()
        self.staged_nbytes = 0  # that the host copied

    def staged(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors in pinned memory; themselves where they are there already, or nothing can be pinned.

        What was staged two calls ago is overwritten: it must have been copied to the device.
        """
        left = [number for number, one in enumerate(tensors) if not self._streams.is_pinned(one)]
        hosts = list(tensors)
        for number, host in zip(left, self._copied([tensors[number] for number in left]), strict=True):
            hosts[number] = host
            self._adopted.take_the_place_of(number, tensors[number], self._most)
        return hosts

    def _copied(self, tensors: list[Tensor]) -> list[Tensor]:
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
        """The slot used longest ago."""
        slot = self._slots.popleft() if len(self._slots) == SLOTS else None
        if slot is None or slot.nbytes < nbytes:
            del slot  # before its successor is taken
            slot = pinned(self._streams, nbytes)
        if slot is not None:
            self._slots.append(slot)
        return slot


def pinned(streams: Streams, nbytes: int) -> Tensor | None:
    """So many bytes of pinned memory; None, with a word about the limit, where there is none."""
    try:
        return streams.pinned(nbytes)
    except RuntimeError as error:
        _tell(nbytes, error)
        return None


def _tell(nbytes: int, error: RuntimeError) -> None:
    if _told.is_set():
        return
    _told.set()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} bytes"
    log.warning(
        "no pinned memory of %s bytes for batches on their way to the device (%s), so copies are slower and keep the "
        "host busy. The limit of locked memory (RLIMIT_MEMLOCK, `ulimit -l`) is %s: raise it, or give smaller batches",
        f"{nbytes:,}",
        str(error).splitlines()[0],
        limit,
    )
