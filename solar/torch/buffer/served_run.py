"""ServedRun: the batches of passes as a service makes them; and read alone, one by one, where it does not."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import ReadError, SolarError
from solar.io.machine.late import Late
from solar.io.read.reader import Pending, Rows
from solar.io.serve.frames import Refused, close_all
from solar.planner.pass_uses import SampleUses
from solar.torch.buffer.door import Door, first_rows
from solar.torch.buffer.located import rows_of
from solar.torch.buffer.thread import Background, in_background
from solar.torch.source import SampleSource

log = logging.getLogger("solar")

COPIED, ALONE = 2, 4  # batches that are there before they are asked for: copied, or being read
COME_WITHIN = 10.0  # seconds after which a batch that does not come is read alone
NAP = 0.1


class ServedRun:
    """The batches of passes, one after another: copied from what a service reads, or read alone where it does not."""

    parts: tuple[Any, ...] = ()
    nbytes = 0
    staged = COPIED

    def __init__(self, door: Door, beneath: SampleSource) -> None:
        self.appended = self.given = 0
        self._door: Door | None = door
        self._fields = door.fields
        self._firsts, self._every, self._datasets = first_rows(beneath), rows_of(beneath), len(beneath.datasets)
        self._epochs: list[tuple[int, SampleUses]] = []  # with the number of each one's first batch
        self._here: dict[int, Any] = {}
        self._unwanted: set[int] = set()
        self._next = 0  # batch to be got
        self._guest: _native.Guest | None = None
        self._first, self._job = 0, -1  # of the membership: the number here of its first batch, and its own
        self._begins = 0  # and its first batch that the service reads
        self._late = False  # the last batch did not come
        self._changed = threading.Condition()
        self._closing = False
        self._counts = {"served": 0, "alone": 0}
        self._thread: Background | None = None

    # --- what is wanted ----

    def append(self, sizes: Any, told: Any, parcels: Any = None) -> None:
        """These batches come after all others."""
        with self._changed:
            base, self.appended = self.appended, self.appended + len(sizes)
            left = [one for one in self._epochs if one[0] + len(one[1].starts) - 1 > self._next]
            self._epochs = [*left, (base, told)]
            if self._guest is None:
                self._join(base)
            else:
                self._ask({"is": "more", "job": self._job}, "noted", told)
            if self._thread is None:
                self._thread = in_background(self._get)
            self._changed.notify_all()

    def _ask(self, message: dict[str, Any], wanted: str, told: SampleUses) -> list[int]:
        """The descriptors that an answer brings; none where the service refuses, or has gone."""
        if self._door is None:
            return []
        try:
            answer, found = self._door.hand(message, wanted, told)
            self._job, self._begins = answer.get("job", self._job), answer.get("begins", self._begins)
            return found
        except Refused as error:
            log.info("this pass is read alone: %s", error)
        except ReadError as error:
            self._lost(error)
        return []

    def _join(self, first: int) -> None:
        """Becomes a member for all batches from here on."""
        door = self._door
        if door is None:
            return
        parts = [_from(base, one, first) for base, one in self._epochs]
        wanted = [one for one in parts if len(one.starts) > 1]
        most = max(int(one.sizes.max()) for one in wanted)
        found = self._ask({"is": "join", "data": door.data, "batch": most}, "joined", wanted[0])
        try:
            if len(found) == 4:
                ledger, line, pool, bell = found
                self._guest = _native.Guest(ledger, line, pool, bell, door.fields, most)
                self._first = first
        except SolarError as error:
            self._lost(error)
        finally:
            close_all(found)
        for one in wanted[1:]:
            if self._guest is not None:
                self._ask({"is": "more", "job": self._job}, "noted", one)

    def _lost(self, why: Exception) -> None:
        """There is no service any more."""
        door, self._door, self._guest = self._door, None, None
        if door is not None and not self._closing:
            log.warning("%s: the rest of this pass is read alone", why)
            door.close()

    # --- batches ----

    def _get(self, stopped: threading.Event) -> None:
        """Gets the batches, each before it is asked for."""
        while not stopped.is_set() and not self._closing:
            with self._changed:
                room = ALONE if self._guest is None else COPIED
                if self._next >= self.appended or len(self._here) >= room:
                    self._changed.wait(NAP)
                    continue
                number = self._next
                dropped = number in self._unwanted
            found = None if dropped else self._got(number, stopped)
            if stopped.is_set() or self._closing:
                return
            with self._changed:
                self._next = number + 1
                if number in self._unwanted:
                    self.given += 1
                else:
                    self._here[number] = found if found is not None else self._begun(number)
                self._changed.notify_all()

    def _got(self, number: int, stopped: threading.Event) -> list[NDArray[Any]] | None:
        """The batch from the service; None where it is to be read alone."""
        guest, own = self._guest, number - self._first
        if guest is None:
            return None
        try:
            if own < self._begins:
                guest.has_made(own)
                return None
            guest.wants(own)
            naps = 1 if self._late else int(COME_WITHIN / NAP)
            came = any(guest.wait(own, NAP) or self._stops(stopped) for _ in range(naps))
            self._late = not came
            if not came or self._closing or stopped.is_set():
                guest.has_made(own)
                return None
            samples = len(self._uses(number)[1])
            memory = [_native.take(max(1, samples * sum(one))) for one in self._fields]
            word = guest.copy(own, samples, memory)
            if word == "gone":
                self._rejoin(number + 1)
                return None
            guest.has_made(own)
            if word != "here":
                return None
        except SolarError as error:
            self._lost(error)
            return None
        self._counts["served"] += 1
        whole = [one.from_bytes(of, samples) for one, of in zip(self._firsts, memory, strict=True)]
        return [part for one, values in zip(self._firsts, whole, strict=True) for part in one.parts(values)]

    def _stops(self, stopped: threading.Event) -> bool:
        return self._closing or stopped.is_set() or not self._alive()

    def _alive(self) -> bool:
        """Whether the service is there. It sends nothing unasked: what comes is its end."""
        door = self._door
        if door is None:
            return False
        there = door.stands()
        if not there:
            self._lost(ReadError(f"{door.path}: the service has gone"))
        return there

    def _rejoin(self, number: int) -> None:
        """After it was left behind: for what comes after this batch."""
        with self._changed:
            job, self._guest = self._job, None
            if self._alive() and self._door is not None:
                log.info("this job was left behind, and joins again")
                with suppress(SolarError):
                    self._door.ask({"is": "leave", "job": job}, "left")
                if number < self.appended:
                    self._join(number)

    def _uses(self, number: int) -> tuple[NDArray[np.int64] | None, NDArray[np.int32]]:
        base, uses = next(one for one in reversed(self._epochs) if one[0] <= number)
        here = slice(int(uses.starts[number - base]), int(uses.starts[number - base + 1]))
        return None if uses.which is None else uses.which[here], uses.rows[here]

    def _begun(self, number: int) -> list[tuple[Rows, list[Pending]]]:
        """The batch, as it begins to be read by this process."""
        which, rows = self._uses(number)
        self._counts["alone"] += 1
        found = []
        fields = len(self._firsts)
        for field, first in enumerate(self._firsts):
            out = first.room(len(rows))
            pending = []
            for at in range(self._datasets):
                here = None if which is None else np.flatnonzero(which == at)
                if here is not None and not len(here):
                    continue
                own = rows if here is None else rows[here]
                pending.append(self._every[at * fields + field].start(own.astype(np.int64), out, here))
            found.append((first, pending))
        return found

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]:
        """The fields of this batch. TimeoutError after `seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._here or self._closing, seconds):
                raise Late.values(seconds, "the service")
            if number not in self._here:
                raise RuntimeError("this run was closed")
            found = self._here[number]
        if found and isinstance(found[0], tuple):
            values, counts = [], dict[str, int]()
            for rows, pending in found:
                whole = [one.wait(seconds) for one in pending][-1]
                values += rows.parts(whole)
                for one in pending:
                    for name, count in one.counts.items():
                        counts[name] = counts.get(name, 0) + count
            return values, counts
        return found, {}

    def let_go(self, number: int) -> None:
        """Hands this batch over to whoever waited for it."""
        with self._changed:
            if self._here.pop(number, None) is not None:
                self.given += 1
                self._changed.notify_all()

    def forget(self, number: int) -> None:
        """Drops a batch that nobody will ask for."""
        with self._changed:
            self._unwanted.add(number)
        self.let_go(number)

    def counts(self) -> dict[str, int]:
        """How many batches came from the service, and how many were read alone."""
        return dict(self._counts)

    def fail(self, why: Exception) -> None:
        """Nobody else has to know."""

    def drop(self) -> None:
        """The same as close()."""
        self.close()

    def close(self) -> None:
        """Takes leave of the service; its connection stays for the next run."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.stop()
        door, guest, self._guest = self._door, self._guest, None
        if door is not None and guest is not None:
            try:
                door.ask({"is": "leave", "job": self._job}, "left")
            except SolarError:
                door.close()


def _from(base: int, uses: SampleUses, first: int) -> SampleUses:
    """Its batches from this number on."""
    skip = min(max(0, first - base), len(uses.starts) - 1)
    at = int(uses.starts[skip])
    which = None if uses.which is None else uses.which[at:]
    return SampleUses(which, uses.rows[at:], uses.starts[skip:] - at)
