"""One memory divided among data sets that are read side by side."""

from __future__ import annotations

from collections.abc import Sequence

from solar.planner.regions import Region

SMALL, SMALL_TOGETHER = 32, 8  # parts of the memory that a small data set may take, and all small ones together


def shares(memory: int, regions: Sequence[Region]) -> list[int]:
    """How much of the memory each gets: small ones all that they take, the others in proportion to what is stored.

    That is the best there is for sweeps: each costs S^2 / 2M of its stored bytes S and its memory M.

    >>> from solar.planner.regions import whole
    >>> from solar.planner.units import uniform
    >>> shares(1000, [whole(uniform(10, 100)), whole(uniform(30, 100)), whole(uniform(1, 20))])
    [245, 735, 20]
    """
    takes = [_everything(one) for one in regions]
    given = [0] * len(regions)
    small = 0
    for place in sorted(range(len(regions)), key=takes.__getitem__):
        if takes[place] > memory // SMALL or small + takes[place] > memory // SMALL_TOGETHER:
            break
        given[place] = takes[place]
        small += takes[place]
    left, others = memory - small, [place for place in range(len(regions)) if not given[place]]
    while others:  # until none gets more than it takes
        total = sum(max(1, _stored(regions[place])) for place in others)
        part = {place: left * max(1, _stored(regions[place])) // total for place in others}
        filled = [place for place in others if part[place] >= takes[place]]
        for place in filled or others:
            given[place] = min(part[place], takes[place])
        left -= sum(given[place] for place in filled)
        others = [place for place in others if place not in filled] if filled else []
    return given


def wholes(regions: Sequence[Region]) -> list[int]:
    """What memory takes that holds all of them: as samples, and each the way that takes the least."""
    return [sum(one.held_nbytes(one.items, whole=False) for one in regions), sum(map(_everything, regions))]


def _stored(region: Region) -> int:
    return region.stored_nbytes(region.items)


def _everything(region: Region) -> int:
    """What memory takes that holds all of it, the way that takes the least."""
    return min(region.held_nbytes(region.items, whole=whole) for whole in region.kinds)
