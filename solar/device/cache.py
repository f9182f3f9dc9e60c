"""DeviceCache: rows that stay on the device from epoch to epoch."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from solar.buffer.buffer_size import Size, in_bytes
from solar.device.finish import RowFacts
from solar.errors import PlanError
from solar.io.system import memory as machine
from solar.io.system.quantities import size
from solar.loader.stats import Stats

Tensor = torch.Tensor
Array = NDArray[np.int64]
Slots = NDArray[np.int32]
CACHE_CLOSED = "the rows that stayed on the device were let go with the loader"
log = logging.getLogger("solar")


class DeviceCache:
    """The rows that came first, for as many samples as there is room for. None is ever replaced by another.

    If each sample is used once in an epoch, any such set saves as much as any other. A row is what crosses the bus, of
    each field of numbers. If several threads land batches, one joins at a time, and all in the same stream: what is
    found here was put here before, also on the device.
    """

    def __init__(self, samples: int, nbytes: int, device: torch.device, stats: Stats) -> None:
        self.process = os.getpid()
        self._lock, self._closed = threading.Lock(), False
        self._nbytes, self._device, self._stats = nbytes, device, stats
        self._rows: list[Tensor] | None = None  # of each field, as words
        self._facts: list[RowFacts | None] = []
        self._room = self._used = self._taken = 0  # samples, samples, bytes
        self._slot_of = np.full(samples, -1, np.int32)

    def slots(self, names: Array) -> Slots:
        """Returns the slots of samples by their numbers; -1 if not here. A sample never changes its slot."""
        return self._slot_of[names]

    @contextmanager
    def joining(self, names: Array, slots: Slots, hosts: Sequence[Tensor]) -> Iterator[PendingRows]:
        """Assembles a batch in the current stream; `hosts` are the rows that are copied, of each field.

        Rows that it keeps are found only after the block ends without an error.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(CACHE_CLOSED)
            rows = self._take(hosts) if self._rows is None else self._rows
            came = names[slots < 0]
            new = self._new(came)
            yield PendingRows(rows, self._facts, slots, new, self._used)
            self._slot_of[came[new]] = self._used + np.arange(len(new), dtype=np.int32)
            self._used += len(new)
            self._stats.kept(len(new), 0, int((slots >= 0).sum()))

    def _new(self, names: Array) -> Array:
        """Returns which of these samples to keep: the first ones that are not here already, each once."""
        if self._used == self._room:
            return np.empty(0, np.int64)
        absent = np.flatnonzero(self._slot_of[names] < 0)
        _, first = np.unique(names[absent], return_index=True)
        return absent[np.sort(first)][: self._room - self._used]

    def _take(self, hosts: Sequence[Tensor]) -> list[Tensor]:
        """Allocates the memory, all at once: for all samples, or as many as allowed."""
        each, samples = [_row_nbytes(host) for host in hosts], len(self._slot_of)
        self._room = min(samples, self._nbytes // max(1, sum(each)))
        log.log(
            logging.INFO if self._room else logging.WARNING,
            "resident=%s: %d of %d samples stay on %s, of %d bytes each",
            *(size(self._nbytes), self._room, samples, self._device, sum(each)),
        )
        shapes = [(self._room, nbytes // _word(nbytes).itemsize) for nbytes in each]
        self._rows = [
            torch.empty(shape, dtype=_word(nbytes), device=self._device)
            for shape, nbytes in zip(shapes, each, strict=True)
        ]
        self._facts = [None] * len(hosts)
        self._taken = self._room * sum(each)
        self._stats.kept(0, self._taken, 0)
        return self._rows

    def close(self) -> None:
        """Frees the memory. No further batch can be assembled."""
        with self._lock:
            if not self._closed:
                self._stats.kept(-self._used, -self._taken, 0)
            self._closed, self._rows, self._facts = True, [], []

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.process == os.getpid():
            self.close()


class PendingRows:
    """A batch that is assembled on the device, from rows that are copied and rows that are there."""

    def __init__(self, rows: list[Tensor], facts: list[RowFacts | None], slots: Slots, new: Array, first: int) -> None:
        self._rows, self._facts, self._samples = rows, facts, len(slots)
        self._kept = slice(first, first + len(new))
        self._here, self._came, self._new = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0), new
        self._slots = slots[self._here].astype(np.int64)
        mixed, some = len(self._here) and len(self._came), len(new) < len(self._came)
        both = [one if mixed else one[:0] for one in (self._here, self._came)]
        found = [self._slots, *both, new if some else new[:0]]
        self._lengths = [len(one) for one in found]
        self.indices = torch.from_numpy(np.concatenate(found))  # to be copied to the device, and given to `use`
        self._numbers = count()

    def use(self, indices: Tensor) -> None:
        """Sets the indices, as they are on the device."""
        self._at = torch.split(indices, self._lengths)

    def joined(self, there: Tensor, facts: RowFacts | None) -> tuple[Tensor, RowFacts | None]:
        """Returns the whole batch of the next field, of which `there` was copied, and its facts. Some of it is kept."""
        number = next(self._numbers)
        rows, (slots, here, came, new) = self._rows[number], self._at
        if facts is not None:
            facts = self._keep_facts(number, facts, len(rows))
        if not rows.shape[1]:
            return there.new_empty((self._samples, *there.shape[1:])), facts
        words = as_words(there, rows.dtype)
        if len(self._new):
            rows[self._kept] = words.index_select(0, new) if len(new) else words
        if not len(slots):
            return there, facts
        found = rows.index_select(0, slots)
        if len(came):
            whole = words.new_empty((self._samples, words.shape[1]))
            whole.index_copy_(0, came, words)
            found = whole.index_copy_(0, here, found)
        return found.view(torch.uint8).view(there.dtype).view(self._samples, *there.shape[1:]), facts

    def _keep_facts(self, number: int, facts: RowFacts, room: int) -> RowFacts:
        kept = self._facts[number]
        if kept is None:
            kept = self._facts[number] = np.empty(room, facts.dtype)
        kept[self._kept] = facts[self._new]
        whole = np.empty(self._samples, facts.dtype)
        whole[self._came], whole[self._here] = facts, kept[self._slots]
        return whole


def _row_nbytes(rows: Tensor) -> int:
    return math.prod(rows.shape[1:]) * rows.itemsize


def _word(nbytes: int) -> torch.dtype:
    """Returns the largest integer type that divides this many bytes: a device copies few large words faster."""
    return next(dtype for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8) if nbytes % dtype.itemsize == 0)


def as_words(rows: Tensor, word: torch.dtype) -> Tensor:
    if not len(rows):  # whose strides may be any
        return rows.new_empty((0, _row_nbytes(rows) // word.itemsize), dtype=word)
    flat = rows.contiguous().view(len(rows), math.prod(rows.shape[1:]))
    return flat.view(torch.uint8).view(word)


# --- how much ----


def resident_bytes(resident: Size, device: torch.device) -> int:
    """Returns the bytes of the device's memory that samples may take. Raises PlanError if there is not that much."""
    if resident is None:
        return 0
    free, total = _memory(device, resident)
    nbytes = in_bytes(resident, free, "resident")
    if nbytes > total:
        raise PlanError(
            f"resident={resident!r}: {device} has {size(total)} of memory; give a part of what is free there, such "
            "as '25%'"
        )
    return nbytes


def _memory(device: torch.device, resident: Size) -> tuple[int, int]:
    """Returns the free and the total bytes of the device's memory."""
    if device.type == "cpu":
        return machine.free_nbytes(), machine.memory_nbytes()
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total
    if isinstance(resident, float) or (isinstance(resident, str) and "%" in resident):
        raise PlanError(f"resident={resident!r}: how much memory {device} has free is not known: give bytes")
    return 0, machine.PLENTY
