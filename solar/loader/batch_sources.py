"""ReaderBatches, RunBatches: sources of batches that need no further work. BatchFeed: hands them to the loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from solar import _native
from solar.io.reading.engine import COUNT_NAMES, LAST_WAIT, Engine, Ticket
from solar.io.reading.reader import Pending, Rows
from solar.io.reading.run import Run, Running
from solar.samples.pending import PendingBatch, PendingField, leaves
from solar.samples.source import SampleSource

if TYPE_CHECKING:
    from solar.buffer.buffered_pass import BufferedPass

FORKED = "this iterator's thread is in the process that it was forked from: make a new iterator"

Taken = tuple[Any, tuple[int, ...]]  # a batch, and the counts of making it
Assemble = Callable[[list[Any]], Any]  # what makes a batch of its fields
Left = tuple[PendingBatch | Exception, Any]  # a batch that is being read, or why it failed; and its samples


class NotDirect(Exception):
    """A batch needs more work than this path does. Nothing is wrong with it."""


class BatchFeed(Protocol):
    """Gives batches to DirectBatches: a DirectSource, or something that first copies its batches to a device."""

    names: tuple[str, ...]  # of the counts

    def take(self, seconds: float) -> Taken | None:
        """Returns the next batch within this time. Raises NotDirect where the iterator has to make it."""

    def leave(self) -> list[Left]:
        """Returns the batches that are being read, so that the iterator can go on with them."""


def assembly(
    source: SampleSource,
    as_they_are: Callable[[np.dtype[Any], int], bool],
    in_tuple: type[list[Any] | tuple[Any, ...]],
    converted: Mapping[int, tuple[tuple[int, ...], np.dtype[Any]]] | None = None,
) -> Assemble | None:
    """Returns what makes a batch of its fields; None if that takes more than giving them names.

    `as_they_are` tells whether the user gets values of this dtype and number of axes without a copy. `converted` are
    the shape and dtype of the samples of some fields, by their places; the others are as they are read.
    """
    structure = source.first.layouts
    if not reads_each_field(source):
        return None
    kinds = {at: (one.rows.sample_shape, one.rows.dtype) for at, one in enumerate(source.first.opened())}
    if not all(as_they_are(dtype, 1 + len(shape)) for shape, dtype in (kinds | dict(converted or {})).values()):
        return None
    if isinstance(structure, dict):
        names = tuple(structure)
        return None if _nested(structure.values()) else lambda found: dict(zip(names, found, strict=True))
    if isinstance(structure, tuple):
        return None if _nested(structure) else in_tuple
    return itemgetter(0)


def reads_each_field(source: SampleSource) -> bool:
    """Returns whether what is read for each field is all that there is to it."""
    first, rows = source.first, [one.rows for one in source.first.opened()]
    if first.constants is not None or len(leaves(first.layouts)) > len(rows):
        return False  # which are put beside what is read; columns of a table share its rows
    # Places are of an epoch; and ragged samples, and some of the rows that are read, are picked out of those.
    maps = (own for own in leaves(first.extents) if own is not None)
    return not first.draws and all(own.lengths is None and own.picks is None for own in maps)


def _nested(parts: Any) -> bool:
    return any(isinstance(part, (dict, tuple)) for part in parts)


def direct_source(
    buffered_pass: BufferedPass | None,
    indices: Iterator[Any],
    source: SampleSource,
    samples: int,
    ahead: tuple[int, int],
    *,
    lent: bool,
) -> DirectSource | None:
    """Returns what hands out batches of `samples` samples directly; None where they need more work.

    `ahead` is how many batches, and how many bytes, may be read ahead. `lent`: native code works on the batches first.
    """
    return _of_reader(indices, source, samples, *ahead) if buffered_pass is None else _of_run(buffered_pass, lent=lent)


def _of_run(buffered_pass: BufferedPass, *, lent: bool) -> RunBatches | None:
    """Returns the batches that a run makes; None if they are few or differ in size, or the run is not native."""
    found = buffered_pass.from_run()
    if found is None or (lent and not isinstance(found[0], Running)):
        return None
    run, first, sizes = found
    number = (
        len(sizes) - buffered_pass.ahead - 1
    )  # the last ones are left: one may be smaller, and the end must be seen
    if number < 1 or sizes[0] < 1 or np.any(sizes[:-1] != sizes[0]):
        return None
    return RunBatches(buffered_pass, run, first, int(sizes[0]), number)


def _of_reader(
    indices: Iterator[Any], source: SampleSource, samples: int, ahead: int, nbytes_ahead: int
) -> ReaderBatches | None:
    """Returns batches that are read one by one; None if they need other work, or are too large to be read ahead."""
    if len(source.datasets) > 1 or samples < 1:
        return None
    rows = [one.rows for one in source.first.opened()]
    nbytes = samples * sum(one.sample_nbytes for one in rows)
    ahead = min(ahead, nbytes_ahead // max(1, nbytes) - 1)
    if not all(one.plain for one in rows) or ahead < 1:
        return None
    return ReaderBatches(indices, source, samples, ahead)


class RunBatches:
    """Batches that a run makes from the buffer."""

    ended = drained = False
    left = 0

    def __init__(self, buffered_pass: BufferedPass, run: Run, first: int, samples: int, number: int) -> None:
        self.names: tuple[str, ...] = (*run.count_names, "made_by_run")
        self.samples, self.nbytes, self.ahead = samples, samples * buffered_pass.row_nbytes, buffered_pass.ahead
        self._run, self._first, self.begun, self._end = run, first, 0, number
        self._handed = 0  # by what has the native run
        self._buffered_pass = buffered_pass
        self.indices: Iterator[Any] = buffered_pass

    def take(self, seconds: float) -> Taken | None:
        if self.begun >= self._end:
            raise NotDirect
        number = self._first + self.begun
        found = self._run.at_hand(number, self.samples, seconds)
        if found is None:
            return None
        self.begun += 1  # first: who is interrupted here asks for it no more
        self._run.let_go(number)
        return found[0], (*found[1], 1)

    def called(self) -> Any:
        """Returns the samples of the batch taken last."""
        return self._buffered_pass.called(self._first + self.begun - 1) if self.begun else ()

    def numbers(self) -> Any:
        """Returns their numbers, which are the same in every subset."""
        return self._buffered_pass.numbers(self._first + self.begun - 1)

    def leave(self) -> list[Left]:
        self._buffered_pass.taken(self.begun)
        return []  # the queue asks the run for them

    @property
    def rows(self) -> list[Rows]:
        """What the fields are made of, for native code that works on the batches."""
        return self._lender.rows

    @property
    def _lender(self) -> Running:
        assert isinstance(self._run, Running), "no other run lends what is native"
        return self._run

    def native(self, seconds: float, reclaim: Callable[[], Any]) -> _native.Run | None:
        """Lends the native object that makes the batches; None if it is not ready within this time.

        `reclaim` is called when somebody else wants its batches: they are given back.
        """
        self._handed = 0
        return self._lender.lend(self._first + self.begun, seconds, reclaim)

    def next_samples(self, place: int) -> int:
        """Returns the size of a batch, by its place behind the one handed out last; 0: there is none yet."""
        return self.samples if self.begun + place < self._end else 0

    def handed(self) -> None:
        """Counts that the next batch was handed out by native code."""
        self.begun += 1
        self._handed += 1
        self._lender.passed()

    def take_back(self, left: list[Any], error: Exception | None) -> None:
        """Takes the native object back, with batches that were not handed out and the `error` after them."""
        self._lender.take_back(self._handed, left, error)


class BegunBatches:
    """The batches that are being read, in order: their samples, and the rows of these. Native code reads them."""

    def __init__(self, indices: Iterator[Any], source: SampleSource, rows: list[Rows], ahead: int) -> None:
        self.indices, self.ahead, self.source = indices, ahead, source
        self.native = _native.ReadAhead(Engine.get(), [one.source for one in rows if one.source is not None])
        self._windows = [one.extents for one in rows] if any(one.extents is not None for one in rows) else None
        self.reading = deque[tuple[Any, Any]]()
        self.number = 0  # of batches begun in the epoch
        self.drained = self.exhausted = False  # no more are begun; and there are no more

    def begin(self) -> None:
        """Begins to read batches, as many as may be ahead."""
        while len(self.reading) <= self.ahead and not self.drained:
            try:
                samples = next(self.indices)
            except StopIteration:
                self.drained = self.exhausted = True
                self.indices = iter(())
                break
            except Exception as error:  # comes after the batches on their way
                self.drained, self.indices = True, _raising(error)
                break
            try:
                if not isinstance(samples, np.ndarray) or not len(samples):
                    raise NotDirect
                rows = samples if self.source.plain else self.source.locate(samples)[1]
                own = np.ascontiguousarray(rows, np.int64)
                if self._windows is None:
                    self.native.begin(own)
                else:
                    self.native.begin_each([own if one is None else one.joined(own) for one in self._windows])
            except Exception:  # whatever it is: in the queue it is known to be of this batch
                self.drained, self.indices = True, chain([samples], self.indices)
                break
            self.reading.append((samples, rows))
            self.number += 1


class ReaderBatches:
    """Batches that are read one by one, without a buffer, as many ahead as the iterator would read."""

    names = COUNT_NAMES

    def __init__(self, indices: Iterator[Any], source: SampleSource, samples: int, ahead: int) -> None:
        self.rows = [one.rows for one in source.first.opened()]
        self._row_nbytes: int = sum(one.sample_nbytes for one in self.rows)
        self.samples, self.nbytes = samples, samples * self._row_nbytes
        self._begun = BegunBatches(indices, source, self.rows, ahead)
        self.drained = self.ended = False  # no more are begun; and the last was handed out
        self._came = deque[Any]()  # received, and not yet handed out
        self._failed: Exception | None = None
        self._using = threading.RLock()  # by the loop, or by another thread that closes the loader
        self._left = False
        self._last: tuple[Any, Any] = ((), ())  # the batch taken last: its samples, and their rows

    @property
    def ahead(self) -> int:
        return self._begun.ahead

    @property
    def begun(self) -> int:
        return self._begun.number

    @property
    def indices(self) -> Iterator[Any]:
        return self._begun.indices

    @property
    def left(self) -> int:
        return self._row_nbytes * sum(len(samples) for samples, _ in self._begun.reading)

    def take(self, seconds: float) -> Taken | None:
        with self._using:
            begun, reading = self._begun, self._begun.reading
            begun.begin()
            if self._left or not reading:
                raise NotDirect
            if not self._came:
                try:
                    # In one statement: between two, Ctrl-C could lose the batch.
                    self._came.extend(map(begun.native.take, (seconds,)))
                except Exception as error:
                    self._failed = error.with_traceback(None)  # raised once, when the loop asks for this batch
                    raise NotDirect from None
            if (came := self._came[0]) is None:
                self._came.clear()
                return None
            if self._left:  # another thread waits here to close the loader
                raise NotDirect
            samples = len(reading[0][0])
            found = list(map(Rows.from_bytes, self.rows, came[0], repeat(samples))), came[1]
            self._came.popleft()
            self._last = reading.popleft()
            self.samples, self.nbytes = samples, samples * self._row_nbytes
            self.drained, self.ended = begun.drained, begun.exhausted and not reading
            return found

    def called(self) -> Any:
        """Returns the samples of the batch taken last."""
        return self._last[0]

    def numbers(self) -> Any:
        """Returns their numbers, which are the same in every subset."""
        return self._last[1]

    def tickets(self) -> list[int]:
        """Returns the tickets of the oldest batch that is being read."""
        return self._begun.native.oldest()

    def leave(self) -> list[Left]:
        # First: nothing is begun any more, and `take` returns soon.
        self._left = self.drained = self._begun.drained = True
        if not self._using.acquire(timeout=LAST_WAIT):
            return []  # by a thread that hangs in a sampler, or that another process has: nobody asks for these batches
        try:
            found: list[Left] = [self._pending(fields, [0] * len(fields), counts) for fields, counts in self._came]
            if self._failed is not None:
                found.append((self._failed, self._begun.reading.popleft()[0]))
            found += [self._pending(*one) for one in self._begun.native.leave()]
            # Those of the process that this one was forked from:
            found += [(RuntimeError(FORKED), samples) for samples, _ in self._begun.reading]
            self._came.clear()
            self._begun.reading.clear()
            return found
        finally:
            self._using.release()

    def _pending(self, fields: list[Any], tickets: list[int], counts: tuple[int, ...]) -> Left:
        """Returns the next batch for the iterator: its memory, with tickets where it is still being read."""
        samples, rows_of_batch = self._begun.reading.popleft()
        parts, first = list[PendingField](), self._begun.source.first
        for rows, memory, ticket, field in zip(self.rows, fields, tickets, leaves(first.fields), strict=True):
            values = rows.from_bytes(memory, len(samples))
            work = Ticket.begun(ticket, memory, (0,) * len(counts) if parts else counts)
            parts.append(PendingField([Pending(values, work, values.nbytes)], field, rows_of_batch))
        return PendingBatch(first.layouts, parts), samples

    def native(self, seconds: float, reclaim: Callable[[], Any]) -> _native.ReadAhead | None:
        return self._begun.native

    def next_samples(self, place: int) -> int:
        self._begun.begin()
        return len(self._begun.reading[place][0]) if place < len(self._begun.reading) else 0

    def handed(self) -> None:
        begun = self._begun
        self._last = begun.reading.popleft()
        self.samples = len(self._last[0])
        self.nbytes = self.samples * self._row_nbytes
        self.drained, self.ended = begun.drained, begun.exhausted and not begun.reading

    def take_back(self, left: list[Any], error: Exception | None) -> None:
        self._came.extend(left)
        self._failed = error


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


DirectSource: TypeAlias = RunBatches | ReaderBatches  # native code may take their batches, to copy them to a device
