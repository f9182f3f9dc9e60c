"""Turn: the batches of one pass, which an iterator takes from its loader's buffer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from solar.io.buffered import Running, scratch_nbytes
from solar.io.field import Field
from solar.io.reader import Rows
from solar.torch.beneath import Beneath
from solar.torch.budget import Budget, divided
from solar.torch.order import Array, Pass
from solar.torch.pending import PendingBatch, PendingField, leaves, mapped
from solar.torch.position import Course, Passage
from solar.torch.windows import Segment, located

if TYPE_CHECKING:
    from solar.torch.buffered import Buffered


class Pace(NamedTuple):
    """How an iterator makes its batches of what is read."""

    ahead: int  # batches on their way
    threads: int  # that hold one each


class Turn:
    """What stands between an iterator and the run. Indices are drawn here, all that can be, and looked up at once.

    `start` is called for each of the batches of `indices`, in order. What a run cannot take (an index that does not
    exist, say) is read without one, so that it goes wrong as it always does.
    """

    orphaned = False  # nobody was there to leave it properly

    def __init__(
        self,
        owner: Buffered,
        beneath: Beneath,
        batches: Iterator[Any],
        passage: Passage,
        course: Course,
        pace: Pace,
        nbytes: int,
        epochs_left: int | None,
    ) -> None:
        self.beneath = beneath
        self._owner, self._batches, self._passage, self._course = owner, batches, passage, course
        self._pace, self._nbytes, self._epochs_left = pace, nbytes, epochs_left
        self._structure = mapped(beneath.first.opened(), lambda leaf: PendingField([], leaf.field))
        self._row_nbytes = sum(leaf.rows.sample_nbytes for leaf in leaves(beneath.first.opened()))
        self._drawn: deque[Any] = deque()
        self._error: Exception | None = None
        self._exhausted = False
        self._segment: Segment | None = None  # None: it is read without the run
        self._running: Running | None = None
        self._base = self._started = 0  # batches
        self.ahead = pace.ahead
        if course.batch_size:
            self._divided(course.batch_size)  # raises what is to be raised before anything is drawn

    # --- which batches ----

    def draw(self) -> None:
        """The next index batches: those of the whole pass, where that has a known end."""
        most = self._passage.order.drawn_at_once(self._course.batches)
        try:
            for batch in islice(self._batches, most):
                self._drawn.append(batch)
        except Exception as error:  # comes after the batches before it, as in torch
            self._error = error
        self._exhausted = self._error is not None or len(self._drawn) < most
        self._started, self._segment = 0, self._located()
        if self._segment is not None:
            entered = self._owner.enter(self, self._segment, self._running is not None)
            if entered is None:
                self._segment = None
            else:
                self._running, self._base = entered

    def _located(self) -> Segment | None:
        if not self._drawn:
            return None
        try:
            samples, starts = self._flat()
            segment = located(self.beneath, (samples, starts))
        except (IndexError, TypeError, ValueError):
            return None
        if self._course.cutter is not None:  # lists of ints take five times the memory
            self._drawn = deque(np.split(samples, starts[1:-1]))
        return segment

    def _flat(self) -> Pass:
        """The samples of all batches, and where each batch begins."""
        if self._course.cutter is None:
            samples, lengths = np.asarray(self._drawn), np.ones(len(self._drawn), np.int64)
        else:
            lengths = np.array([len(batch) for batch in self._drawn], np.int64)
            arrays = [batch for batch in self._drawn if len(batch)]
            if arrays and isinstance(arrays[0], np.ndarray):
                samples = np.concatenate(arrays)
            else:
                samples = np.array([*chain.from_iterable(arrays)])
        if not samples.size or samples.ndim != 1 or samples.dtype.kind not in "iu":
            raise TypeError("indices are integers")  # nobody sees this: it is read without the run
        return samples.astype(np.int64, copy=False), np.cumsum([0, *lengths])

    def indices(self) -> Iterator[Any]:
        """The index batches of the pass, one after another."""
        while True:
            while self._drawn:
                yield self._drawn.popleft()
            if self._error is not None:
                raise self._error
            if self._exhausted:
                return
            self.draw()

    def later(self) -> Iterator[Callable[[], Segment]]:
        """The passes after this one, as far as they are known."""
        if not self._exhausted or self._error is not None:
            return iter(())
        passes = self._passage.order.later(self._course.stride)
        return (self._maker(make) for make in islice(passes, self._epochs_left))

    def _maker(self, make: Callable[[], Pass]) -> Callable[[], Segment]:
        return lambda: located(self.beneath, make())

    # --- what they take ----

    def rows(self) -> list[Rows]:
        """What reads each part: of each H5Dataset each field."""
        return [leaf.rows for dataset in self.beneath.datasets for leaf in leaves(dataset.opened())]

    def budget(self, segment: Segment) -> Budget:
        """How the memory is divided when such batches come."""
        return self._divided(max(self._course.batch_size or 0, int(segment.sizes.max())))

    def _divided(self, batch: int) -> Budget:
        """One batch is with the user, in memory of its own if a Field makes it; and each thread holds one or two."""
        opened = leaves(self.beneath.first.opened())
        each = self._row_nbytes + sum(made_nbytes(leaf.field, leaf.rows) for leaf in opened)
        scratch = max(scratch_nbytes(rows.layout) for rows in self.rows())
        ahead = max(1, self._pace.ahead - self._pace.threads)
        beside = batch * each * (1 + self._pace.threads)
        budget = divided(self._nbytes, batch, self._row_nbytes, beside, ahead, scratch)
        self.ahead = budget.staged + self._pace.threads
        return budget

    # --- batches on their way ----

    def start(self, samples: Any) -> tuple[PendingBatch, Array]:
        """The next batch, whose index batch this is; and what each of its samples is called."""
        if self._segment is None or self._running is None:
            return self.beneath.start(samples)
        number, self._started = self._started, self._started + 1
        here = slice(int(self._segment.starts[number]), int(self._segment.starts[number + 1]))
        names = self._segment.rows[here].astype(np.int64)
        if self._segment.which is not None:
            names += self.beneath.firsts[self._segment.which[here]]
        nbytes = len(names) * self._row_nbytes
        return RunBatch(self._structure, self._running, self._base + number, nbytes), names

    def leave(self) -> None:
        """No more is taken."""
        whole = self._running is None or (
            self._segment is not None
            and self._exhausted
            and self._running.given == self._base + len(self._segment.starts) - 1
        )
        self._owner.leave(self, whole)


def made_nbytes(field: Field | None, rows: Rows) -> int:
    """The bytes of a sample as a Field makes it, in memory of its own; 0 where it stays as it was read."""
    if field is None:
        return 0
    shape, dtype = field.shape_of(rows.layout.sample_shape, rows.dtype)
    return math.prod(shape) * dtype.itemsize


class RunBatch(PendingBatch):
    """A batch that a run makes."""

    def __init__(self, structure: Any, running: Running, number: int, nbytes: int) -> None:
        super().__init__(structure)
        self._running, self._number, self._nbytes = running, number, nbytes
        self._counts: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def counts(self) -> dict[str, int]:
        return self._counts

    def arrived(self, seconds: float | None = None) -> list[Any]:
        values, self._counts = self._running.wait(self._number, seconds)
        return values
