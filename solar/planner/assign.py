"""Who takes which sample of a global batch: equal shares of each step, at home as far as they go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planner.order import ShuffledUses, steps
from solar.planner.regions import Region, homes
from solar.planner.sweep import Terms, Uses
from solar.planner.units import Units
from solar.values import World

Items = NDArray[np.int32]
Starts = NDArray[np.int64]
USES_KEPT = 1 << 26  # uses whose order is kept between passes over the epochs
EPOCHS_ORDERED = 8  # of which so many


def takers(items: Items, starts: Starts, units: Units, world: World) -> Items:
    """The rank that takes each use.

    Each gets the share of every step that torch gives it. What has no room at home goes to a rank of the same node, or
    else to another.
    """
    return _native.assign(items, starts, homes(units, world.ranks), world.ranks_per_node)


def home_of(items: Items, units: Units, world: World) -> Items:
    """The rank at whose home each item lies."""
    return (np.searchsorted(homes(units, world.ranks)[1:-1], items, side="right")).astype(np.int32)


def overflow(items: Items, taking: Items, units: Units, world: World) -> NDArray[np.bool_]:
    """Which uses are not taken on the node where they lie, so that they travel."""
    away: NDArray[np.bool_] = home_of(items, units, world) // world.ranks_per_node != taking // world.ranks_per_node
    return away


@dataclass(frozen=True)
class Flow:
    """Which uses there are for whom: the order, cut into steps, and divided among ranks."""

    order: ShuffledUses
    units: Units
    world: World
    batch: int
    drop_last: bool = False
    exchange: bool = True  # between nodes; without it a rank reads itself what lies at another node's home

    @cached_property
    def starts(self) -> Starts:
        """Where the steps of an epoch begin in its order, and where the last one ends."""
        return steps(self.order, self.batch * self.world.ranks, drop_last=self.drop_last)

    @property
    def nodes(self) -> int:
        """How many there are."""
        return -(-self.world.ranks // self.world.ranks_per_node)

    @cached_property
    def _kept(self) -> Callable[[int], Items]:
        return lru_cache(EPOCHS_ORDERED if EPOCHS_ORDERED * self.order.uses <= USES_KEPT else 1)(self._items)

    def items(self, epoch: int) -> Items:
        """The items of an epoch in the order of their use."""
        return self._kept(epoch)

    def _items(self, epoch: int) -> Items:
        samples = self.order.of(epoch)
        return samples if self.units.item is None else self.units.item[samples]

    def uses(self, region: Region, *, keep: bool = True) -> Uses:
        """What a region must provide in each epoch, and where the steps begin in that; last ones are kept, or none."""

        def of(epoch: int) -> tuple[Items, Starts]:
            items, starts = self.items(epoch) if keep else self._items(epoch), self.starts
            if not self.exchange and self.nodes > 1:
                stays = ~self._travels(epoch)
                starts = np.concatenate(([0], np.cumsum(stays)))[starts]
                items = items[: len(stays)][stays]
            return _native.select(items, starts, region.begin, region.end)

        if not keep:
            return of
        return lru_cache(
            EPOCHS_ORDERED if EPOCHS_ORDERED * region.items <= USES_KEPT < EPOCHS_ORDERED * self.order.uses else 1
        )(of)

    def overflow(self, epoch: int) -> tuple[int, int, int]:
        """Uses not taken at home; those taken on another node; and of these the most that one node has in a step."""
        if self.world.ranks == 1:
            return 0, 0, 0
        items, starts = self.items(epoch), self.starts
        taking = takers(items, starts, self.units, self.world)
        items, taking = items[: starts[-1]], taking[: starts[-1]]
        away = int(np.count_nonzero(home_of(items, self.units, self.world) != taking))
        travels = overflow(items, taking, self.units, self.world)
        step = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[travels]
        busiest = np.bincount(step * self.nodes + taking[travels] // self.world.ranks_per_node).max(initial=0)
        return away, len(step), int(busiest)

    def terms(self, memory: int, gap: int, ahead: int, epochs: range) -> Terms:
        """What each node must keep to in these epochs."""
        received = max(self.overflow(epoch)[2] for epoch in epochs)
        return Terms(memory, gap, ahead, self.batch * self.world.ranks_per_node, received)

    def _travels(self, epoch: int) -> NDArray[np.bool_]:
        items, end = self.items(epoch), self.starts[-1]
        taking = takers(items, self.starts, self.units, self.world)
        return overflow(items[:end], taking[:end], self.units, self.world)
