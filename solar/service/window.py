"""Window: what is planned at a time, and for which jobs. Member: a job, with its order and its pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planning.pass_uses import SampleUses, shared_steps
from solar.planning.planned_passes import PlannedPasses
from solar.samples.row_windows import Listing
from solar.service.shared_data import SharedData
from solar.values import PartScript, RunPart, Script, Transfers, Turns


@dataclass(eq=False)
class JobOrder:
    """The batches whose samples a job has sent, those of all its epochs one after another."""

    epochs: list[SampleUses]
    _forgotten: int = 0  # batches of epochs that are over

    @property
    def known(self) -> int:
        """The number of batches whose samples the job has sent."""
        return self._forgotten + sum(len(one.starts) - 1 for one in self.epochs)

    @property
    def longest(self) -> int:
        """The number of batches of the longest epoch."""
        return max((len(one.starts) - 1 for one in self.epochs), default=0)

    def forget(self, planned: int) -> None:
        """Frees epochs of which everything is planned and announced. An order takes 4 bytes per sample."""
        while len(self.epochs) > 1 and self._forgotten + len(self.epochs[0].starts) - 1 <= planned:
            self._forgotten += len(self.epochs.pop(0).starts) - 1

    def stretch(self, begin: int, end: int) -> SampleUses:
        """Returns these of the batches, as far as the job has sent their samples."""
        rows, which, sizes, at = [], [], [], self._forgotten
        for one in self.epochs:
            own = slice(max(0, begin - at), max(0, min(len(one.starts) - 1, end - at)))
            at += len(one.starts) - 1
            if own.start >= own.stop:
                continue
            uses = slice(int(one.starts[own.start]), int(one.starts[own.stop]))
            rows.append(one.rows[uses])
            which.append(None if one.which is None else one.which[uses])
            sizes.append(one.sizes[own])
        starts = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        several = [one for one in which if one is not None]
        # Of several data sets it is so even where it has nothing left: others' batches are planned by the first one's.
        return SampleUses(
            None if self.epochs[-1].which is None else np.concatenate([*several, np.empty(0, np.int64)]),
            np.concatenate([*rows, np.empty(0, np.int32)]),
            starts,
        )


@dataclass(eq=False)
class Pace:
    """How fast a job takes batches, and for how long it has held back others."""

    lately: deque[float]  # seconds of its own for a batch
    held: float = 0.0  # seconds for which it has held back others lately
    stood: float = 0.0  # and for which it has done so without making a batch
    _seen: tuple[int, float, float] = (0, 0.0, 0.0)

    def look(self, now: float, ledger: _native.Ledger) -> bool:
        """Notes how long it takes for a batch, not counting the time that it waits. Returns whether it finished one."""
        made = ledger.made
        before, since, waited_before = self._seen
        if made > before:
            waited = ledger.waited
            if before:
                self.lately.append(max(0.0, now - since - max(0.0, waited - waited_before)) / (made - before))
            self._seen = made, now, waited
        return made > before


@dataclass(eq=False)
class Member:
    """A job that takes batches, and how far it has come."""

    name: str
    process: int
    most: int  # samples of a batch
    slots: int  # that one takes in the memory of a step, at most
    ledger: _native.Ledger
    order: JobOrder
    pace: Pace
    planned: int = 0  # batches of the union so far
    left: bool = False
    why: str = ""  # it was left behind
    announced: int = 0  # batches
    rate: float = 1.0  # batches a step, as planned

    def skip(self, more: int) -> None:
        """Skips batches that it makes by itself, and those that it will make so before planned steps are ready."""
        if (made := self.ledger.made) > self.planned:
            self.planned = made + more

    def done(self, number: int) -> bool:
        """Returns whether it no longer needs this batch."""
        return self.left or self.ledger.made > number

    @property
    def waiting(self) -> bool:
        """Whether it waits for a batch that is not ready yet."""
        return not self.left and self.ledger.waits > self.announced

    def detach(self, why: str) -> None:
        """Serves it no more: what it has not taken may be overwritten from now on."""
        self.why, self.left = why, True
        self.ledger.gone(self.ledger.made)


class Share:
    """A member's part of a step."""

    __slots__ = ("member", "nbytes", "number", "places")

    def __init__(self, member: Member, number: int, places: NDArray[np.uint32], nbytes: int) -> None:
        self.member, self.number, self.places, self.nbytes = member, number, places, nbytes


def split_script(
    scripts: list[PartScript], uses: SampleUses, steps: Callable[[], int]
) -> Iterator[tuple[int, int, list[PartScript]]]:
    """Returns each stretch, of so many steps, with its first step and its end. Samples of several rows stay whole."""
    every, end = len(uses.starts) - 1, 0
    whole = any(isinstance(one.script.rows, Listing) for one in scripts)
    while (begin := end) < every:
        end = every if whole else min(begin + steps(), every)
        yield begin, end, scripts if end - begin == every else [cut_part(one, begin, end) for one in scripts]


def cut_part(part: PartScript, begin: int, end: int) -> PartScript:
    script, none = part.script, np.empty(0, np.int64)
    assert isinstance(script.rows, np.ndarray)
    own = slice(int(script.starts[begin]), int(script.starts[end]))
    loads = slice(int(script.ends[begin]), int(script.ends[end]))
    first = begin == 0
    made: Script = replace(
        script,
        rows=script.rows[own],
        starts=script.starts[begin : end + 1] - script.starts[begin],
        last=script.last[own],
        loads=script.loads[loads],
        ends=script.ends[begin : end + 1] - script.ends[begin],
        start=script.start if first else script.start[:0],
        start_ends=script.start_ends if first else none,
        start_due=script.start_due if first else none,
    )
    assert not isinstance(part.positions, Turns), "jobs and nodes of a service take no turns"
    positions = None if part.positions is None else part.positions[own]
    return part._replace(script=made, positions=positions, afresh=part.afresh if first else None)


def parcels_of(parcels: Transfers | None, begin: int, end: int) -> Transfers | None:
    """Returns what travels between nodes in these steps."""
    if parcels is None:
        return None
    first, last = begin * parcels.letters, end * parcels.letters
    sent, come = (
        rows[np.searchsorted(rows[:, 0], first) : np.searchsorted(rows[:, 0], last)].copy()
        for rows in (parcels.sent, parcels.come)
    )
    sent[:, 0] -= first
    come[:, 0] -= first
    return Transfers(parcels.sizes[begin:end], sent, come, parcels.letters)


def reach(scripts: list[PartScript], samples: int, before: float) -> float:
    """Returns how far into the data a stretch reads in the first field, from 0 to 1; `before` if it reads nothing."""
    script = scripts[0].script
    loads = script.loads if len(script.loads) else script.start
    return float(loads[-1]) / max(1, samples) if len(loads) else before


class WindowShare(NamedTuple):
    """The batches of a member that a window plans. What the member sends later belongs to the next window."""

    member: Member
    begin: int
    end: int
    steps: NDArray[np.int64]  # of the window, in which they are: each in one of its own, ascending
    rate: float = 1.0  # batches a step

    def within(self, begin: int, end: int) -> slice:
        """Returns which of its batches are in these steps, counted from its first one here."""
        found = np.searchsorted(self.steps, (begin, end))
        return slice(int(found[0]), int(found[1]))


class Wants(NamedTuple):
    """What the jobs of one node want of a window, as numbers."""

    longest: int  # batches of the longest epoch of one of them
    steps: int  # until the last of them has all that it told
    most: int  # rows that one step uses, at most
    slots: int  # samples that the memory of a step has, at most
    room: int  # and that there is room for on their way
    pace: float = 0.0  # seconds that the fastest takes for a batch; 0: that is not known


class Window(NamedTuple):
    """What is planned at a time: for which batches, and how many steps a segment has."""

    members: list[WindowShare]
    length: int
    passes: PlannedPasses
    parts: list[RunPart]
    costs: float  # seconds that it took to make, and that its first reads take


def wanted_by(members: Sequence[WindowShare], rows: int, room: int, pace: float) -> Wants:
    """Returns what these members want. `rows` are the rows of a sample, `pace` is that of the fastest member."""
    return Wants(
        max((one.member.order.longest for one in members), default=0),
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


def stretch(data: SharedData, members: Sequence[WindowShare], begin: int, end: int) -> SampleUses:
    """Returns what these members use in these steps, each sample once. It ends early where none wants more."""
    if members:
        return shared_steps(own_of(members, begin, end))[0]
    which = np.empty(0, np.int64) if any(piece.dataset for piece in data.pieces) else None
    return SampleUses(which, np.empty(0, np.int32), np.zeros(1, np.int64))


def own_of(members: Sequence[WindowShare], begin: int, end: int) -> list[SampleUses]:
    """Returns what each member uses in these steps, which may be nothing in some of them."""
    found = []
    for one in members:
        here = one.within(begin, end)
        uses = one.member.order.stretch(one.begin + here.start, one.begin + here.stop)
        if here.stop - here.start < (steps := min(end, int(one.steps[-1]) + 1) - begin):
            before = np.searchsorted(one.steps[here], np.arange(begin, begin + max(0, steps) + 1))
            uses = uses._replace(starts=uses.starts[before])
        found.append(uses)
    return found


def take_turns(members: Sequence[Member], rates: Sequence[float], *, others: bool = False) -> list[WindowShare]:
    """Returns the batches of members that are not planned yet, each member at its own rate, without empty steps.

    A member of rate .5 has a batch in every second step, in the middle of the time that it has for it. With `others`,
    jobs on other nodes have batches in the other steps.
    """
    pairs = zip(members, rates, strict=True)
    at = [((np.arange(one.order.known - one.planned) + 0.5) / rate).astype(np.int64) for one, rate in pairs]
    if min(rates, default=1.0) < 1 and not others:
        there = np.unique(np.concatenate(at))
        at = [np.searchsorted(there, one) for one in at]
    found = zip(members, at, rates, strict=True)
    return [WindowShare(one, one.planned, one.order.known, steps, rate) for one, steps, rate in found]


def shares_of(data: SharedData, members: list[WindowShare], begin: int, steps: int) -> list[list[Share]]:
    """Returns the parts of the members in each of these steps.

    They are computed again when the Run gets the steps: kept from planning, those of a window would take 128 MiB.
    """
    own = own_of(members, begin, begin + steps)
    found: list[list[Share]] = [[] for _ in range(steps)]
    if not own:
        return found
    nbytes = np.array([sum(field) for field in data.fields], np.int64)
    uses, places = shared_steps(own)
    within = data.within(uses)
    for member, one, place in zip(members, own, places, strict=True):
        if within is not None:
            place = within[np.repeat(uses.starts[: len(one.starts) - 1], one.sizes) + place].astype(np.uint32)
        takes = (data.counts(one) @ nbytes).tolist()
        number = member.begin + member.within(begin, begin + len(found)).start
        for step, (begins, ends) in enumerate(pairwise(one.starts.tolist())):
            if ends > begins:
                found[step].append(Share(member.member, number, place[begins:ends], takes[step]))
                number += 1
    return found


def fits(parts: Sequence[RunPart], others: Sequence[RunPart]) -> bool:
    """Returns whether a Run that was made for the other parts can hold these."""
    pairs = zip(parts, others, strict=True)
    return len(parts) == len(others) and all(
        one.pages <= other.pages and (one.page, one.stored, one.pack) == (other.page, other.stored, other.pack)
        for one, other in pairs
    )
