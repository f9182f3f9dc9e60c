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
from solar.buffer.thread import apart
from solar.io.channels.progress import awaited
from solar.io.reading.run import Run
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


class DrawnPass:
    """The index batches of a pass that were drawn: as one array where all are known, else one by one."""

    def __init__(self, batches: Indices, sampler_state: SamplerState) -> None:
        self.position, self.sampler_state = batches.position, sampler_state
        self.error: Exception | None = None  # of the sampler, after these batches
        self.exhausted = False
        self.arrays: Pass | None = None  # not yet known to the run
        self.cut: Pass | None = None  # known to the run: what `given` cuts
        self.given: Iterator[Any] = iter(())  # the batches that the run knows
        self._batches = batches
        self._next: deque[Any] = deque()  # one by one, and not yet known to the run

    @property
    def empty(self) -> bool:
        """Whether the run knows all that was drawn."""
        return self.arrays is None and not self._next

    @property
    def samples(self) -> int:
        """The number of samples that the run does not know, or nearly so."""
        return len(self._next) * (self.sampler_state.batch_size or 1) if self.arrays is None else len(self.arrays[0])

    def draw(self) -> None:
        """Draws the next index batches, all of the pass if its end is known.

        Batches that were drawn before an interruption are kept, and the next call continues.
        """
        if self.arrays is None and not self.exhausted:
            try:
                self._draw_more()
            except Exception as error:  # comes after the batches before it, as in torch
                self.error, self.exhausted = error, True

    def begins(self) -> bool:
        """Begins the pass, unless something of it was drawn. Returns whether nothing was."""
        if self.arrays is not None or self._next or self.exhausted or self.cut is not None:
            return False
        self._batches.begin()
        return True

    def can_pass_over(self) -> bool:
        """Returns whether all batches may be drawn by somebody else."""
        return self._batches.can_pass_over()

    def pass_over(self, made: Pass) -> None:
        """Has these batches, which somebody else has drawn."""
        self._batches.pass_over(made[1])
        self.arrays, self.exhausted = made if len(made[1]) > 1 else None, True

    def _draw_more(self) -> None:
        if not self._next and (made := self._batches.at_once()) is not None:
            self.arrays, self.exhausted = made if len(made[1]) > 1 else None, True
            return
        most = self.position.order.drawn_at_once(self.sampler_state.batches)
        self._next.extend(islice(self._batches, max(0, most - len(self._next))))
        self.exhausted = len(self._next) < most

    def take_arrays(self, made: Pass) -> None:
        """Has these arrays in place of what was drawn."""
        self.arrays, self._next = made, deque()

    def give(self) -> None:
        """Marks all that was drawn as known to the run."""
        self.given, self.cut = iter(self._next) if self.arrays is None else cut_at(self.arrays), self.arrays
        self.arrays, self._next = None, deque()

    def flat(self) -> Pass:
        """Returns the samples of all batches, and where each batch begins. Raises if they are no integers."""
        if self.arrays is not None:
            return self.arrays
        if self.sampler_state.cutter is None:
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


class RunFields:
    """Makes the fields of batches of what a run gives: converted, picked, or cut out of blocks."""

    def __init__(self, source: SampleSource, alone: bool) -> None:
        """`alone`: batches are taken by the consumer's thread."""
        self._source, self._alone = source, alone
        self._of_ragged = _fields_of_run(source) if source.ragged else None
        self._fields = [PendingField([], field) for field in leaves(source.first.fields)]
        self._by_field = partial(_chosen, source.first.by_field(range(len(self._fields))))
        self.by_row = any(one.field is not None and one.field.by_row for one in self._fields)
        # On average where they differ.
        self.row_nbytes: int = sum(one.rows.sample_nbytes for one in source.first.opened())

    def start(self, segment: PassUses, lease: BufferLease, number: int, epoch: int) -> tuple[PendingBatch, Array]:
        """Returns a batch of the run, and the numbers of its samples."""
        uses = segment.batches
        here = slice(int(uses.starts[number]), int(uses.starts[number + 1]))
        names = uses.rows[here].astype(np.int64)
        fields, which = self._fields, None if uses.which is None else uses.which[here]
        make = self._by_field
        if self._of_ragged is not None:
            make = partial(_fields_by_field, partial(self._of_ragged, which, names), self._by_field)
        if self.by_row or self._source.picks:
            numbers = self._source.numbered(which, names, epoch)
            rows = self._source.rows_of(which, numbers)
            fields = [
                PendingField([], one.field, rows, self._source.picking(at, which, numbers))
                for at, one in enumerate(self._fields)
            ]
        constants = constants_of_batch(self._source.datasets, which, names)
        if uses.which is not None:
            names = self._source.names(uses.which[here], names)
        nbytes = len(names) * self.row_nbytes
        run, at = lease.run, lease.base + number
        made = BufferedBatch(self._source.first, fields, nbytes, run, at, len(names), make, constants)
        made.alone = self._alone
        if segment.weights is not None:
            made.weight = float(segment.weights[number])
        return made, names


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
        self._buffer, self._source, self._pace = buffer, source, pace
        self._drawn = DrawnPass(batches, sampler_state)
        self._fields = RunFields(source, pace.threads == 0)
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
        drawn = self._drawn
        while True:
            for batch in drawn.given:
                return batch
            if drawn.exhausted and drawn.empty:
                if drawn.error is not None:
                    raise drawn.error
                raise StopIteration
            self.draw()

    def draw(self) -> None:
        """Draws the next index batches, all of the pass if its end is known, for the run to make."""
        drawn = self._drawn
        facts = self._shared_facts()
        passes_over = facts is not None and drawn.can_pass_over()
        if not passes_over:
            drawn.draw()
        samples = drawn.samples if facts is None else facts["samples"]
        with awaited("planning what is read when", about=samples * PLANNED_SECONDS):
            segment = self._locate_uses() if facts is None else self._divide_shared(facts, passes_over)
            lease = None if segment is None else self._buffer.enter(self._plan(segment), self._lease)
            self._lease = lease or self._lease  # at once: who interrupts what follows leaves the buffer all the same
        self._started, self._segment = 0, None if lease is None else segment
        if lease is not None:
            self.ahead = lease.run.staged + self._pace.threads
        drawn.give()

    def _locate_uses(self) -> PassUses | None:
        drawn = self._drawn
        if drawn.empty:
            return None
        if self.rank_group is not None:
            return self._divide(self.rank_group)
        try:
            made = drawn.flat()
            segment = alone(located(self._source, made, drawn.position.epoch))
        except (IndexError, TypeError, ValueError):
            return None
        if drawn.sampler_state.cutter is not None:  # lists of ints take five times the memory
            drawn.take_arrays(made)
        return segment

    def _divide(self, rank_group: RankGroup) -> PassUses:
        """Divides the pass of all ranks, and keeps this rank's part."""
        found = rank_group.divided(self._source, self._pass_of_all, self._drawn.position.epoch, None)
        self._facts = found.facts
        self._drawn.take_arrays(found.batches)
        return found.segment

    def _pass_of_all(self) -> Pass:
        position = self._drawn.position
        made = position.order.of_all(position.before[1])
        assert made is not None, "only samplers that divide one order among all ranks are taken together"
        return made

    def _shared_facts(self) -> dict[str, Any] | None:
        """Returns the facts of the pass that begins, if the ranks of a node make it once for all of them."""
        drawn, group = self._drawn, self.rank_group
        if group is None or self._lease is not None or not drawn.begins():
            return None
        facts = drawn.position.order.facts_of_all(drawn.position.epoch, drawn.position.before[1])
        return facts if group.shared_plans.shares(facts) else None

    def _divide_shared(self, facts: dict[str, Any], passes_over: bool) -> PassUses | None:
        """Does what `_divide` does for a pass that one rank of a node makes."""
        group, drawn, source = self.rank_group, self._drawn, self._source
        assert group is not None
        if not self._buffer.has_prepared(facts):
            group.shared_plans.begin(facts)
        epoch, make = drawn.position.epoch, self._pass_of_all
        found = apart(lambda _: group.divided(source, make, epoch, facts), group.peers.check)
        self._facts = found.facts
        if passes_over:
            drawn.pass_over(found.batches)
        else:
            drawn.take_arrays(found.batches)
        return found.segment if len(found.batches[1]) > 1 else None

    def _later(self) -> Iterator[Callable[[], PassUses]]:
        """Returns the following passes, as far as they are known."""
        drawn = self._drawn
        if not drawn.exhausted or drawn.error is not None:
            return iter(())
        order, stride = drawn.position.order, drawn.sampler_state.stride
        passes = order.later(stride) if self.rank_group is None else order.later_of_all(stride)
        later = zip(islice(passes, self._epochs_left), count(drawn.position.epoch + stride, stride))
        return starmap(self._maker, later)

    def _maker(self, make: Callable[[], Pass], epoch: int) -> Callable[[], PassUses]:
        source, rank_group, order = self._source, self.rank_group, self._drawn.position.order
        if rank_group is not None:
            return lambda: rank_group.divided(source, make, epoch, order.facts_of_all(epoch, 0)).segment
        return lambda: alone(located(source, make(), epoch))

    # --- what they take ----

    def _plan(self, segment: PassUses) -> PassPlan:
        batch = self._most(segment) if self.rank_group is None else self._drawn.sampler_state.cutter.batch_size
        return PassPlan(self._source, segment, self._later, partial(self._needs, segment), batch, self._facts)

    def _needs(self, segment: PassUses) -> Needs:
        """Returns the memory that batches take. It looks at every chunk, so it is called once per window."""
        largest, rank_group = self._most(segment), self.rank_group
        if rank_group is None:
            return batch_needs(self._source, self._pace, largest)
        if rank_group.balance == "uneven":
            batch = self._drawn.sampler_state.cutter.batch_size
            largest = max(largest, batch + 6 * math.isqrt(batch))  # that any later step has more is most unlikely
        if segment.room is not None:
            largest = max(self._drawn.sampler_state.batch_size or 0, int(segment.batches.sizes.max(initial=0)))
        return batch_needs(self._source, self._pace, largest, rank_group.exchange, segment.room)

    def _most(self, segment: PassUses) -> int:
        return max(self._drawn.sampler_state.batch_size or 0, int(segment.sizes.max(initial=0)))

    # --- batches on their way ----

    @property
    def row_nbytes(self) -> int:
        """The bytes of a sample, of all fields."""
        return self._fields.row_nbytes

    def start(self, samples: Any, epoch: int) -> tuple[PendingBatch, Array]:
        """Starts the batch of these indices. Returns it and the numbers of its samples."""
        if self._segment is None or self._lease is None:
            return self._source.start(samples, epoch)
        try:
            found = self._fields.start(self._segment, self._lease, self._started, epoch)
        except Exception:  # unlike Ctrl-C, after which this batch is started again
            self._started += 1
            raise
        self._started += 1
        return found

    @property
    def run(self) -> Run | None:
        """The run that makes the batches; None: not yet, or they are read without one."""
        return None if self._lease is None or self._segment is None else self._lease.run

    def from_run(self) -> tuple[Run, int, Array] | None:
        """Returns the run, its number of the next batch, and the samples of each batch from there on.

        Returns None if a batch needs more than the run: weights, scales of its own rows.
        """
        lease, segment = self._lease, self._segment
        if lease is None or segment is None or self._fields.by_row:
            return None
        if self._drawn.cut is None or segment.weights is not None:
            return None
        return lease.run, lease.base + self._started, segment.batches.sizes[self._started :]

    def called(self, number: int) -> Array:
        """Returns the samples of this batch of the run."""
        assert self._drawn.cut is not None and self._lease is not None, "of these the run was given"
        samples, starts = self._drawn.cut
        found: Array = samples[starts[number - self._lease.base] : starts[number - self._lease.base + 1]]
        return found

    def numbers(self, number: int) -> Array:
        """Returns the numbers of these samples, which are the same in every subset."""
        assert self._segment is not None and self._lease is not None, "of these the run was given"
        uses, number = self._segment.batches, number - self._lease.base
        here = slice(int(uses.starts[number]), int(uses.starts[number + 1]))
        names = uses.rows[here].astype(np.int64)
        return names if uses.which is None else self._source.names(uses.which[here], names)

    def taken(self, batches: int) -> None:
        """Continues after this many batches, which somebody else took from the run."""
        assert self._drawn.cut is not None, "of these the run was given"
        self._started += batches
        samples, starts = self._drawn.cut
        self._drawn.given = cut_at((samples, starts[self._started :]))

    def leave(self) -> None:
        """Leaves the buffer: no more batches are taken."""
        if self._lease is not None:
            self._buffer.leave(self._lease, self._all_taken(self._lease))

    def _all_taken(self, lease: BufferLease) -> bool:
        if self._segment is None or not self._drawn.exhausted:
            return False
        if self.rank_group is not None:  # what threads have taken ahead differs from rank to rank
            return self._drawn.position.batches == len(self._segment.sizes)
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
