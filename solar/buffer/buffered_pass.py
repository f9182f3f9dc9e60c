"""BufferedPass: one pass over the samples whose batches come from the buffer of the loader."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice, starmap
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from solar.buffer.buffer import BufferLease, LoaderBuffer
from solar.buffer.buffer_memory import RankMemory, batch_needs
from solar.buffer.located import located
from solar.buffer.planned_run import PassPlan
from solar.io.channels.progress import awaited
from solar.io.reading.run import Run, Running
from solar.planning.budget import AheadSpec as AheadSpec
from solar.planning.budget import Needs, divide_memory
from solar.planning.pass_uses import PassUses, alone
from solar.samplers.epoch_position import Indices, SamplerState
from solar.samplers.index_stream import Array, Pass, cut_at
from solar.samples.constants import ConstantsOfBatch
from solar.samples.dataset import H5Dataset, constants_of_batch
from solar.samples.pending import PendingBatch, PendingField, leaves
from solar.samples.source import SampleSource

if TYPE_CHECKING:
    from solar.buffer.rank_group import RankGroup
    from solar.samples.ragged_reader import FieldsOfRun

FieldsOf = Callable[[list[Any]], list[Any]]  # makes the fields of a batch of the arrays that a run gave

PLANNED_SECONDS = 1.6e-7  # that a use takes of 50 million, on one core: a guess, which is only shown


class BufferedPass:
    """Draws the index batches of a pass as early as possible, and takes its batches from the run.

    `start` is called for each index batch, in order. A batch that a run cannot make, say for an index that does not
    exist, is read without one, and fails as it would without a buffer.
    """

    def __init__(
        self,
        buffer: LoaderBuffer,
        room: RankMemory,
        source: SampleSource,
        batches: Indices,
        sampler_state: SamplerState,
        pace: AheadSpec,
    ) -> None:
        self.rank_group, nbytes, apart, self._epochs_left = room
        self._buffer, self._source, self._batches = buffer, source, batches
        self._position, self._sampler_state, self._pace = batches.position, sampler_state, pace
        opened = source.first.opened()
        self._fields_of_run = _fields_of_run(source) if source.ragged else None
        self._fields = [PendingField([], field) for field in leaves(source.first.fields)]
        self._by_field = partial(_chosen, source.first.by_field(range(len(self._fields))))
        self._by_row = any(one.field is not None and one.field.by_row for one in self._fields)
        self._picks = source.picks
        self._row_nbytes = sum(one.rows.sample_nbytes for one in opened)  # on average where they differ
        self._drawn: Iterator[Any] = iter(())
        self._as_arrays: Pass | None = None  # drawn as arrays, but not yet known to the run
        self._cut: Pass | None = None  # what `_drawn` cuts
        self._next: deque[Any] = deque()  # drawn, but not yet known to the run
        self._error: Exception | None = None
        self._exhausted = False
        self._segment: PassUses | None = None  # None: it is read without the run
        self._facts: dict[str, Any] = {}  # of the pass of all ranks
        self._lease: BufferLease | None = None
        self._started = 0  # batches
        self.ahead = pace.ahead
        # What is to be raised is raised before anything is drawn. Ranks that read together raise it together.
        if sampler_state.batch_size and self.rank_group is None:
            divide_memory(
                nbytes, sampler_state.batch_size, [batch_needs(source, pace, sampler_state.batch_size)], apart=apart
            )

    # --- which batches ----

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Returns the next index batch."""
        while True:
            for batch in self._drawn:
                return batch
            if self._exhausted and not self._next and self._as_arrays is None:
                if self._error is not None:
                    raise self._error
                raise StopIteration
            self.draw()

    def draw(self) -> None:
        """Draws the next index batches, all of the pass if its end is known, for the run to make.

        Batches that were drawn before an interruption are kept, and the next call continues.
        """
        if self._as_arrays is None and not self._exhausted:
            try:
                self._draw_more()
            except Exception as error:  # comes after the batches before it, as in torch
                self._error, self._exhausted = error, True
        arrays, each = self._as_arrays, self._sampler_state.batch_size or 1
        drawn = len(self._next) * each if arrays is None else len(arrays[0])
        with awaited("planning what is read when", about=drawn * PLANNED_SECONDS):
            segment = self._locate_uses()
            lease = None if segment is None else self._buffer.enter(self._plan(segment), self._lease)
            self._lease = lease or self._lease  # at once: who interrupts what follows leaves the buffer all the same
        self._started, self._segment = 0, None if lease is None else segment
        if lease is not None:
            self.ahead = lease.run.staged + self._pace.threads
        arrays = self._as_arrays
        self._drawn, self._cut = iter(self._next) if arrays is None else cut_at(arrays), arrays
        self._as_arrays, self._next = None, deque()

    def _draw_more(self) -> None:
        if not self._next and (made := self._batches.at_once()) is not None:
            self._as_arrays, self._exhausted = made if len(made[1]) > 1 else None, True
            return
        most = self._position.order.drawn_at_once(self._sampler_state.batches)
        self._next.extend(islice(self._batches, max(0, most - len(self._next))))
        self._exhausted = len(self._next) < most

    def _locate_uses(self) -> PassUses | None:
        if not self._next and self._as_arrays is None:
            return None
        if self.rank_group is not None:
            return self._divide(self.rank_group)
        try:
            made = self._flat() if self._as_arrays is None else self._as_arrays
            segment = alone(located(self._source, made, self._position.epoch))
        except (IndexError, TypeError, ValueError):
            return None
        if self._sampler_state.cutter is not None:  # lists of ints take five times the memory
            self._as_arrays, self._next = made, deque()
        return segment

    def _divide(self, rank_group: RankGroup) -> PassUses:
        """Divides the pass of all ranks, and keeps this rank's part."""
        made = self._position.order.of_all(self._position.before[1])
        assert made is not None, "only samplers that divide one order among all ranks are taken together"
        found = rank_group.divided(self._source, made, self._position.epoch)
        self._facts = found.facts
        self._as_arrays, self._next = found.batches, deque()
        return found.segment

    def _flat(self) -> Pass:
        """Returns the samples of all batches, and where each batch begins."""
        if self._sampler_state.cutter is None:
            samples, lengths = np.asarray(self._next), np.ones(len(self._next), np.int64)
        else:
            lengths = np.array([len(batch) for batch in self._next], np.int64)
            arrays = [batch for batch in self._next if len(batch)]
            if arrays and isinstance(arrays[0], np.ndarray):
                samples = np.concatenate(arrays)
            else:
                samples = np.array([*chain.from_iterable(arrays)])
        if not samples.size or samples.ndim != 1 or samples.dtype.kind not in "iu":
            raise TypeError("indices are integers")  # nobody sees this: it is read without the run
        return samples.astype(np.int64, copy=False), np.cumsum([0, *lengths])

    def _later(self) -> Iterator[Callable[[], PassUses]]:
        """Returns the following passes, as far as they are known."""
        if not self._exhausted or self._error is not None:
            return iter(())
        order, stride = self._position.order, self._sampler_state.stride
        passes = order.later(stride) if self.rank_group is None else order.later_of_all(stride)
        later = zip(islice(passes, self._epochs_left), count(self._position.epoch + stride, stride))
        return starmap(self._maker, later)

    def _maker(self, make: Callable[[], Pass], epoch: int) -> Callable[[], PassUses]:
        source, rank_group = self._source, self.rank_group
        if rank_group is not None:
            return lambda: rank_group.divided(source, make(), epoch).segment
        return lambda: alone(located(source, make(), epoch))

    # --- what they take ----

    def _plan(self, segment: PassUses) -> PassPlan:
        batch = self._most(segment) if self.rank_group is None else self._sampler_state.cutter.batch_size
        return PassPlan(self._source, segment, self._later, partial(self._needs, segment), batch, self._facts)

    def _needs(self, segment: PassUses) -> Needs:
        """Returns the memory that batches take. It looks at every chunk, so it is called once per window."""
        largest, rank_group = self._most(segment), self.rank_group
        if rank_group is None:
            return batch_needs(self._source, self._pace, largest)
        if rank_group.balance == "uneven":
            batch = self._sampler_state.cutter.batch_size
            largest = max(largest, batch + 6 * math.isqrt(batch))  # that any later step has more is most unlikely
        if segment.room is not None:
            largest = max(self._sampler_state.batch_size or 0, int(segment.batches.sizes.max(initial=0)))
        return batch_needs(self._source, self._pace, largest, rank_group.exchange, segment.room)

    def _most(self, segment: PassUses) -> int:
        return max(self._sampler_state.batch_size or 0, int(segment.sizes.max(initial=0)))

    # --- batches on their way ----

    def start(self, samples: Any, epoch: int) -> tuple[PendingBatch, Array]:
        """Starts the batch of these indices. Returns it and the numbers of its samples."""
        if self._segment is None or self._lease is None:
            return self._source.start(samples, epoch)
        try:
            found = self._start(self._segment, self._lease, self._started, epoch)
        except Exception:  # unlike Ctrl-C, after which this batch is started again
            self._started += 1
            raise
        self._started += 1
        return found

    def _start(self, segment: PassUses, lease: BufferLease, number: int, epoch: int) -> tuple[PendingBatch, Array]:
        uses = segment.batches
        here = slice(int(uses.starts[number]), int(uses.starts[number + 1]))
        names = uses.rows[here].astype(np.int64)
        fields, which = self._fields, None if uses.which is None else uses.which[here]
        make = self._by_field
        if self._fields_of_run is not None:
            make = partial(_fields_by_field, partial(self._fields_of_run, which, names), self._by_field)
        if self._by_row or self._picks:
            numbers = self._source.numbered(which, names, epoch)
            rows = self._source.rows_of(which, numbers)
            fields = [
                PendingField([], one.field, rows, self._source.picking(at, which, numbers))
                for at, one in enumerate(self._fields)
            ]
        constants = constants_of_batch(self._source.datasets, which, names)
        if uses.which is not None:
            names = self._source.names(uses.which[here], names)
        nbytes = len(names) * self._row_nbytes
        run, at = lease.run, lease.base + number
        made = BufferedBatch(self._source.first, fields, nbytes, run, at, len(names), make, constants)
        made.alone = self._pace.threads == 0
        if segment.weights is not None:
            made.weight = float(segment.weights[number])
        return made, names

    @property
    def run(self) -> Run | None:
        """The run that makes the batches; None: not yet, or they are read without one."""
        return None if self._lease is None or self._segment is None else self._lease.run

    def from_run(self) -> tuple[Running, int, Array] | None:
        """Returns the run, its number of the next batch, and the samples of each batch from there on.

        Returns None if a batch needs more than the run: other nodes, weights, scales of its own rows.
        """
        lease, segment = self._lease, self._segment
        if lease is None or segment is None or not isinstance(lease.run, Running) or self._by_row:
            return None
        if self._cut is None or segment.weights is not None:
            return None
        return lease.run, lease.base + self._started, segment.batches.sizes[self._started :]

    def called(self, number: int) -> Array:
        """Returns the samples of this batch of the run."""
        assert self._cut is not None and self._lease is not None, "of these the run was given"
        samples, starts = self._cut
        found: Array = samples[starts[number - self._lease.base] : starts[number - self._lease.base + 1]]
        return found

    def taken(self, batches: int) -> None:
        """Continues after this many batches, which somebody else took from the run."""
        assert self._cut is not None, "of these the run was given"
        self._started += batches
        samples, starts = self._cut
        self._drawn = cut_at((samples, starts[self._started :]))

    def leave(self) -> None:
        """Leaves the buffer: no more batches are taken."""
        if self._lease is not None:
            self._buffer.leave(self._lease, self._all_taken(self._lease))

    def _all_taken(self, lease: BufferLease) -> bool:
        if self._segment is None or not self._exhausted:
            return False
        if self.rank_group is not None:  # what threads have taken ahead differs from rank to rank
            return self._position.batches == len(self._segment.sizes)
        return lease.run.released == lease.base + len(self._segment.sizes)


def _chosen(places: list[int], came: list[Any]) -> list[Any]:
    return [came[place] for place in places]


def _fields_by_field(make: FieldsOf, by_field: FieldsOf, came: list[Any]) -> list[Any]:
    return by_field(make(came))


def _fields_of_run(source: SampleSource) -> FieldsOfRun:
    from solar.samples.ragged_reader import fields_of_run  # only where samples are of unequal length

    return fields_of_run(source.datasets)


class BufferedBatch(PendingBatch):
    """A batch that a run makes."""

    alone = False  # taken by the consumer's thread, which Ctrl-C may interrupt

    def __init__(
        self,
        dataset: H5Dataset,
        fields: list[PendingField],
        nbytes: int,
        running: Run,
        number: int,
        samples: int,
        make: FieldsOf,
        constants: ConstantsOfBatch | None = None,
    ) -> None:
        super().__init__(dataset.layouts, fields, constants)
        self.nbytes = nbytes
        self._make = make
        self._running, self._number, self._samples = running, number, samples
        self._came: list[Any] | None = None
        self._counts: dict[str, int] = {}

    def counts(self) -> dict[str, int]:
        return self._counts

    def arrived(self, seconds: float | None = None) -> list[Any]:
        """Waits for the batch. The run keeps it until then, and this object until the user has it."""
        values = self._came
        if values is None:
            came, counts = self._running.wait(self._number, self._samples, seconds)
            values = [one.own(value) for one, value in zip(self.fields, self._make(came), strict=True)]
            self._counts = {**counts, "made_by_run": 1}
            self._came = values if self.alone else None
        self._running.let_go(self._number)
        return values

    def forget(self) -> None:
        self._running.forget(self._number)
