"""Plan: what a node reads of one field for some epochs. Each epoch is worked out when it comes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError
from solar.planning import costs
from solar.planning.regions import Region
from solar.planning.sweep import (
    Counts,
    FirstLoads,
    MappedUses,
    MemoryLimits,
    RetentionPolicy,
    Uses,
    UsesOf,
    back_over,
    backwards,
    check_pinned,
    in_pass,
    pages,
    start_counts,
    start_of,
    swept_uses,
    total,
)
from solar.planning.units import Units, uniform
from solar.samples.row_windows import Listing
from solar.values import RowPacking, Script, Storage

# An epoch's samples as used; where steps begin.
Sequence = Callable[[int], tuple[NDArray[np.int32] | Listing, NDArray[np.int64]]]
WORTH_PACKING = 0.9  # of the time, above which samples are held as they are: what encoding takes is an estimate
USES_KEPT = 5_000_000  # uses whose order is kept between passes over the epochs; of a longer one, its own
SHARE = 8  # the part of memory that steps on their way may take


class NoRoom(PlanError):
    """Memory has no room for what a step uses. `least` is a size that works."""

    def __init__(self, memory: int, largest: int, pinned: int) -> None:
        self.largest, self.least = largest, pinned + largest
        beside = f", and what is pinned {pinned:,}" if pinned else ""
        super().__init__(
            f"memory={memory:,} bytes: the samples of one step take up to {largest:,}{beside}; "
            f"give at least {self.least:,}, or 0 to keep nothing"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The epochs of a plan. It begins and ends with empty memory, or with the pinned part only."""

    uses: Uses
    region: Region
    policy: RetentionPolicy
    terms: MemoryLimits
    epochs: range
    counts: tuple[Counts, ...]  # of each epoch
    start: FirstLoads  # what is read before anything else, and what that takes
    start_counts: Counts
    digest: str  # of all that it follows from
    marks: tuple[_native.Sweep, ...]  # where the sweep stands at the end of each epoch; none without a sweep

    @property
    def kept(self) -> str:
        """What memory holds: samples, "rows"; encoded samples, "packed"; or chunks as in the file, "stored"."""
        return "stored" if self.policy.whole else "rows" if self.region.units.packing is None else "packed"

    @property
    def page(self) -> int:
        """The bytes of a slot: a sample, or a page. A chunk takes as many pages as it needs."""
        return self.region.units.page if self.kept == "stored" else self.region.units.held_nbytes

    @property
    def pages(self) -> int:
        """The largest number of slots."""
        held = self.policy.pinned if self.policy.direct else self.region.items
        return min(self.terms.room, self.region.held_nbytes(held, whole=self.policy.whole)) // self.page

    def seconds(self, storage: Storage) -> float:
        """Returns the time for all that it reads."""
        return costs.reading_seconds(total([self.start_counts, *self.counts]), self.region.units, storage)

    def script(self, epoch: int) -> Script:
        """Returns what this epoch uses, reads and drops, step by step."""
        return self.with_uses(epoch, self.moves(epoch))

    def with_uses(self, epoch: int, moves: Script) -> Script:
        """Returns the script of which these are the moves."""
        items, starts = self.uses(epoch)
        rows = items.rows if isinstance(items, MappedUses) else self.region.rows(items, 0, whole=False)
        return replace(moves, rows=rows, starts=starts)

    def moves(self, epoch: int) -> Script:
        """Returns the script of this epoch without its uses: what is read and dropped."""
        if epoch not in self.epochs:
            raise PlanError(f"epoch {epoch}: this plan has epochs {self.epochs.start} to {self.epochs.stop - 1}")
        place = epoch - self.epochs.start
        items, starts = self.uses(epoch)
        loads, ends, last = np.empty(0, np.int32), np.zeros(len(starts), np.int64), np.zeros(len(items), np.uint8)
        if self.marks:
            mark, goes_on = self.marks[place].copy(), in_pass(epoch, self.epochs, self.terms)
            record = back_over(mark, self.region, self.policy, (items, starts), record=True, goes_on=goes_on)[1]
            assert record is not None
            loads, ends, last = record
        start = self.start if place == 0 else FirstLoads(self.start.items[:0], self.start.ends[:0], self.start.due[:0])
        whole, pinned = self.policy.whole, self.policy.pinned
        return Script(
            rows=np.empty(0, np.int32),
            starts=np.empty(0, np.int64),
            last=np.packbits(last, bitorder="little") if isinstance(items, MappedUses) else last,
            loads=self.region.rows(loads, pinned, whole=whole),
            ends=ends,
            start=self.region.rows(start.items, pinned, whole=whole),
            start_ends=start.ends,
            start_due=start.due,
        )


def told_elsewhere(epoch: int) -> UsesOf:
    """Stands for the uses of a plan that travels: who gets it knows them."""
    raise PlanError(f"epoch {epoch}: this process has only the outcome of the plan")


def portable_plan(plan: Plan) -> Plan:
    """Returns what travels of a plan: neither what is used, nor how it goes on."""
    return replace(plan, uses=told_elsewhere, marks=(), region=Region(uniform(1, 1), 0, 0))


def restored_plan(plan: Plan, of: Sequence, region: Region, packing: RowPacking | None) -> Plan:
    """Returns a plan that came from another process, with what is used and where that lies, which this one knows."""
    region = region.packed(packing) if plan.policy.packed and packing is not None else region
    return replace(plan, uses=_uses_of(of, region), region=region)


def plan_rows(
    of: Sequence,
    units: Units,
    *,
    memory: int,
    storage: Storage,
    epochs: range,
    ahead: int,
    facts: tuple[object, ...],
    policy: RetentionPolicy | None = None,
    holding: bool = False,
    region: Region | None = None,
    packing: RowPacking | None = None,
    direct: bool = True,
    parts: int = 1,
) -> Plan:
    """Returns the plan of one process or node by itself, for any sequence of samples in each epoch, repeats included.

    `memory` is for samples only: batches have their own. Epochs may differ in length and steps; `facts` identify what
    the sequences follow from. Reads are issued up to `ahead` steps before their use, as long as these steps take at
    most an eighth of the memory. Raises PlanError if the largest step does not fit. With `holding`, memory already has
    the pinned part of the given policy, as a Plan of that policy leaves it. All samples lie in `region`, if it is
    given. With a `packing` they are held packed if that is cheaper. Unless `direct`, everything that is read goes
    through the memory, if there is any. A pass over the samples may come in `parts`, each an epoch here.
    """
    _check_epochs(epochs)
    if memory < 0 or ahead < 0:
        raise PlanError(f"memory={memory}, ahead={ahead}: neither can be below 0")
    region = region or Region(units, 0, units.samples)
    uses = _uses_of(of, region)
    kept = OrdersKept(uses)
    if policy is None:
        of_kinds = [region] if packing is None else [region, region.packed(packing)]
        policy = (
            RetentionPolicy(direct=True)
            if memory == 0
            else _cheapest(kept, of_kinds, epochs, memory, storage, ahead, direct=direct)
        )
    if policy.packed and packing is not None:
        region = region.packed(packing)
    terms = replace(_terms(kept, region, epochs, memory, storage.gap, ahead, policy), parts=parts)
    sizes = tuple(kept.size(epoch)[:2] for epoch in epochs)
    scan = int(costs.scan_seconds(region, storage) * storage.bandwidth)
    made = _sampler_state(
        kept, region, policy, terms, epochs, (*facts, sizes, storage, holding), scan=scan, holding=holding
    )
    return replace(made, uses=uses)


class OrdersKept:
    """The uses of epochs. Only those asked for last are kept; their counts are kept of all."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses
        self._here: dict[int, UsesOf] = {}
        self._sizes: dict[int, tuple[int, int, int]] = {}

    def __call__(self, epoch: int) -> UsesOf:
        if epoch not in self._here:
            longest = max((len(items) for items, _ in self._here.values()), default=0)
            while self._here and (len(self._here) + 1) * longest > USES_KEPT:  # before the next one needs memory
                del self._here[next(iter(self._here))]
            items, starts = self._here[epoch] = self._uses(epoch)
            self._sizes[epoch] = len(items), len(starts) - 1, int(np.diff(starts).max(initial=0))
        return self._here[epoch]

    def size(self, epoch: int) -> tuple[int, int, int]:
        """Returns the number of uses of an epoch, its steps, and the most uses in one step."""
        if epoch not in self._sizes:
            self(epoch)
        return self._sizes[epoch]


def _check_epochs(epochs: range) -> None:
    if not epochs or epochs.step != 1:
        raise PlanError(f"epochs={epochs}: they must follow one another")


def _uses_of(of: Sequence, region: Region) -> Uses:
    """Returns the sequences in items of the region, checked."""
    units = region.units

    def uses(epoch: int) -> UsesOf:
        rows, starts = of(epoch)
        starts = np.ascontiguousarray(starts, np.int64)
        if not len(starts) or starts[0] != 0 or starts[-1] > len(rows) or np.any(starts[1:] < starts[:-1]):
            raise PlanError(f"epoch {epoch}: its steps must ascend from 0 to at most its {len(rows):,} samples")
        if isinstance(rows, Listing):
            return MappedUses(rows, lambda some: items_of(some, epoch)), starts
        return items_of(np.ascontiguousarray(rows, np.int32)[: starts[-1]], epoch), starts

    def items_of(rows: NDArray[np.int32], epoch: int) -> NDArray[np.int32]:
        if len(rows) and (rows.min() < 0 or rows.max() >= units.samples):
            raise PlanError(
                f"epoch {epoch} takes samples {rows.min()} to {rows.max()}; the data set has 0 to {units.samples - 1}"
            )
        items = rows if units.item is None else units.item[rows]
        if region.items == units.samples:
            return items
        items = items - np.int32(region.begin)
        if len(items) and (items.min() < 0 or items.max() >= region.items):
            raise PlanError(f"epoch {epoch} takes samples that lie outside of the region of {region.items:,} samples")
        return items

    return uses


def _terms(
    uses: OrdersKept, region: Region, epochs: range, memory: int, gap: int, ahead: int, policy: RetentionPolicy
) -> MemoryLimits:
    """Returns the limits with as many steps ahead as take an eighth of the memory. PlanError: not one step fits."""
    if policy.direct or policy.pinned == region.items:
        return MemoryLimits(memory, gap, ahead)
    largest = max(uses.size(epoch)[2] for epoch in epochs) * region.heaviest(whole=policy.whole)
    if (ahead + 1) * largest * SHARE > memory:  # it may well be less
        largest = max(_largest_step(uses(epoch), region, policy.whole) for epoch in epochs)
    pinned = region.held_nbytes(policy.pinned, whole=policy.whole)
    if pinned + largest > memory and (largest := _swept_step(uses, region, epochs, policy)) + pinned > memory:
        raise NoRoom(memory, largest, pinned)
    most = min(memory // SHARE, memory - pinned) // max(largest, 1) - 1
    return MemoryLimits(memory, gap, max(0, min(ahead, most)), largest)


def _swept_step(uses: OrdersKept, region: Region, epochs: range, policy: RetentionPolicy) -> int:
    """Returns the most bytes of memory that a step uses beside the pinned part."""
    units, every = (
        region.native(policy.pinned, whole=policy.whole),
        (page for one in epochs for page in pages(uses(one))),
    )
    swept = (swept_uses(region, policy, page) for page in every)
    return max(Counts(*_native.direct(units, items, starts, 0)).peak for items, starts in swept)


def _largest_step(uses: UsesOf, region: Region, whole: bool) -> int:
    """Returns the most bytes of memory that a step uses."""
    units = region.native(0, whole=whole)
    every = ((region.whole(items, 0) if whole else items, starts) for items, starts in pages(uses))
    return max(Counts(*_native.direct(units, items, starts, 0)).peak for items, starts in every)


def _cheapest(
    uses: OrdersKept,
    regions: list[Region],
    epochs: range,
    memory: int,
    storage: Storage,
    ahead: int,
    *,
    direct: bool,
) -> RetentionPolicy:
    """Returns the plan that costs least in a later epoch or, if there are few epochs, in all of them with their start.

    The regions are one region whose samples are held in different forms.
    """
    # Of a large data set an epoch is like another, and memory runs empty in the last two.
    most, measures = (4, slice(1, 2)) if regions[0].items > costs.FORMULA_ITEMS else (len(costs.EPOCHS), slice(1, 3))
    few = len(epochs) < most
    counted = epochs if few else epochs[:most]
    measured = counted if few else counted[measures]
    found: list[tuple[float, RetentionPolicy]] = []
    refused: list[NoRoom] = []
    kinds = [(region, whole) for region in regions for whole in region.kinds]
    for region, whole in kinds:
        try:
            terms = _terms(uses, region, epochs, memory, storage.gap, ahead, RetentionPolicy(whole=whole))
        except NoRoom as error:
            refused.append(error)
            if not direct:
                continue
            terms = MemoryLimits(memory, storage.gap, step=error.largest)  # no sweep has room; a pinned part may have
        policy, epochs_ = costs.choose(
            region, uses, counted, measured, terms, storage, kinds=(whole,), start=few, direct=direct
        )
        packed = region.units.packing is not None
        seconds = costs.reading_seconds(total(one.counts for one in epochs_), region.units, storage)
        found.append((seconds / WORTH_PACKING if packed else seconds, replace(policy, packed=packed)))
    if len(refused) == len(kinds):
        try:
            raise min(refused, key=lambda error: error.least)
        finally:
            refused.clear()  # or the error and this frame, which its traceback keeps, would keep each other alive
    return min(found, key=lambda one: one[0])[1]


def _sampler_state(
    uses: Uses,
    region: Region,
    policy: RetentionPolicy,
    terms: MemoryLimits,
    epochs: range,
    facts: tuple[object, ...],
    *,
    scan: int,
    holding: bool = False,
) -> Plan:
    terms = terms.by(policy)
    check_pinned(region, policy, terms)
    *found, rest = backwards(region, policy, uses, epochs, terms, marks=True)
    found.reverse()
    first = np.empty(0, np.int32) if rest.mark is None else rest.mark.residents()[1]
    start = start_of(first, region, policy, uses(epochs.start), terms.gap, scan=scan, holding=holding)
    return Plan(
        uses,
        region,
        policy,
        terms,
        epochs,
        tuple(one.counts for one in found),
        start,
        start_counts(start, region, policy, terms.gap),
        plan_digest((*facts, region.units.digest, region.begin, region.end, policy, terms, epochs)),
        tuple(one.mark for one in found if one.mark is not None),
    )


def plan_digest(facts: tuple[object, ...]) -> str:
    """Identifies this plan: another order, layout, world, memory or storage gives another digest."""
    sha = hashlib.sha256()
    for fact in facts:
        sha.update(fact if isinstance(fact, bytes) else repr(fact).encode())
    return sha.hexdigest()
