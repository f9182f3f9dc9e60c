"""Home regions: which part of storage each rank, and each node, reads; and its units as the native part takes them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planner.units import Units
from solar.values import World

Items = NDArray[np.int32]
Places = NDArray[np.int64]


def homes(units: Units, ranks: int) -> Places:
    """The first item of each rank's region and the end of the last: whole units, as equal in bytes as they allow."""
    if units.first is None or units.nbytes is None:
        unit = np.arange(ranks + 1, dtype=np.int64) * units.units // ranks
        return np.minimum(unit * units.per_unit, units.samples)
    ends = np.cumsum(units.nbytes)
    unit = np.searchsorted(ends, np.arange(1, ranks) * (ends[-1] / ranks), side="left") + 1
    return units.first[np.concatenate(([0], np.minimum(unit, units.units), [units.units]))]


@dataclass(frozen=True, eq=False)
class Region:
    """The items [begin, end) of a node, which its ranks read and hold together."""

    units: Units
    begin: int
    end: int

    @property
    def items(self) -> int:
        """How many there are."""
        return self.end - self.begin

    @property
    def samples_alone(self) -> bool:
        """Whether each item can be read without others."""
        return self.units.per_unit == 1

    def fitting(self, room: int, *, whole: bool) -> int:
        """How many of its first items fit into so many bytes, whole units only."""
        if self.units.first is None:
            each = self.heaviest(whole=whole) * (1 if whole else self.units.per_unit)
            return min(self.items, max(room, 0) // each * self.units.per_unit)
        ends = np.cumsum(self._held(whole=whole))
        return int(self._columns(0)[0][np.searchsorted(ends, room, side="right")])

    def held_nbytes(self, items: int, *, whole: bool) -> int:
        """What memory its first items take, which end with a unit."""
        if self.units.first is None:
            count = -(-items // self.units.per_unit) if whole else items
            return count * self.heaviest(whole=whole)
        units = np.searchsorted(self._columns(0)[0], items, side="right") - 1
        return int(self._held(whole=whole)[:units].sum())

    def stored_nbytes(self, items: int) -> int:
        """What its first items take in storage."""
        if self.units.first is None:
            return -(-items // self.units.per_unit) * self.units.stored_nbytes
        first, _, nbytes = self._columns(0)
        return int(nbytes[: np.searchsorted(first, items, side="right") - 1].sum())

    def _held(self, *, whole: bool) -> Places:
        """What memory each of its units takes: decoded sample by sample, or whole as it is stored."""
        first, _, nbytes = self._columns(0)
        return nbytes if whole or self.samples_alone else np.diff(first) * self.units.sample_nbytes

    def heaviest(self, *, whole: bool) -> int:
        """The most that one thing held takes: an item, or a unit where those are held whole."""
        return self.units.stored_nbytes if whole or self.samples_alone else self.units.sample_nbytes

    def native(self, skipped: int, *, whole: bool) -> _native.Units:
        """Its units from the item `skipped` on; where they are held whole, each is one item."""
        held = 0 if whole or self.samples_alone else self.units.sample_nbytes
        if self.units.first is None:
            per_unit, items = self.units.per_unit, self.items - skipped
            if whole:
                return _native.Units(-(-items // per_unit), 1, self.units.stored_nbytes, 0)
            return _native.Units(items, per_unit, self.units.stored_nbytes, held)
        first, offset, nbytes = self._columns(skipped)
        if whole:
            first = np.arange(len(first), dtype=np.int64)
        return _native.Units(int(first[-1]), self.units.per_unit, self.units.stored_nbytes, held, first, offset, nbytes)

    def whole(self, items: Items, skipped: int) -> Items:
        """The units of these items, both counted from the item `skipped` on."""
        if self.units.first is None:
            return items // np.int32(self.units.per_unit)
        return (np.searchsorted(self._columns(skipped)[0], items, side="right") - 1).astype(np.int32)

    def _columns(self, skipped: int) -> tuple[Places, Places, Places]:
        """First item (from `skipped` on), offset and stored bytes of its units."""
        begin = self.begin + skipped
        if self.units.first is None or self.units.offset is None or self.units.nbytes is None:
            count = -(-(self.end - begin) // self.units.per_unit)
            first = np.minimum(np.arange(count + 1, dtype=np.int64) * self.units.per_unit, self.end - begin)
            place = np.arange(count, dtype=np.int64) * self.units.stored_nbytes
            return first, place, np.full(count, self.units.stored_nbytes, np.int64)
        low, high = np.searchsorted(self.units.first, (begin, self.end))
        return self.units.first[low : high + 1] - begin, self.units.offset[low:high], self.units.nbytes[low:high]


def of_nodes(units: Units, world: World) -> list[Region]:
    """The region of each node: those of its ranks, which lie side by side."""
    bounds = homes(units, world.ranks)
    first = [*range(0, world.ranks, world.ranks_per_node), world.ranks]
    return [Region(units, int(bounds[a]), int(bounds[b])) for a, b in pairwise(first)]
