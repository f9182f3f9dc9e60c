"""Exchange: batches that need rows from the home regions of other nodes, whose ranks send them ahead of need.

    Running --batch--> its parcel is sent, its own places wait for rows of others --all here--> wait() --> let_go()

A batch's memory holds its own rows, and behind them the parcel: rows for other ranks. Ranks send each other rows in the
order of their batches: a head of four numbers, then the rows of each field. Fields that have rows of their own travel
one after another, each behind a head. A rank that closes sends END, and receives what still comes until the others have
sent END, too. So nobody waits for ever.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import ReadError
from solar.io.exchange.traffic import Traffic
from solar.io.exchange.underway import Batch, Stretch, Underway
from solar.io.machine.late import Late, until, until_others
from solar.io.ranks.mail import Mail
from solar.io.ranks.mail import mail as mail
from solar.io.read.run import Running
from solar.values import Parcels, Told

log = logging.getLogger("solar")

LAST_WORDS = 5.0  # seconds that the other ranks have to close, once one does


class Exchange:
    """A Running whose batches also have the rows that other ranks send.

    It holds at most `window` batches that have not been taken. All ranks must make it together, append stretches that
    fit each other, and take all batches, or close it.
    """

    def __init__(self, running: Running, mail: Mail, window: int, letters: Sequence[slice] = (slice(None),)) -> None:
        """`letters` are the arrays of a batch that travel together: all, or those of one field and of another."""
        assert window >= 1
        self._letters = len(letters)
        self.parts, self.nbytes, self.staged = running.parts, running.nbytes, running.staged
        self._running = running
        self._underway = Underway(window)
        self._waited = 0.0  # seconds, for rows of other ranks alone
        self._travelled = 0.0  # seconds of these while the rows were on their way
        self._traffic: Traffic | None = Traffic(running, mail, self._underway, letters)  # None in a forked process
        _live.add(self)

    @property
    def appended(self) -> int:
        """The number of batches appended so far."""
        return self._running.appended

    @property
    def given(self) -> int:
        """The number of batches that nobody will ask for again."""
        return self._underway.given

    @property
    def broken(self) -> bool:
        """Whether what went wrong was more than one batch's: nothing comes any more."""
        return self._underway.fatal is not None

    def append(self, sizes: NDArray[np.int64], told: Sequence[Told], parcels: Parcels) -> None:
        """Appends a stretch of batches, whose memory has so many rows each: own rows and the parcel."""
        assert (len(sizes), self._letters) == (len(parcels.sizes), parcels.letters)
        assert np.all(sizes >= parcels.sizes)
        base = self._running.appended
        self._running.append(sizes, told)
        sent, come, firsts = parcels.sent, parcels.come, np.arange(len(sizes) + 1) * parcels.letters
        sent_at, come_at = np.searchsorted(sent[:, 0], firsts), np.searchsorted(come[:, 0], firsts)
        self._underway.append(Stretch(base, sizes, sent, sent_at, come, come_at))

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]:
        """The fields of this batch, and counts. TimeoutError after `seconds` says what is missing.

        One may wait again until `let_go`, so Ctrl-C loses no batch. Beside the counts of a Running: exchanged_bytes
        came from other ranks; exchange_wait_ns is the time this call waited for them alone, and travel_wait_ns the
        part of it while the rows were on their way.
        """
        begin = time.monotonic()

        def whole(nap: float) -> Batch | None:
            if self._traffic is None:
                raise RuntimeError("this run was closed")
            return self._underway.whole(number, nap)

        def missing() -> str:
            return "" if self._traffic is None else self._traffic.waiting_for(number)

        if seconds is None:
            batch: Batch | None = until_others(whole, f"batch {number} of this run", missing)
        else:
            batch = until(whole, seconds)
        if batch is None:
            raise Late.values(seconds, missing())
        if batch.error is not None:
            try:
                raise batch.error
            finally:
                del batch  # or its error and this frame, which is in its traceback, would keep each other alive
        stood = max(0.0, batch.here - max(begin, batch.read))
        on_way = max(0.0, batch.here - max(begin, batch.read, batch.said))
        with self._underway.changed:
            self._waited += stood
            self._travelled += on_way
        took = {
            "exchanged_bytes": batch.exchanged, "exchange_wait_ns": int(stood * 1e9),
            "travel_wait_ns": int(on_way * 1e9),
        }  # fmt: skip
        return [one[:samples] for one in batch.values], {**batch.counts, **took}

    def let_go(self, number: int) -> None:
        """Hands this batch over to whoever waited for it."""
        if self._traffic is not None:
            self._underway.let_go(number)

    def forget(self, number: int) -> None:
        """Drops a batch that nobody will ask for. Other ranks still get their rows of it."""
        if self._traffic is not None:
            self._underway.forget(number)

    def counts(self) -> dict[str, int]:
        """Counts since the run began: what it read, held and found, and what was sent, received, and waited for."""
        if self._traffic is None:
            return {}
        waits = {"exchange_wait_ns": int(self._waited * 1e9), "travel_wait_ns": int(self._travelled * 1e9)}
        return {**self._running.counts(), **self._traffic.counts(), **waits}

    def fail(self, why: Exception) -> None:
        """Tells all other ranks why this one stops. Call close() afterwards."""
        self._running.fail(why)
        if self._traffic is not None:
            self._traffic.fail(ReadError(str(why)))

    def close(self) -> None:
        """Ends the exchange and the run. Waits a little for the other ranks, and still receives what they send."""
        traffic = self._traffic
        if traffic is not None and traffic not in _left and not traffic.close(LAST_WORDS):
            log.info(
                "%s not closed their loaders after %g s: what they send is taken until this process ends",
                traffic.open_peers(), LAST_WORDS,
            )  # fmt: skip
            _left.append(traffic)

    def drop(self) -> None:
        """Ends it without waiting for other ranks, for the garbage collector may call it anywhere."""
        traffic = getattr(self, "_traffic", None)
        if traffic is not None and traffic not in _left and not sys.is_finalizing():
            _dropped.add(traffic)
            traffic.drop()

    def __del__(self) -> None:
        self.drop()


# --- the end of the process, and its forks ----

_live: weakref.WeakSet[Exchange] = weakref.WeakSet()
_dropped: weakref.WeakSet[Traffic] = weakref.WeakSet()  # their own threads close these
_left: list[Traffic] = []  # never destroyed: others still send to them, or they belong to another process


def _close_all() -> None:
    for exchange in list(_live):
        exchange.close()
    for traffic in list(_dropped):
        traffic.close(LAST_WORDS)


def _forget_all() -> None:
    for exchange in list(_live):
        if exchange._traffic is not None:
            _left.append(exchange._traffic)
            exchange._traffic = None
    _left.extend(_dropped)
    _live.clear()
    _dropped.clear()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)  # before that of the runs, which was registered first
