"""Window: what a hall plans at a time, and whose batches that is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.read.engine import Engine
from solar.io.read.reader import Rows
from solar.planner.pass_uses import PassUses, SampleUses, alone, shared_steps
from solar.planner.planned_passes import Piece, PlannedPasses
from solar.serve.member import Member, Share
from solar.serve.opened import SharedData
from solar.values import RunPart, Told

FOR_BATCHES = 8  # batches on their way take one part of so many of the memory, at most
RINGS = ((64, 4), (32, 4), (16, 2), (FOR_BATCHES, 1))  # parts for them, and the steps that there must be room for


class Turn(NamedTuple):
    """What a window has of a member: from this batch to that. What it tells later is of the next window."""

    member: Member
    begin: int
    end: int
    steps: NDArray[np.int64]  # of the window, in which they are: each in one of its own, ascending
    rate: float = 1.0  # batches a step

    def within(self, begin: int, end: int) -> slice:
        """Which of its batches are in these steps, counted from its first one here."""
        found = np.searchsorted(self.steps, (begin, end))
        return slice(int(found[0]), int(found[1]))


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
    """What each wants in these steps: in some of them nothing, if it has a batch in every second one, say."""
    found = []
    for one in members:
        here = one.within(begin, end)
        uses = one.member.stretch(one.begin + here.start, one.begin + here.stop)
        if here.stop - here.start < (steps := min(end, int(one.steps[-1]) + 1) - begin):
            before = np.searchsorted(one.steps[here], np.arange(begin, begin + max(0, steps) + 1))
            uses = uses._replace(starts=uses.starts[before])
        found.append(uses)
    return found


def in_turn(members: Sequence[Member], rates: Sequence[float]) -> list[Turn]:
    """What they want that is not planned, each at its own rate. Steps that nobody would have a batch in there are not.

    A member of rate .5 has a batch in every second step, in the middle of the time that it has for it.
    """
    pairs = zip(members, rates, strict=True)
    at = [((np.arange(one.known - one.planned) + 0.5) / rate).astype(np.int64) for one, rate in pairs]
    if min(rates, default=1.0) < 1:
        there = np.unique(np.concatenate(at))
        at = [np.searchsorted(there, one) for one in at]
    found = zip(members, at, rates, strict=True)
    return [Turn(one, one.planned, one.known, steps, rate) for one, steps, rate in found]


def shares_of(
    data: SharedData, members: list[Turn], begin: int, uses: SampleUses, within: NDArray[np.int64] | None
) -> list[list[Share]]:
    """Of each of these steps what the members have of it.

    It is worked out again, when the Run is told of them: kept from planning, those of a window would take 128 MiB.
    `within` is the place of each of these uses, where that is another than its place in its step.
    """
    own = own_of(members, begin, begin + len(uses.starts) - 1)
    nbytes = np.array([sum(field) for field in data.fields], np.int64)
    found: list[list[Share]] = [[] for _ in uses.sizes]
    for turn, one, place in zip(members, own, shared_steps(own)[1], strict=True):
        if within is not None:
            place = within[np.repeat(uses.starts[: len(one.starts) - 1], one.sizes) + place].astype(np.uint32)
        takes = (data.counts(one) @ nbytes).tolist()
        number = turn.begin + turn.within(begin, begin + len(found)).start
        for step, (begins, ends) in enumerate(pairwise(one.starts.tolist())):
            if ends > begins:
                found[step].append(Share(turn.member, number, place[begins:ends], takes[step]))
                number += 1
    return found


def in_places(told: list[Told], pieces: Sequence[Piece], which: Any, within: NDArray[np.int64] | None) -> list[Told]:
    """What a segment is for each piece, where each use has such a place in the memory of its step."""
    if within is None:
        return told
    own = [within[which == piece.dataset].astype(np.int32) for piece in pieces]
    return [one._replace(positions=places) for one, places in zip(told, own, strict=True)]


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
