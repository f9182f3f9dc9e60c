"""ServedRun: takes batches from a service, and reads them itself where the service does not.

Membership: its job in the service.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.buffer.thread import Background, in_background
from solar.errors import ReadError, SolarError
from solar.io.channels.frames import Refused, close_all
from solar.io.reading.engine import COUNT_NAMES
from solar.io.reading.reader import Pending, Rows
from solar.io.system.waiting import WaitTimeout, until
from solar.planning.pass_uses import SampleUses
from solar.planning.served import MORE_BLOCKS
from solar.service.connection import ServiceConnection
from solar.service.served_data import Uses

log = logging.getLogger("solar")

COPIED, ALONE = 2, 4  # batches that are there before they are asked for: copied, or being read
COME_WITHIN = 10.0  # seconds after which a batch that does not come is read alone
NAP, MORE_NAPS = 0.1, 20  # seconds; and how many more of them later batches may take that do not come, all together
FAR_OFF = 1 << 62  # a batch that there is not
NOTHING_READ = (0,) * len(COUNT_NAMES)  # by this process


class ServedUses(NamedTuple):
    """Batches in order, as uses of samples and of what the service holds."""

    base: int  # number of the first
    uses: SampleUses
    batches: SampleUses

    @property
    def end(self) -> int:
        """The number after the last."""
        return self.base + len(self.uses.starts) - 1


class Membership:
    """A job in a service: it joins, copies batches, is left behind, and joins again, until the service has gone."""

    def __init__(self, connection: ServiceConnection) -> None:
        self.closing = False  # what the service says from now on is not worth a warning
        self.refused = FAR_OFF  # the first batch that it does not belong to
        self._connection: ServiceConnection | None = connection
        self._guest: _native.Guest | None = None
        self._first, self._job = 0, -1  # the number here of its first batch, and its own
        self._refusal = ""  # why the service refused it last
        self._timed_out = False  # the last batch did not come
        self._naps = int(COME_WITHIN / NAP) + MORE_NAPS  # that batches which do not come may still take
        self._times, self._times_of = 0, -1  # that it was left behind before, in the pass that begins with that batch

    @property
    def lost(self) -> bool:
        """Whether the service has gone."""
        return self._connection is None

    @property
    def joined(self) -> bool:
        """Whether the service makes batches for it."""
        return self._guest is not None

    def more(self, base: int, uses: SampleUses) -> None:
        """Sends the order of later batches. Joins again if the service refuses because batches are larger."""
        if self._ask({"is": "more", "job": self._job}, "noted", uses) is None:
            self.refused = min(self.refused, base)

    def _ask(self, message: dict[str, Any], wanted: str, order: SampleUses) -> list[int] | None:
        """Sends a message. Returns the descriptors of the answer; None if the service refuses or has gone."""
        if self._connection is None:
            return None
        try:
            answer, found = self._connection.hand(message, wanted, order)
            self._job = answer.get("job", self._job)
            return found
        except Refused as error:
            new = "--memory" in str(error) and str(error) != self._refusal  # which whoever began the service can mend
            self._refusal = str(error)
            log.log(
                logging.WARNING if new else logging.INFO, "the service at %s refuses: %s", self._connection.path, error
            )
        except ReadError as error:
            self._end(error)
        return None

    def rejoin(self, first: int, epochs: list[ServedUses]) -> None:
        """Joins for all batches of these passes from `first` on, again if need be. The first one is read alone."""
        self._leave()
        self.refused = FAR_OFF
        if self._alive():
            self._join(first, epochs)

    def _join(self, first: int, epochs: list[ServedUses]) -> None:
        connection = self._connection
        if connection is None:
            return
        parts = [
            (max(first, one.base), _from(one.base, one.uses, first)) for one in epochs if one.end > max(first, one.base)
        ]
        if not parts:
            return
        most = max(int(one.sizes.max()) for _, one in parts)
        if connection.held.cut:  # later batches may have more blocks
            most += most // MORE_BLOCKS
        found = self._ask({"is": "join", "data": connection.data, "batch": most}, "joined", parts[0][1]) or []
        try:
            if len(found) == 4:
                ledger, line, pool, bell = found
                self._guest = _native.Guest(ledger, line, pool, bell, connection.fields, most)
                self._first = first
                self._guest.has_made(0)  # which is read alone
        except SolarError as error:
            self._end(error)
        finally:
            close_all(found)
        if self._guest is None:
            self.refused = _next_base(epochs, first)
            return
        for number, one in parts[1:]:
            self.more(number, one)

    def _end(self, why: Exception) -> None:
        """Notes that the service is gone: the rest is read alone."""
        connection, self._connection, self._guest = self._connection, None, None
        if connection is not None and not self.closing:
            log.warning("%s: the rest of this pass is read alone", why)
            connection.close()

    def copy(self, number: int, uses: Uses, stopped: threading.Event) -> tuple[str, list[NDArray[Any]]]:
        """Waits for a batch, which has these uses, and copies its fields.

        Returns "here" with them; "gone" if the others go on without this job; or "" if this process has to read it.
        """
        connection, guest, own = self._connection, self._guest, number - self._first
        if connection is None or guest is None or number >= self.refused:
            return "", []
        held = connection.held
        try:
            guest.wants(own)
            naps = 1 if self._timed_out else min(self._naps, int(COME_WITHIN / NAP))
            came = any(guest.wait(own, NAP) or self._stops(stopped) for _ in range(naps))
            self._timed_out = not came
            if not came or self.closing or stopped.is_set():
                guest.has_made(own)
                self._naps -= 0 if came else naps
                if self._naps <= 0:
                    took = COME_WITHIN + MORE_NAPS * NAP
                    self._end(ReadError(f"{connection.path}: batches that did not come took {took:g} s"))
                return "", []
            each = [len(of) for _, of in held.by_field(*uses)]
            memory = [_native.take(max(1, n * sum(one))) for n, one in zip(each, connection.fields, strict=True)]
            word = guest.copy(own, len(uses[1]), memory, each if held.apart else ())
            if word == "gone":
                return word, []
            guest.has_made(own)
            if word != "here":
                return "", []
        except SolarError as error:
            self._end(error)
            return "", []
        triples = zip(held.firsts, memory, each, strict=True)
        return "here", [one.from_bytes(of, samples) for one, of, samples in triples]

    def _stops(self, stopped: threading.Event) -> bool:
        return self.closing or stopped.is_set() or not self._alive()

    def _alive(self) -> bool:
        """Returns whether the service is there. It never sends unasked, so anything that arrives is its end."""
        connection = self._connection
        if connection is None:
            return False
        there = connection.stands()
        if not there:
            self._end(ReadError(f"{connection.path}: the service has gone"))
        return there

    def read_on_alone(self, number: int, epochs: list[ServedUses]) -> None:
        """Leaves the service before this batch and joins again later, because the others went on without this job.

        If that happens over and over, this process reads twice as many alone each time, since each join changes the
        plan of all. The next pass starts afresh.
        """
        self._leave()
        base = _epoch_of(epochs, number).base
        self._times = self._times + 1 if base == self._times_of else 0
        self._times_of = base
        self.refused = min(number - 1 + (1 << min(self._times, 60)), _next_base(epochs, number))

    def _leave(self) -> None:
        job, self._guest, guest = self._job, None, self._guest
        if guest is not None and self._alive() and self._connection is not None:
            try:
                self._connection.ask({"is": "leave", "job": job}, "left")
            except Refused:
                pass
            except ReadError as error:  # what it says later would be taken for the answer to something else
                self._end(error)

    def close(self) -> None:
        """Leaves the service. The connection stays for the next run."""
        connection, guest, self._guest = self._connection, self._guest, None
        if connection is not None and guest is not None:
            try:
                connection.ask({"is": "leave", "job": self._job}, "left")
            except SolarError:
                connection.close()


@dataclass
class BegunAlone:
    """A batch that this process reads: the reads of each field, or the error of one."""

    fields: list[tuple[Rows, list[Pending]]]
    error: Exception | None = None


class ServedRun:
    """The batches of passes in order, each copied from what a service reads, or read by this process."""

    count_names = COUNT_NAMES
    parts = tuple[Any, ...]()
    nbytes = 0
    staged = COPIED
    broken = False  # a service begins its own run anew

    def __init__(self, connection: ServiceConnection) -> None:
        self.released = 0
        self._held = connection.held
        self._membership = Membership(connection)
        self._epochs: list[ServedUses] = []
        self._here: dict[int, Any] = {}
        self._unwanted: set[int] = set()
        self._next = 0  # batch to be got
        self._changed = threading.Condition()
        self._closing = False
        self._failed: Exception | None = None  # what ended the thread
        self._counts = {"served": 0, "alone": 0}
        self._thread: Background | None = None

    @property
    def lost(self) -> bool:
        """Whether the service has gone."""
        return self._membership.lost

    @property
    def appended(self) -> int:
        """The number of batches so far."""
        return self._epochs[-1].end if self._epochs else 0

    # --- what is wanted ----

    def append(self, sizes: Any, scripts: Any, parcels: Any = None) -> None:
        """Adds these batches after all others."""
        with self._changed:
            base = self.appended
            needed = min([self._next, *self._here])  # the first batch that is still to be fetched or assembled
            left = [one for one in self._epochs if one.end > needed]
            self._epochs = [*left, ServedUses(base, self._held.uses(scripts), scripts)]
            if self._membership.joined:
                self._membership.more(base, self._epochs[-1].uses)
            else:  # it joins when it is there: others would wait for it
                self._membership.refused = min(self._membership.refused, base)
                if base == self._next:  # and is wanted at once: it is read while the service is asked
                    with suppress(SolarError):  # whoever waits hears it when the thread meets it, too
                        self._here[base], self._next = self._begin(base), base + 1
            if self._thread is None:
                self._thread = in_background(self._get)
            self._changed.notify_all()

    # --- batches ----

    def _get(self, stopped: threading.Event) -> None:
        """Fetches batches before they are asked for. An error is raised where the batch is awaited."""
        try:
            self._get_all(stopped)
        except Exception as error:
            with self._changed:
                self._failed = error
                self._changed.notify_all()
            raise

    def _get_all(self, stopped: threading.Event) -> None:
        while not stopped.is_set() and not self._closing:
            with self._changed:
                room = COPIED if self._membership.joined else ALONE
                number = self._next
                joins = number > self._membership.refused  # the batch before is being read alone
                if not joins and (number >= self.appended or len(self._here) >= room):
                    self._changed.wait(NAP)
                    continue
                dropped = number in self._unwanted
            if joins:
                with self._changed:
                    self._membership.rejoin(number - 1, self._epochs)
                continue
            found = None if dropped else self._got(number, stopped)
            if stopped.is_set() or self._closing:
                return
            with self._changed:
                self._next = number + 1
                if number in self._unwanted:
                    self.released += 1
                else:
                    self._here[number] = found if found is not None else self._begin(number)
                self._changed.notify_all()

    def _got(self, number: int, stopped: threading.Event) -> list[NDArray[Any]] | None:
        """Returns the batch from the service; None if this process has to read it."""
        word, values = self._membership.copy(number, self._uses(number), stopped)
        if word == "gone":
            with self._changed:
                self._membership.read_on_alone(number, self._epochs)
        if word != "here":
            return None
        self._counts["served"] += 1
        return values

    def _uses(self, number: int) -> Uses:
        one = _epoch_of(self._epochs, number)
        return batch_of_uses(one.uses, number - one.base)

    def _begin(self, number: int) -> BegunAlone:
        """Begins to read the batch in this process."""
        held, found = self._held, []
        for field, (which, rows) in enumerate(held.by_field(*self._uses(number))):
            out, pending = held.firsts[field].room(len(rows)), list[Pending]()
            for at in range(held.datasets):
                here = None if which is None else np.flatnonzero(which == at)
                if here is not None and not len(here) and (pending or at + 1 < held.datasets):
                    continue  # a field that the batch uses nothing of is read, too: nothing of it
                own = rows if here is None else rows[here]
                pending.append(held.rows[at * held.fields + field].start(own.astype(np.int64), out, here))
            found.append((held.firsts[field], pending))
        self._counts["alone"] += 1
        return BegunAlone(found)

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]:
        """Returns the fields of this batch. Raises TimeoutError after `seconds`."""
        found = until(partial(self.at_hand, number, samples), seconds)
        if found is None:
            raise WaitTimeout.values(seconds, "the service")
        values, counts = found
        return values, dict(zip(self.count_names, counts, strict=True))

    def at_hand(self, number: int, samples: int, nap: float) -> tuple[list[NDArray[Any]], tuple[int, ...]] | None:
        """Does what `wait` does, within this short time. Counts are in the order of `count_names`."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._here or self._closing or self._failed, nap):
                return None
            if self._failed is not None and number not in self._here:
                raise self._failed
            if number not in self._here:
                raise RuntimeError("this run was closed")
            found = self._here[number]
        if not isinstance(found, BegunAlone):
            return self._put_together(number, found), NOTHING_READ
        if found.error is not None:
            raise found.error
        values, counts = [], Counter[str]()
        try:
            for _, pending in found.fields:
                values.append([one.wait(nap) for one in pending][-1])
                for one in pending:
                    counts.update(one.counts)
        except TimeoutError:
            return None
        except Exception as error:
            found.error = error.with_traceback(None)  # the reads tell it once, and one may wait again
            raise
        return self._put_together(number, values), tuple(counts[name] for name in self.count_names)

    def _put_together(self, number: int, values: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Returns the fields of this batch, made from what is held of it."""
        held, one = self._held, _epoch_of(self._epochs, number)
        if not held.cut:
            return [part for rows, whole in zip(held.firsts, values, strict=True) for part in rows.parts(whole)]
        which, rows = batch_of_uses(one.batches, number - one.base)
        batch = SampleUses(which, rows, np.array([0, len(rows)]), epoch=one.batches.epoch)
        used = held.by_field(*batch_of_uses(one.uses, number - one.base))
        fields = enumerate(zip(used, values, strict=True))
        return [held.cluster(field, batch, own, whole) for field, (own, whole) in fields]

    def let_go(self, number: int) -> None:
        """Releases a batch that was handed out."""
        with self._changed:
            if self._here.pop(number, None) is not None:
                self.released += 1
                self._changed.notify_all()

    def forget(self, number: int) -> None:
        """Drops a batch that will not be taken."""
        with self._changed:
            self._unwanted.add(number)
        self.let_go(number)

    def counts(self) -> dict[str, int]:
        """Returns how many batches came from the service, and how many were read alone."""
        return dict(self._counts)

    def handed(self) -> Counter[str]:
        """Returns the counts of batches that were handed out. Others have only been fetched."""
        with self._changed:
            ahead = ["alone" if isinstance(one, BegunAlone) else "served" for one in self._here.values()]
            return Counter(self._counts) - Counter(ahead)

    def fail(self, why: Exception) -> None:
        """Does nothing: no other rank has to know."""

    def drop(self) -> None:
        """Does the same as close()."""
        self.close()

    def close(self) -> None:
        """Leaves the service. The connection stays for the next run."""
        with self._changed:
            self._closing = self._membership.closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.stop()
        self._membership.close()


def _epoch_of(epochs: list[ServedUses], number: int) -> ServedUses:
    """Returns the pass that has this batch."""
    return next(one for one in reversed(epochs) if one.base <= number)


def _next_base(epochs: list[ServedUses], number: int) -> int:
    """Returns the first batch of a later pass, as far as its order was sent."""
    return min((one.base for one in epochs if one.base > number), default=FAR_OFF)


def batch_of_uses(uses: SampleUses, number: int) -> Uses:
    """Returns one of these batches."""
    here = slice(int(uses.starts[number]), int(uses.starts[number + 1]))
    return None if uses.which is None else uses.which[here], uses.rows[here]


def _from(base: int, uses: SampleUses, first: int) -> SampleUses:
    """Returns these batches from a number on."""
    skip = min(max(0, first - base), len(uses.starts) - 1)
    at = int(uses.starts[skip])
    which = None if uses.which is None else uses.which[at:]
    return SampleUses(which, uses.rows[at:], uses.starts[skip:] - at)
