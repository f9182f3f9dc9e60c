"""Window: what a hall plans at a time, and whose batches that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from solar import _native
from solar.io.read.engine import Engine
from solar.io.read.reader import Rows
from solar.planner.pass_uses import PassUses, SampleUses, alone, shared_steps
from solar.planner.planned_passes import PlannedPasses
from solar.serve.member import Member
from solar.values import RunPart

FOR_BATCHES = 8  # batches on their way take one part of so many of the memory, at most
RINGS = ((64, 4), (32, 4), (16, 2), (FOR_BATCHES, 1))  # parts for them, and the steps that there must be room for


class Turn(NamedTuple):
    """What a window has of a member: from this batch to that. What it tells later is of the next window."""

    member: Member
    begin: int
    end: int


class Window(NamedTuple):
    """What is planned at a time: whose batches, and how many steps a segment has."""

    members: list[Turn]
    length: int
    passes: PlannedPasses
    step: int  # samples of the largest, of all members together


def segment(members: list[Turn], begin: int, end: int) -> PassUses:
    """What all want in these steps."""
    return alone(shared_steps(own_of(members, begin, end))[0])


def own_of(members: Sequence[Turn], begin: int, end: int) -> list[SampleUses]:
    return [one.member.stretch(one.begin + begin, min(one.begin + end, one.end)) for one in members]


def places_of(members: list[Turn], begin: int, steps: int) -> list[tuple[Member, int, list[Any]]]:
    """Of each member its batch in the first of these steps, and where its samples lie in each of them.

    They are worked out again, when the Run is told of them: kept from planning, those of a window would take 128 MiB.
    """
    own = own_of(members, begin, begin + steps)
    found = []
    for turn, one, place in zip(members, own, shared_steps(own)[1], strict=True):
        split = np.split(place, one.starts[1:-1]) if len(one.starts) > 1 else []
        found.append((turn.member, turn.begin + begin, split))
    return found


def fits(parts: Sequence[RunPart], others: Sequence[RunPart]) -> bool:
    """Whether a Run made for the others can hold what these do."""
    pairs = zip(parts, others, strict=True)
    return len(parts) == len(others) and all(
        one.pages <= other.pages and (one.page, one.stored, one.pack) == (other.page, other.stored, other.pack)
        for one, other in pairs
    )


def ring_of(memory: int, most: int, step: int) -> int:
    """What steps of so many bytes need on their way; `most` is what one takes where nothing is shared.

    >>> [ring_of(64 << 20, jobs << 18, 1 << 18) >> 20 for jobs in (1, 4, 8, 32)]
    [1, 1, 2, 8]
    """
    parts = (memory // part for part, steps in RINGS if memory // part >= max(most, steps * step))
    return next(parts, memory // FOR_BATCHES)


def begun(
    rows: Sequence[Rows], parts: Sequence[RunPart], staged: int, scratch: int, pool: _native.SharedPool
) -> _native.Run:
    """A Run that puts its batches there."""
    made = _native.Run(Engine.get(), staged, scratch, None, 0, pool)
    for one, part in zip(rows, parts, strict=True):
        own = None if part.extents is None else part.extents.native
        terms = part.pages, part.page, part.stored, part.direct, part.ahead, part.gap
        assert one.source is not None, "what libhdf5 reads is refused"
        made.part(one.source, part.field, *terms, own, None, part.pack)
    return made
