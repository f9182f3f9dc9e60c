"""Ring: pinned memory for batches that are copied to a device. Most are read directly into it."""

from __future__ import annotations

import logging
import resource
import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from solar.gpu.streams import Mark, Streams
from solar.io.read.reader import Rows
from solar.torch.batch.pending import TENSOR_KINDS

Tensor = torch.Tensor
log = logging.getLogger("solar")

SLOTS = 2  # of pinned memory for what is copied there: one is filled while the other is copied from
TENSOR_ALIGNMENT = 64  # bytes, at a multiple of which each tensor begins in a slot

_told = threading.Event()  # that there is no pinned memory: said once


@dataclass
class Slot:
    """A piece of pinned memory, and when what is in it has been copied to the device."""

    memory: Tensor
    copied: Mark | None = None


class _Lent:
    """Memory of a slot that the engine reads to. The slot is free again when nothing refers to it any more."""

    def __init__(self, slot: Slot, free: deque[Slot]) -> None:
        self._slot, self._free = slot, free
        memory = slot.memory
        self.__array_interface__ = {
            "data": (memory.data_ptr(), False), "shape": (memory.nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self._free.append(self._slot)  # in whatever thread: a deque's append is one step


class Ring:
    """The pinned memory of one iterator: of `most` batches for each field that is read to it, and SLOTS for the rest.

    `room` is called in one thread, and `staged` in one, which may be another. Neither waits for the device, but
    `staged` where both of its slots are full.
    """

    def __init__(self, streams: Streams, most: int) -> None:
        self._streams, self._most = streams, most
        self._free: defaultdict[int, deque[Slot]] = defaultdict(deque)  # of each field
        self._made: defaultdict[int, int] = defaultdict(int)  # slots of each field
        self._at: dict[int, Slot] = {}  # address -> what is read to
        self._slots: deque[Slot] = deque()  # what is copied to
        self.staged_nbytes = 0  # that the host copied

    # --- what is read to ----

    def room(self, number: int, rows: Rows, samples: int) -> NDArray[Any] | None:
        """Pinned memory for so many samples of a field; None where they are no numbers, or there is none just now."""
        shape, dtype = (samples, *rows.sample_shape), rows.dtype
        nbytes = samples * rows.sample_nbytes
        if dtype.subdtype is not None or dtype.kind not in TENSOR_KINDS or nbytes == 0:
            return None
        slot = self._free_slot(number, nbytes)
        if slot is None:
            return None
        return np.ndarray(shape, dtype, np.asarray(_Lent(slot, self._free[number])))

    def _free_slot(self, number: int, nbytes: int) -> Slot | None:
        free = self._free[number]
        if free and (free[0].copied is None or free[0].copied.query()):
            slot = free.popleft()
            if slot.memory.nbytes >= nbytes:
                return slot
            del self._at[slot.memory.data_ptr()], slot  # before its successor is taken
        elif self._made[number] < self._most:
            self._made[number] += 1
        else:
            return None
        try:
            slot = Slot(self._streams.pinned(nbytes))
        except RuntimeError as error:
            _tell(nbytes, error)
            self._most = 0  # nor will there be more
            return None
        self._at[slot.memory.data_ptr()] = slot
        return slot

    # --- what is copied to ----

    def staged(self, tensors: list[Tensor]) -> tuple[list[Slot], list[Tensor]]:
        """The tensors in pinned memory, and the slots that they are in; themselves where nothing can be pinned.

        Those that were read to it are there already.
        """
        slots = [self._at.get(one.untyped_storage().data_ptr()) for one in tensors]
        left = [number for number, slot in enumerate(slots) if slot is None]
        slot, copies = self._copied([tensors[number] for number in left])
        hosts = list(tensors)
        for number, host in zip(left, copies, strict=True):
            hosts[number] = host
        return [one for one in (*slots, slot) if one is not None], hosts

    def _copied(self, tensors: list[Tensor]) -> tuple[Slot | None, list[Tensor]]:
        strides = [torch.empty_like(one, device="meta").stride() for one in tensors]  # dense, as `to` would have them
        ends = [0]
        for one in tensors:
            ends.append(-(-(ends[-1] + one.nbytes) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT)
        slot = self._next(ends[-1]) if ends[-1] else None
        if slot is None:
            return None, tensors
        hosts = []
        for one, stride, at in zip(tensors, strides, ends, strict=False):
            flat = slot.memory[at : at + one.nbytes].view(one.dtype)
            hosts.append(flat.as_strided(one.shape, stride, flat.storage_offset()).copy_(one))
            self.staged_nbytes += one.nbytes
        return slot, hosts

    def _next(self, nbytes: int) -> Slot | None:
        """The slot used longest ago, once nothing is copied from it any more."""
        slot = self._slots.popleft() if len(self._slots) == SLOTS else None
        if slot is not None and slot.copied is not None:
            slot.copied.synchronize()
        if slot is None or slot.memory.nbytes < nbytes:
            del slot  # before its successor is taken
            try:
                slot = Slot(self._streams.pinned(nbytes))
            except RuntimeError as error:
                _tell(nbytes, error)
                return None
        self._slots.append(slot)
        return slot


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
