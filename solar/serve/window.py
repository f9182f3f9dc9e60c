"""Window: what a hall plans at a time, and whose batches that is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.planner.pass_uses import SampleUses, shared_steps
from solar.planner.planned_passes import PlannedPasses
from solar.serve.member import Member, Share
from solar.serve.opened import SharedData
from solar.values import RunPart


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


class Wants(NamedTuple):
    """What the jobs of one node want of a window, in numbers."""

    longest: int  # batches of the longest epoch of one of them
    steps: int  # until the last of them has all that it told
    most: int  # rows that one step uses, at most
    slots: int  # samples that the memory of a step has, at most
    room: int  # and that there is room for on their way
    pace: float = 0.0  # seconds that the fastest takes for a batch; 0: that is not known


class Window(NamedTuple):
    """What is planned at a time: whose batches, and how many steps a segment has."""

    members: list[Turn]
    length: int
    passes: PlannedPasses
    parts: list[RunPart]
    costs: float  # seconds that it took to make, and that its first reads take


def wanted_by(members: Sequence[Turn], rows: int, room: int, pace: float) -> Wants:
    """What these want; `rows` are those of a sample, `pace` is that of the fastest."""
    return Wants(
        max((one.member.longest for one in members), default=0),
        max((1 + int(one.steps[-1]) for one in members), default=0),
        sum(one.member.most for one in members) * rows,
        sum(one.member.slots for one in members),
        room,
        pace,
    )


def admitted(every: Sequence[Wants]) -> list[bool]:
    """Whose jobs have room for their batches on their way beside those of the nodes before: each node has all.

    >>> admitted([Wants(9, 9, 64, 64, 300), Wants(9, 9, 96, 96, 400), Wants(9, 9, 16, 16, 300)])
    [True, False, True]
    """
    room, found = min(one.room for one in every), list[bool]()
    for one in every:
        found.append(2 * one.slots <= room)
        room -= 2 * one.slots if found[-1] else 0
    return found


def stretch(data: SharedData, members: Sequence[Turn], begin: int, end: int) -> SampleUses:
    """What all of these want in these steps, once; it ends before where none wants more."""
    if members:
        return shared_steps(own_of(members, begin, end))[0]
    which = np.empty(0, np.int64) if any(piece.dataset for piece in data.pieces) else None
    return SampleUses(which, np.empty(0, np.int32), np.zeros(1, np.int64))


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


def in_turn(members: Sequence[Member], rates: Sequence[float], *, others: bool = False) -> list[Turn]:
    """What they want that is not planned, each at its own rate. Steps that nobody would have a batch in there are not.

    A member of rate .5 has a batch in every second step, in the middle of the time that it has for it. With `others`
    there are jobs on other nodes, which have batches in the other steps.
    """
    pairs = zip(members, rates, strict=True)
    at = [((np.arange(one.known - one.planned) + 0.5) / rate).astype(np.int64) for one, rate in pairs]
    if min(rates, default=1.0) < 1 and not others:
        there = np.unique(np.concatenate(at))
        at = [np.searchsorted(there, one) for one in at]
    found = zip(members, at, rates, strict=True)
    return [Turn(one, one.planned, one.known, steps, rate) for one, steps, rate in found]


def shares_of(data: SharedData, members: list[Turn], begin: int, steps: int) -> list[list[Share]]:
    """Of each of these steps what the members have of it.

    It is worked out again, when the Run is told of them: kept from planning, those of a window would take 128 MiB.
    """
    own = own_of(members, begin, begin + steps)
    found: list[list[Share]] = [[] for _ in range(steps)]
    if not own:
        return found
    nbytes = np.array([sum(field) for field in data.fields], np.int64)
    uses, places = shared_steps(own)
    within = data.within(uses)
    for turn, one, place in zip(members, own, places, strict=True):
        if within is not None:
            place = within[np.repeat(uses.starts[: len(one.starts) - 1], one.sizes) + place].astype(np.uint32)
        takes = (data.counts(one) @ nbytes).tolist()
        number = turn.begin + turn.within(begin, begin + len(found)).start
        for step, (begins, ends) in enumerate(pairwise(one.starts.tolist())):
            if ends > begins:
                found[step].append(Share(turn.member, number, place[begins:ends], takes[step]))
                number += 1
    return found


def fits(parts: Sequence[RunPart], others: Sequence[RunPart]) -> bool:
    """Whether a Run made for the others can hold what these do."""
    pairs = zip(parts, others, strict=True)
    return len(parts) == len(others) and all(
        one.pages <= other.pages and (one.page, one.stored, one.pack) == (other.page, other.stored, other.pack)
        for one, other in pairs
    )
