"""Thinned: a part of a large region's items that stands for all of them where ways of using memory are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from solar.planner.regions import Region
from solar.planner.sweep import SWEEP_BLOCK, Counts, Items, KeepPolicy, Mapped, Starts, Terms, Uses

BLOCKS = 64  # stretches of items that are taken, so that what lies far apart in the file is among them


@dataclass(frozen=True, eq=False)
class Thinned:
    """One stretch of items of `every` ones, and what is used of them: all steps, each with fewer uses.

    Memory for as large a share of fewer items passes through the same states: a head over them finds as many wanted
    ones side by side, so it makes as many requests for each. So ways compare as they do for all items.
    """

    region: Region
    uses: Uses
    whole: Region  # for which it stands
    block: int  # items of a stretch
    every: int

    def way(self, way: KeepPolicy) -> KeepPolicy:
        """The same way of using less memory."""
        return replace(way, pinned=self.among(way.pinned), burst=way.burst // self.every)

    def terms(self, terms: Terms) -> Terms:
        """What less memory has to keep to."""
        return terms if self.every == 1 else Terms(terms.room // self.every, terms.gap, terms.ahead)

    def counts(self, counts: Counts) -> Counts:
        """What the whole region takes, if it is like this."""
        if self.every == 1:
            return counts
        all_ = Counts._make(round(count * self.whole.items / self.region.items) for count in counts)
        begun = min(counts.sweeps, counts.requests)  # each time the head begins anew a request does, of however many
        more = round((counts.requests - begun) * self.whole.items / self.region.items)
        return all_._replace(requests=begun + more, sweeps=counts.sweeps)

    def among(self, items: int) -> int:
        """How many of the region's first items are in the stretches."""
        blocks, more = divmod(items, self.block)
        return -(-blocks // self.every) * self.block + (more if blocks % self.every == 0 else 0)


def thinned(region: Region, uses: Uses, most: int) -> Thinned:
    """About so many of its items; all of them where they are not twice as many, or have a list of their units."""
    every = region.items // most if region.units.first is None else 1
    if every < 2:
        return Thinned(region, uses, region, region.items, 1)
    each = region.units.per_unit
    block = max(1, region.items // (every * BLOCKS * each)) * each
    whole = Thinned(region, uses, region, block, every)
    found = whole.among(region.items)
    units = replace(region.units, samples=found, item=None)

    def of(epoch: int) -> tuple[Items, Starts]:
        return _within(*uses(epoch), block, every)

    return replace(whole, region=Region(units, 0, found), uses=lru_cache(of))


def _within(items: Items | Mapped, starts: Starts, block: int, every: int) -> tuple[Items, Starts]:
    """The uses of these stretches, numbered from one to the next."""
    found, places = [], []
    for begin in range(0, len(items), SWEEP_BLOCK):
        here = items[begin : begin + SWEEP_BLOCK]
        stretch = here // np.int32(block)
        [of_them] = np.nonzero(stretch % np.int32(every) == 0)
        found.append(stretch[of_them] // np.int32(every) * np.int32(block) + here[of_them] % np.int32(block))
        places.append(of_them + begin)
    some, place = np.concatenate(found or [items[:0]]), np.concatenate(places or [starts[:0]])
    return some, np.searchsorted(place, starts)
