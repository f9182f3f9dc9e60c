"""Job: a training as the planner sees it. It is planned as its loader plans it, but without a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from solar.planning import costs
from solar.planning.budget import SENDING, AheadSpec, Budget, Needs, SampleBytes, divide_memory, needs, wholes
from solar.planning.pass_uses import PassUses, SampleUses, alone, in_lockstep, once_a_step
from solar.planning.plan import plan_rows
from solar.planning.planned_passes import SEGMENTS, Piece, PlannedPasses, goes_on, passes_per_plan, policies_after
from solar.planning.regions import whole_region
from solar.planning.served import budget_of_jobs, encoding_nbytes, packable, tables_nbytes
from solar.planning.sharing import Sharing, Who
from solar.planning.sweep import Counts, RetentionPolicy, total
from solar.planning.torch_shuffles import ShuffledUses, steps
from solar.planning.units import Units
from solar.samples.row_windows import RowWindows
from solar.values import BATCHES_AHEAD, Outcome, Storage, World

FOLLOWED = 1 << 26  # uses of a node after which no more epochs are planned: they go on as the last ones
ALL_NODES = 1 << 26  # uses times nodes up to which each node is planned, and not just the first
LOADERS_PACE = AheadSpec(BATCHES_AHEAD, 0)  # without a transform or a Field that makes something
EPOCHS_KEPT = 2  # whose division among ranks is kept, at least
WHO_KEPT = 1 << 24  # uses whose division among ranks is kept, where these are more epochs: each node asks for all
COUNTED_TOGETHER = 1 << 20  # uses of ranks that are counted together, where each reads for itself

Epochs = Callable[[int], PassUses]  # what a rank, or its node, has of each


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a loader's plan follows from: what is read, by which ranks, in which order, with what memory."""

    pieces: Sequence[Piece]  # each field of the data set, or of each of several
    storages: Sequence[Storage]  # of each piece
    fields: Sequence[SampleBytes]
    scratch: int  # the least memory that a read takes beside the buffer (io/reading/run.py: scratch_nbytes)
    order: ShuffledUses
    world: World
    batch: int  # samples of a rank's batch
    memory: int  # of a node: what the loader's `buffer` says; 0: batches are read one by one, by each rank for itself
    epochs: int | None  # None: nobody knows
    pace: AheadSpec = LOADERS_PACE
    threads: int = 1  # of each rank's engine
    gap: int = 0  # without a buffer: holes up to this are read (io/reading/engine.py: GAP)
    drop_last: bool = False
    exchange: str = SENDING[0]  # between nodes
    firsts: Sequence[int] = (0,)  # of each data set the number of its first sample among those of all
    beside: Sequence[ShuffledUses] = ()  # the orders of other jobs that share memory and reads, all in lock-step

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.world.ranks // self.world.ranks_per_node)

    @property
    def orders(self) -> Sequence[ShuffledUses]:
        """The orders of all jobs."""
        return self.order, *self.beside

    def uses(self, epoch: int) -> SampleUses:
        """Returns what all ranks use, step by step; of several jobs, each sample once per step."""
        unlike = {one.facts: one for one in self.orders}
        every = [self.uses_of(one, epoch) for one in unlike.values()]
        return every[0] if len(every) == 1 else once_a_step(in_lockstep(every))

    def uses_of(self, order: ShuffledUses, epoch: int) -> SampleUses:
        """Returns what one of the jobs uses, step by step."""
        starts = steps(order, self.batch * self.world.ranks, drop_last=self.drop_last)
        samples = order.of(epoch)[: starts[-1]]
        if len(self.firsts) == 1:
            return SampleUses(None, samples, starts, epoch=epoch)
        firsts = np.array(self.firsts, np.int32)
        which = np.searchsorted(firsts, samples, side="right") - 1
        return SampleUses(which, samples - firsts[which], starts, epoch=epoch)

    @cached_property
    def who(self) -> Callable[[int], Who]:
        """Returns which rank takes and which provides each use of an epoch, computed once for all ranks that ask."""
        kept = max(EPOCHS_KEPT, WHO_KEPT // max(1, self.order.uses))
        return lru_cache(kept)(lambda epoch: self.sharing(0).who(self.uses(epoch)))

    @cached_property
    def needs(self) -> list[Needs]:
        """The memory that the batches of each rank take, by the first epoch."""
        own = self.sharing(0)
        room = own.room(self.uses(0), self.who(0)) if own.exchange in SENDING else None
        return [_needs_of(self, own.exchange, room)] * self.world.ranks

    def sharing(self, rank: int) -> Sharing:
        """Returns how the data set is divided among ranks, as this rank sees it and loaders do by default."""
        node_of = (np.arange(self.world.ranks) // self.world.ranks_per_node).astype(np.int32)
        mates, node = np.flatnonzero(node_of == node_of[rank]).tolist(), int(node_of[rank])
        apart = self.nodes == 1 or any(piece.in_blocks for piece in self.pieces)  # each holds what its ranks take
        balance, exchange = ("torch", "") if apart else ("equal", self.exchange)
        return Sharing(self.pieces, node_of, self.world.ranks, rank, mates, node, balance, exchange)


@dataclass(frozen=True, eq=False)
class NodePlan:
    """What a node reads and holds, epoch by epoch, as far as its epochs were simulated."""

    epochs: list[list[Counts]]  # for each piece; the first of a window with its start
    uses: list[int]  # of each epoch, of the last where there are fewer: rows of all pieces, for all jobs
    units: list[Units]  # of each piece
    storages: Sequence[Storage]
    windows: list[PlannedPasses]  # none where batches are read one by one
    budget: Budget | None
    batches_nbytes: int  # what the batches of all its ranks take

    @property
    def later(self) -> range:
        """The epochs that stand for those after the first; if there is only one, that one."""
        return range(min(1, len(self.epochs) - 1), len(self.epochs))

    @property
    def ready(self) -> int:
        """The number of batches of each rank that are ready before they are asked for."""
        return 0 if self.budget is None else self.budget.staged

    @property
    def peak_nbytes(self) -> int:
        """The most memory that it takes, with batches."""
        if self.budget is None:
            return self.batches_nbytes
        kept = max(sum(plan.pages * plan.page for plan in window.plans) for window in self.windows)
        return kept + self.budget.nbytes - self.budget.parts

    def outcome(self, epochs: Sequence[int]) -> Outcome:
        """Returns the average cost of these epochs."""
        listed = [self.epochs[epoch] for epoch in epochs]
        pieces = [total(of_piece) for of_piece in zip(*listed, strict=True)]
        facts = zip(pieces, self.units, self.storages, strict=True)
        seconds = sum(costs.reading_seconds(*one) for one in facts) / len(epochs)
        scan = sum(s.seconds(1, u.total_nbytes) for u, s in zip(self.units, self.storages, strict=True))
        reads = sum(one.reads for one in pieces) / len(epochs)
        uses = sum(self.uses[min(epoch, len(self.uses) - 1)] for epoch in epochs) / len(epochs)
        return Outcome(
            reads=reads,
            requests=sum(one.requests for one in pieces) / len(epochs),
            bytes=sum(one.bytes for one in pieces) / len(epochs),
            scans=seconds / scan,
            seconds=seconds,
            hits=uses - reads,
            peak_bytes=self.peak_nbytes,
        )


def plan_node(job: Job, node: int = 0) -> NodePlan:
    """Returns the plan of a node as its loaders make it, with exact counts. Raises BufferTooSmall as they do."""
    if not job.memory:
        return _one_by_one(job, node)
    if job.beside:
        return _of_service(job)
    first = node * job.world.ranks_per_node
    ranks = range(first, min(first + job.world.ranks_per_node, job.world.ranks))
    own = job.sharing(first)
    of_epoch = lru_cache(EPOCHS_KEPT)(partial(rank_part, job, own))
    pieces = job.pieces if job.world.ranks == 1 else own.planned()
    taken = [job.needs[rank] for rank in ranks]
    longest = max(rank_batch(job), int(of_epoch(0).sizes.max(initial=0))) if job.world.ranks == 1 else job.batch
    budget = divide_memory(
        job.memory, longest, taken, wholes([piece.region for piece in pieces]), tables_nbytes(pieces)
    )
    batches = sum(one.beside + budget.staged * one.waiting for one in taken)
    return _follow_job(job, of_epoch, packable(pieces, budget.scratch), budget, batches)


def _of_service(job: Job) -> NodePlan:
    """Returns the plan of a service that has all of these jobs from its first step on."""
    of_epoch = lru_cache(EPOCHS_KEPT)(lambda epoch: alone(job.uses(epoch)))
    of_job = [job.uses_of(one, 0) for one in job.orders]
    held = zip(job.fields, job.pieces, strict=False)  # a step has blocks, and the pieces of one data set
    nbytes = sum(piece.units.sample_nbytes if piece.in_blocks else field.read for field, piece in held)
    budget, ring = budget_of_jobs(
        of_job, of_epoch(0).planned, job.pieces, nbytes, memory=job.memory, scratch=job.scratch, cores=job.threads
    )
    return _follow_job(job, of_epoch, packable(job.pieces, budget.scratch), budget, ring)


def predicted(
    order: ShuffledUses,
    units: Units,
    storage: Storage,
    *,
    batch: int,
    memory: int,
    epochs: int,
    extents: RowWindows | None = None,
) -> Outcome:
    """Returns the average cost of the later epochs for one process, with this much memory for samples alone."""
    made = followed(order, units, storage, batch=batch, memory=memory, epochs=epochs, extents=extents)
    return made.outcome(made.later)


def followed(
    order: ShuffledUses,
    units: Units,
    storage: Storage,
    *,
    batch: int,
    memory: int,
    epochs: int,
    known: int = SEGMENTS[0],
    extents: RowWindows | None = None,
) -> NodePlan:
    """Returns the plan of one process with this much memory for samples alone. `known` epochs are known at a time."""
    piece = Piece(0, 0, whole_region(units), extents)
    fields, pieces = [SampleBytes(piece.slots * units.sample_nbytes)], [piece]
    job = Job(pieces, [storage], fields, 0, order, World(0, 1), batch, memory, epochs)
    if not memory:
        return _one_by_one(job, 0)
    budget = Budget(memory, 1, 0, memory, batch)
    return _follow_job(job, lru_cache(EPOCHS_KEPT)(lambda epoch: alone(job.uses(epoch))), pieces, budget, 0, known)


def _follow_job(
    job: Job, of_epoch: Epochs, pieces: Sequence[Piece], budget: Budget, batches: int, known: int = SEGMENTS[0]
) -> NodePlan:
    """Returns the plan of a node whose memory is divided, as far as it is worth simulating."""
    found: list[list[Counts]] = []
    windows = []
    uses = len(of_epoch(0).planned.rows)
    for window in planned_windows(of_epoch, job.epochs, pieces, job.storages, budget.parts, budget.batch, known):
        windows.append(window)
        found += [window.counts_of_pieces(number) for number in window.segments]
        if len(found) > 1 and len(found) * uses * max(piece.slots for piece in pieces) > FOLLOWED:
            break
    units = [plan.region.units for plan in windows[-1].plans]
    cut = any(piece.in_blocks for piece in pieces)  # batches share more in some epochs
    used = [_used_pieces(job, pieces, of_epoch(epoch).by_rank, epoch) for epoch in range(len(found) if cut else 1)]
    return NodePlan(found, used, units, job.storages, windows, budget, batches)


def planned_windows(
    of_epoch: Epochs,
    epochs: int | None,
    pieces: Sequence[Piece],
    storages: Sequence[Storage],
    memory: int,
    batch: int,
    known: int = SEGMENTS[0],
) -> Iterator[PlannedPasses]:
    """Yields the windows that a loader plans one after another, with this much memory for samples.

    It knows `known` epochs at a time, this one included. If their total is unknown, these are the windows that it plans
    at first.
    """
    done, last, parts = 0, None, []  # epochs; the window before; and how the run that carries it out holds its pieces
    while epochs is None or done < epochs:
        uses, left = (
            len(of_epoch(max(0, done - 1)).planned.rows) * max(piece.slots for piece in pieces),
            known if epochs is None else min(known, epochs - done),
        )
        some = [range(done, done + min(left, passes_per_plan(uses, first=first))) for first in (True, False)]

        def made(here: range, after: PlannedPasses | None, ways: Sequence[RetentionPolicy | None]) -> PlannedPasses:
            makers = [partial(of_epoch, epoch) for epoch in here]
            begin = 0 if after is None else after.segments.stop
            return PlannedPasses(makers, begin, pieces, memory, batch, storages, ways, after is not None)

        if last is None:
            window = made(some[0], None, [None] * len(pieces))
        elif not goes_on(last, window := made(some[1], last, policies_after(last, len(some[1]))), parts):
            # As when the pass begins for which there was none.
            window = made(some[0], last, policies_after(last, len(some[0])))
            if not goes_on(last, window, parts):
                window, last = made(some[0], None, window.policies), None
        parts = window.parts() if last is None else parts
        yield window
        done, last = done + len(window.segments), window
        if epochs is None:
            return


def _used_pieces(job: Job, pieces: Sequence[Piece], uses: SampleUses, epoch: int) -> int:
    """Returns the rows that an epoch uses. What several jobs use in one step is read once, and each uses it."""
    every = [job.uses_of(one, epoch) for one in job.orders] if job.beside else [uses]
    return sum(len(piece.rows(one)[0]) for one in every for piece in pieces)


def rank_part(job: Job, own: Sharing, epoch: int) -> PassUses:
    """Returns a rank's part of an epoch."""
    uses = job.uses(epoch)
    if job.world.ranks == 1:
        return alone(uses)
    return own.divided(uses, None if own.balance == "torch" else job.who(epoch))[0]


def rank_batch(job: Job) -> int:
    """Returns the most samples in a batch of a rank, as its loader knows it."""
    return max(1, min(job.batch, -(-job.order.uses // job.world.ranks)))


def fields_of_batch(job: Job, batch: int) -> list[SampleBytes]:
    """Returns the bytes of each field of a sample, in the largest batch of so many."""
    found = list(job.fields)
    for piece in job.pieces:
        if piece.in_blocks:
            most = -(-piece.extents.longest_bytes(piece.units.sample_nbytes, batch) // batch)
            found[piece.field] = SampleBytes(max(most, found[piece.field].read))
    return found


def _needs_of(job: Job, exchange: str, room: tuple[int, int] | None) -> Needs:
    """Returns the memory for a rank's batches (`PassUses.room`)."""
    batch = rank_batch(job)
    fields = fields_of_batch(job, batch)
    own = needs(fields, job.pace, batch, scratch=job.scratch, threads=job.threads, exchange=exchange, room=room)
    return own._replace(encodes=encoding_nbytes(job.pieces))


def _one_by_one(job: Job, node: int) -> NodePlan:
    """Returns the plan without a buffer: each rank reads each batch in file order, joining reads over small holes."""
    first, world = node * job.world.ranks_per_node, job.world
    ranks = range(first, min(first + world.ranks_per_node, world.ranks))
    epochs = range(min(2, job.epochs or 2))  # one is like another
    found: list[list[Counts]] = [[] for _ in epochs]
    used = [0 for _ in epochs]
    uses_of = lru_cache(EPOCHS_KEPT)(job.uses)  # the same shuffle for each field and rank
    each = max(1, COUNTED_TOGETHER * world.ranks // max(1, job.order.uses))
    groups = [ranks[begin : begin + each] for begin in range(0, len(ranks), each)]
    for piece, storage in zip(job.pieces, job.storages, strict=True):
        of_groups, policy = [], RetentionPolicy(direct=True, gap=job.gap + 1)
        for group in groups:

            def of(epoch: int, group: range = group, piece: Piece = piece) -> Any:
                return piece.rows(_rank_by_rank(uses_of(epoch), group, world.ranks))

            made = plan_rows(
                of, piece.units, memory=0, storage=storage, epochs=epochs, ahead=0, facts=(), policy=policy
            )
            of_groups.append(made.counts)
            used = [own + len(of(epoch)[0]) for own, epoch in zip(used, epochs, strict=True)]
        for epoch in epochs:
            found[epoch].append(total(counts[epoch] for counts in of_groups))
    batch = rank_batch(job)
    taken = needs(fields_of_batch(job, batch), job.pace, batch, scratch=job.scratch, threads=job.threads)
    batches = len(ranks) * (taken.beside + taken.ahead * taken.waiting)
    return NodePlan(found, used, [piece.units for piece in job.pieces], job.storages, [], None, batches)


def _rank_by_rank(uses: SampleUses, some: range, ranks: int) -> SampleUses:
    """Returns the uses of some ranks, with each step of each rank as a step of its own, rank after rank."""
    ends = np.stack([-(-(uses.starts - rank) // ranks) for rank in some])  # of each rank, among its own uses
    sizes = np.diff(ends, axis=1)
    rows = np.concatenate([uses.rows[rank::ranks][: end[-1]] for rank, end in zip(some, ends, strict=True)])
    which = None if uses.which is None else np.concatenate([uses.which[rank::ranks] for rank in some])
    return SampleUses(which, rows, np.concatenate(([0], np.cumsum(sizes))), epoch=uses.epoch)
