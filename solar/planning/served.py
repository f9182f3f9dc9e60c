"""Divides the memory of a service among steps, threads, and what is kept; for the service and `solar plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from solar.planning.budget import Budget, BufferTooSmall, Needs, divide_memory, wholes
from solar.planning.pass_uses import SampleUses
from solar.planning.planned_passes import Piece


def packable(pieces: Sequence[Piece], scratch: int) -> list[Piece]:
    """Returns the pieces, without packing for those that threads with this scratch memory cannot encode."""
    return [one if encoding_nbytes([one]) <= scratch else replace(one, packing=None) for one in pieces]


def encoding_nbytes(pieces: Sequence[Piece]) -> int:
    """Returns the bytes that a thread needs to encode a row of any piece; 0 if none may be packed."""
    return max((one.packing.scratch for one in pieces if one.packing is not None), default=0)


def tables_nbytes(pieces: Sequence[Piece]) -> int:
    """Returns the bytes in which a process keeps where samples of unequal length lie."""
    return sum(piece.tables_nbytes for piece in pieces)


FOR_BATCHES = 8  # batches on their way take one part of so many of the memory, at most
RINGS = ((64, 4), (32, 4), (16, 2), (FOR_BATCHES, 1))  # parts for them, and the steps that there must be room for
MORE_BLOCKS = 4  # of blocks that a batch has, one part of so many more may be those of a later one
STEPS_TOLD, SEGMENTS = 16, 16  # steps that are told together, at least; and parts of the longest epoch else


def segment_steps(longest: int) -> int:
    """Returns how many steps are planned as one segment if the longest epoch has `longest`."""
    return max(STEPS_TOLD, -(-longest // SEGMENTS))


def ring_of(memory: int, most: int, step: int) -> int:
    """Returns what steps of so many bytes need on their way; `most` is what one takes where nothing is shared.

    >>> [ring_of(64 << 20, jobs << 18, 1 << 18) >> 20 for jobs in (1, 4, 8, 32)]
    [1, 1, 2, 8]
    """
    parts = (memory // part for part, steps in RINGS if memory // part >= max(most, steps * step))
    return next(parts, memory // FOR_BATCHES)


def least_of(batches: int) -> int:
    """Returns the least memory for a service whose jobs' batches take this many bytes: room for two steps."""
    return 2 * FOR_BATCHES * batches


def divided_for_steps(memory: int, ring: int, pieces: Sequence[Piece], nbytes: int, scratch: int, cores: int) -> Budget:
    """Returns the budget with this much for steps. Raises BufferTooSmall if nothing is left for samples."""
    own = Needs(ring, 0, scratch, cores, 1, scratch > nbytes, encodes=encoding_nbytes(pieces))
    return divide_memory(memory, 1, [own], wholes([piece.region for piece in pieces]), tables_nbytes(pieces))


def budget_of_jobs(
    jobs: Sequence[SampleUses], combined: SampleUses, pieces: Sequence[Piece], nbytes: int,
    *, memory: int, scratch: int, cores: int,
) -> tuple[Budget, int]:  # fmt: skip
    """Divides the memory of a service among its jobs and their steps. Raises BufferTooSmall if it cannot.

    A step has a place of `nbytes` for each sample, or for each block that samples are cut from.
    """
    every = [int(places_of_steps(one, pieces).max(initial=0)) for one in jobs]
    if any(piece.in_blocks for piece in pieces):
        every = [one + one // MORE_BLOCKS for one in every]
    if (least := least_of(sum(every) * nbytes)) > memory:
        raise BufferTooSmall(memory, least, len(jobs))
    begin = segment_steps(max(len(one.starts) - 1 for one in jobs))
    step = nbytes * int(places_of_steps(combined, pieces)[:begin].max(initial=0))
    ring = ring_of(memory, sum(every) * nbytes, step)
    budget = divided_for_steps(memory, ring, pieces, nbytes, scratch, cores)
    return replace(budget, staged=max(1, ring // max(1, step))), ring


def places_of_steps(uses: SampleUses, pieces: Sequence[Piece]) -> NDArray[np.int64]:
    """Returns the places of each step, in the field that needs most."""
    fields = {piece.field: np.zeros(len(uses.starts) - 1, np.int64) for piece in pieces}
    for piece in pieces:
        if piece.in_blocks:  # of each data set
            fields[piece.field] += np.diff(piece.rows(uses)[1])
        else:
            fields[piece.field] = uses.sizes
    most: NDArray[np.int64] = np.maximum.reduce(list(fields.values()))
    return most
