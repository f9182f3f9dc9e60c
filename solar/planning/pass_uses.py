"""PassUses: the batches of a pass, mapped to rows of files and places in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.values import Transfers, Turns

AT_ONCE = 1 << 18  # uses whose repeats are looked for together


class SampleUses(NamedTuple):
    """Samples used step by step: for each, the number of its H5Dataset and its row there."""

    which: NDArray[np.int64] | None  # None: there is one H5Dataset
    rows: NDArray[np.int32]
    starts: NDArray[np.int64]  # where each step begins among the uses, and the last one ends
    # In the memory of the step's batch, -1: nowhere; None: they are in order.
    places: NDArray[np.int32] | Turns | None = None
    epoch: int = 0  # where samples lie elsewhere in each

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def same(self, other: SampleUses) -> bool:
        """Returns whether both use the same samples in the same steps."""
        pairs = zip(self, other, strict=True)
        return all(
            np.array_equal(one, two) if one is not None and two is not None else one is two for one, two in pairs
        )

    def counts(self, datasets: int) -> list[int]:
        """Returns how many uses there are of each H5Dataset."""
        return [len(self.rows)] if self.which is None else np.bincount(self.which, minlength=datasets).tolist()

    def of(self, dataset: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the uses of one H5Dataset: its rows, and where each batch begins among them."""
        if self.which is None:
            return self.rows, self.starts
        where = np.flatnonzero(self.which == dataset)
        return self.rows[where], np.searchsorted(where, self.starts)

    def positions(self, dataset: int) -> NDArray[np.int32] | Turns | None:
        """Returns the place of each use of this H5Dataset; None if all uses are of it, in order."""
        if self.which is None:
            return self.places
        where = np.flatnonzero(self.which == dataset)
        if isinstance(self.places, np.ndarray):
            return self.places[where]
        batch = np.searchsorted(self.starts, where, side="right") - 1
        within = (where - self.starts[batch]).astype(np.int32)
        if self.places is None:
            return within
        return np.where(within % self.places.ranks == self.places.rank, within // self.places.ranks, np.int32(-1))

    @property
    def digest(self) -> str:
        """Identifies what is used and when, but not the places where it goes."""
        sha = hashlib.sha256()
        for column in (self.which, self.rows, self.starts):
            sha.update(b"-" if column is None else np.ascontiguousarray(column).data)
        sha.update(str(self.epoch).encode())
        return sha.hexdigest()


class PassUses(NamedTuple):
    """Consecutive batches, mostly of an epoch, and what a plan provides for them: for this process, or its node."""

    planned: SampleUses
    batches: SampleUses  # the same where a process is by itself
    elsewhere: SampleUses | None = None  # what another node has, and this process reads itself
    sizes_: NDArray[np.int64] | None = None  # samples of the memory of each batch, with what is sent from it
    parcels: Transfers | None = None
    weights: NDArray[np.float64] | None = None  # of each batch in its step, where ranks have uneven ones
    takers: NDArray[np.int32] | None = (
        None  # ranks of a node share what samples lie in: of each planned use, whose it is
    )
    room: tuple[int, int] | None = None  # where rows travel: bytes of two batches, with parcels; of each further one
    facts: Mapping[str, Any] | None = None  # what it follows from, where the ranks of a node share it

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples for which the memory of each batch has room."""
        return self.batches.sizes if self.sizes_ is None else self.sizes_

    @property
    def by_rank(self) -> SampleUses:
        """The planned uses, with each step divided into one step per rank."""
        if self.takers is None:
            return self.planned
        ranks, steps = 1 + int(self.takers.max(initial=0)), len(self.planned.starts) - 1
        turn = np.repeat(np.arange(steps) * ranks, self.planned.sizes) + self.takers
        order = np.argsort(turn, kind="stable")
        starts = np.searchsorted(turn[order], np.arange(steps * ranks + 1))
        which = None if self.planned.which is None else self.planned.which[order]
        return SampleUses(which, self.planned.rows[order], starts, epoch=self.planned.epoch)

    def same(self, other: PassUses) -> bool:
        """Returns whether both use the same samples in the same batches."""
        if self.facts is not None and self.facts == other.facts:
            return True
        return self.planned.same(other.planned) and self.batches.same(other.batches)


def with_room(nbytes: int) -> int:
    """Returns the room for parcels if those of the first segment take this much."""
    return nbytes + nbytes // 4


def alone(uses: SampleUses) -> PassUses:
    """Returns the batches of a process by itself."""
    return PassUses(uses, uses)


# --- several jobs ----


def in_lockstep(jobs: Sequence[SampleUses]) -> SampleUses:
    """Returns, step by step, the uses of each of several jobs, one job after another. Some may end before others.

    All use the same H5Datasets in one epoch, and their uses are in order.
    """
    assert all(one.places is None and one.epoch == jobs[0].epoch for one in jobs)
    ends, places = join_steps(jobs)
    rows = np.empty(ends[-1, -1] if len(ends) else 0, np.int32)
    which = None if jobs[0].which is None else np.empty(len(rows), np.int64)
    for place, one in zip(places, jobs, strict=True):
        rows[place] = one.rows[: one.starts[-1]]
        if which is not None and one.which is not None:
            which[place] = one.which[: one.starts[-1]]
    return SampleUses(which, rows, np.concatenate(([0], ends[:, -1])), epoch=jobs[0].epoch)


def join_steps(jobs: Sequence[SampleUses]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Returns where the uses of each step and job end, and the place of each use."""
    steps = max(len(one.starts) for one in jobs) - 1
    sizes = np.zeros((steps, len(jobs)), np.int64)
    for number, one in enumerate(jobs):
        sizes[: len(one.starts) - 1, number] = one.sizes
    ends, places = np.cumsum(sizes).reshape(sizes.shape), []
    for number, one in enumerate(jobs):
        moved = (ends - sizes)[: len(one.starts) - 1, number] - one.starts[:-1]
        places.append(np.arange(one.starts[-1]) + np.repeat(moved, one.sizes))
    return ends, places


def once_a_step(uses: SampleUses) -> SampleUses:
    """Returns the uses with each sample once per step, where it is used first: a step reads it only once."""
    return keep_uses(uses, _back_to_first(uses) == 0)


def shared_steps(jobs: Sequence[SampleUses]) -> tuple[SampleUses, list[NDArray[np.uint32]]]:
    """Returns what any of the jobs uses in each step, once, and the place of each job's uses in its step."""
    every = in_lockstep(jobs)
    back = _back_to_first(every)
    kept = back == 0
    uses = keep_uses(every, kept)
    firsts = (np.cumsum(kept) - 1)[np.arange(len(back)) - back]
    within = (firsts - np.repeat(uses.starts[:-1], every.sizes)).astype(np.uint32)
    return uses, [within[place] for place in join_steps(jobs)[1]]


def keep_uses(uses: SampleUses, kept: NDArray[np.bool_]) -> SampleUses:
    """Returns some of the uses of each step."""
    before = np.concatenate(([0], np.cumsum(kept)))
    which = None if uses.which is None else uses.which[kept]
    return uses._replace(which=which, rows=uses.rows[kept], starts=before[uses.starts])


def _back_to_first(uses: SampleUses) -> NDArray[np.int32]:
    """Returns, for each use, how far before it the step uses the same sample first; 0: it is the first."""
    span = 1 + int(uses.rows.max(initial=0))
    back, sizes = np.zeros(len(uses.rows), np.int32), uses.sizes
    step = 0
    while step < len(sizes):
        after = max(step + 1, int(np.searchsorted(uses.starts, uses.starts[step] + AT_ONCE, side="right")) - 1)
        here = slice(uses.starts[step], uses.starts[after])
        key = np.repeat(np.arange(after - step), sizes[step:after]) * span + uses.rows[here]
        if uses.which is not None:
            key = key * (1 + int(uses.which.max(initial=0))) + uses.which[here]
        order = np.argsort(key, kind="stable")
        new = np.concatenate(([True], key[order[1:]] != key[order[:-1]])) if len(order) else np.ones(0, np.bool_)
        back[here][order] = order - np.repeat(order[new], np.diff(np.append(np.flatnonzero(new), len(order))))
        step = after
    return back
