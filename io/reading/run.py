"""Running: a native Run in this process, which reads into a buffer by Scripts, and assembles batches."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, call
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.reading.engine import COUNT_NAMES, LAST_WAIT, Engine
from solar.io.reading.reader import Rows
from solar.io.system import lifecycle
from solar.io.system.cores import reading_threads
from solar.io.system.waiting import WaitTimeout, until, until_others
from solar.samples.row_windows import Listing
from solar.values import Layout, PartScript, RunPart

log = logging.getLogger("solar")

FROM_BYTES = attrgetter("from_bytes")

SHARED_PAGE = 4 << 10  # at which each part begins in a node's memory
READ_PIECE = 5 << 20  # what a thread reads of samples that are not encoded in one go, at most, with what lies around it


class Run(Protocol):
    """Makes the batches of a buffer: a Running, or an Exchange, which gets some rows from other nodes."""

    parts: tuple[RunPart, ...]
    nbytes: int  # memory that it holds
    staged: int  # batches that are there before they are asked for
    count_names: tuple[str, ...]  # of the counts of a batch

    @property
    def broken(self) -> bool: ...  # it failed as a whole: no further batch comes
    @property
    def appended(self) -> int: ...  # batches appended so far
    @property
    def released(self) -> int: ...  # batches that nobody will ask for again

    def append(self, sizes: NDArray[np.int64], scripts: Sequence[PartScript], parcels: Any) -> None: ...
    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]: ...
    def at_hand(self, number: int, samples: int, nap: float) -> tuple[list[NDArray[Any]], tuple[int, ...]] | None: ...
    def let_go(self, number: int) -> None: ...
    def forget(self, number: int) -> None: ...
    def counts(self) -> dict[str, int]: ...
    def fail(self, why: Exception) -> None: ...
    def close(self) -> None: ...
    def drop(self) -> None: ...


class ReceivedBatches:
    """Batches that came from a run, or the errors in their place, by number, until they are let go."""

    def __init__(self) -> None:
        self.here: dict[int, Any] = {}
        self.number = 0  # of the batch that comes next
        self.unwanted: set[int] = set()
        self.released = 0  # batches that nobody will ask for again
        self.came: deque[Any] = deque()  # received, not yet looked at
        self._counting = threading.Lock()

    def let_go(self, number: int) -> None:
        """Releases a batch that was handed out."""
        if self.here.pop(number, None) is not None:
            with self._counting:
                self.released += 1

    def passed(self) -> None:
        """Counts a batch that nobody will ask for again."""
        with self._counting:
            self.released += 1


class Running:
    """Batches that a native Run makes, in order. Several threads may wait, each for a batch of its own."""

    count_names = COUNT_NAMES

    def __init__(
        self,
        rows: Sequence[Rows],
        parts: Sequence[RunPart],
        staged: int,
        scratch: int,
        node: _native.Node | None = None,  # its processes run the same plan in its memory: see shared_nbytes
        lends: int = 0,  # batches that whoever takes them has while another is begun; 0: any number
        passed_on: bool = False,  # whoever takes batches passes them on to who asks for them
    ) -> None:
        self.parts = tuple(parts)
        self.nbytes = sum(part.pages * part.page for part in parts) + reading_threads() * scratch
        self.staged = staged
        self.appended = 0  # batches
        self.rows = [next(r for r, p in zip(rows, parts, strict=True) if p.field == f) for f in _fields_of(parts)]
        self._several = any(one.extents is not None for one in self.rows)  # of which fields are read together
        self._received, self._taking = ReceivedBatches(), threading.Lock()
        self.let_go = self._received.let_go  # of a batch that was handed out
        self._reclaim: Callable[[], Any] | None = None  # has whoever takes batches from the native run give it back
        self._node = node
        self._run: _native.Run | None = _native.Run(Engine.get(), staged, scratch, node, lends, passed_on=passed_on)
        for one, part in zip(rows, parts, strict=True):
            assert one.source is not None, "the loader asks only for what is read directly"
            self._run.part(one.source, part.field, *held_natively(one, part))
        _live.add(self)

    @property
    def released(self) -> int:
        """The number of batches that nobody will ask for again."""
        return self._received.released

    @property
    def row_nbytes(self) -> list[int]:
        """The bytes of a sample of each field."""
        return [nbytes for one in self.rows for nbytes in one.parts_nbytes]

    def append(self, sizes: NDArray[np.int64], scripts: Sequence[PartScript], parcels: None = None) -> None:
        """Appends a stretch of batches with these numbers of samples. Nothing is exchanged, so there are no parcels."""
        assert self._run is not None
        self._run.append(sizes, [columns(one) for one in scripts])
        self.appended += len(sizes)

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]:
        """Returns the fields of this batch, and counts of reading it. A TimeoutError after `seconds` says what is
        missing.

        Fields that are read together come one after another. One may wait again until `let_go`, so Ctrl-C loses no
        batch.
        """

        def missing() -> str:
            return "" if self._run is None else self._run.waiting_for()

        at_hand = partial(self.at_hand, number, samples)
        found = at_hand(0.0)
        if found is None and seconds is None and self._node is not None:
            found = until_others(at_hand, f"batch {number} of this run", missing)
        found = found or until(at_hand, seconds)
        if found is None:
            raise WaitTimeout.values(seconds, missing())
        values, counts = found
        return values, dict(zip(COUNT_NAMES, counts, strict=False))

    def at_hand(self, number: int, samples: int, nap: float) -> tuple[list[NDArray[Any]], tuple[int, ...]] | None:
        """Does what `wait` does, within this short time. Counts are in the order of `count_names`."""
        here = self._received.here
        if number not in here:
            if number in self._received.unwanted:
                raise RuntimeError("this batch was given up")
            if self._taking.acquire(timeout=nap):
                try:
                    if number not in here:
                        self._take(nap)
                finally:
                    self._taking.release()
            if number not in here:
                return None
        came = here[number]
        if isinstance(came, Exception):
            try:
                raise came
            finally:
                del came  # or it and this frame, which is in its traceback, would keep each other alive
        values = list(map(call, map(FROM_BYTES, self.rows), came[0], repeat(samples)))
        if self._several:
            values = [part for rows, whole in zip(self.rows, values, strict=True) for part in rows.parts(whole)]
        return values, came[1]

    def ask(self, number: int) -> None:
        """Says that somebody waits for this batch, and keeps those before it that have not come back."""
        run = self._run
        if run is not None:
            run.ask(number)

    def forget(self, number: int) -> None:
        """Drops a batch that nobody will ask for, whether it is there or comes later."""
        self._received.unwanted.add(number)
        self.let_go(number)

    def lend(self, number: int, seconds: float, reclaim: Callable[[], Any]) -> _native.Run | None:
        """Returns the native run, to take batches from this one on; None if it is not ready within this time.

        `reclaim` is called when somebody else wants a batch: then `given_back` says what was taken.
        """
        with self._taking:
            while (before := self._received.number) < number:  # batches that nobody wants any more
                self._take(seconds)
                if self._received.number == before:
                    return None
            if self._received.number != number or self._run is None:
                raise RuntimeError("others have taken this batch from the run")
            self._reclaim = reclaim
            return self._run

    def take_back(self, handed: int, left: Iterable[Any], error: Exception | None) -> None:
        """Takes the native run back after `handed` batches were handed out. `left` were taken, but not handed out."""
        received = self._received
        received.number += handed
        for one in (*left, *([] if error is None else [error])):
            received.here[received.number] = one
            received.number += 1
        self._reclaim = None  # last: others take from it now
        if self._run is not None:
            self._run.retire()

    def passed(self) -> None:
        """Counts a batch that the borrower of the native run handed out."""
        self._received.passed()

    def _take(self, seconds: float) -> None:
        run = self._run
        if run is None:
            raise RuntimeError("this run was closed")
        if self._reclaim is not None:
            self._reclaim()
            return
        received = self._received
        try:
            # In one statement: between two, Ctrl-C could lose the batch.
            received.came.extend(map(run.take, (seconds,)))
        except Exception as error:
            received.came.append(error)
        while received.came:
            if received.came[0] is not None:
                received.here[received.number] = received.came[0]
                if received.number in received.unwanted:
                    received.let_go(received.number)
                received.number += 1
            received.came.popleft()

    @property
    def broken(self) -> bool:
        """Whether the run failed as a whole, so that no further batch comes."""
        return self._run is not None and self._received.number > self._run.counts()["steps"]

    def counts(self) -> dict[str, int]:
        """Returns what the run has read, held, and found in the buffer since it began."""
        return {} if self._run is None else self._run.counts()

    def due(self) -> int:
        """Returns the engine's last ticket that the batch being made waits for; 0: none yet."""
        return 0 if self._run is None else self._run.due()

    def fail(self, why: Exception) -> None:
        """Tells the other processes of the node why this one stops. Call close() afterwards."""
        if self._node is not None:
            self._node.fail(str(why))

    def drop(self) -> None:
        """Does the same as close(): there are no others to wait for."""
        self.close()

    def close(self) -> None:
        """Drops what has not begun, and ends the threads. One that hangs in a read is left with its memory."""
        run, self._run = self._run, None
        if run is not None and not run.close(LAST_WAIT):
            log.info("a read has not returned after %g s: its buffer is left to the end of the process", LAST_WAIT)
            _left.append(run)
        if self._node is not None:
            self._node.leave()  # even if nothing was appended; no process passes a step that lacks a read


def _fields_of(parts: Sequence[RunPart]) -> list[int]:
    return sorted({part.field for part in parts})


def held_natively(rows: Rows, part: RunPart) -> tuple[Any, ...]:
    """Returns how native code holds a part."""
    own = None if part.extents is None else part.extents.native
    boxes = rows.boxes
    return part.pages, part.page, part.stored, part.direct, part.ahead, part.gap, own, boxes, part.pack


class Asked:
    """Counts the requests and bytes of a Running with these parts, using the real reader without reading."""

    def __init__(self, rows: Sequence[Rows], parts: Sequence[RunPart], scratch: int) -> None:
        self._parts = []
        for one, part in zip(rows, parts, strict=True):
            assert one.source is not None, "only what is read directly is planned"
            self._parts.append(_native.Asked(Engine.get(), scratch, one.source, *held_natively(one, part)))

    def epoch(self, sizes: NDArray[np.int64], scripts: Sequence[PartScript]) -> tuple[int, int]:
        """Returns the requests and bytes of the next stretch of batches."""
        made = [one.epoch(sizes, columns(of)) for one, of in zip(self._parts, scripts, strict=True)]
        return sum(number for number, _ in made), sum(nbytes for _, nbytes in made)


def requests_of(rows: Rows, batches: Iterable[NDArray[np.int64]]) -> tuple[int, int]:
    """Returns the requests and bytes for batches of rows at a URL that are read one by one."""
    assert rows.source is not None, "it is read directly"
    requests = nbytes = 0
    out = np.empty(0, np.uint8)
    for batch in batches:
        if len(out) != (wanted := len(batch) * rows.layout.sample_nbytes):
            out = np.empty(wanted, np.uint8)  # nothing is written to it
        made, more = _native.requests_of(rows.source, batch, out, reading_threads())
        requests, nbytes = requests + made, nbytes + more
    return requests, nbytes


def columns(part: PartScript) -> tuple[Any, ...]:
    """Returns a stretch of batches in the form that native code takes."""
    script = part.script
    rows, starts = script.rows, script.starts
    if isinstance(rows, Listing):
        starts, rows = starts // rows.extents.slots, rows.samples
    return (
        rows, part.positions, starts, script.last, script.loads, script.ends,
        script.start, script.start_ends, script.start_due, part.boxes, part.afresh,
    )  # fmt: skip


def shared_nbytes(parts: Sequence[RunPart]) -> int:
    """Returns the bytes of a node's shared memory for these parts (io/channels/node_memory.py: join)."""
    return sum(-(-part.pages * part.page // SHARED_PAGE) * SHARED_PAGE for part in parts)


def scratch_nbytes(layout: Layout) -> int:
    """Returns the least memory that a read of this Layout uses beside the buffer: one stored and one decoded chunk."""
    alone = [form for form in layout.forms if not form.filters and (not form.chunk or not form.chunk[0])]
    if len(alone) == len(layout.forms):
        return min(layout.sample_nbytes, READ_PIECE)
    # A thread works on one chunk at a time, even if a sample crosses several. Two filters need memory between them.
    values = max(math.prod(form.chunk) for form in layout.forms if form.chunk and form.chunk[0])
    return 2 * values * layout.dtype.itemsize + int(layout.chunk_nbytes.max(initial=0))


# --- the end of the process, and its forks ----

_live: weakref.WeakSet[Running] = weakref.WeakSet()
_left: list[_native.Run] = []  # never destroyed: their threads are still reading, or in another process


def close_runs() -> None:
    for running in list(_live):
        running.close()


def forget_runs() -> None:
    for running in list(_live):
        if running._run is not None:
            _left.append(running._run)
            running._run = None
    _live.clear()


lifecycle.after_fork(forget_runs)
lifecycle.at_exit(lifecycle.Ends.RUNS, close_runs)
