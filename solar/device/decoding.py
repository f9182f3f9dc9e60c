"""Decodes the rows of an encoded view on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from solar.device.finish import RowFacts, as_signed
from solar.io.reading.encoded import Encoded

if TYPE_CHECKING:
    from solar.device.kernels import Heads

Tensor = torch.Tensor

NBYTES_AT = 72  # where a chunk says how long it is (io/FORMAT.md)
INSIDE = 2  # the set of a chunk with tables of its own, and of the next such one 3
# What the host knows of a row; of what is said of a whole batch, what holds for it and all beside it.
HEAD_DTYPE = np.dtype("i8, u4, i8, i8, ?, ?, i4")
HEAD_DTYPE.names = ("length", "number", "tiles", "values", "twice", "dense", "set")


class Decoding:
    """Makes samples from rows of a view that lie on the device, with the type `out` unless it is their own."""

    def __init__(self, view: Encoded, device: torch.device, out: torch.dtype | None = None) -> None:
        from solar.device.kernels import Decoder  # only who decodes there needs it

        own = torch.from_numpy(np.empty(0, view.dtype)).dtype
        self._shape, self._device, self._dtype = view.shape, device, out or own
        self._by = [Decoder(own, view.shape, tables or None, device, self._dtype) for tables in view.tables]

    def facts(self, host: Tensor) -> RowFacts:
        """Returns what decoding rows needs to know, one by one. Raises CodecError for a damaged one."""
        stored = host.numpy()
        facts = np.empty(len(stored), HEAD_DTYPE)
        facts["length"] = chunk_lengths(stored)
        facts["number"] = np.ascontiguousarray(stored[:, -4:]).view("<u4")[:, 0]
        for number in np.unique(facts["number"]).tolist():
            here = np.flatnonzero(facts["number"] == number)
            rows = stored if len(here) == len(stored) else stored[here]
            heads = self._by[number].inspect(
                rows, facts["length"][here], checked=True
            )  # by native code, in the reading
            for name in ("tiles", "values", "twice", "dense"):
                facts[name][here] = getattr(heads, name)
            facts["set"][here] = np.minimum(heads.sets, INSIDE)
        return facts

    def __call__(self, rows: Tensor, facts: RowFacts) -> Tensor:
        """Decodes the rows with these facts to samples."""
        numbers = facts["number"]
        made = torch.empty((len(rows), *self._shape), dtype=self._dtype, device=self._device)
        if (numbers == numbers[:1]).all():
            self._alike(rows, facts, made)
            return made
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            there = torch.from_numpy(here).to(self._device)
            part = torch.empty((len(here), *self._shape), dtype=self._dtype, device=self._device)
            self._alike(rows[there], facts[here], part)
            as_signed(made)[there] = as_signed(part)
        return made

    def _alike(self, rows: Tensor, facts: RowFacts, made: Tensor) -> None:
        """Decodes rows whose chunks may need the same tables."""
        if len(facts):
            self._by[int(facts["number"][0])].decode(rows, facts["length"], inspect_rows(facts), made)


def inspect_rows(facts: RowFacts) -> Heads:
    """Returns what the decoder needs to know about these rows together."""
    from solar.device.kernels import Heads

    sets = facts["set"].copy()
    inside = np.flatnonzero(sets == INSIDE)
    sets[inside] += np.arange(len(inside), dtype=sets.dtype)  # they have tables each
    most = {name: int(facts[name].max()) for name in ("tiles", "values")}
    return Heads(**most, twice=bool(facts["twice"].any()), dense=bool(facts["dense"].any()), sets=sets)


def chunk_lengths(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns the bytes of the chunk in each row, from its header, which was compared with the file's index."""
    return np.ascontiguousarray(rows[:, NBYTES_AT : NBYTES_AT + 4]).view("<u4")[:, 0].astype(np.int64)
