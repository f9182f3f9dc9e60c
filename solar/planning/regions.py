"""Home regions: which part of the storage each rank and node reads, and its units for the native planner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planning.units import Units
from solar.values import RowPacking

CUT_TOGETHER = 1 << 20  # weights that are added up together, so that what it takes is little

Items = NDArray[np.int32]
Places = NDArray[np.int64]


def homes(units: Units, ranks: int, used: NDArray[np.bool_] | None = None) -> Places:
    """Returns the first item of each rank's region and the end of the last, in whole units of about equal bytes.

    Only the units that are `used` count: the first region begins with the first of them, and the last ends with the
    last.
    """
    if used is not None and (used.all() or not used.any()):
        used = None
    if used is None and (units.first is None or units.nbytes is None):
        unit = np.arange(ranks + 1, dtype=np.int64) * units.units // ranks
    else:
        if units.nbytes is None:
            assert used is not None
            weights: NDArray[Any] = used
        else:
            weights = units.nbytes if used is None else units.nbytes * used
        count = units.units
        begin, end = (0, count) if used is None else (int(used.argmax()), count - int(used[::-1].argmax()))
        unit = np.array([begin, *np.clip(cut_evenly(weights, ranks), begin, end), end])
    if units.first is None:
        return np.minimum(unit * units.per_unit, units.samples)
    return units.first[unit]


def cut_evenly(weights: NDArray[Any], parts: int) -> Places:
    """Returns where to cut these weights into parts of about equal weight."""
    begins = range(0, len(weights), CUT_TOGETHER)
    ends = np.cumsum([int(weights[begin : begin + CUT_TOGETHER].sum(dtype=np.int64)) for begin in begins])
    cuts = np.empty(parts - 1, np.int64)
    for part in range(1, parts):
        target = part * (ends[-1] / parts)
        block = min(int(np.searchsorted(ends, target, side="left")), len(begins) - 1)
        here = weights[begins[block] : begins[block] + CUT_TOGETHER]
        before = int(ends[block - 1]) if block else 0
        place = np.searchsorted(np.cumsum(here, dtype=np.int64) + before, target, side="left")
        cuts[part - 1] = min(begins[block] + int(place) + 1, len(weights))
    return cuts


def units_of(units: Units, items: NDArray[Any]) -> NDArray[Any]:
    """Returns the units that these items lie in."""
    if units.first is None:
        return items // units.per_unit
    return np.searchsorted(units.first, items, side="right") - 1


@dataclass(frozen=True, eq=False)
class Region:
    """The items [begin, end) that the ranks of a node read and hold together."""

    units: Units
    begin: int
    end: int

    @property
    def items(self) -> int:
        """The number of items."""
        return self.end - self.begin

    def packed(self, packing: RowPacking) -> Region:
        """Returns the region, held encoded with this packing."""
        return replace(self, units=replace(self.units, packing=packing))

    @property
    def samples_alone(self) -> bool:
        """Whether each item can be read without others."""
        return self.units.per_unit == 1

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether units can be held whole besides sample by sample; alone in them only if that takes less."""
        if self.units.packing is not None:
            return (False,)
        several = self.units.storable and not self.samples_alone
        encoded = self.units.storable and self.units.encoded
        less = encoded and self.held_nbytes(self.items, whole=True) < self.held_nbytes(self.items, whole=False)
        return (False, True) if several or less else (False,)

    def fitting(self, room: int, *, whole: bool) -> int:
        """Returns how many of its first items fit into these bytes, in whole units."""
        if self.units.first is None:
            each = self.heaviest(whole=whole) * (1 if whole else self.units.per_unit)
            return min(self.items, max(room, 0) // each * self.units.per_unit)
        ends = np.cumsum(self._held_sizes(whole=whole))
        return int(self._columns(0)[0][np.searchsorted(ends, room, side="right")])

    def units_in(self, items: int) -> int:
        """Returns the number of units in its first items, which end with a unit."""
        if self.units.first is None:
            return -(-items // self.units.per_unit)
        return int(np.searchsorted(self._columns(0)[0], items))

    def ends_unit(self, items: int) -> bool:
        """Returns whether its first items end with a unit."""
        if self.units.first is None:
            return items == self.items or items % self.units.per_unit == 0
        first = self._columns(0)[0]
        return bool(first[min(self.units_in(items), len(first) - 1)] == items)

    def held_nbytes(self, items: int, *, whole: bool) -> int:
        """Returns the memory of its first items, which end with a unit."""
        if self.units.first is None:
            count = self.units_in(items) if whole else items
            return count * self.heaviest(whole=whole)
        return int(self._held_sizes(whole=whole)[: self.units_in(items)].sum())

    def stored_nbytes(self, items: int) -> int:
        """Returns the bytes of its first items in storage."""
        if self.units.first is None:
            return self.units_in(items) * self.units.stored_nbytes
        return int(self._columns(0)[2][: self.units_in(items)].sum())

    def heaviest(self, *, whole: bool) -> int:
        """Returns the largest size that is held at once: of an item, or of a unit if those are held whole."""
        if not whole:
            return self.units.held_nbytes
        paged = self.units.paged
        return int(paged[self._list_rows(0)].max(initial=0)) if isinstance(paged, np.ndarray) else paged

    def _held_sizes(self, *, whole: bool) -> Places:
        """Returns the memory of each unit, held sample by sample, or whole as stored."""
        paged = self.units.paged
        if whole and isinstance(paged, np.ndarray):
            return paged[self._list_rows(0)]
        return np.diff(self._columns(0)[0]) * self.units.held_nbytes

    def native(self, skipped: int, *, whole: bool) -> _native.Units:
        """Returns its units from the item `skipped` on; a unit that is held whole is one item."""
        units = self.units
        single = whole or self.samples_alone
        per_unit = 1 if single else units.per_unit
        if isinstance(units.paged, int):
            held, items = (units.paged if whole else units.held_nbytes), self.items - skipped
            return _native.Units(-(-items // units.per_unit) if whole else items, per_unit, units.stored_nbytes, held)
        place = self._list_rows(skipped)
        first, offset, nbytes = self._columns(skipped)
        return _native.Units(
            len(offset) if single else int(first[-1]),
            per_unit,
            units.stored_nbytes,
            0 if whole else units.held_nbytes,
            None if single else first,
            offset,
            nbytes,
            units.paged[place] if whole else None,
            **self._chunks(place),
        )

    def _chunks(self, place: slice) -> dict[str, Places]:
        """Returns the chunks of these units, if units have several."""
        units = self.units
        if units.chunk_first is None or units.chunk_offset is None or units.chunk_nbytes is None:
            return {}
        first = units.chunk_first[place.start : place.stop + 1]
        own = slice(int(first[0]), int(first[-1]))
        return {
            "chunk_first": first - first[0],
            "chunk_offset": units.chunk_offset[own],
            "chunk_nbytes": units.chunk_nbytes[own],
        }

    def whole(self, items: Items, skipped: int) -> Items:
        """Returns the units of these items; both are counted from the item `skipped` on."""
        if self.units.first is None:
            return items // np.int32(self.units.per_unit)
        first = self._columns(skipped)[0]
        guess: Items = np.minimum(items // np.int32(self.units.per_unit), np.int32(len(first) - 2))  # nearly always
        if np.all(first[guess] <= items) and np.all(items < first[guess + 1]):
            return guess
        return (np.searchsorted(first, items, side="right") - 1).astype(np.int32)

    def spans(self, units: Items) -> tuple[Places, Places]:
        """Returns the first item of each of these units, and the end."""
        if self.units.first is None:
            begins = units.astype(np.int64) * self.units.per_unit
            return begins, np.minimum(begins + self.units.per_unit, self.items)
        first = self._columns(0)[0]
        return first[units], first[units + 1]

    def rows(self, found: Items, skipped: int, *, whole: bool) -> Items:
        """Returns the samples of these items, counted from `skipped` on; for units held whole, the first of each."""
        begin = self.begin + skipped
        if not whole:
            items = found + np.int32(begin) if begin else found
        elif self.units.first is None:
            items = found * np.int32(self.units.per_unit) + np.int32(begin)
        else:
            items = self.units.first[found + np.searchsorted(self.units.first, begin)].astype(np.int32)
        return items if self.units.sample is None else self.units.sample[items]

    def _list_rows(self, skipped: int) -> slice:
        """Returns which of the listed units belong to it, from the item `skipped` on."""
        assert self.units.first is not None
        low, high = np.searchsorted(self.units.first, (self.begin + skipped, self.end))
        return slice(int(low), int(high))

    def _columns(self, skipped: int) -> tuple[Places, Places, Places]:
        """Returns the first item (from `skipped` on), the offset and the stored bytes of its units."""
        begin = self.begin + skipped
        if self.units.first is None or self.units.offset is None or self.units.nbytes is None:
            count = -(-(self.end - begin) // self.units.per_unit)
            first = np.minimum(np.arange(count + 1, dtype=np.int64) * self.units.per_unit, self.end - begin)
            offset = np.arange(count, dtype=np.int64) * self.units.stored_nbytes
            return first, offset, np.full(count, self.units.stored_nbytes, np.int64)
        place = self._list_rows(skipped)
        return (
            self.units.first[place.start : place.stop + 1] - begin,
            self.units.offset[place],
            self.units.nbytes[place],
        )


def whole_region(units: Units) -> Region:
    """Returns the region of all units."""
    return Region(units, 0, units.samples)


def around(units: Units, items: Items) -> Region:
    """Returns the smallest region of whole units that contains these items."""
    if not len(items):
        return Region(units, 0, 0)
    begin, end = int(items.min()), int(items.max()) + 1
    if units.first is None:
        ends = -(-end // units.per_unit) * units.per_unit
        return Region(units, begin // units.per_unit * units.per_unit, min(ends, units.samples))
    low = np.searchsorted(units.first, begin, side="right") - 1
    return Region(units, int(units.first[low]), int(units.first[np.searchsorted(units.first, end)]))
