"""Broadcasts arrays from rank 0 to all ranks. Each rank passes on what it has while more arrives."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError
from solar.io.machine.late import until_others
from solar.io.ranks.mail import Bytes, Errand, Gone, Mail

CAST_PIECE = 4 << 20  # bytes that are passed on together
CAST_PARTING = 5.0  # seconds for the thread to end, which has nothing left to do


def cast(mail: Mail, arrays: Sequence[NDArray[Any]], what: str) -> None:
    """Fills these arrays, which have the same size on all ranks, with rank 0's. All ranks call it together.

    Each rank sends to two others. So rank 0 sends everything twice, however many ranks there are.
    """
    pieces = [flat[at : at + CAST_PIECE] for flat in map(_bytes_of, arrays) for at in range(0, len(flat), CAST_PIECE)]
    ended = threading.Event()
    broken: list[Gone] = []
    mail.run(_errand(mail, pieces, ended, broken))
    until_others(ended.wait, f"{what} of rank {mail.rank} of {mail.ranks}", str)
    mail.join(CAST_PARTING)
    if broken:
        raise PlanError(f"rank {mail.rank} of {mail.ranks} lost the others while {what} was sent to it: {broken[0]}")


def _bytes_of(array: NDArray[Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def _errand(mail: Mail, pieces: list[Bytes], ended: threading.Event, broken: list[Gone]) -> Errand:
    children = [rank for rank in (2 * mail.rank + 1, 2 * mail.rank + 2) if rank < mail.ranks]
    coming: list[Any] = []
    leaving: list[Any] = []
    try:
        if mail.rank:
            coming = [mail.receive((mail.rank - 1) // 2, piece) for piece in pieces]
        for number, piece in enumerate(pieces):
            if mail.rank:
                yield [coming[number]]
            leaving += [mail.send(child, piece) for child in children]
        if leaving:
            yield leaving
    except Gone as gone:
        broken.append(gone)
    finally:
        ended.set()
