"""Division: of the uses of all ranks, which one takes, which its node provides, and which travel between nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solar import _native

Places = NDArray[np.int64]
Ranks = NDArray[np.int32]
Starts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Group:
    """Some of the uses, step by step, and their places in the memory of this rank's batches."""

    uses: Places  # which of all uses
    starts: Starts  # where each step begins in them, and the last one ends
    places: NDArray[np.int32]  # -1: not in this rank's memory


@dataclass(frozen=True, eq=False)
class Division:
    """What a rank makes of the steps of all ranks. Its memory of a step has its batch and, behind it, what it sends."""

    batch: Group  # what it takes, in order
    here: Group  # what its node provides, for whichever rank
    elsewhere: Group  # what it takes, and another node provides
    sizes: Places  # rows of its memory in each step
    sent: Places  # [step, rank, begin, end]: these rows of its memory go to that rank; by step, then by rank
    come: Places  # [step, rank, place]: what that rank sends goes there; by step, by rank, in the order it sends


def by_turns(starts: Starts, ranks: int) -> Ranks:
    """Who takes each use as torch divides a step: rank after rank, each the next one."""
    step = np.repeat(starts[:-1], np.diff(starts))
    return ((np.arange(starts[-1]) - step) % ranks).astype(np.int32)


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


def divided(
    starts: Starts, taken_by: Ranks, provided_by: Ranks, rank: int, mates: Collection[int], *, sends: bool
) -> Division:
    """The part of a rank, where each use is taken by one rank and provided by one; `mates`: those of its node.

    Unless it `sends`, whoever takes a use that another node provides has to see to it itself.
    """
    steps, ranks = len(starts) - 1, int(max(taken_by.max(initial=0), provided_by.max(initial=0), rank, *mates)) + 1
    step = np.repeat(np.arange(steps), np.diff(starts))
    near = np.zeros(ranks, np.bool_)
    near[list(mates)] = True
    mine, local = taken_by == rank, near[provided_by]
    taken = np.flatnonzero(mine)
    sizes = np.bincount(step[taken], minlength=steps)
    place = np.full(len(step), -1, np.int32)
    place[taken] = _counted(step[taken], sizes)
    # Behind the batch: what this rank provides to ranks of other nodes.
    away = np.flatnonzero((provided_by == rank) & ~near[taken_by] & sends)
    away = away[np.lexsort((taken_by[away], step[away]))]
    outgoing = np.bincount(step[away], minlength=steps)
    place[away] = sizes[step[away]] + _counted(step[away], outgoing)
    foreign = np.flatnonzero(mine & ~local)
    come = foreign[np.lexsort((provided_by[foreign], step[foreign]))]
    return Division(
        batch=_group(taken, step, steps, place),
        here=_group(np.flatnonzero(local & (near[taken_by] | sends)), step, steps, place),
        elsewhere=_group(foreign, step, steps, place),
        sizes=sizes + outgoing,
        sent=_runs(step[away], taken_by[away], place[away]),
        come=np.stack([step[come], provided_by[come], place[come]], axis=1).astype(np.int64),
    )


def _group(uses: Places, step: Places, steps: int, place: NDArray[np.int32]) -> Group:
    starts = np.searchsorted(step[uses], np.arange(steps + 1))
    return Group(uses, starts.astype(np.int64), place[uses])


def _counted(step: Places, counts: Places) -> Places:
    """The number of each within its step, where `step` ascends and has so many of each."""
    firsts = np.cumsum(counts) - counts
    return np.arange(len(step)) - firsts[step]


def _runs(step: Places, rank: Ranks, place: NDArray[np.int32]) -> Places:
    """[step, rank, begin, end] of what stands side by side."""
    if not len(step):
        return np.empty((0, 4), np.int64)
    new = np.flatnonzero(np.concatenate(([True], (np.diff(step) != 0) | (np.diff(rank) != 0))))
    counts = np.diff([*new, len(step)])
    return np.stack([step[new], rank[new], place[new], place[new] + counts], axis=1).astype(np.int64)
