"""Finds the cheapest way to use memory: formulas propose candidates, exact counts decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from solar.errors import PlanError
from solar.planning.regions import Region
from solar.planning.sweep import (
    SWEEP_BLOCK,
    Counts,
    Epoch,
    Items,
    MappedUses,
    MemoryLimits,
    RetentionPolicy,
    Starts,
    Uses,
    check_pinned,
    steady,
    total,
)
from solar.planning.units import Units
from solar.values import Storage

BLOCKS = 64  # stretches of items that are taken, so that what lies far apart in the file is among them


@dataclass(frozen=True, eq=False)
class Thinned:
    """A stretch of a region that stands for all of it: one item out of `every`, in all steps, with fewer uses.

    With the same share of memory, fewer items go through the same states: a head over them finds as many wanted ones
    side by side, so it makes as many requests for each. So policies compare as they do for all items.
    """

    region: Region
    uses: Uses
    whole: Region  # for which it stands
    block: int  # items of a stretch
    every: int

    def policy(self, policy: RetentionPolicy) -> RetentionPolicy:
        """Returns the same policy for less memory."""
        return replace(policy, pinned=self.among(policy.pinned), burst=policy.burst // self.every)

    def terms(self, terms: MemoryLimits) -> MemoryLimits:
        """Returns the limits of less memory."""
        return terms if self.every == 1 else MemoryLimits(terms.room // self.every, terms.gap, terms.ahead)

    def counts(self, counts: Counts) -> Counts:
        """Returns the counts of the whole region, assuming that all of it is like this stretch."""
        if self.every == 1:
            return counts
        all_ = Counts._make(round(count * self.whole.items / self.region.items) for count in counts)
        begun = min(counts.sweeps, counts.requests)  # each time the head begins anew a request does, of however many
        more = round((counts.requests - begun) * self.whole.items / self.region.items)
        return all_._replace(requests=begun + more, sweeps=counts.sweeps)

    def among(self, items: int) -> int:
        """Returns how many of the region's first items are in the stretch."""
        blocks, more = divmod(items, self.block)
        return -(-blocks // self.every) * self.block + (more if blocks % self.every == 0 else 0)


def thin_region(region: Region, uses: Uses, most: int) -> Thinned:
    """Returns about this many of its items; all if that is not half as many, or if it has a list of its units."""
    every = region.items // most if region.units.first is None else 1
    if every < 2:
        return Thinned(region, uses, region, region.items, 1)
    each = region.units.per_unit
    block = max(1, region.items // (every * BLOCKS * each)) * each
    whole = Thinned(region, uses, region, block, every)
    found = whole.among(region.items)
    units = replace(region.units, samples=found, item=None)

    def of(epoch: int) -> tuple[Items, Starts]:
        return number_uses(*uses(epoch), block, every)

    return replace(whole, region=Region(units, 0, found), uses=lru_cache(of))


def number_uses(items: Items | MappedUses, starts: Starts, block: int, every: int) -> tuple[Items, Starts]:
    """Returns the uses of these stretches, numbered from one to the next."""
    found, places = [], []
    for begin in range(0, len(items), SWEEP_BLOCK):
        here = items[begin : begin + SWEEP_BLOCK]
        stretch = here // np.int32(block)
        [of_them] = np.nonzero(stretch % np.int32(every) == 0)
        found.append(stretch[of_them] // np.int32(every) * np.int32(block) + here[of_them] % np.int32(block))
        places.append(of_them + begin)
    some, place = np.concatenate(found or [items[:0]]), np.concatenate(places or [starts[:0]])
    return some, np.searchsorted(place, starts)


EPOCHS = range(6)  # that are counted: the first follows the start, and in the last three memory runs empty
FORMULA_ITEMS = 300_000  # items from which on only what the formulas find best is counted
SMALL_ITEMS = 4096  # items up to which it is no matter in how small pieces they are read
FREED_SHARE = 0.02  # of the memory that is freed at a time, at most: half of that is empty on average
STEPS = 24  # sizes of the pinned part that the formulas try
WORTH_ANOTHER_GAP = 0.9  # of the time, above which another gap is not worth that numbers of a storage are never exact
WIDEST = 3  # times that it is doubled, or halved
FEW_STEPS = 32  # one part of so many of the memory is for steps ahead, at most, where bytes alone decide
MANY, CLEARLY = 4, 1.01  # times what requests take, and of all the time what bytes take: then they do
NEAR = 16  # units to a gap, above which many lie within one, and a head that passes some over reads the same again


def reading_seconds(counts: Counts, units: Units, storage: Storage) -> float:
    """Returns the time for reading, decoding, and encoding what is held packed."""
    packing = units.packing
    lost = 0.0 if packing is None else packing.lost * counts.unpacked  # each is read again
    decoded = (counts.decoded + lost * units.per_unit) * units.sample_nbytes if units.encoded else 0
    read = storage.seconds(counts.requests + lost, counts.bytes + lost * units.sample_nbytes, decoded)
    if packing is None:
        return read
    return read + (counts.encoded / packing.encode + counts.unpacked / packing.decode) * units.sample_nbytes


def scan_seconds(region: Region, storage: Storage) -> float:
    """Returns the time for reading and decoding the whole region once."""
    everything = Counts(requests=1, bytes=region.stored_nbytes(region.items), decoded=region.items)
    return reading_seconds(everything, region.units, storage)


def choose(
    region: Region,
    uses: Uses,
    epochs: range,
    measured: range,
    terms: MemoryLimits,
    storage: Storage,
    *,
    kinds: tuple[bool, ...] | None = None,
    start: bool = False,
    direct: bool = True,
) -> tuple[RetentionPolicy, list[Epoch]]:
    """Returns the cheapest policy for one node, and its counts for the measured epochs.

    With `start`, filling the memory at the beginning counts, too. `kinds` says whether units may be held whole, or must
    be: (False,), (True,) or both. Of a large region, a part of the items is counted and stands for all. Unless
    `direct`, everything that is read goes through the memory.
    """
    thin = thin_region(region, uses, FORMULA_ITEMS)

    def counted(policy: RetentionPolicy) -> TriedPolicy:
        try:
            if policy.direct and not direct:
                raise PlanError("what samples have in common is read once for all of them, into the memory")
            check_pinned(region, policy, terms)
            # Nothing that direct reading does depends on other epochs.
            run, less = measured if policy.direct else epochs, thin.terms(terms)
            some = steady(thin.region, thin.policy(policy), thin.uses, run, measured, less, start=start)
            found = [one._replace(counts=thin.counts(one.counts)) for one in some]
        except PlanError:  # this much pinned leaves too little for the batches; reading step by step always goes
            return TriedPolicy(math.inf, Counts(), policy, [])
        counts = total(one.counts for one in found)
        return TriedPolicy(reading_seconds(counts, region.units, storage), counts, policy, found)

    best = counted(RetentionPolicy(direct=True))
    for policy in candidates(region, terms, storage, region.kinds if kinds is None else kinds):
        best = min(best, counted(policy), key=TriedPolicy.cost)
    if not best.epochs:
        raise PlanError("no way of using this memory has room for the batches")
    best = _balance(best, counted, terms.gap, storage)
    best = _fewer_ahead(best, counted, terms, storage)
    return best.policy, best.epochs


class TriedPolicy(NamedTuple):
    """A policy, and its counts."""

    seconds: float
    counts: Counts
    policy: RetentionPolicy
    epochs: list[Epoch]

    def cost(self) -> tuple[float, int, int]:
        """Returns the seconds, and as tie-breaker the resource that did not decide."""
        return self.seconds, self.counts.requests, self.counts.bytes


def _balance(
    best: TriedPolicy, counted: Callable[[RetentionPolicy], TriedPolicy], gap: int, storage: Storage
) -> TriedPolicy:
    """Returns the policy with a narrower gap if bytes decide, or a wider one if requests do, as long as that gains."""
    passing = best.counts.bytes / storage.bandwidth
    factor = 0.5 if passing > best.counts.requests * storage.request_seconds else 2
    for power in range(1, WIDEST + 1):
        tried = counted(replace(best.policy, gap=int(gap * factor**power)))
        if tried.seconds >= best.seconds * WORTH_ANOTHER_GAP:
            break
        best = tried
    return best


def _fewer_ahead(
    best: TriedPolicy, counted: Callable[[RetentionPolicy], TriedPolicy], terms: MemoryLimits, storage: Storage
) -> TriedPolicy:
    """Returns the policy with reads issued fewer steps ahead if bytes decide, because these steps take memory.

    What a head reads in one go arrives while batches wait; single requests have to be made side by side.
    """
    fewer = max(0, terms.room // (FEW_STEPS * max(1, terms.step)) - 1)
    passing = best.counts.bytes / storage.bandwidth
    if best.policy.direct or fewer >= terms.ahead:
        return best
    if best.seconds > passing * CLEARLY or best.counts.requests * storage.request_seconds * MANY > passing:
        return best
    return min(best, counted(replace(best.policy, ahead=fewer)), key=TriedPolicy.cost)


def candidates(
    region: Region, terms: MemoryLimits, storage: Storage, kinds: tuple[bool, ...]
) -> Iterator[RetentionPolicy]:
    """Yields policies worth counting besides keeping nothing: everything pinned, and sweeps that formulas propose."""
    room = terms.room
    everything = [
        RetentionPolicy(region.items, whole=w) for w in kinds if region.held_nbytes(region.items, whole=w) <= room
    ]
    yield from everything
    if RetentionPolicy(region.items) in everything:
        return
    if terms.room <= 0:
        return
    if terms.step > terms.room:
        yield from (RetentionPolicy(region.fitting(room, whole=whole), whole=whole, direct=True) for whole in kinds)
        return
    guesses: list[tuple[float, int, bool]] = []
    for whole in kinds:
        if region.items <= FORMULA_ITEMS or NEAR * region.units.stored_nbytes >= terms.gap:
            yield RetentionPolicy(whole=whole, lasting=True)
        beside = region.fitting(max(0, room - terms.ahead * terms.step), whole=whole)
        if 0 < beside < region.items:
            yield RetentionPolicy(pinned=beside, whole=whole, direct=True)
        most = region.fitting(room, whole=whole)
        guesses += _guesses(region, most, whole, terms, storage)
    worth = [min(guesses)] if region.items > FORMULA_ITEMS else guesses
    for _, pinned, whole in worth:
        if region.items <= SMALL_ITEMS:
            yield RetentionPolicy(pinned, 0, whole)
        yield RetentionPolicy(pinned, _burst(region, pinned, whole, terms), whole)


def _guesses(
    region: Region, most: int, whole: bool, terms: MemoryLimits, storage: Storage
) -> list[tuple[float, int, bool]]:
    """Returns sizes of the pinned part that are worth counting, with their estimated costs.

    These are the size with the least cost by the formulas, the one by the theory of a dense sweep (twice the memory
    less everything), nothing, and all that fits.
    """
    everything = region.held_nbytes(region.items, whole=whole)
    room = region.held_nbytes(most, whole=whole)
    dense = {region.fitting(max(0, 2 * known - everything), whole=whole) for known in (room, terms.room)}
    sizes = {region.fitting(room * step // STEPS, whole=whole) for step in range(STEPS)} | {*dense, 0, most}
    fitting = region.fitting(
        terms.room, whole=whole
    )  # of the batches some is pinned; the counts say whether the rest fits
    tried = sorted((estimate(region, size, whole, terms, storage), size, whole) for size in sizes if size <= fitting)
    return [one for place, one in enumerate(tried) if place == 0 or one[1] in {*dense, 0, most}]


def _burst(region: Region, pinned: int, whole: bool, terms: MemoryLimits) -> int:
    """Returns the bytes to free at a time: larger bursts leave the memory emptier, smaller ones read smaller pieces.

    A piece that continues the last one belongs to the same request, but not on every storage. So pieces are as long as
    would be best if each were paid for, or as a hundredth of the memory allows.
    """
    free = terms.room - region.held_nbytes(pinned, whole=whole)
    swept = region.stored_nbytes(region.items) - region.stored_nbytes(pinned)
    return max(0, int(free * min(FREED_SHARE, 2 * math.sqrt(terms.gap / swept)))) if swept else 0


def estimate(region: Region, pinned: int, whole: bool, terms: MemoryLimits, storage: Storage) -> float:
    """Returns about how many seconds an epoch takes, from the density at which the head finds wanted units."""
    items = region.items - pinned
    units = max(1.0, items / region.units.per_unit)
    unit_nbytes = max(1.0, (region.stored_nbytes(region.items) - region.stored_nbytes(pinned)) / units)
    held = max(1, region.held_nbytes(region.items, whole=whole) - region.held_nbytes(pinned, whole=whole))
    share = (terms.room - region.held_nbytes(pinned, whole=whole)) / held
    if items == 0 or share <= 0:
        return math.inf if items else 0.0
    if whole and not region.samples_alone:
        uses = _uses_between_visits(share)
        sweeps, empty = region.units.per_unit / uses, math.exp(-uses)
        decoded = float(region.items * region.units.per_unit)
    else:
        density = min(1.0, 2 * share)
        sweeps, empty = max(0.0, 1 / density - max(0.0, 2 * share - 1)), (1 - density) ** region.units.per_unit
        decoded = region.items if whole else sweeps * items * (1 - empty)
    spent: float = sweeps * units * unit_nbytes * (1 - empty ** (1 + terms.gap / unit_nbytes)) / storage.bandwidth
    if region.units.encoded:
        spent += decoded * region.units.sample_nbytes / storage.decode
    if region.units.packing is not None:
        spent += sweeps * items * (1 - empty) * region.units.sample_nbytes / region.units.packing.encode
    return spent


def _uses_between_visits(share: float) -> float:
    """Returns how often a unit is used between two visits if this share is held: 1 - (1 - exp(-x)) / x."""
    low, high = 1e-9, 1e9
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if 1 + math.expm1(-middle) / middle < share else (low, middle)
    return low
