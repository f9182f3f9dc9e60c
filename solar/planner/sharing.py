"""Sharing: who of several ranks takes what of each step, who provides it, and what of it one node plans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solar.extents import Extents
from solar.planner.division import Group, at_home, by_turns, divided, largest, seated
from solar.planner.pass_uses import PassUses, SampleUses, with_room
from solar.planner.planned_passes import Piece
from solar.planner.regions import around, homes
from solar.planner.sweep import SWEEP_BLOCK
from solar.values import Parcels

Who = tuple[NDArray[np.int32], NDArray[np.int32]]  # of each use the rank that takes it, and the one that provides it
SENDING = ("mpi", "torch")  # ways by which samples go to other nodes; else whoever takes them reads them


@dataclass(frozen=True, eq=False)
class Sharing:
    """A data set among ranks, as one of them sees it.

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

    @cached_property
    def _homes(self) -> list[Homes]:
        datasets = 1 + max(piece.dataset for piece in self.pieces)
        return [Homes(self.pieces, number, self.node_of) for number in range(datasets)]

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
        found = divided(uses.starts, taken, provided, self.rank, self.mates, sends=sends)
        own = _some(uses, found.batch)
        shared = len(self.mates) > 1 and any(piece.in_blocks for piece in self.pieces)
        made = PassUses(
            _some(uses, found.here, places=True),
            own,
            _some(uses, found.elsewhere, places=True) if self.exchange == "read" else None,
            found.sizes,
            Parcels(own.sizes, found.sent, found.come) if sends else None,
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
    """The homes of an H5Dataset's samples: regions of its largest field, node by node."""

    def __init__(self, pieces: Sequence[Piece], dataset: int, node_of: NDArray[np.int32]) -> None:
        own = [piece for piece in pieces if piece.dataset == dataset]
        largest = max(own, key=lambda piece: piece.units.total_nbytes)
        self._largest, self._extents = largest.units, largest.extents
        self._seats, self._node_of = seated(node_of)[0], node_of
        self._bounds = homes(self._largest, len(node_of))

    def of(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """The rank at whose home each of these lies."""
        found = np.empty(len(rows), np.int32)
        for begin in range(0, len(rows), SWEEP_BLOCK):  # so that what it takes does not grow with an epoch
            here = slice(begin, begin + SWEEP_BLOCK)
            lies = rows[here] if self._extents is None else self._extents.rows(rows[here])[:, 0]
            items = lies if self._largest.item is None else self._largest.item[lies]
            found[here] = self._seats[np.searchsorted(self._bounds[1:-1], items, side="right")]
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

    def _of_extents(self, piece: Piece, extents: Extents, number: int) -> Piece:
        """All that the samples at the homes of a node are made of, which may reach into those of others."""
        found = []
        for begin in range(0, len(extents), SWEEP_BLOCK):
            samples = np.arange(begin, min(begin + SWEEP_BLOCK, len(extents)), dtype=np.int32)
            for rows in extents.every_row(samples[self._node_of[self.of(samples)] == number]):
                items = rows if piece.units.item is None else piece.units.item[rows]
                found += [items.min(), items.max()] if len(items) else []
        return replace(piece, region=around(piece.units, np.array(found, np.int32))) if found else piece


def _some(uses: SampleUses, group: Group, *, places: bool = False) -> SampleUses:
    which = None if uses.which is None else uses.which[group.uses]
    return SampleUses(which, uses.rows[group.uses], group.starts, group.places if places else None, uses.epoch)
