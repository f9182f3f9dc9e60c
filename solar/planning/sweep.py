"""The sweep: what a node reads and keeps when, counted exactly, for one way of using its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError
from solar.planning.regions import Region
from solar.samples.row_windows import Listing, distinct

Items = NDArray[np.int32]
Starts = NDArray[np.int64]
PAGE_USES = 1 << 20  # uses of windows that are listed at a time
SWEEP_BLOCK = 1 << 18  # uses looked at together, so that memory does not grow with an epoch


@dataclass(frozen=True, eq=False)
class MappedUses:
    """What rows are called in a plan, of which only slices are made."""

    rows: Listing
    call: Callable[[Items], Items]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Items:
        return self.call(self.rows[part])


UsesOf = tuple[Items | MappedUses, Starts]
Uses = Callable[[int], UsesOf]  # of an epoch: a region's items in the order of use, where steps begin


def in_items(uses: tuple[Items | Listing, Starts], item: Items | None) -> UsesOf:
    """Uses of rows, as uses of their items."""
    rows, starts = uses
    if isinstance(rows, Listing):
        return MappedUses(rows, lambda some: some if item is None else item[some]), starts
    return rows if item is None else item[rows], starts


def pages(uses: UsesOf, *, back: bool = False) -> Iterator[tuple[Items, Starts]]:
    """Yields the uses of some steps at a time, or from the end `back`; all at once where they are listed."""
    items, starts = uses
    if isinstance(items, np.ndarray):
        yield items, starts
        return
    ends = [0]
    while ends[-1] < len(starts) - 1:
        after = int(np.searchsorted(starts, starts[ends[-1]] + PAGE_USES, side="right")) - 1
        ends.append(max(ends[-1] + 1, after))
    found = [*pairwise(ends)] or [(0, 0)]
    for begin, end in reversed(found) if back else found:
        yield items[int(starts[begin]) : int(starts[end])], starts[begin : end + 1] - starts[begin]


class Counts(NamedTuple):
    """What was read, in the order in which the native part counts it (native/include/solar/plan.hpp)."""

    reads: int = 0  # loads of what is held: samples, or units where those are held whole
    visits: int = 0  # units they came from, once for each visit
    requests: int = 0  # neighbours joined, also with what was issued last
    bytes: int = 0  # of these requests
    decoded: int = 0  # samples in the units that were decoded
    sweeps: int = 0  # times that the head began anew
    peak: int = 0  # bytes held, at most
    encoded: int = 0  # samples, to be held packed; counted here, not by the native part
    unpacked: int = 0  # uses of such samples; likewise


class Record(NamedTuple):
    """What happens in an epoch: loads in the order of reading, their ends per step, and which uses are the last."""

    loads: Items
    ends: Starts
    last: NDArray[np.uint8]


class Epoch(NamedTuple):
    """One epoch of a sweep. What is needed before its first step belongs to the epochs before, or to the start."""

    counts: Counts
    uses: int
    record: Record | None = None
    mark: _native.Sweep | None = None  # where the sweep stands at the end of it; of the start: before the first step


@dataclass(frozen=True)
class RetentionPolicy:
    """One way to use the memory of a node: a pinned part, and a sweep over the rest or reads step by step."""

    pinned: int = 0  # its first items, which stay for ever
    burst: int = 0  # bytes more than needed that are freed at a time, for larger requests
    whole: bool = False  # units are held whole as they are stored, and decoded at each use
    packed: bool = False  # samples are encoded to be held, and decoded at each use: the region's units say how
    direct: bool = False  # no sweep
    lasting: bool = False  # what is held for a later epoch stays, as long as anything else can be given up
    gap: int | None = None  # holes smaller than this are read; None: those that take no longer than a request
    ahead: int | None = None  # steps between issuing a read and the first use, at most; None: as the terms have it


@dataclass(frozen=True)
class MemoryLimits:
    """The limits of a node, in bytes and steps."""

    room: int  # all that it may hold
    gap: int  # holes smaller than this are read
    ahead: int = 0  # steps between issuing a read and the first use
    step: int = 0  # bytes of the largest step
    parts: int = 1  # epochs of the plan that a pass over the samples comes in, one after another

    def by(self, policy: RetentionPolicy) -> MemoryLimits:
        """These with the gap and the steps ahead of the way, if it has them."""
        gap = self.gap if policy.gap is None else policy.gap
        return replace(self, gap=gap, ahead=self.ahead if policy.ahead is None else min(self.ahead, policy.ahead))


def total(counts: Iterable[Counts]) -> Counts:
    """Their sum; of peaks the highest."""
    listed = list(counts)
    summed = Counts._make(map(sum, zip(*listed, strict=True))) if listed else Counts()
    return summed._replace(peak=max((one.peak for one in listed), default=0))


def backwards(
    region: Region,
    policy: RetentionPolicy,
    uses: Uses,
    epochs: range,
    terms: MemoryLimits,
    *,
    record: bool = False,
    marks: bool = False,
) -> Iterator[Epoch]:
    """Yields the epochs from the last to the first, and after them what the start must read (an Epoch of no uses)."""
    terms = terms.by(policy)
    if policy.pinned == region.items:
        yield from _all_pinned(region, policy, uses, epochs)
        return
    always = region.held_nbytes(policy.pinned, whole=policy.whole)
    units = region.native(policy.pinned, whole=policy.whole and not policy.direct)
    sweep = None
    if not policy.direct:
        sweep = _native.Sweep(units, terms.room - always, policy.burst, terms.ahead, terms.gap, policy.lasting)
    for epoch in reversed(epochs):
        mark = sweep.copy() if sweep is not None and marks else None
        all_uses = uses(epoch)
        written = None
        if sweep is None:
            swept = (swept_uses(region, policy, page) for page in pages(all_uses))
            counts = total(Counts(*_native.direct(units, *page, terms.gap)) for page in swept)._replace(peak=0)
        else:
            goes_on = in_pass(epoch, epochs, terms)
            counts, written = back_over(sweep, region, policy, all_uses, record=record, goes_on=goes_on)
        counts = _decoding(counts, policy, region, len(all_uses[0]))._replace(peak=counts.peak + always)
        yield Epoch(counts, len(all_uses[0]), written, mark)
    rest = Counts() if sweep is None else _residents(region, sweep)
    yield Epoch(_pinning(region, policy, rest), 0, None, sweep)


def in_pass(epoch: int, epochs: range, terms: MemoryLimits) -> bool:
    """Returns whether a sweep, which goes back, has seen a later part of the pass that this epoch is of."""
    return (epoch + 1 - epochs.start) % terms.parts != 0 and epoch + 1 < epochs.stop


def back_over(
    sweep: _native.Sweep,
    region: Region,
    policy: RetentionPolicy,
    uses: UsesOf,
    *,
    record: bool = False,
    goes_on: bool = False,
) -> tuple[Counts, Record | None]:
    """Takes a sweep back over an epoch; with `record` what happens in it. Of what is pinned no use is the last."""
    counts: list[Counts] = []
    loads: list[Items] = []
    ends: list[Starts] = []
    last: list[NDArray[np.uint8]] = []
    for page in pages(uses, back=True):
        swept = swept_uses(region, policy, page)
        numbers, written = sweep.back(*swept, record, goes_on or bool(counts))
        counts.append(Counts(*numbers))
        if written is None:
            continue
        loads.insert(0, written[0])
        ends.insert(0, written[1])
        leaves = written[2]
        if policy.pinned:
            leaves = np.zeros(len(page[0]), np.uint8)
            leaves[page[0] >= policy.pinned] = written[2]
        last.insert(0, leaves)
    if not record:
        return total(counts), None
    if len(loads) == 1:
        return counts[0], Record(loads[0], ends[0], last[0])
    before = np.cumsum([0, *map(len, loads)])
    joined = [np.zeros(1, np.int64), *(own[1:] + begin for own, begin in zip(ends, before, strict=False))]
    return total(counts), Record(np.concatenate(loads), np.concatenate(joined), np.concatenate(last))


def steady(
    region: Region,
    policy: RetentionPolicy,
    uses: Uses,
    epochs: range,
    measured: range,
    terms: MemoryLimits,
    *,
    start: bool = False,
) -> list[Epoch]:
    """Returns the measured epochs of these; with `start` also what they find in memory, except the pinned part."""
    *counted, rest = backwards(region, policy, uses, epochs, terms)
    found = [one for epoch, one in zip(reversed(epochs), counted, strict=True) if epoch in measured]
    if start and rest.mark is not None:
        found.append(Epoch(_residents(region, rest.mark)._replace(peak=0), 0))
    return found


def swept_uses(region: Region, policy: RetentionPolicy, uses: tuple[Items, Starts]) -> tuple[Items, Starts]:
    """Returns the uses of what is not pinned, counted from there on; of units where a sweep holds them whole."""
    items, starts = _native.select(*uses, policy.pinned, region.items) if policy.pinned else uses
    return (region.whole(items, policy.pinned) if policy.whole and not policy.direct else items), starts


def _all_pinned(region: Region, policy: RetentionPolicy, uses: Uses, epochs: range) -> Iterator[Epoch]:
    held = region.held_nbytes(policy.pinned, whole=policy.whole)
    for epoch in reversed(epochs):
        count = len(uses(epoch)[0])
        yield Epoch(_decoding(Counts(peak=held), policy, region, count), count)
    yield Epoch(_pinning(region, policy, Counts()), 0)


def _decoding(counts: Counts, policy: RetentionPolicy, region: Region, uses: int) -> Counts:
    """Counts of what is held encoded, too: each use decodes a unit that is held whole, or unpacks a sample."""
    if region.units.packing is not None:
        read = counts.reads if policy.direct else 0  # straight into batches
        return counts._replace(encoded=counts.reads - read, unpacked=uses - read)
    return counts._replace(decoded=uses * region.units.per_unit) if policy.whole else counts


def _pinning(region: Region, policy: RetentionPolicy, rest: Counts) -> Counts:
    """Returns what the start reads: the pinned part in one request, and what the first steps need of the rest."""
    if not policy.pinned:
        return rest
    packed = policy.pinned if region.units.packing is not None else 0
    stored = region.stored_nbytes(policy.pinned)
    pinned = Counts(policy.pinned, 0, 1, stored, 0 if policy.whole else policy.pinned, 0, 0, packed)
    held = region.held_nbytes(policy.pinned, whole=policy.whole)
    return total([pinned, rest])._replace(peak=held + rest.peak)


def _residents(region: Region, sweep: _native.Sweep) -> Counts:
    """Returns what the first steps need in memory."""
    return _loading(region, Counts(*sweep.residents()[0]))


def _loading(region: Region, counts: Counts) -> Counts:
    """Returns what only loads: nothing is used."""
    return counts if region.units.packing is None else counts._replace(encoded=counts.reads)


def check_pinned(region: Region, policy: RetentionPolicy, terms: MemoryLimits) -> None:
    """Refuses a pinned part that is too large; of a sweep the counts say what it needs."""
    if not 0 <= policy.pinned <= region.items or not region.ends_unit(policy.pinned):
        raise PlanError(
            f"{policy.pinned} pinned samples of {region.items}: they must be whole units, of up to "
            f"{region.units.per_unit} samples"
        )
    left = terms.room - region.held_nbytes(policy.pinned, whole=policy.whole)
    if policy.pinned and left < 0:
        raise PlanError(f"{policy.pinned} pinned samples take {-left} bytes more than the {terms.room} that there are")


class FirstLoads(NamedTuple):
    """What is read before anything else, in groups; group g is needed at step due[g]."""

    items: Items
    ends: Starts
    due: Starts


def start_of(
    items: Items,
    region: Region,
    policy: RetentionPolicy,
    uses: UsesOf,
    gap: int,
    *,
    scan: int,
    holding: bool = False,
) -> FirstLoads:
    """Short groups first, so that the first batch comes soon: what the first step needs, the next two, the next four.

    It doubles while these groups together cost less than a sixteenth of reading everything; all else follows in one
    go. With a sample come all of its unit that are needed, so that each unit is read and decoded once in any case: the
    groups cost but requests, and `scan` is what reading and decoding all takes, in bytes of reading. `items` are what
    the sweep has in memory before the first step; the pinned part is read with them, unless it is there (`holding`).
    Both count from the end of the pinned part, which therefore has negative numbers.
    """
    pinned = region.units_in(policy.pinned) if policy.whole else policy.pinned
    steps = len(uses[1]) - 1
    needed = items if holding else np.concatenate((np.arange(-pinned, 0, dtype=np.int32), items))
    waits = np.zeros(pinned + int(items.max(initial=-1)) + 1, np.bool_)  # for a group that it is read in
    waits[needed + np.int32(pinned)] = True
    each = gap + min(gap, region.units.stored_nbytes)
    groups: list[Items] = []
    due: list[int] = []
    begin, spent, length = 0, 0, 1
    while begin < steps:
        group = waiting_items(waits, region, policy, uses, begin, begin + length)
        if begin + length > steps:  # what only later epochs use comes with what the last steps do
            group = np.flatnonzero(waits).astype(np.int32)
        if not policy.whole and not region.samples_alone:
            group = _with_their_units(group, waits, region)
        spent += len(group) * each
        if groups and spent > scan // 16:
            break
        waits[group] = False
        groups.append(group - np.int32(pinned))
        due.append(begin)
        begin, length = begin + length, 2 * length
    groups.append(needed[waits[needed + np.int32(pinned)]])
    due.append(begin)
    there = [place for place, group in enumerate(groups) if len(group)]
    ends = np.cumsum([len(groups[place]) for place in there], dtype=np.int64)
    return FirstLoads(np.concatenate(groups), ends, np.array(due, np.int64)[there])


def waiting_items(
    waits: NDArray[np.bool_], region: Region, policy: RetentionPolicy, uses: UsesOf, begin: int, end: int
) -> Items:
    """Returns which of these items, or units held whole, some step from `begin` on and before `end` uses; ascending."""
    items, starts = uses
    last, found = int(starts[min(end, len(starts) - 1)]), [items[:0]]
    for place in range(int(starts[begin]), last, SWEEP_BLOCK):
        here = items[place : min(place + SWEEP_BLOCK, last)]
        here = region.whole(here, 0) if policy.whole else here
        here = here[here < len(waits)]
        found.append(here[waits[here]])
    return distinct(np.concatenate(found))


def _with_their_units(group: Items, waits: NDArray[np.bool_], region: Region) -> Items:
    """These items and all that wait and are in the same units."""
    touched = np.zeros(region.units_in(region.items), np.bool_)
    touched[region.whole(group, 0)] = True
    all_ = np.flatnonzero(waits).astype(np.int32)
    return all_[touched[region.whole(all_, 0)]]


def start_counts(start: FirstLoads, region: Region, policy: RetentionPolicy, gap: int) -> Counts:
    """Returns what the start takes when each group is read in the order of storage, joined over small holes."""
    if not len(start.items):
        return Counts()
    pinned = region.units_in(policy.pinned) if policy.whole else policy.pinned
    items, starts = start.items + np.int32(pinned), np.concatenate(([0], start.ends))
    return _loading(region, Counts(*_native.direct(region.native(0, whole=policy.whole), items, starts, gap)))
