"""Underway: the batches of an exchange, each until it is complete, has been taken, and its parcel was sent."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import SolarError


class Stretch(NamedTuple):
    """Batches from number `base` on, and their exchanged rows: those of step s lie in [at[s], at[s + 1])."""

    base: int
    sizes: NDArray[np.int64]  # rows of the batches' memory
    sent: NDArray[np.int64]  # as in Parcels
    sent_at: NDArray[np.int64]
    come: NDArray[np.int64]
    come_at: NDArray[np.int64]


@dataclass(eq=False)
class Batch:
    """A batch of the exchange."""

    number: int
    read: float = 0.0  # the time when the run had made it
    said: float = 0.0  # the time when all peers had announced their rows
    here: float = 0.0  # the time when all rows had arrived
    values: list[NDArray[Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    error: Exception | None = None
    missing: list[int] = field(default_factory=list)  # of each letter that is not here yet, whose it is
    exchanged: int = 0  # bytes that came
    letters: list[tuple[int, Any]] = field(default_factory=list)  # on their way to peers
    sent: bool = False
    taken: bool = False

    @property
    def whole(self) -> bool:
        """Whether it can be taken: it is complete, or has failed."""
        return not self.taken and (self.error is not None or not self.missing)


class Underway:
    """At most `window` batches, shared by the threads that exchange and those that take. Any thread may call."""

    def __init__(self, window: int) -> None:
        self.changed = threading.Condition()  # of an RLock: garbage may be collected while it is held
        self.batches: dict[int, Batch] = {}
        self.given = 0
        self.closing = False
        self.fatal: Exception | None = None  # the error that stopped the exchange
        self._window = window
        self._unwanted: set[int] = set()
        self._stretches: deque[Stretch] = deque()
        self._next = self._appended = 0

    def append(self, stretch: Stretch) -> None:
        """Appends the next stretch."""
        with self.changed:
            self._stretches.append(stretch)
            self._appended += len(stretch.sizes)
            self.changed.notify_all()

    def room(self) -> tuple[int, Stretch] | None:
        """Waits for room; gives the number of the next batch and its stretch. None at the end."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.ends() or (self._next < self._appended and len(self.batches) < self._window)
            )
            if self.ends():
                return None
            while self._next >= self._stretches[0].base + len(self._stretches[0].sizes):
                self._stretches.popleft()
            return self._next, self._stretches[0]

    def ends(self) -> bool:
        """Whether no further batch will begin."""
        return self.closing or self.fatal is not None

    def put(self, batch: Batch) -> None:
        """Adds the next batch."""
        with self.changed:
            self._next = batch.number + 1
            self.batches[batch.number] = batch
            if batch.number in self._unwanted:
                self.let_go(batch.number)
            self.changed.notify_all()

    def whole(self, number: int, seconds: float) -> Batch | None:
        """This batch, if it is complete within this time. Raises its error if it failed."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_whole(number) or self.ends() or number in self._unwanted, seconds)
            if self._is_whole(number):
                return self.batches[number]
            if number in self._unwanted:
                raise RuntimeError("this batch was given up")
            if self.fatal is not None:
                raise type(self.fatal)(str(self.fatal))
            if self.closing:
                raise RuntimeError("this run was closed")
            return None

    def _is_whole(self, number: int) -> bool:
        batch = self.batches.get(number)
        return batch is not None and batch.whole

    def let_go(self, number: int) -> None:
        """Hands this batch over to whoever waited for it."""
        with self.changed:
            batch = self.batches.get(number)
            if batch is not None and not batch.taken:
                batch.taken = True
                self.given += 1
                self._leave(batch)

    def forget(self, number: int) -> None:
        """Drops a batch that nobody will ask for, whether it is here or comes later."""
        with self.changed:
            self._unwanted.add(number)
            self.let_go(number)
            self.changed.notify_all()

    def came(self, peer: int, batch: Batch, nbytes: int, error: Exception | None = None) -> None:
        """Notes that a letter of a peer for a batch has arrived, or failed with `error`."""
        with self.changed:
            batch.exchanged += nbytes
            batch.error = batch.error or error
            batch.missing.remove(peer)
            batch.here = time.monotonic()
            self._leave(batch)
            self.changed.notify_all()

    def left(self, batch: Batch) -> None:
        """Notes that its parcel was sent."""
        with self.changed:
            batch.letters, batch.sent = [], True
            self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        """Makes room for another batch, if nobody needs this one."""
        if batch.taken and batch.sent and not batch.missing:
            self.batches.pop(batch.number, None)
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Fails all batches that are not complete."""
        with self.changed:
            if self.fatal is None:
                known = isinstance(error, SolarError)
                self.fatal = error if known else RuntimeError(f"the exchange of samples failed: {error!r}")
            self.changed.notify_all()

    def close(self) -> None:
        """Closes: nobody will ask for incomplete batches."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
