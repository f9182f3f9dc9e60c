"""Division: of the uses of all ranks, which one takes, which its node provides, and which travel between nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planner.sweep import SWEEP_BLOCK

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
    """What a rank makes of the steps of all ranks. Its memory of a step has its batch and, behind it, what it sends."""

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
        turns[some[0] : some[-1]] = _counted(some - some[0]) % ranks
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


def divided(
    starts: Starts, taken_by: Ranks, provided_by: Ranks, rank: int, mates: Collection[int], *, sends: bool
) -> Division:
    """The part of a rank, where each use is taken by one rank and provided by one; `mates`: those of its node.

    Unless it `sends`, whoever takes a use that another node provides has to see to it itself.
    """
    ranks = int(max(taken_by.max(initial=0), provided_by.max(initial=0), rank, *mates)) + 1
    near = np.zeros(ranks, np.bool_)
    near[list(mates)] = True
    taken = _where(taken_by == rank)
    batch = _begins(taken, starts)
    place = np.full(len(taken_by), -1, np.int32)
    place[taken] = _counted(batch)
    # Behind the batch: what this rank provides to ranks of other nodes.
    away = _where(provided_by == rank) if sends else taken[:0]
    away = away[~near[taken_by[away]]]
    sent_at = _step(away, starts)
    order = np.lexsort((taken_by[away], sent_at))
    away, sent_at = away[order], sent_at[order]
    outgoing = np.searchsorted(sent_at, np.arange(len(starts)))
    place[away] = np.diff(batch)[sent_at] + _counted(outgoing)
    foreign = taken[~near[provided_by[taken]]]
    come_at = _step(foreign, starts)
    order = np.lexsort((provided_by[foreign], come_at))
    come = foreign[order]
    local = near[provided_by]
    if not sends:
        np.logical_and(local, near[taken_by], out=local)
    return Division(
        batch=_group(taken, starts, place[taken]),
        here=Group(slice(None), starts, place) if local.all() else _group(_where(local), starts, place[local]),
        elsewhere=_group(foreign, starts, place[foreign]),
        sizes=np.diff(batch) + np.diff(outgoing),
        sent=_runs(sent_at, taken_by[away], place[away]),
        come=np.stack([come_at[order], provided_by[come], place[come]], axis=1).astype(np.int64),
    )


def largest(
    starts: Starts, taken_by: Ranks, provided_by: Ranks, node_of: NDArray[np.int32], *, sends: bool
) -> tuple[Places, Places]:
    """Returns, for each rank, the most samples of any of its batches, and the most that come from other nodes to one.

    The first counts what the rank sends, too. Both are what `divided` finds rank by rank, for all ranks in one pass.
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


def _group(uses: Places, starts: Starts, places: NDArray[np.int32]) -> Group:
    return Group(uses, _begins(uses, starts), places)


def _where(chosen: NDArray[np.bool_]) -> Places:
    """np.flatnonzero, in half the memory."""
    found = np.empty(np.count_nonzero(chosen), np.int32)
    end = 0
    for begin in range(0, len(chosen), SWEEP_BLOCK):
        [here] = np.nonzero(chosen[begin : begin + SWEEP_BLOCK])
        found[end : end + len(here)] = here + begin
        end += len(here)
    return found


def _begins(uses: Places, starts: Starts) -> Starts:
    """Where each step begins among these uses, and the last one ends."""
    return np.searchsorted(uses, starts.astype(uses.dtype)).astype(np.int64)


def _step(uses: Places, starts: Starts) -> Places:
    """The step of each of these uses."""
    return np.searchsorted(starts, uses, side="right") - 1


def _counted(starts: Starts) -> Places:
    """The number of each within its step, where steps begin at these."""
    found = np.arange(starts[-1], dtype=np.int32)
    found -= np.repeat(starts[:-1].astype(np.int32), np.diff(starts))
    return found


def _runs(step: Places, rank: Ranks, place: NDArray[np.int32]) -> Places:
    """[step, rank, begin, end] of what stands side by side."""
    if not len(step):
        return np.empty((0, 4), np.int64)
    new = np.flatnonzero(np.concatenate(([True], (np.diff(step) != 0) | (np.diff(rank) != 0))))
    counts = np.diff([*new, len(step)])
    return np.stack([step[new], rank[new], place[new], place[new] + counts], axis=1).astype(np.int64)
