"""Sharing: which rank takes each use of a step, which rank provides it, and what of it one node plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planning.budget import SENDING, pooled_nbytes
from solar.planning.pass_uses import PassUses, SampleUses, with_room
from solar.planning.planned_passes import Piece
from solar.planning.regions import around, homes, units_of
from solar.planning.sweep import SWEEP_BLOCK
from solar.samples.row_windows import RowWindows
from solar.values import Transfers, Turns

Places = NDArray[np.signedinteger[Any]]
Ranks = NDArray[np.int32]
Starts = NDArray[np.int64]

STEPS_TOGETHER = 1 << 10  # that are looked at together
WINDOWS = range(2, 10)  # batches that are there at the same time


@dataclass(frozen=True, eq=False)
class Group:
    """Some of the uses, step by step, and their places in this rank's batches."""

    uses: Places | slice  # which of all uses
    starts: Starts  # where each step begins in them, and the last one ends
    places: NDArray[np.int32] | Turns  # -1: not in this rank's memory


@dataclass(frozen=True, eq=False)
class Division:
    """One rank's part in the steps of all ranks. Its memory of a step has its batch, then what it sends."""

    batch: Group  # what it takes, in order
    here: Group  # what its node provides, for whichever rank
    elsewhere: Group  # what it takes, and another node provides
    sizes: Places  # rows of its memory in each step
    sent: Places  # [step, rank, begin, end]: these rows of its memory go to that rank; by step, then by rank
    come: Places  # [step, rank, place]: what that rank sends goes there; by step, by rank, in the order it sends


def own_turns(starts: Starts, ranks: int, rank: int) -> Group:
    """Returns what one rank takes where ranks take turns: every so-manieth use, if steps divide by the ranks."""
    own = -(-(np.diff(starts) - rank) // ranks)
    begins = np.concatenate(([0], np.cumsum(own)))
    if not np.any(starts[:-1] % ranks):
        return Group(slice(rank, int(starts[-1]), ranks), begins, Turns(1, 0))
    uses = np.arange(begins[-1], dtype=np.int32)
    uses *= np.int32(ranks)
    uses += np.repeat((starts[:-1] + rank - begins[:-1] * ranks).astype(np.int32), own)
    return Group(uses, begins, Turns(1, 0))


def turns_of_node(starts: Starts, ranks: int, rank: int, mates: Collection[int]) -> tuple[Group, Group]:
    """Returns what a rank takes, and what its node provides, where ranks take turns and read what they take."""
    own = own_turns(starts, ranks, rank)
    if len(mates) == ranks:
        return own, Group(slice(None), starts, Turns(ranks, rank))
    near = np.zeros(ranks, np.bool_)
    near[list(mates)] = True
    turns = by_turns(starts, ranks)
    here = true_positions(near[turns])
    taken = turns[here] == rank
    del turns
    places = np.full(len(here), -1, np.int32)
    places[taken] = number_within_steps(own.starts)
    return own, group_uses(here, starts, places)


def by_turns(starts: Starts, ranks: int) -> Ranks:
    """Returns which rank takes each use as torch divides a step: one rank after the other."""
    turns = np.empty(starts[-1], np.int32)
    for begin in range(0, len(starts) - 1, STEPS_TOGETHER):  # so that what it takes does not grow with an epoch
        some = starts[begin : begin + STEPS_TOGETHER + 1]
        turns[some[0] : some[-1]] = number_within_steps(some - some[0]) % ranks
    return turns


def at_home(homes: Ranks, starts: Starts, node_of: NDArray[np.int32], *, even: bool) -> Ranks:
    """Returns which rank takes each use: the one whose home region it lies in; if `even`, as far as equal shares go.

    What has no room at home goes to a rank of the same node, or else to another node.
    """
    if not even:
        return homes
    seats, per_node = seated(node_of)
    seat_of = np.argsort(seats).astype(np.int32)
    bounds = np.arange(len(seats) + 1, dtype=np.int64)
    return seats[_native.assign(seat_of[homes], starts, bounds, per_node)]


def seated(node_of: NDArray[np.int32]) -> tuple[Ranks, int]:
    """Returns the ranks node by node, and how many each node has; 1 if they differ."""
    counts = np.bincount(node_of)
    alike = len(counts) > 0 and bool(np.all(counts == counts[0]))
    return np.argsort(node_of, kind="stable").astype(np.int32), int(counts[0]) if alike else 1


def divide_uses(
    starts: Starts, taken_by: Ranks, provided_by: Ranks, rank: int, mates: Collection[int], *, sends: bool
) -> Division:
    """Returns the part of `rank`, where one rank takes each use and one provides it. `mates` are the ranks of its node.

    Unless it `sends`, a rank that takes a use of another node reads it itself.
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


def most_nbytes(
    starts: Starts, taken_by: Ranks, provided_by: Ranks, node_of: NDArray[np.int32], sample_nbytes: Sequence[int]
) -> NDArray[np.int64]:
    """Returns, for each node, the most memory that two batches of each of its ranks take, one after the other, and what
    each further one takes more, where samples travel between nodes.

    A batch takes what the pool has for it and for what its rank sends, and room for what comes from other nodes.
    """
    nodes, steps = int(node_of.max()) + 1, len(starts) - 1
    own, aside, begin = np.zeros((steps, nodes), np.int64), np.zeros((steps, nodes), np.int64), 0
    while begin < steps:
        end = max(begin + 1, int(np.searchsorted(starts, starts[begin] + SWEEP_BLOCK, side="right")) - 1)
        taken, provided = (who[starts[begin] : starts[end]] for who in (taken_by, provided_by))
        step = np.repeat(np.arange(end - begin), np.diff(starts[begin : end + 1]))
        away = node_of[taken] != node_of[provided]

        def counted(of: Places, among: int, steps: int = end - begin) -> Places:
            return np.bincount(of, minlength=steps * among).reshape(steps, among)

        ranks = len(node_of)
        batch = counted(step * ranks + taken, ranks)
        sizes = batch + counted((step * ranks + provided)[away], ranks)
        come = counted((step * nodes + node_of[taken])[away], nodes)
        memory = memory_of(int(sizes.max(initial=0)), sample_nbytes)
        for node in range(nodes):
            own[begin:end, node] = memory[batch][:, node_of == node].sum(axis=1)
            aside[begin:end, node] = memory[sizes][:, node_of == node].sum(axis=1)
        aside[begin:end] += come * sum(sample_nbytes) - own[begin:end]
        begin = end
    return np.array([_in_windows(*both) for both in zip(own.T, aside.T, strict=True)], np.int64)


def memory_of(samples: int, sample_nbytes: Sequence[int]) -> NDArray[np.int64]:
    """Returns what the pool has for batches of 0, 1, 2, ... up to this many samples."""
    counts = range(1, samples + 1)
    return np.array([0, *(sum(pooled_nbytes(count * each) for each in sample_nbytes) for count in counts)], np.int64)


def _in_windows(own: Starts, aside: Starts) -> tuple[int, int]:
    """Returns the most that two steps side by side take, and what each further one adds at most, with some room."""
    largest, sums = int(own.max(initial=0)), np.concatenate(([0], np.cumsum(aside)))
    windows = [int((sums[min(k, len(aside)) :] - sums[: max(1, len(sums) - k)]).max()) for k in WINDOWS]
    first, *others = (with_room(one) for one in windows)
    more = max(-(-(one - first) // (k - WINDOWS[0])) for one, k in zip(others, WINDOWS[1:], strict=True))
    return 2 * largest + first, largest + max(0, more)


def group_uses(uses: Places, starts: Starts, places: NDArray[np.int32]) -> Group:
    return Group(uses, _begins(uses, starts), places)


def true_positions(mask: NDArray[np.bool_]) -> Places:
    """Returns np.flatnonzero(mask), in half the memory."""
    found = np.empty(np.count_nonzero(mask), np.int32)
    end = 0
    for begin in range(0, len(mask), SWEEP_BLOCK):
        [here] = np.nonzero(mask[begin : begin + SWEEP_BLOCK])
        found[end : end + len(here)] = here + begin
        end += len(here)
    return found


def _begins(uses: Places, starts: Starts) -> Starts:
    """Returns where each step begins among these uses, and where the last one ends."""
    return np.searchsorted(uses, starts.astype(uses.dtype)).astype(np.int64)


def _step(uses: Places, starts: Starts) -> Places:
    """Returns the step of each of these uses."""
    return np.searchsorted(starts, uses, side="right") - 1


def number_within_steps(starts: Starts) -> Places:
    """Returns the number of each use within its step."""
    found = np.arange(starts[-1], dtype=np.int32)
    found -= np.repeat(starts[:-1].astype(np.int32), np.diff(starts))
    return found


def runs_of_places(step: Places, rank: Ranks, place: NDArray[np.int32]) -> Places:
    """Returns [step, rank, begin, end] of neighbouring places."""
    if not len(step):
        return np.empty((0, 4), np.int64)
    new = np.flatnonzero(np.concatenate(([True], (np.diff(step) != 0) | (np.diff(rank) != 0))))
    counts = np.diff([*new, len(step)])
    return np.stack([step[new], rank[new], place[new], place[new] + counts], axis=1).astype(np.int64)


Who = tuple[NDArray[np.int32], NDArray[np.int32]]  # of each use the rank that takes it, and the one that provides it


@dataclass(frozen=True, eq=False)
class Sharing:
    """How a data set is divided among ranks, as one of them sees it.

    With balance "torch" each rank takes what DistributedSampler gives it, and its node provides it. Otherwise the data
    set is divided into home regions: with "equal" all ranks take equally many samples of a step, from home as far as
    possible; with "uneven" only those from home.
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
        """Returns what this node plans: its region of each piece."""
        if self.balance == "torch":
            return list(self.pieces)
        return [self._homes[piece.dataset].of_node(piece, self.node) for piece in self.pieces]

    def who(self, uses: SampleUses) -> Who:
        """Returns which rank takes and which provides each use of all ranks."""
        if self.balance == "torch":
            turns = by_turns(uses.starts, self.ranks)
            return turns, turns
        provided = self.homes_of(uses)
        return at_home(provided, uses.starts, self.node_of, even=self.balance == "equal"), provided

    def divided(self, uses: SampleUses, who: Who | None = None) -> tuple[PassUses, Group]:
        """Returns this rank's part of a pass of all ranks, and which of all uses are in its batches."""
        if who is None and self.balance == "torch":
            return self._in_turns(uses)
        sends = self.exchange in SENDING
        taken, provided = who or self.who(uses)
        room = self.room(uses, (taken, provided)) if sends else None
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
            room,
        )
        return made, found.batch

    def _in_turns(self, uses: SampleUses) -> tuple[PassUses, Group]:
        """Does what `divided` does where each rank takes what DistributedSampler gives it, without a list of who."""
        batch, here = turns_of_node(uses.starts, self.ranks, self.rank, self.mates)
        own, takers = some_uses(uses, batch), None
        if len(self.mates) > 1 and any(piece.in_blocks for piece in self.pieces):
            takers = by_turns(uses.starts, self.ranks)[here.uses]
        planned = some_uses(uses, here, places=True)
        return PassUses(planned, own, sizes_=np.diff(batch.starts), takers=takers), batch

    def room(self, uses: SampleUses, who: Who) -> tuple[int, int]:
        """Returns what two batches of a rank take of its node's memory, and each further one (`PassUses.room`).

        Ranks of a node share its memory equally. The fullest node counts, because other epochs fill others.
        """
        fields = {piece.field: piece.sample_nbytes for piece in reversed(self.pieces)}
        found = most_nbytes(uses.starts, *who, self.node_of, list(fields.values()))
        two, more = (-(-found // np.bincount(self.node_of)[:, None])).max(axis=0).tolist()
        return two, more

    def homes_of(self, uses: SampleUses) -> NDArray[np.int32]:
        """Returns the rank in whose home region each use lies."""
        if uses.which is None:
            return self._homes[0].of(uses.rows)
        found = np.empty(len(uses.rows), np.int32)
        for number, one in enumerate(self._homes):
            where = np.flatnonzero(uses.which == number)
            found[where] = one.of(uses.rows[where])
        return found


class Homes:
    """The home regions of an H5Dataset's samples: regions of its largest field, node by node.

    If a Subset uses some of the samples, regions are equal in what it uses: otherwise the first nodes would read
    everything and send it to the others.
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
        """Returns which units of the largest field contain any of these samples, or their first rows."""
        found = np.zeros(self._largest.units, np.bool_)
        for begin in range(0, len(used.rows), SWEEP_BLOCK):
            rows = used.rows[begin : begin + SWEEP_BLOCK]
            if used.which is not None:
                rows = rows[used.which[begin : begin + SWEEP_BLOCK] == dataset]
            found[units_of(self._largest, self._items(rows))] = True
        return found

    def _items(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Returns where these samples lie, or begin, in the largest field."""
        lies = rows if self._extents is None else self._extents.rows(rows)[:, 0]
        return lies if self._largest.item is None else self._largest.item[lies]

    def of(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Returns the rank in whose home region each sample lies."""
        found = np.empty(len(rows), np.int32)
        for begin in range(0, len(rows), SWEEP_BLOCK):  # so that what it takes does not grow with an epoch
            here = slice(begin, begin + SWEEP_BLOCK)
            found[here] = self._seats[np.searchsorted(self._bounds[1:-1], self._items(rows[here]), side="right")]
        return found

    def of_node(self, piece: Piece, number: int) -> Piece:
        """Returns the part of a piece in the home regions of a node."""
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
        """Returns all rows of the samples in the home regions of a node, which may reach into other regions."""
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
