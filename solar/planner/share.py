"""One memory divided among data sets that are read side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from solar.planner.regions import Region

SMALL, SMALL_TOGETHER = 32, 8  # parts of the memory that a small data set may take, and all small ones together


def shares(memory: int, regions: Sequence[Region], uses: Sequence[float] | None = None) -> list[int]:
    """How much of the memory each gets: small ones all that they take, the others in proportion to their weights.

    A sweep over what takes S bytes in storage and H in memory, and whose items are used u times each, reads u S H / 2M
    with so much memory M. All together read least where M is in proportion to the root of u S H. Without `uses` all are
    used alike.

    >>> from solar.planner.regions import whole
    >>> from solar.planner.units import uniform
    >>> shares(1000, [whole(uniform(10, 100)), whole(uniform(30, 100)), whole(uniform(1, 20))])
    [245, 735, 20]
    """
    takes = [_everything(one) for one in regions]
    alike = [1.0] * len(regions) if uses is None else uses
    weights = [_weight(*one) for one in zip(regions, takes, alike, strict=True)]
    given = [0] * len(regions)
    small = 0
    for place in sorted(range(len(regions)), key=takes.__getitem__):
        if takes[place] > memory // SMALL or small + takes[place] > memory // SMALL_TOGETHER:
            break
        given[place] = takes[place]
        small += takes[place]
    left, others = memory - small, [place for place in range(len(regions)) if not given[place]]
    while others:  # until none gets more than it takes
        total = sum(weights[place] for place in others)
        part = {place: left * weights[place] // total for place in others}
        filled = [place for place in others if part[place] >= takes[place]]
        for place in filled or others:
            given[place] = min(part[place], takes[place])
        left -= sum(given[place] for place in filled)
        others = [place for place in others if place not in filled] if filled else []
    return given


def wholes(regions: Sequence[Region]) -> list[int]:
    """What memory takes that holds all of them: as samples, and each the way that takes the least."""
    return [sum(one.held_nbytes(one.items, whole=False) for one in regions), sum(map(_everything, regions))]


def _weight(region: Region, takes: int, uses: float) -> int:
    return max(1, math.isqrt(int(uses * region.stored_nbytes(region.items) * takes)))


def _everything(region: Region) -> int:
    """What memory takes that holds all of it, the way that takes the least."""
    return min(region.held_nbytes(region.items, whole=whole) for whole in region.kinds)
