"""Decoding the rows of an encoded view where they have landed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from solar.io.encoded import Encoded
from solar.torch.finish import Decode, as_signed

Tensor = torch.Tensor

NBYTES_AT = 72  # where a chunk says how long it is (io/FORMAT.md)


def decoder(view: Encoded, device: torch.device, out: torch.dtype | None = None) -> Decode:
    """What makes the samples, of type `out` if not their own, of rows of a view that lie on the device."""
    from solar.device import Decoder  # only who decodes there needs it

    own = torch.from_numpy(np.empty(0, view.dtype)).dtype
    dtype = out or own
    by = [Decoder(own, view.shape, tables or None, device, dtype) for tables in view.tables]

    def alike(number: int, rows: Tensor, stored: NDArray[np.uint8]) -> Tensor:
        """The samples of rows whose chunks may ask for the tables of this number."""
        lengths = _lengths(stored)
        made = torch.empty((len(rows), *view.shape), dtype=dtype, device=device)
        by[number].decode(rows, lengths, by[number].inspect(stored, lengths), made)
        return made

    def decode(rows: Tensor, host: Tensor) -> Tensor:
        stored = host.numpy()
        numbers = np.ascontiguousarray(stored[:, -4:]).view("<u4")[:, 0]
        if len(by) == 1 or (numbers == numbers[:1]).all():
            return alike(int(numbers[0]) if len(numbers) else 0, rows, stored)
        made = torch.empty((len(rows), *view.shape), dtype=dtype, device=device)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            there = torch.from_numpy(here).to(device)
            as_signed(made)[there] = as_signed(alike(number, rows[there], stored[here]))
        return made

    return decode


def _lengths(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The bytes of the chunk in each row, as it says itself; native code has compared them with the file's index."""
    return np.ascontiguousarray(rows[:, NBYTES_AT : NBYTES_AT + 4]).view("<u4")[:, 0].astype(np.int64)
