"""Pieces that may be held packed: those for which threads have memory to encode in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solar.planner.planned_passes import Piece


def packable(pieces: Sequence[Piece], scratch: int) -> list[Piece]:
    """The same; those that may not be held packed where threads have so little memory to encode in."""
    return [one if encoding_nbytes([one]) <= scratch else replace(one, packing=None) for one in pieces]


def encoding_nbytes(pieces: Sequence[Piece]) -> int:
    """What a thread needs to encode a row of any of these; 0 where none may be held packed."""
    return max((one.packing.scratch for one in pieces if one.packing is not None), default=0)


def tables_of(pieces: Sequence[Piece]) -> int:
    """Returns the bytes that a process needs, beside what is kept, to know where samples of unequal length lie."""
    return sum(piece.tables_nbytes for piece in pieces)
