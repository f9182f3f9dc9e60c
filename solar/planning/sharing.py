"""Sharing: who of several ranks takes what of each step, who provides it, and what of it one node plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planning.pass_uses import PassUses, SampleUses, with_room
from solar.planning.planned_passes import Piece
from solar.planning.regions import around, homes, units_of
from solar.planning.sweep import SWEEP_BLOCK
from solar.samples.row_windows import RowWindows
from solar.values import Transfers

Places = NDArray[np.signedinteger[Any]]
Ranks = NDArray[np.int32]
Starts = NDArray[np.int64]

STEPS_TOGETHER = 1 << 10  # that are looked at together


@dataclass(frozen=True, eq=False)
class Group:
    """Some of the uses, step by step, and their places in the memory of this rank's batches."""

    uses: Places | slice  # which of all uses
    starts: Starts  # where each step begins in them, and the last one ends
    places: NDArray[np.int32]  # -1: not in this rank's memory


@dataclass(frozen=True, eq=False)
class Division:
    """The part of a rank in the steps of all ranks. Its memory of a step has its batch and then what it sends."""

    batch: Group  # what it takes, in order
    here: Group  # what its node provides, for whichever rank
    elsewhere: Group  # what it takes, and another node provides
    sizes: Places  # rows of its memory in each step
    sent: Places  # [step, rank, begin, end]: these rows of its memory go to that rank; by step, then by rank
    come: Places  # [step, rank, place]: what that rank sends goes there; by step, by rank, in the order it sends


def by_turns(starts: Starts, ranks: int) -> Ranks:
    """Who takes each use as torch divides a step: rank after rank, each the next one."""
    turns = np.empty(starts[-1], np.int32)
    for begin in range(0, len(starts) - 1, STEPS_TOGETHER):  # so that what it takes does not grow with an epoch
        some = starts[begin : begin + STEPS_TOGETHER + 1]
        turns[some[0] : some[-1]] = number_within_steps(some - some[0]) % ranks
    return turns


def at_home(homes: Ranks, starts: Starts, node_of: NDArray[np.int32], *, even: bool) -> Ranks:
    """Who takes each use, which lies at the home of this rank: that rank; where `even`, as far as equal shares go.

    What has no room at home goes to a rank of the same node, or else to another.
    """
    if not even:
        return homes
    seats, per_node = seated(node_of)
    seat_of = np.argsort(seats).astype(np.int32)
    bounds = np.arange(len(seats) + 1, dtype=np.int64)
    return seats[_native.assign(seat_of[homes], starts, bounds, per_node)]


def seated(node_of: NDArray[np.int32]) -> tuple[Ranks, int]:
    """The ranks node by node; and how many each node has, or 1 where they differ in that."""
    counts = np.bincount(node_of)
    alike = len(counts) > 0 and bool(np.all(counts == counts[0]))
    return np.argsort(node_of, kind="stable").astype(np.int32), int(counts[0]) if alike else 1


def divide_uses(
    starts: Starts, taken_by: Ranks, provided_by: Ranks, rank: int, mates: Collection[int], *, sends: bool
) -> Division:
    """The part of a rank, where each use is taken by one rank and provided by one; `mates`: those of its node.

    Unless it `sends`, whoever takes a use that another node provides has to see to it itself.
    """
    ranks = int(max(taken_by.max(initial=0), provided_by.max(initial=0), rank, *mates)) + 1
    near = np.zeros(ranks, np.bool_)
    near[list(mates)] = True
    taken = true_positions(taken_by == rank)
    batch = _begins(taken, starts)
    place = np.full(len(taken_by), -1, np.int32)
    place[taken] = number_within_steps(batch)
    # Behind the batch: what this rank provides to ranks of other nodes.
    away = true_positions(provided_by == rank) if sends else taken[:0]
    away = away[~near[taken_by[away]]]
    sent_at = _step(away, starts)
    order = np.lexsort((taken_by[away], sent_at))
    away, sent_at = away[order], sent_at[order]
    outgoing = np.searchsorted(sent_at, np.arange(len(starts)))
    place[away] = np.diff(batch)[sent_at] + number_within_steps(outgoing)
    foreign = taken[~near[provided_by[taken]]]
    come_at = _step(foreign, starts)
    order = np.lexsort((provided_by[foreign], come_at))
    come = foreign[order]
    local = near[provided_by]
    if not sends:
        np.logical_and(local, near[taken_by], out=local)
    return Division(
        batch=group_uses(taken, starts, place[taken]),
        here=Group(slice(None), starts, place)
        if local.all()
        else group_uses(true_positions(local), starts, place[local]),
        elsewhere=group_uses(foreign, starts, place[foreign]),
        sizes=np.diff(batch) + np.diff(outgoing),
        sent=runs_of_places(sent_at, taken_by[away], place[away]),
        come=np.stack([come_at[order], provided_by[come], place[come]], axis=1).astype(np.int64),
    )


def largest(
    starts: Starts, taken_by: Ranks, provided_by: Ranks, node_of: NDArray[np.int32], *, sends: bool
) -> tuple[Places, Places]:
    """Returns, for each rank, the most samples of any of its batches, and the most that come from other nodes to one.

    The first counts what the rank sends, too. Both are what `divide_uses` finds rank by rank, but in one pass.
    """
    ranks = len(node_of)
    sizes, come = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    begin = 0
    while begin < len(starts) - 1:
        end = max(begin + 1, int(np.searchsorted(starts, starts[begin] + SWEEP_BLOCK, side="right")) - 1)
        taken, provided = (who[starts[begin] : starts[end]] for who in (taken_by, provided_by))
        step = np.repeat(np.arange(end - begin), np.diff(starts[begin : end + 1])) * ranks

        def counted(of: Places, steps: int = end - begin) -> Places:
            return np.bincount(of, minlength=steps * ranks).reshape(steps, ranks)

        counts = counted(step + taken)
        if sends:
            away = node_of[taken] != node_of[provided]
            counts += counted((step + provided)[away])
            come = np.maximum(come, counted((step + taken)[away]).max(axis=0))
        sizes = np.maximum(sizes, counts.max(axis=0))
        begin = end
    return sizes, come


def group_uses(uses: Places, starts: Starts, places: NDArray[np.int32]) -> Group:
    return Group(uses, _begins(uses, starts), places)


def true_positions(mask: NDArray[np.bool_]) -> Places:
    """np.flatnonzero, in half the memory."""
    found = np.empty(np.count_nonzero(mask), np.int32)
    end = 0
    for begin in range(0, len(mask), SWEEP_BLOCK):
        [here] = np.nonzero(mask[begin : begin + SWEEP_BLOCK])
        found[end : end + len(here)] = here + begin
        end += len(here)
    return found


def _begins(uses: Places, starts: Starts) -> Starts:
    """Where each step begins among these uses, and the last one ends."""
    return np.searchsorted(uses, starts.astype(uses.dtype)).astype(np.int64)


def _step(uses: Places, starts: Starts) -> Places:
    """The step of each of these uses."""
    return np.searchsorted(starts, uses, side="right") - 1


def number_within_steps(starts: Starts) -> Places:
    """The number of each within its step, where steps begin at these."""
    found = np.arange(starts[-1], dtype=np.int32)
    found -= np.repeat(starts[:-1].astype(np.int32), np.diff(starts))
    return found


def runs_of_places(step: Places, rank: Ranks, place: NDArray[np.int32]) -> Places:
    """[step, rank, begin, end] of what stands side by side."""
    if not len(step):
        return np.empty((0, 4), np.int64)
    new = np.flatnonzero(np.concatenate(([True], (np.diff(step) != 0) | (np.diff(rank) != 0))))
    counts = np.diff([*new, len(step)])
    return np.stack([step[new], rank[new], place[new], place[new] + counts], axis=1).astype(np.int64)


Who = tuple[NDArray[np.int32], NDArray[np.int32]]  # of each use the rank that takes it, and the one that provides it
SENDING = ("mpi", "torch")  # ways by which samples go to other nodes; else whoever takes them reads them


@dataclass(frozen=True, eq=False)
class Sharing:
    """How a data set is shared among ranks, as one of them sees it.

    With balance "torch" each rank takes what DistributedSampler gives it, and its node provides it. Else the data set
    is divided into home regions of the ranks: with "equal" all get as many samples of a step, at home as far as they
    go, with "uneven" those at home.
    """

    pieces: Sequence[Piece]  # of the whole data set
    node_of: NDArray[np.int32]  # of each rank
    ranks: int  # that take samples
    rank: int  # whose part this is
    mates: Collection[int]  # those of its node
    node: int  # on which it is
    balance: str
    exchange: str = ""  # how samples get to other nodes; "": none have to
    used: Callable[[], SampleUses | None] = lambda: None  # gives each sample that orders may have; None: all there are

    @cached_property
    def _homes(self) -> list[Homes]:
        datasets = 1 + max(piece.dataset for piece in self.pieces)
        used = self.used()
        return [Homes(self.pieces, number, self.node_of, used) for number in range(datasets)]

    def planned(self) -> list[Piece]:
        """What this node plans: its region of each piece."""
        if self.balance == "torch":
            return list(self.pieces)
        return [self._homes[piece.dataset].of_node(piece, self.node) for piece in self.pieces]

    def who(self, uses: SampleUses) -> Who:
        """Who takes and provides each of all ranks' uses."""
        if self.balance == "torch":
            turns = by_turns(uses.starts, self.ranks)
            return turns, turns
        provided = self.homes_of(uses)
        return at_home(provided, uses.starts, self.node_of, even=self.balance == "equal"), provided

    def divided(self, uses: SampleUses, who: Who | None = None) -> tuple[PassUses, Group]:
        """This rank's part of a pass of all ranks; and which of all uses are its batches."""
        sends = self.exchange in SENDING
        taken, provided = who or self.who(uses)
        found = divide_uses(uses.starts, taken, provided, self.rank, self.mates, sends=sends)
        own = some_uses(uses, found.batch)
        shared = len(self.mates) > 1 and any(piece.in_blocks for piece in self.pieces)
        made = PassUses(
            some_uses(uses, found.here, places=True),
            own,
            some_uses(uses, found.elsewhere, places=True) if self.exchange == "read" else None,
            found.sizes,
            Transfers(own.sizes, found.sent, found.come) if sends else None,
            own.sizes * self.ranks / np.diff(uses.starts) if self.balance == "uneven" else None,
            taken[found.here.uses] if shared else None,
        )
        return made, found.batch

    def largest(self, uses: SampleUses, who: Who) -> tuple[list[int], list[int]]:
        """Returns, for each rank, the samples of its largest batch, and the room of its inbox (`PassUses.inbox`)."""
        sizes, come = largest(uses.starts, *who, self.node_of, sends=self.exchange in SENDING)
        return sizes.tolist(), [with_room(one) for one in come.tolist()]

    def homes_of(self, uses: SampleUses) -> NDArray[np.int32]:
        """The rank at whose home each lies."""
        if uses.which is None:
            return self._homes[0].of(uses.rows)
        found = np.empty(len(uses.rows), np.int32)
        for number, one in enumerate(self._homes):
            where = np.flatnonzero(uses.which == number)
            found[where] = one.of(uses.rows[where])
        return found


class Homes:
    """The homes of an H5Dataset's samples: regions of its largest field, node by node.

    Where a Subset uses some of the samples, regions are equal in what it uses: else all others would be sent what the
    first nodes read.
    """

    def __init__(
        self, pieces: Sequence[Piece], dataset: int, node_of: NDArray[np.int32], used: SampleUses | None = None
    ) -> None:
        own = [piece for piece in pieces if piece.dataset == dataset]
        largest = max(own, key=lambda piece: piece.units.total_nbytes)
        self._largest, self._extents = largest.units, largest.extents
        self._seats, self._node_of = seated(node_of)[0], node_of
        self._bounds = homes(self._largest, len(node_of), None if used is None else self._used_units(used, dataset))

    def _used_units(self, used: SampleUses, dataset: int) -> NDArray[np.bool_]:
        """Which units of the largest field have any of these samples; where samples have several rows, their first."""
        found = np.zeros(self._largest.units, np.bool_)
        for begin in range(0, len(used.rows), SWEEP_BLOCK):
            rows = used.rows[begin : begin + SWEEP_BLOCK]
            if used.which is not None:
                rows = rows[used.which[begin : begin + SWEEP_BLOCK] == dataset]
            found[units_of(self._largest, self._items(rows))] = True
        return found

    def _items(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where these samples lie in the largest field, or begin."""
        lies = rows if self._extents is None else self._extents.rows(rows)[:, 0]
        return lies if self._largest.item is None else self._largest.item[lies]

    def of(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """The rank at whose home each of these lies."""
        found = np.empty(len(rows), np.int32)
        for begin in range(0, len(rows), SWEEP_BLOCK):  # so that what it takes does not grow with an epoch
            here = slice(begin, begin + SWEEP_BLOCK)
            found[here] = self._seats[np.searchsorted(self._bounds[1:-1], self._items(rows[here]), side="right")]
        return found

    def of_node(self, piece: Piece, number: int) -> Piece:
        """What of a piece lies at the homes of a node."""
        if piece.extents is not None:
            return self._of_extents(piece, piece.extents, number)
        seats = np.flatnonzero(self._node_of[self._seats] == number)
        begin, end = int(self._bounds[seats[0]]), int(self._bounds[seats[-1] + 1])
        rows = np.arange(begin, end, dtype=np.int32)
        if self._largest.sample is not None:
            rows = self._largest.sample[rows]
        items = rows if piece.units.item is None else piece.units.item[rows]
        region = around(piece.units, items)
        return replace(piece, region=region) if region.items else piece

    def _of_extents(self, piece: Piece, extents: RowWindows, number: int) -> Piece:
        """All that the samples at the homes of a node are made of, which may reach into those of others."""
        found = []
        for begin in range(0, len(extents), SWEEP_BLOCK):
            samples = np.arange(begin, min(begin + SWEEP_BLOCK, len(extents)), dtype=np.int32)
            for rows in extents.every_row(samples[self._node_of[self.of(samples)] == number]):
                items = rows if piece.units.item is None else piece.units.item[rows]
                found += [items.min(), items.max()] if len(items) else []
        return replace(piece, region=around(piece.units, np.array(found, np.int32))) if found else piece


def some_uses(uses: SampleUses, group: Group, *, places: bool = False) -> SampleUses:
    which = None if uses.which is None else uses.which[group.uses]
    return SampleUses(which, uses.rows[group.uses], group.starts, group.places if places else None, uses.epoch)
