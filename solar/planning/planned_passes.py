"""PlannedPasses: as many passes as are known and fit, planned together, for loaders and `solar plan` alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError
from solar.io.system import quantities
from solar.planning.budget import FETCHED, pooled_nbytes, shares
from solar.planning.pass_uses import PassUses, SampleUses
from solar.planning.plan import Plan, plan_rows, portable_plan, restored_plan
from solar.planning.regions import Region, whole_region
from solar.planning.sweep import Counts, RetentionPolicy, in_items, pages, total
from solar.planning.units import Units
from solar.samples.row_windows import Listing
from solar.values import BoxScript, PartScript, RowPacking, RunPart, Script, Storage

# Steps from the issue of a read to its use, beside the batches that are ready; each takes a batch of memory.
STEPS_AHEAD = 6
SLOW_ANSWER = 4e-3  # seconds from which on a storage that takes many requests at a time needs as many steps as it takes
USES = 5_000_000, 40_000_000  # that are planned together: at first, and later, while others run
USES_HELD = 500_000  # the same where memory holds everything: about as many as are planned in 20 ms
SEGMENTS = 32, 256  # passes, at most

Share = Callable[[str, int, Callable[[], Any]], Any]  # by kind and number


@dataclass(frozen=True)
class Piece:
    """One field of one H5Dataset, or the part of it that this node reads. Each piece has a plan of its own."""

    dataset: int
    field: int
    region: Region
    extents: Any = None  # a HeldMap (samples/protocol.py); None: each sample is a row
    packing: RowPacking | None = None  # how memory may hold its rows encoded

    @property
    def units(self) -> Units:
        return self.region.units

    @property
    def in_blocks(self) -> bool:
        """Whether samples are cut from what is held, and may share parts of it."""
        return self.extents is not None and self.extents.in_blocks

    @property
    def slots(self) -> int:
        """The number of rows that make up a sample."""
        return 1 if self.extents is None else self.extents.slots

    @property
    def sample_nbytes(self) -> int:
        """The average bytes of a sample."""
        unit = self.units.sample_nbytes
        return unit if self.extents is None else self.extents.bytes_of(unit)

    @property
    def tables_nbytes(self) -> int:
        """The bytes in which a process keeps blocks and their uses. For rows this is little, and not counted."""
        return 0 if self.extents is None else self.extents.tables_nbytes

    def rows(self, uses: SampleUses) -> tuple[NDArray[np.int32] | Listing, NDArray[np.int64]]:
        """Returns what the batches use of it: its rows, and where each batch begins among them."""
        samples, starts = uses.of(self.dataset)
        return (samples, starts) if self.extents is None else self.extents.rows_used(samples, starts, uses.epoch)


def part_script(piece: Piece, segment: PassUses, script: Script, first: NDArray[np.int64] | None = None) -> PartScript:
    """Returns the script of a segment for one part: of what is cut out of blocks, this rank's samples, and the blocks
    of its whole node. `first` is the first row of each sample in its batch, where samples differ in length."""
    uses = segment.batches
    samples, starts = uses.of(piece.dataset)
    corners = None if piece.extents is None else piece.extents.corners_of(samples, uses.epoch)
    if corners is None:
        return PartScript(script, segment.planned.positions(piece.dataset))
    if first is not None:
        corners[:, -1] = first if uses.which is None else first[uses.which == piece.dataset]
    own = None if segment.takers is None else _own_blocks(piece, segment, script)
    boxes = BoxScript(np.ascontiguousarray(samples, np.int32), corners.reshape(-1), starts, own)
    return PartScript(script, uses.positions(piece.dataset), boxes)


def first_rows_of(pieces: Sequence[Piece], uses: SampleUses) -> NDArray[np.int64] | None:
    """Returns the first row of each sample in its batch, in a field that has these pieces; None if each is one.

    Samples of unequal length follow one another.
    """
    if any(piece.extents is None or piece.extents.lengths_of(uses.rows[:0]) is None for piece in pieces):
        return None
    lengths = np.empty(len(uses.rows), np.int64)
    for piece in pieces:
        here = slice(None) if uses.which is None else uses.which == piece.dataset
        lengths[here] = piece.extents.lengths_of(uses.rows[here])
    before: NDArray[np.int64] = np.cumsum(lengths) - lengths
    full = uses.sizes > 0
    return before - np.repeat(before[uses.starts[:-1][full]], uses.sizes[full])


def steps_ahead(storage: Storage) -> int:
    """Returns how many steps before its use a read is issued, where memory allows: each step has a request at least.

    >>> steps_ahead(Storage(1e-4, 1e9, 50_000)), steps_ahead(Storage(3e-2, 1e9, 2_000, depth=64))
    (6, 60)
    """
    in_flight = min(storage.depth, storage.latency * storage.iops) if storage.latency >= SLOW_ANSWER else 0
    return max(STEPS_AHEAD, int(in_flight))


def passes_per_plan(uses: int, *, first: bool, held: bool = False) -> int:
    """Returns how many passes with this many uses are planned together, in the first plan or in a later one.

    Where memory is known to have held everything (`held`), no pass gains by what others use.
    """
    place = 0 if first else 1
    most = USES_HELD if held else USES[place]
    return max(1, min(SEGMENTS[place], most // max(1, uses)))


class PlannedPasses:
    """Segments planned together, with a Plan per piece. They are numbered over the life of a run."""

    def __init__(
        self,
        makers: Sequence[Callable[[], PassUses]],
        first: int,
        pieces: Sequence[Piece],
        memory: int,
        batch: int,
        storages: Sequence[Storage],
        policies: Sequence[RetentionPolicy | None],
        holding: bool,
        parts: int = 1,  # segments that a pass over the samples comes in
        share: Share | None = None,  # makes what all ranks of a node have alike once for all of them
    ) -> None:
        self._makers = makers
        self._made: dict[int, PassUses] = {}
        self.pieces, self.memory, self.storages = pieces, memory, storages
        self.segments = range(first, first + len(makers))
        self.next = first  # segment to be carried out
        self.batch = batch  # samples, at most
        facts: tuple[Any, ...] = (_identity(self.segment(first)), len(makers))
        self._share = share if self.segment(first).facts is not None else None
        self.shares = self._shared()

        def planned() -> list[Plan]:
            return [
                _plan(self, piece, room, storage, facts, policy, holding, parts)
                for piece, room, storage, policy in zip(pieces, self.shares, storages, policies, strict=True)
            ]

        self.plans = planned() if self._share is None else self._plan_once(planned)

    def _plan_once(self, planned: Callable[[], list[Plan]]) -> list[Plan]:
        """Returns the plans, which one rank of a node makes: it alone can tell the scripts."""
        assert self._share is not None
        own: list[Plan] = []

        def make() -> list[Plan]:
            own.extend(planned())
            return [portable_plan(plan) for plan in own]

        came = self._share("plan", self.segments.start, make)

        def of(piece: Piece) -> Callable[[int], Any]:
            return lambda number: piece.rows(self.segment(number).planned)

        pairs = zip(came, self.pieces, strict=True)
        return own or [restored_plan(plan, of(piece), piece.region, piece.packing) for plan, piece in pairs]

    def segment(self, number: int) -> PassUses:
        """Returns a segment. The one asked for last is kept, because planning goes from one to the next."""
        found = self._made.get(number)
        if found is None:
            self._made = {}  # before the next one needs memory
            found = self._makers[number - self.segments.start]()
            self._made = {number: found}
        return found

    def uses(self, number: int) -> int:
        """Returns the rows that a segment uses, of the piece that has the most rows per sample."""
        return len(self.segment(number).planned.rows) * max(piece.slots for piece in self.pieces)

    @property
    def holds_all(self) -> bool:
        """Whether memory holds everything that passes use, so that nothing depends on which of them follow."""
        pairs = zip(self.plans, self.pieces, strict=True)
        return all(plan.policy.pinned == piece.region.items for plan, piece in pairs)

    @property
    def policies(self) -> list[RetentionPolicy]:
        """The policy of each piece."""
        return [plan.policy for plan in self.plans]

    def counts(self, number: int) -> list[Counts]:
        """Returns what a segment costs as planned, over all pieces."""
        place = number - self.segments.start
        found = [plan.counts[place] for plan in self.plans]
        if place == 0:
            found += [plan.start_counts for plan in self.plans]
        return found

    def counts_of_pieces(self, number: int) -> list[Counts]:
        """Returns what a segment costs as planned, piece by piece."""
        found = self.counts(number)
        return [total(found[at :: len(self.pieces)]) for at in range(len(self.pieces))]

    def counts_alone(self, number: int) -> list[Counts]:
        """Returns what this process reads by itself in the home regions of other nodes, for each piece."""
        uses = self.segment(number).elsewhere
        if uses is None:
            return []
        found = []
        for piece, plan in zip(self.pieces, self.plans, strict=True):
            rows, starts = piece.rows(uses)
            native = whole_region(piece.units).native(0, whole=False)
            of = in_items((rows, starts), piece.units.item)
            found.append(total(Counts(*_native.direct(native, *page, plan.terms.gap)) for page in pages(of)))
        return found

    def scripts(self, number: int) -> list[PartScript]:
        """Returns the script of a segment for each part."""
        segment = self.segment(number)
        fields: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            fields.setdefault(piece.field, []).append(piece)
        first = {field: first_rows_of(pieces, segment.batches) for field, pieces in fields.items()}
        made: Callable[[], list[Script]] = lambda: [plan.moves(number) for plan in self.plans]  # noqa: E731
        moves = made() if self._share is None else self._share("script", number, made)
        scripts = [
            part_script(piece, segment, plan.with_uses(number, own), first[piece.field])
            for piece, plan, own in zip(self.pieces, self.plans, moves, strict=True)
        ]
        if segment.elsewhere is not None:
            scripts += [_read_alone(segment.elsewhere, piece) for piece in self.pieces]
        return scripts

    def sizes(self, number: int) -> NDArray[np.int64]:
        """Returns the number of samples that the memory of each batch has room for."""
        return self.segment(number).sizes

    def _shared(self) -> list[int]:
        """Returns how much memory each piece may hold. What is left over goes to decoded samples."""
        used = self.segment(self.segments.start).planned.counts(1 + max(piece.dataset for piece in self.pieces))
        uses = [used[piece.dataset] * piece.slots / max(1, piece.region.items) for piece in self.pieces]
        shared = shares(self.memory, [piece.region for piece in self.pieces], uses)
        left = self.memory - sum(shared)
        rows = [piece.region.items * piece.units.sample_nbytes for piece in self.pieces]
        for place in sorted(range(len(rows)), key=lambda place: rows[place] - shared[place]):
            more = min(left, max(0, rows[place] - shared[place]))
            shared[place], left = shared[place] + more, left - more
        return shared

    def parts(self) -> list[RunPart]:
        """Returns how each piece is held."""
        triples = zip(self.pieces, self.plans, self.shares, strict=True)
        # Fields of one H5Dataset are those of all.
        read = [self.batch * one.sample_nbytes for one in {piece.field: piece for piece in self.pieces[::-1]}.values()]
        batch = sum(map(pooled_nbytes, read))
        parts = [run_part(piece, plan, share, batch) for piece, plan, share in triples]
        if self.segment(self.segments.start).elsewhere is not None:
            parts += [replace(part, pages=0, stored=False, pack=None, direct=True, ahead=FETCHED) for part in parts]
        return parts


def _identity(segment: PassUses) -> Any:
    """Returns what a segment follows from, if that is known; else its digest."""
    return segment.planned.digest if segment.facts is None else segment.facts


def _plan(
    window: PlannedPasses,
    piece: Piece,
    memory: int,
    storage: Storage,
    facts: tuple[Any, ...],
    policy: RetentionPolicy | None,
    holding: bool,
    parts: int,
) -> Plan:
    """Returns the plan of a piece. With `holding`, what the policy keeps from window to window is there already.

    What ranks of a node share goes through their shared memory. If that has no room for a step, a part is kept if that
    pays, and each rank reads the rest straight into its batches.
    """
    shared = piece.in_blocks and window.segment(window.segments.start).takers is not None

    def of(number: int, apart: bool = False) -> tuple[NDArray[np.int32] | Listing, NDArray[np.int64]]:
        segment = window.segment(number)
        return piece.rows(segment.by_rank if apart else segment.planned)

    def planned(policy: RetentionPolicy | None, holding: bool = False) -> Plan:
        rows = partial(
            plan_rows, units=piece.units, memory=memory, storage=storage, epochs=window.segments,
            ahead=steps_ahead(storage), facts=facts, holding=holding, region=piece.region, packing=piece.packing,
            direct=not shared, parts=parts,
        )  # fmt: skip
        made = rows(of, policy=policy)
        if shared and made.policy.direct:
            return replace(made, counts=rows(partial(of, apart=True), policy=made.policy).counts)
        return made

    for wanted in (policy, None):
        with suppress(PlanError):
            made = planned(wanted, holding and wanted is not None)
            # Once more where some samples stay: with the way given, as windows after this one will have it.
            return planned(made.policy) if made.policy.pinned and wanted is None else made
    fitting = [(piece.region.fitting(memory, whole=whole), whole) for whole in piece.region.kinds]
    policies = [
        RetentionPolicy(direct=True),
        *(RetentionPolicy(n, whole=whole, direct=True) for n, whole in fitting if n),
    ]
    return min(map(planned, policies), key=lambda plan: plan.seconds(storage))


def run_part(piece: Piece, plan: Plan, memory: int, batch: int) -> RunPart:
    """Returns how a piece is held. What is read straight into batches takes their memory `ahead` of time."""
    held, ahead = plan.pages * plan.page, plan.terms.ahead
    if plan.policy.pinned == piece.region.items:
        ahead = 0  # nothing is read any more
    elif plan.policy.direct:
        ahead = max(0, min(STEPS_AHEAD, (memory - held) // max(1, batch)))
    kept = plan.kept == "stored"
    own = None if piece.extents is None else piece.extents.windows  # of blocks uses are told one by one
    packing = plan.region.units.packing
    pack = None if packing is None else (packing.number, packing.predictor)
    return RunPart(piece.field, plan.pages, plan.page, kept, plan.policy.direct, ahead, plan.terms.gap, own, pack)


def _own_blocks(piece: Piece, segment: PassUses, script: Script) -> NDArray[np.int32]:
    """Returns 0 for each use of a block that samples of this rank touch, and -1 for the others.

    Ranks of a node have one plan: a step uses the blocks of all their samples.
    """
    if segment.planned is segment.batches:
        return np.zeros(len(script.rows), np.int32)
    rows, starts = piece.rows(segment.batches)
    every, steps = piece.units.samples, np.arange(len(starts) - 1)
    of_all, of_own = (np.repeat(steps * every, np.diff(each)) for each in (script.starts, starts))
    own = np.full(len(script.rows), -1, np.int32)
    own[np.searchsorted(of_all + script.rows[:], of_own + rows[:])] = 0
    return own


def _read_alone(uses: SampleUses, piece: Piece) -> PartScript:
    """Returns the plan of what is read straight into the batches."""
    rows, starts = piece.rows(uses)
    none, nowhere = np.empty(0, np.int32), np.empty(0, np.int64)
    flags = len(rows) if piece.extents is None else -(-len(rows) // 8)
    last, ends = np.zeros(flags, np.uint8), np.zeros(len(starts), np.int64)
    return PartScript(Script(rows, starts, last, none, ends, none, nowhere, nowhere), uses.positions(piece.dataset))


def policies_after(last: PlannedPasses, passes: int) -> list[RetentionPolicy | None]:
    """Returns the policies of a window of this many passes after the last window; None: choose them anew.

    What is best for a single known pass can be dear for several, so policies are chosen again unless samples stay.
    """
    alike = (len(last.segments) > 1) == (passes > 1)
    return [policy if alike or policy.pinned else None for policy in last.policies]


def fit(parts: Sequence[RunPart], others: Sequence[RunPart]) -> bool:
    """Returns whether a run that was made for the other parts can carry out a window of these."""
    pairs = zip(parts, others, strict=True)
    # To wait for reads sooner than planned does no harm.
    return all(
        part.pages <= other.pages
        and part.ahead >= other.ahead
        and replace(part, pages=other.pages, ahead=other.ahead) == other
        for part, other in pairs
    )


def goes_on(last: PlannedPasses, window: PlannedPasses, parts: Sequence[RunPart]) -> bool:
    """Returns whether a run with these parts can carry out `window` after the last one."""
    pairs = zip(last.policies, window.policies, strict=True)
    alike = all(one == two or one.pinned == two.pinned == 0 for one, two in pairs)  # else other samples are to stay
    return alike and fit(window.parts(), parts)


def in_words(window: PlannedPasses) -> str:
    """Describes how a window uses the memory, and what that costs in a later epoch."""
    said = [_policy_in_words(plan, piece) for plan, piece in zip(window.plans, window.pieces, strict=True)]
    # Of fields that are used differently. What is kept as it is read needs no word beside another that is not.
    more = {one.partition(held)[0] for one in said for held in (", kept ", ", packed ") if held in one}
    policies = "; of other fields, ".join(one for one in dict.fromkeys(said) if one not in more)
    typical = [plan.counts[len(plan.counts) // 2] for plan in window.plans]
    requests, nbytes = sum(one.requests for one in typical), sum(one.bytes for one in typical)
    samples = len(window.segment(window.segments.start).planned.rows)
    uses = samples * sum({piece.field: piece.slots for piece in window.pieces}.values())
    return f"{policies}; an epoch takes {requests:,} requests for {quantities.size(nbytes)} and has {uses:,} uses"


def packed_ratio(plans: Sequence[Plan]) -> str:
    """Says that samples are held packed, and how much smaller; empty if they are not."""
    of = [plan.region.units for plan in plans if plan.kept == "packed"]
    if not of:
        return ""
    return f"packed without loss, {sum(u.sample_nbytes for u in of) / sum(u.held_nbytes for u in of):.1f} : 1"


def _policy_in_words(plan: Plan, piece: Piece) -> str:
    policy = plan.policy
    kept = f", {100 * policy.pinned / piece.region.items:.0f} % of the samples stay"
    packed = f", {packed_ratio([plan])}"
    decoded = "encoded" if piece.units.decoded_later else "decoded"
    stored = ", kept as stored" if plan.kept == "stored" else f", kept {decoded}" if piece.units.encoded else ""
    stored = packed if plan.kept == "packed" else stored
    if policy.pinned >= piece.region.items:
        return f"all samples stay{stored}"
    if policy.direct:
        return "every batch is read in one sorted go" + (kept + stored if policy.pinned else "")
    return "reading goes round in the order of the file" + (kept if policy.pinned else "") + stored
