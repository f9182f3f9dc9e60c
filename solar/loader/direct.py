"""DirectBatches: batches for which nothing is left to do between their bytes and your loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import add, itemgetter
from typing import Any

import numpy as np
import torch

from solar.buffer.buffered_pass import BufferedPass
from solar.io.reading.engine import COUNT_NAMES, Ticket
from solar.io.reading.reader import Pending, Rows
from solar.io.reading.run import Running
from solar.io.system.waiting import SAID_AFTER, until
from solar.loader.batch import BatchMaker, here
from solar.loader.batch_future import BatchFuture, profiling
from solar.loader.collate import Collation
from solar.samplers.epoch_position import EpochPosition
from solar.samples.pending import PendingBatch, PendingField, leaves
from solar.samples.source import SampleSource

Taken = tuple[Iterable[Any], tuple[int, ...]]  # the arrays of a batch, and the counts of reading it
Assemble = Callable[[list[Any]], Any]  # what makes a batch of the tensors of its fields
Left = tuple[PendingBatch, Any] | Exception  # a batch on its way, and its samples
FOLDED = 64  # batches whose counts are added up together


class NotDirect(Exception):
    """Nothing is wrong with this batch, but it needs more than the short way has."""


class DirectBatches:
    """Hands out batches that are taken as they come. `hand_out` raises where more is to be done; then `leave`.

    It makes no object that outlasts a batch, and counts nothing: Stats does when it is asked, or after some batches.
    """

    def __init__(self, way: Way, stats: Any, passage: EpochPosition, waits: bool) -> None:
        self.way = way
        self._stats, self._passage, self._waits = stats, passage, waits
        self._noted = stats.noted
        passage.taken = way.called  # who asks calls it
        stats.held((way.ahead + 1) * way.nbytes)  # the most at a time: the next is begun before one is handed out
        stats.held(-way.nbytes)

    def hand_out(self, asked: float, last: float) -> tuple[Any, float]:
        """The next batch, and when it was handed out. It was asked for then, and the last handed out then (0: none)."""
        way = self.way
        if profiling():  # the long way has its ranges
            raise NotDirect
        came = way.take(0.0)
        if came is None:
            if not self._waits:
                raise NotDirect
            came = until(way.take, SAID_AFTER)
            if came is None:  # the long way says what it waits for
                raise NotDirect
        arrays, counts = came
        there = time.perf_counter()
        data = way.assemble(list(map(torch.from_numpy, arrays)))
        self._passage.advance()
        now = time.perf_counter()
        self._noted.append(
            (asked - last if last else 0.0, there - asked, now - there, way.samples, way.nbytes, way.names, counts)
        )
        if len(self._noted) >= FOLDED:
            self._stats.fold()
        return data, now

    def leave(self, making: BatchMaker) -> list[BatchFuture | Exception]:
        """The batches on their way, for the long way."""
        way, coming = self.way, list[BatchFuture | Exception]()
        for one in way.leave():
            if isinstance(one, Exception):
                coming.append(one)
                continue
            left = here(one[0], way.samples, making, ())
            left.called = one[1]
            coming.append(left)
        held = sum(isinstance(one, BatchFuture) for one in coming)
        self._stats.held((held - way.ahead) * way.nbytes)
        return coming


def assembly(beneath: SampleSource, collation: Collation | None) -> Assemble | None:
    """None where it takes more than naming them."""
    opened, structure = beneath.first.opened(), beneath.first.layouts
    rows = [one.rows for one in opened]
    if beneath.first.constants is not None or len(leaves(structure)) > len(rows):
        return None  # which are put beside what is read; columns of a table share its rows
    if beneath.first.draws or any(one.extents is not None for one in rows):
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


def of_run(turn: BufferedPass, assemble: Assemble) -> RunBatches | None:
    """The batches that a run makes; None where they are few, or of several sizes."""
    found = turn.from_run()
    if found is None:
        return None
    run, first, sizes = found
    number = len(sizes) - turn.ahead - 1  # the last ones are left: one may be smaller, and the end must be seen
    if number < 1 or sizes[0] < 1 or np.any(sizes[:-1] != sizes[0]):
        return None
    return RunBatches(turn, assemble, run, first, int(sizes[0]), number)


def of_reader(
    indices: Iterator[Any], beneath: SampleSource, assemble: Assemble, samples: int, ahead: int, nbytes_ahead: int
) -> ReaderBatches | None:
    """Batches that are read one by one; None where these are not plain, or too large to be `ahead` of the loop."""
    if len(beneath.datasets) > 1 or samples < 1:
        return None
    rows = [one.rows for one in beneath.first.opened()]
    nbytes = samples * sum(one.sample_nbytes for one in rows)
    if not all(one.plain for one in rows) or (ahead + 1) * nbytes > nbytes_ahead:
        return None
    return ReaderBatches(indices, beneath, assemble, samples, ahead)


class RunBatches:
    """Batches that a run makes."""

    names = (*COUNT_NAMES, "made_by_run")

    def __init__(
        self, turn: BufferedPass, assemble: Assemble, run: Running, first: int, samples: int, number: int
    ) -> None:
        self.assemble = assemble
        self.samples, self.nbytes, self.ahead = samples, samples * sum(run.row_nbytes), turn.ahead
        self._run, self._first, self.begun, self._end = run, first, 0, number
        self.indices = self._turn = turn

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
        """The samples of the batch taken last."""
        return self._turn.called(self._first + self.begun - 1) if self.begun else ()

    def leave(self) -> list[Left]:
        self._turn.taken(self.begun)
        return []  # the long way asks the run for them


class ReaderBatches:
    """Batches that are read for the loop, one by one, as many ahead as the long way would read."""

    names = COUNT_NAMES

    def __init__(
        self, indices: Iterator[Any], beneath: SampleSource, assemble: Assemble, samples: int, ahead: int
    ) -> None:
        self.samples, self.ahead, self.assemble = samples, ahead, assemble
        self.indices, self._beneath = indices, beneath
        self._rows: list[Rows] = [one.rows for one in beneath.first.opened()]
        self.nbytes = samples * sum(one.sample_nbytes for one in self._rows)
        self._coming: deque[tuple[tuple[Ticket, ...], tuple[Any, ...], Any, Any] | Exception] = deque()
        self.begun = 0
        self._last: Any = ()

    def take(self, seconds: float) -> Taken | None:
        while len(self._coming) <= self.ahead:
            self._begin()
        came = self._coming[0]
        assert isinstance(came, tuple), "what failed is left to the long way"
        tickets, arrays, _, samples = came
        counts: tuple[int, ...] = ()
        try:
            for ticket in tickets:
                own = ticket.ended(seconds)
                if own is None:
                    return None
                counts = tuple(map(add, counts, own)) if counts else own
        except Exception as error:
            self._coming[0] = error.with_traceback(None)  # raised once, when the loop asks for this batch
            raise NotDirect from None
        self._coming.popleft()
        self._last = samples
        return arrays, counts

    def tickets(self) -> tuple[Ticket, ...]:
        """Those of the oldest batch on its way."""
        came = self._coming[0]
        return came[0] if isinstance(came, tuple) else ()

    def called(self) -> Any:
        """The samples of the batch taken last."""
        return self._last

    def _begin(self) -> None:
        try:
            samples = next(self.indices)
        except StopIteration:
            raise NotDirect from None
        except Exception as error:  # comes after the batches on their way
            self.indices = _raising(error)
            raise NotDirect from None
        try:
            if not isinstance(samples, np.ndarray) or len(samples) != self.samples:
                raise NotDirect
            asked = samples if self._beneath.plain else self._beneath.locate(samples)[1]
            began = [one.begin(asked) for one in self._rows]
        except Exception:  # also what is wrong with it: on the long way that is known to be this batch's error
            self.indices = chain([samples], self.indices)
            raise
        self._coming.append((*zip(*began, strict=True), asked, samples))
        self.begun += 1

    def leave(self) -> list[Left]:
        structure, found = self._beneath.first.layouts, list[Left]()
        while self._coming:
            came = self._coming.popleft()
            if isinstance(came, Exception):
                found.append(came)
                continue
            pairs = zip(*came[:2], strict=True)
            fields = [PendingField([Pending(values, ticket, values.nbytes)], None, came[2]) for ticket, values in pairs]
            found.append((PendingBatch(structure, fields), came[3]))
        return found


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


Way = RunBatches | ReaderBatches  # where batches come from: all of `samples` and `nbytes`, `ahead` of the loop


def way_of(
    turn: BufferedPass | None,
    indices: Iterator[Any],
    beneath: SampleSource,
    collation: Collation | None,
    samples: int,
    ahead: tuple[int, int],
) -> Way | None:
    """The short way of batches of so many samples; None where there is none. `ahead` are batches, and bytes at most."""
    assemble = assembly(beneath, collation)
    if assemble is None:
        return None
    return of_reader(indices, beneath, assemble, samples, *ahead) if turn is None else of_run(turn, assemble)
