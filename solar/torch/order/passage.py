"""EpochPosition: how far one pass over the samples is, and its state as JSON."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from solar.errors import PlanError
from solar.torch.order.stream import Array, IndexStream

_NO_GAPS: dict[str, Any] = {"of": 0, "left": []}


def check_gaps_of(order: IndexStream) -> None:
    """PlanError for an order that ranks share: no state is the same on all of them where each has gaps of its own."""
    ranks = getattr(order.sampler, "num_replicas", 1) if order.kind == "distributed" else 1
    if ranks > 1:
        raise PlanError(
            f"in_order=False with workers, and a sampler over {ranks} ranks: each rank hands out its batches in an "
            "order of its own, and the state says only how many samples all ranks have had, so batches would be lost. "
            "Make the loader with in_order=True, or take its state when the epoch is over"
        )


class EpochPosition:
    """One pass over the samples: how it began, and how far the consumer is. Drawing is ahead of the consumer.

    Index batches are numbered in the order in which they are drawn. They are mostly handed out in that order. Those
    that come before an earlier one (in_order=False) are kept as `_early`, so that a state says exactly which are left.
    Any thread may advance it and ask for its state.
    """

    def __init__(self, order: IndexStream, epoch: int) -> None:
        self.order = order
        self.epoch = epoch
        self.repeat = 0  # how often in a row this epoch was begun before
        self.base_seed: int | None = None
        self.begun = False  # the first index was drawn
        self.finished = False
        self.before = (0, 0)  # batches and samples consumed before it began, when it was resumed
        self.batches = 0  # handed out
        self.taken: Any = ()  # the samples of the batch handed out last
        self.in_any_order = False  # batches are handed out as they come
        # The dataset's own states: as they are now, or (False) as a new epoch would begin.
        self.parts: Callable[[bool], dict[str, Any]] = lambda begun: {}
        self.given: Callable[[], list[int]] = list  # batches of each worker, of an iterable dataset
        self._lock = threading.Lock()
        self._drawn: deque[tuple[int, Any, Any]] = deque()  # batches from number `_first` on: size, mark, samples
        self._first = self._samples = 0  # batches that were handed out without a gap, and their samples
        self._mark: Any = None  # of the last of these
        self._early: set[int] = set()  # numbers above `_first` that were handed out
        self._gaps = _NO_GAPS  # of the state that it was resumed from
        self._starts: Array | None = None  # of its batches, drawn in one go: they have no marks

    def resume(self, loaded: dict[str, Any]) -> None:
        """Begins behind a loaded state."""
        self.before = loaded["batches"], loaded["samples"]
        self._gaps = loaded.get("gaps", _NO_GAPS)
        self._early = set(range(self._gaps["of"])).difference(self._gaps["left"])

    def draw(self, batch: Any) -> bool:
        """An index batch was drawn. Gives whether it is still to be handed out."""
        samples = 1 if self.order.batch_sampler is None else len(batch)
        with self._lock:
            number = self._first + len(self._drawn)
            # The native engine knows them by itself, and an epoch of lists would take much memory.
            self._drawn.append((samples, self.order.mark(batch), () if self.order.as_arrays else batch))
            if self._early:
                self._close_gap()
            return number >= self._gaps["of"] or number in self._gaps["left"]

    def draw_all(self, starts: Array) -> None:
        """All index batches were drawn."""
        self._starts = starts

    @property
    def has_gaps(self) -> bool:
        """Whether some batches are to be passed over, because they were handed out before others."""
        return bool(self._early)

    def number_of(self, sent: int) -> int:
        """The number of the index batch that was given as the one with the number `sent`."""
        left: list[int] = self._gaps["left"]
        return left[sent] if sent < len(left) else self._gaps["of"] + sent - len(left)

    def advance(self, number: int | None = None) -> int:
        """A batch was handed out: the next in order, or the one with this number. Gives how many samples it has."""
        self.order.asked()
        with self._lock:
            if self._starts is not None:
                self.batches += 1
                begin, last = self._samples, len(self._starts) - 1
                self._samples = int(self._starts[min(self.batches, last)])
                return self._samples - begin
            if not self._drawn:  # what failed was the sampler
                return 0
            self.batches += 1
            if number is None and not self._early:  # as nearly always
                samples, self._mark, self.taken = self._drawn.popleft()
                self._samples += samples
                self._first += 1
                return samples
            number = self._first if number is None else number
            samples, _, self.taken = self._drawn[number - self._first]
            self._early.add(number)
            self._close_gap()
            return samples

    def _close_gap(self) -> None:
        while self._first in self._early and self._drawn:
            self._early.remove(self._first)
            samples, self._mark, _ = self._drawn.popleft()
            self._samples += samples
            self._first += 1

    def counts(self) -> dict[str, int]:
        """How many samples of each class or source all ranks together have had of this epoch."""
        return self.order.counts(self.epoch, self.order.consumed(self.before[1], self._without_gap, self._samples))

    @property
    def _without_gap(self) -> int:
        return self._first if self._starts is None else self.batches

    def state(self) -> dict[str, Any]:
        if self.in_any_order:
            check_gaps_of(self.order)
        batches, samples = self.before
        with self._lock:
            state = {
                "batches": batches + self._without_gap,
                "samples": self.order.consumed(samples, self._without_gap, self._samples),
                "order": self.order.tell(self._mark),
            }
            if self._early:
                behind = range(self._first, max(self._early))
                left = [number - self._first for number in behind if number not in self._early]
                state["gaps"] = {"of": max(self._early) + 1 - self._first, "left": left}
        if parts := self.parts(True):
            return state | {"parts": parts}
        return state | {"given": given} if sum(given := self.given()) else state

    def all_batches(self) -> list[int]:
        """Those handed out since the epoch began, as one number."""
        return [self.before[0] + self.batches]
