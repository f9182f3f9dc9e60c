"""DirectBatches: batches for which nothing is left to do between their bytes and your loop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from solar import _native
from solar.buffer.buffered_pass import BufferedPass
from solar.io.reading.engine import COUNT_NAMES, LAST_WAIT, Engine, Ticket
from solar.io.reading.reader import Pending, Rows
from solar.io.reading.run import Running
from solar.io.system.waiting import SAID_AFTER, until
from solar.loader.batch import BatchMaker, here
from solar.loader.batch_future import FORKED, BatchFuture, profiling
from solar.loader.collate import Collation
from solar.loader.way import Assemble, BatchFeed, DirectSource, Left, NotDirect, Taken
from solar.samplers.epoch_position import EpochPosition
from solar.samples.pending import PendingBatch, PendingField, leaves
from solar.samples.source import SampleSource

FOLDED = 64  # batches whose counts are added up together


class DirectBatches:
    """Hands out batches that are taken as they come. `hand_out` raises where more is to be done; then `leave`.

    It makes no object that outlasts a batch, and counts nothing: Stats does when it is asked, or after some batches.
    """

    def __init__(self, source: DirectSource, feed: BatchFeed, stats: Any, position: EpochPosition, waits: bool) -> None:
        self.source, self.feed = source, feed
        self._stats, self._position, self._waits = stats, position, waits
        self._noted, self._held = stats.noted, source.ahead * source.nbytes  # between two batches
        position.taken = source.called  # who asks calls it
        stats.held(self._held + source.nbytes)  # the most at a time: the next is begun before one is handed out
        stats.held(-source.nbytes)

    def hand_out(self, asked_at: float, last: float) -> tuple[Any, float]:
        """The next batch, and when it was handed out. It was asked for then, and the last handed out then (0: none)."""
        source, feed = self.source, self.feed
        if profiling():  # the long way has its ranges
            raise NotDirect
        came = feed.take(0.0)
        if came is None:
            if not self._waits:
                raise NotDirect
            came = until(feed.take, SAID_AFTER)
            if came is None:  # the long way says what it waits for
                raise NotDirect
        parts, counts = came
        there = time.perf_counter()
        data = source.assemble(parts)
        self._position.advance()
        now = time.perf_counter()
        self._noted.append(
            (
                asked_at - last if last else 0.0,
                there - asked_at,
                now - there,
                source.samples,
                source.nbytes,
                feed.names,
                counts,
            )
        )
        if source.drained:
            before, self._held = self._held, source.left
            self._stats.held(self._held - before)
        if source.ended:
            self._stats.whole()
        elif len(self._noted) >= FOLDED:
            self._stats.fold()
        return data, now

    def leave(self, making: BatchMaker) -> list[BatchFuture | Exception]:
        """The batches on their way, for the long way."""
        future = list[BatchFuture | Exception]()
        held = -self._held
        for one in self.feed.leave():
            if isinstance(one, Exception):
                future.append(one)
                continue
            left = here(one[0], len(one[1]), making, ())
            left.called = one[1]
            held += one[0].nbytes
            future.append(left)
        self._stats.held(held)
        return future


def assembly(source: SampleSource, collation: Collation | None) -> Assemble | None:
    """None where it takes more than naming them."""
    opened, structure = source.first.opened(), source.first.layouts
    rows = [one.rows for one in opened]
    if source.first.constants is not None or len(leaves(structure)) > len(rows):
        return None  # which are put beside what is read; columns of a table share its rows
    if source.first.draws or any(one.extents is not None for one in rows):
        return None  # places are of an epoch; and fields that are read together are cut apart
    if collation is None or not all(collation.as_they_are(one.dtype, 1 + len(one.sample_shape)) for one in rows):
        return None
    if isinstance(structure, dict):
        names = tuple(structure)
        return None if _nested(structure.values()) else lambda found: dict(zip(names, found, strict=True))
    if isinstance(structure, tuple):
        return None if _nested(structure) else list
    return itemgetter(0)


def _nested(parts: Any) -> bool:
    return any(isinstance(part, (dict, tuple)) for part in parts)


def of_run(buffered_pass: BufferedPass, assemble: Assemble) -> RunBatches | None:
    """The batches that a run makes; None where they are few, or of several sizes."""
    found = buffered_pass.from_run()
    if found is None:
        return None
    run, first, sizes = found
    number = (
        len(sizes) - buffered_pass.ahead - 1
    )  # the last ones are left: one may be smaller, and the end must be seen
    if number < 1 or sizes[0] < 1 or np.any(sizes[:-1] != sizes[0]):
        return None
    return RunBatches(buffered_pass, assemble, run, first, int(sizes[0]), number)


def of_reader(
    indices: Iterator[Any], source: SampleSource, assemble: Assemble, samples: int, ahead: int, nbytes_ahead: int
) -> ReaderBatches | None:
    """Batches that are read one by one; None where these are not plain, or too large to be `ahead` of the loop."""
    if len(source.datasets) > 1 or samples < 1:
        return None
    rows = [one.rows for one in source.first.opened()]
    nbytes = samples * sum(one.sample_nbytes for one in rows)
    ahead = min(ahead, nbytes_ahead // max(1, nbytes) - 1)
    if not all(one.plain for one in rows) or ahead < 1:
        return None
    return ReaderBatches(indices, source, assemble, samples, ahead)


class RunBatches:
    """Batches that a run makes."""

    names: tuple[str, ...] = (*COUNT_NAMES, "made_by_run")
    ended = drained = False
    left = 0

    def __init__(
        self, buffered_pass: BufferedPass, assemble: Assemble, run: Running, first: int, samples: int, number: int
    ) -> None:
        self.assemble, self.rows = assemble, run.rows
        self.samples, self.nbytes, self.ahead = samples, samples * sum(run.row_nbytes), buffered_pass.ahead
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
        return list(map(torch.from_numpy, found[0])), (*found[1], 1)

    def called(self) -> Any:
        """The samples of the batch taken last."""
        return self._buffered_pass.called(self._first + self.begun - 1) if self.begun else ()

    def leave(self) -> list[Left]:
        self._buffered_pass.taken(self.begun)
        return []  # the long way asks the run for them

    def native(self, seconds: float, reclaim: Callable[[], Any]) -> _native.Run | None:
        self._handed = 0
        return self._run.lend(self._first + self.begun, seconds, reclaim)

    def next_samples(self, place: int) -> int:
        return self.samples if self.begun + place < self._end else 0

    def handed(self) -> None:
        self.begun += 1
        self._handed += 1
        self._run.passed()

    def take_back(self, left: list[Any], error: Exception | None) -> None:
        self._run.take_back(self._handed, left, error)


class ReaderBatches:
    """Batches that are read for the loop, one by one, as many ahead as the long way would read."""

    names: tuple[str, ...] = COUNT_NAMES

    def __init__(
        self, indices: Iterator[Any], source: SampleSource, assemble: Assemble, samples: int, ahead: int
    ) -> None:
        self.samples, self.ahead, self.assemble = samples, ahead, assemble
        self.indices, self._source = indices, source
        self.rows = [one.rows for one in source.first.opened()]
        self._row_nbytes: int = sum(one.sample_nbytes for one in self.rows)
        self.nbytes = samples * self._row_nbytes
        self._ahead = _native.ReadAhead(Engine.get(), [one.source for one in self.rows if one.source is not None])
        self._begun_batches = deque[tuple[Any, Any]]()  # of each batch that was begun: its samples, and their rows
        self._came = deque[Any]()  # received, and not yet handed out
        self._failed: Exception | None = None
        self._using = threading.RLock()  # by the loop, or by another thread that closes the loader
        self._left = False
        self.drained = False  # no more are begun
        self._exhausted = False  # there are no more
        self.begun = 0
        self._last: Any = ()

    @property
    def ended(self) -> bool:
        return self._exhausted and not self._begun_batches

    @property
    def left(self) -> int:
        return self._row_nbytes * sum(len(samples) for samples, _ in self._begun_batches)

    def take(self, seconds: float) -> Taken | None:
        with self._using:
            if self._left:
                raise NotDirect
            return self._take(seconds)

    def _take(self, seconds: float) -> Taken | None:
        self._begin()
        if not self._begun_batches:
            raise NotDirect
        if not self._came:
            try:
                # In one statement: between two, Ctrl-C could lose the batch.
                self._came.extend(map(self._ahead.take, (seconds,)))
            except Exception as error:
                self._failed = error.with_traceback(None)  # raised once, when the loop asks for this batch
                raise NotDirect from None
        if (came := self._came[0]) is None:
            self._came.clear()
            return None
        samples = len(self._begun_batches[0][0])
        values = map(torch.from_numpy, map(Rows.from_bytes, self.rows, came[0], repeat(samples)))
        found = list(values), came[1]
        self._came.popleft()
        self.handed()
        return found

    def called(self) -> Any:
        """The samples of the batch taken last."""
        return self._last

    def tickets(self) -> list[int]:
        """Those of the oldest batch on its way."""
        return self._ahead.oldest()

    def _begin(self) -> None:
        """Begins batches, as many as may be ahead."""
        while len(self._begun_batches) <= self.ahead and not self.drained:
            try:
                samples = next(self.indices)
            except StopIteration:
                self.drained = self._exhausted = True
                self.indices = iter(())
                break
            except Exception as error:  # comes after the batches on their way
                self.drained, self.indices = True, _raising(error)
                break
            try:
                if not isinstance(samples, np.ndarray) or not len(samples):
                    raise NotDirect
                rows = samples if self._source.plain else self._source.locate(samples)[1]
                self._ahead.begin(np.ascontiguousarray(rows, np.int64))
            except Exception:  # also what is wrong with it: on the long way that is known to be this batch's error
                self.drained, self.indices = True, chain([samples], self.indices)
                break
            self._begun_batches.append((samples, rows))
            self.begun += 1

    def leave(self) -> list[Left]:
        self._left = self.drained = True  # first: nothing is begun any more, and `take` returns soon
        if not self._using.acquire(timeout=LAST_WAIT):
            return []  # by a thread that hangs in a sampler, or that another process has: nobody asks for these batches
        try:
            found: list[Left] = [self._pending(fields, [0] * len(fields), counts) for fields, counts in self._came]
            if self._failed is not None:
                self._begun_batches.popleft()
                found.append(self._failed)
            found += [self._pending(*one) for one in self._ahead.leave()]
            found += [RuntimeError(FORKED) for _ in self._begun_batches]  # those of the process it was forked from
            self._came.clear()
            self._begun_batches.clear()
            return found
        finally:
            self._using.release()

    def _pending(self, fields: list[Any], tickets: list[int], counts: tuple[int, ...]) -> Left:
        """The next batch for the long way: its memory, and where it is still being read the tickets of that."""
        samples, rows_of_batch = self._begun_batches.popleft()
        parts = list[PendingField]()
        for rows, memory, ticket in zip(self.rows, fields, tickets, strict=True):
            values = rows.from_bytes(memory, len(samples))
            work = Ticket.begun(ticket, memory, (0,) * len(counts) if parts else counts)
            parts.append(PendingField([Pending(values, work, values.nbytes)], None, rows_of_batch))
        return PendingBatch(self._source.first.layouts, parts), samples

    def native(self, seconds: float, reclaim: Callable[[], Any]) -> _native.ReadAhead | None:
        return self._ahead

    def next_samples(self, place: int) -> int:
        self._begin()
        return len(self._begun_batches[place][0]) if place < len(self._begun_batches) else 0

    def handed(self) -> None:
        self._last, _ = self._begun_batches.popleft()
        self.samples = len(self._last)
        self.nbytes = self.samples * self._row_nbytes

    def take_back(self, left: list[Any], error: Exception | None) -> None:
        self._came.extend(left)
        self._failed = error


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def direct_source(
    buffered_pass: BufferedPass | None,
    indices: Iterator[Any],
    source: SampleSource,
    collation: Collation | None,
    samples: int,
    ahead: tuple[int, int],
) -> RunBatches | ReaderBatches | None:
    """The short way of batches of so many samples; None where there is none. `ahead` are batches, and bytes at most."""
    assemble = assembly(source, collation)
    if assemble is None:
        return None
    return (
        of_reader(indices, source, assemble, samples, *ahead)
        if buffered_pass is None
        else of_run(buffered_pass, assemble)
    )
