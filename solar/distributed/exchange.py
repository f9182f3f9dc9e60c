"""Exchange: batches that need rows from other nodes, whose ranks send them ahead of need.

    Running --batch--> its parcel is sent, its own places wait for rows of others --all here--> wait() --> let_go()

A batch's memory holds its own rows, and behind them the parcel: rows for other ranks. Ranks send each other rows in the
order of their batches: a head of five numbers, then the rows of each field. Fields that have rows of their own travel
one after another, each behind a head. A rank that closes receives what still comes until all have closed and nothing is
on its way (ending.py). Where no receive can be cancelled, it tells all others END and waits for theirs. So nobody waits
for ever.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.distributed.ending import ASK, END, FAILED, NOTHING, ROWS, Ending, Head
from solar.errors import PlanError, ReadError, SolarError
from solar.io.channels.alive import BURIAL, gone
from solar.io.channels.bulk import NAME, BulkChannel, Bytes, Errand, Gone
from solar.io.channels.bulk import mail as mail
from solar.io.reading.engine import COUNT_NAMES, LAST_WAIT
from solar.io.reading.run import Running
from solar.io.system import lifecycle
from solar.io.system.waiting import GLANCE, WaitTimeout, until, until_others
from solar.values import PartScript, Transfers


class Stretch(NamedTuple):
    """Batches from number `base` on, and their exchanged rows: those of step s are [at[s], at[s + 1])."""

    base: int
    sizes: NDArray[np.int64]  # rows of the batches' memory
    sent: NDArray[np.int64]  # as in Transfers
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


EXCHANGE_COUNTS = [
    *("sent_rows", "sent_bytes", "received_rows", "received_bytes"),
    *("inbox_bytes", "inbox_peak_bytes", "exchange_wait_ns", "travel_wait_ns"),
]


class PendingExchange:
    """At most `window` batches, shared by the threads that exchange and those that take. Any thread may call it."""

    def __init__(self, window: int) -> None:
        self.changed = threading.Condition()  # of an RLock: garbage may be collected while it is held
        self.batches: dict[int, Batch] = {}
        self.released = 0
        self.closing = False
        self.fatal: Exception | None = None  # the error that stopped the exchange
        self._window = window
        self._unwanted: set[int] = set()
        self._stretches: deque[Stretch] = deque()
        self._next = self._appended = 0
        self.run_waits_for = ""  # what the run said last that the next batch waits for
        self._counts = dict.fromkeys(EXCHANGE_COUNTS, 0)

    def count(self, **more: int) -> None:
        """Adds to these counts."""
        with self.changed:
            for name, number in more.items():
                self._counts[name] += number
            self._counts["inbox_peak_bytes"] = max(self._counts["inbox_peak_bytes"], self._counts["inbox_bytes"])

    def counts(self) -> dict[str, int]:
        """Returns the rows and bytes sent and received, the room for arriving rows, and how long was waited."""
        with self.changed:
            return dict(self._counts)

    def append(self, stretch: Stretch) -> None:
        """Appends the next stretch."""
        with self.changed:
            self._stretches.append(stretch)
            self._appended += len(stretch.sizes)
            self.changed.notify_all()

    def room(self) -> tuple[int, Stretch] | None:
        """Waits for room. Returns the number of the next batch and its stretch; None at the end."""
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
        """Returns whether no further batch will begin."""
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
        """Returns this batch if it is complete within this time. Raises its error if it failed."""
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
        """Releases a batch that was handed out."""
        with self.changed:
            batch = self.batches.get(number)
            if batch is not None and not batch.taken:
                batch.taken = True
                self.released += 1
                self._leave(batch)

    def forget(self, number: int) -> None:
        """Drops a batch that nobody will ask for, whether it is here or comes later."""
        with self.changed:
            self._unwanted.add(number)
            self.let_go(number)
            self.changed.notify_all()

    def sending(self) -> bool:
        """Returns whether a batch that was handed out is still being sent."""
        with self.changed:
            return any(batch.taken for batch in self.batches.values())

    def came(self, peer: int, batch: Batch, nbytes: int, error: Exception | None = None) -> None:
        """Notes that a message of a peer for a batch has arrived, or failed with `error`."""
        with self.changed:
            batch.exchanged += nbytes
            batch.error = batch.error or error
            batch.missing.remove(peer)
            batch.here = time.monotonic()
            self._leave(batch)
            self.changed.notify_all()

    def left(self, batch: Batch) -> None:
        """Notes that the parcel of a batch was sent."""
        with self.changed:
            batch.letters, batch.sent = [], True
            self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        """Makes room for another batch if nobody needs this one."""
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


# Traffic: the threads of an Exchange. The poster takes batches from the run and sends rows; errands do the rest.


TEXT = 4096  # bytes of an error's text, at most
LAST = -1  # the number of what is no batch


class DueTransfer(NamedTuple):
    """A message that is expected."""

    batch: Batch
    letter: int
    places: NDArray[np.int64]  # of its rows, in the batch


class ExchangePeers:
    """The other ranks: what is due from each, and which of them send nothing more, and why."""

    def __init__(
        self, rank: int, ranks: int, underway: PendingExchange, running: Running, ended: Callable[[], Sequence[int]]
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self.due: dict[int, deque[DueTransfer]] = defaultdict(deque)  # by peer
        self.ending = Ending(rank, ranks)
        self.broken = ""  # the error that others are told with END
        self.sending = threading.Lock()  # a message goes in one piece, whoever else sends one
        self._underway, self._running, self._ended = underway, running, ended
        self._reasons: dict[int, str] = {}  # peers that send nothing more, and why
        self._seen_ended: dict[int, float] = {}  # peers, and since when their processes are known to have ended

    def expect(self, peer: int, due: DueTransfer) -> None:
        """Notes that a message is due from a peer. It fails at once if the peer sends nothing more."""
        self.due[peer].append(due)
        if peer in self._reasons:
            self._fail_due(peer)

    def waiting_for(self, number: int) -> str:
        """Describes what this batch still waits for."""
        with self._underway.changed:
            batch = self._underway.batches.get(number)
            if batch is None:
                return self._underway.run_waits_for
            return ", ".join(self.named(peer) for peer in sorted({*batch.missing}))

    def to_ask(self, number: int) -> set[int]:
        """Returns the ranks that are to be asked whether they have closed, because this batch waits for their rows."""
        with self._underway.changed:
            batch = self._underway.batches.get(number)
            return set() if batch is None else self.ending.asks({*batch.missing} - {*self._ended()})

    def open_peers(self, *, by_branches: bool) -> str:
        """Describes the ranks that have not closed. `by_branches`: only the ranks below are heard, each for its own."""
        with self._underway.changed:
            which = self.ending.missing() if by_branches else self.others()
            names = [self.named(peer) for peer in which if peer not in self._reasons]
        if not names:
            return "other ranks have"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"{', '.join(names[:3])}{more} {'has' if len(names) == 1 else 'have'}"

    def others(self) -> list[int]:
        """Returns all other ranks."""
        return [peer for peer in range(self.ranks) if peer != self.rank]

    def named(self, peer: int) -> str:
        """Names a rank in a message."""
        return f"rank {peer} of {self.ranks}"

    def look(self) -> None:
        """Fails what waits for a rank whose process has ended. Whoever waits calls it now and then.

        MPI does not report such a rank. What it sent before its end may still arrive, for up to BURIAL seconds.
        """
        now = time.monotonic()
        for peer in self.ended_ranks():
            if now - self._seen_ended.setdefault(peer, now) >= BURIAL:
                self.lost(peer, Gone("it no longer answers"))

    def any_ended(self) -> bool:
        """Returns whether the process of any rank is known to have ended."""
        return bool(self._ended())

    def ended_ranks(self) -> list[int]:
        """Returns the other ranks whose processes ended before they had closed."""
        return [peer for peer in self._ended() if peer != self.rank and peer not in self._reasons]

    def note_end(self, peer: int, why: str) -> None:
        """Notes that this peer has closed its loader, perhaps because of an error for all."""
        if not why and (ended := self.ended_ranks()):  # it closed because of that
            why = str(gone(ended, self.ranks))
        with self._underway.changed:
            self._reasons[peer] = why or f"{self.named(peer)} has closed its loader, and others go on"
            if why:
                self.fail(ReadError(why), why)
            self._fail_due(peer)

    def lost(self, peer: int, error: Gone) -> None:
        """Notes that the connection to this peer is broken. That is no error if it had closed before."""
        with self._underway.changed:
            if peer in self._reasons:
                return
            self._reasons[peer] = f"{self.named(peer)} is gone: its process has ended, or the network between ({error})"
            self.fail(ReadError(self._reasons[peer]))
            self._fail_due(peer)

    def fail(self, error: SolarError, told_others: str = "") -> None:
        """Stops the exchange with an error, and tells the others, so that they do not wait for ever."""
        with self._underway.changed:
            if not self._underway.closing and not self.broken:
                self.broken = told_others or f"{error} (found by {self.named(self.rank)})"
                self._underway.fail(error)
                self._running.fail(error)  # those of this node

    def _fail_due(self, peer: int) -> None:
        """Fails the batches that wait for rows of this peer."""
        while self.due[peer]:
            self._underway.came(peer, self.due[peer].popleft().batch, 0, ReadError(self._reasons[peer]))


class TransferThreads:
    """The threads that send and receive."""

    def __init__(
        self,
        running: Running,
        mail: BulkChannel,
        underway: PendingExchange,
        letters: Sequence[slice],
        ended: Callable[[], Sequence[int]],
    ) -> None:
        self.peers = ExchangePeers(mail.rank, mail.ranks, underway, running, ended)
        self._running, self._mail, self._underway = running, mail, underway
        self._arrays = letters  # which arrays of a batch each of its letters has
        self._outgoing: deque[Batch] = deque()
        self._bells: dict[int, threading.Event] = {}  # of who listens to each peer; our own rank's: of who sends
        self._over = self._freed = False
        self._poster_frees: bool | None = None  # whether the poster frees all at its end; None: undecided
        self._open = 1  # threads and errands: the poster
        self._poster = threading.Thread(target=self._post_all, name=NAME, daemon=True)
        self._poster.start()

    def close(self, seconds: float) -> bool:
        """Ends the exchange. False if a peer does not end in time: then threads stay to receive from it."""
        self._underway.close()
        self._running.close()  # the poster may wait for it
        if threading.current_thread().name == NAME:
            return True  # the garbage collector's doing: no thread can wait for itself
        missed = self.peers.any_ended()
        if not self._all_over(min(seconds, MISSED_WORDS) if missed else seconds):
            self._mail.slow_down()
            if missed:
                self._mail.stop(MISSED_WORDS)  # MPI must not be at work when it ends
            return False
        self._poster.join(seconds)
        self._free(seconds)
        return True

    def drop(self) -> None:
        """Ends the exchange without waiting. The poster's thread waits, and frees the memory."""
        with self._underway.changed:
            if self._poster_frees is None:
                self._poster_frees = True
        self._underway.close()
        if not self._poster_frees:  # the poster has ended already
            self._running.close()

    def _all_over(self, seconds: float | None) -> bool:
        with self._underway.changed:
            return self._underway.changed.wait_for(lambda: self._open == 0, seconds)

    def _free(self, seconds: float) -> None:
        """Ends the threads of the bulk channel when the exchange is over, and frees its communicator, once."""
        with self._underway.changed:
            free, self._freed = not self._freed and not self.peers.broken, True
        self._mail.join(seconds)
        if free:
            self._mail.free()

    # --- the poster: takes batches from the run, in their order ----

    def _post_all(self) -> None:
        try:
            while (next_read := self._underway.room()) is not None and self._read_and_post(*next_read):
                pass
        except Exception as error:  # a bug; nobody shall wait for ever because of it
            self._underway.fail(error)
        self._say_end()
        self._closed()
        with self._underway.changed:
            if self._poster_frees is None:
                self._poster_frees = False
        if self._poster_frees:
            self._running.close()
            self._all_over(None)
            self._free(LAST_WAIT)

    def _read_and_post(self, number: int, stretch: Stretch) -> bool:
        """Reads and sends a batch. Returns False at the end. It keeps nothing of a batch while it waits for the next
        one, which may need its memory.
        """
        batch = self._read(number, stretch)
        if batch is not None:
            self._post(batch, stretch)
        return batch is not None

    def _read(self, number: int, stretch: Stretch) -> Batch | None:
        """Waits until the run has made the next batch; None at the end."""
        batch = Batch(number)
        rows = int(stretch.sizes[number - stretch.base])
        while not batch.read:
            try:
                batch.values, batch.counts = self._running.wait(number, rows, GLANCE)
            except WaitTimeout as late:
                self._underway.run_waits_for = str(late).partition("still waiting for ")[2]
                if self._underway.ends():
                    return None
                continue
            except Exception as error:  # of this batch: raised to whoever takes it
                if self._underway.closing:
                    return None
                batch.error = error.with_traceback(None)
                if self.peers.ended_ranks():  # because of that: others shall hear it
                    self.peers.fail(ReadError(str(error)))
            batch.read = batch.here = time.monotonic()
        self._running.let_go(number)
        return batch

    def _post(self, batch: Batch, stretch: Stretch) -> None:
        """Sends the rows of this batch that others need, and begins to receive those that others have."""
        step = batch.number - stretch.base
        come = stretch.come[stretch.come_at[step] : stretch.come_at[step + 1]]
        every, ranks = len(self._arrays), self._mail.ranks
        found, firsts = np.unique(come[:, 0] % every * ranks + come[:, 1], return_index=True)
        letters, peers = (found // ranks).tolist(), (found % ranks).tolist()
        places = np.split(come[:, 2], firsts[1:])
        for letter, peer, begin, end in stretch.sent[stretch.sent_at[step] : stretch.sent_at[step + 1]].tolist():
            self._send(batch, peer, letter % every, begin, end)
        batch.missing, batch.sent = peers[:], not batch.letters
        with self._underway.changed:
            self._underway.put(batch)
            for letter, peer, its in zip(letters, peers, places, strict=False):  # if nothing comes, one empty array
                self.peers.expect(peer, DueTransfer(batch, letter, its))
        for peer in {*peers}:
            self._listen_to(peer)
        if not batch.sent:
            self._wait_sent(batch)

    def _send(self, batch: Batch, peer: int, letter: int, begin: int, end: int) -> None:
        """Sends rows [begin, end) of this batch in these arrays, or the reason why there are none."""
        if begin == end:
            return
        if batch.error is None:
            pieces = [_bytes(one[begin:end]) for one in batch.values[self._arrays[letter]]]
            self._letter(batch, peer, Head(ROWS, batch.number, letter, end - begin), pieces)
            self._underway.count(sent_rows=end - begin, sent_bytes=sum(piece.nbytes for piece in pieces))
        else:
            text = encode_text(str(batch.error))
            self._letter(batch, peer, Head(FAILED, batch.number, letter, len(text)), [text])

    def _letter(self, batch: Batch, peer: int, head: Head, pieces: Sequence[Bytes] = ()) -> None:
        try:
            with self.peers.sending:
                if head.kind in (ROWS, FAILED):
                    with self._underway.changed:
                        head = self.peers.ending.sends(peer, head)
                for piece in (_bytes(np.array(head, np.int64)), *pieces):
                    if piece.nbytes:
                        batch.letters.append((peer, self._mail.send(peer, piece)))
        except Gone as error:
            self.peers.lost(peer, error)

    def ask(self, number: int) -> None:
        """Asks the ranks for whose rows this batch waits whether they have closed. Whoever waits calls it."""
        with self._underway.changed:
            peers = self.peers.to_ask(number) if self._mail.cancels else set()
            if peers:  # sent by a thread of the channel, because MPI may block where a rank has just ended
                self._start(self._tell([(peer, Head(ASK)) for peer in peers]))

    def _say_end(self) -> None:
        """Tells peers that nothing more comes, and receives from all others until nothing more comes from them."""
        last, text = Batch(LAST), encode_text(self.peers.broken)
        with self._underway.changed:
            self._over = True
            asking = self.peers.ending.close()
            told = asking if self._mail.cancels else self.peers.others()
        ended = self.peers.ended_ranks()  # sending to these, MPI stands still
        for peer in told:
            if peer not in ended:
                self._letter(last, peer, Head(END, LAST, 0, len(text), 1), [text])
        self._wait_sent(last)
        for peer in self.peers.others():
            if peer not in ended:
                self._listen_to(peer)

    # --- the errands: they wait until sent rows have left and expected rows are here ----

    def _wait_sent(self, batch: Batch) -> None:
        self._outgoing.append(batch)
        self._begin(self._mail.rank, self._finish_sending)

    def _listen_to(self, peer: int) -> None:
        self._begin(peer, lambda: self._listen(peer))

    def _begin(self, name: int, errand: Callable[[], Errand]) -> None:
        """Begins this task, or wakes it if it has begun. Only the poster calls it."""
        bell = self._bells.get(name)
        if bell is not None:
            bell.set()
            return
        self._bells[name] = self._start(errand())

    def _start(self, errand: Errand) -> threading.Event:
        with self._underway.changed:
            self._open += 1
        return self._mail.run(self._guard(errand))

    def _guard(self, errand: Errand) -> Errand:
        try:
            yield from errand
        except Exception as error:  # a bug; nobody shall wait for ever because of it
            self._underway.fail(error)
        finally:
            self._closed()

    def _closed(self) -> None:
        with self._underway.changed:
            self._open -= 1
            self._underway.changed.notify_all()
            if not self._open and self in _left:
                _left.remove(self)

    def open_peers(self) -> str:
        """Describes the ranks that have not closed."""
        return self.peers.open_peers(by_branches=self._mail.cancels)

    def stay(self) -> None:
        """Keeps this, with its memory, until the other ranks have closed."""
        with self._underway.changed:
            if self._open:
                _left.append(self)

    def _finish_sending(self) -> Errand:
        while True:
            while not self._outgoing:
                yield None
            batch = self._outgoing.popleft()
            yield from self._wait_until_left(batch)
            self._underway.left(batch)
            if batch.number == LAST:
                break
            batch = None  # type: ignore[assignment]  # its memory is needed while this waits
        if self._mail.cancels:
            with self._underway.changed:
                said = self.peers.ending.sum_up()
            yield from self._pass_on(said)

    def _wait_until_left(self, batch: Batch) -> Errand:
        for peer, letter in batch.letters:
            try:
                yield [letter]
            except Gone as error:
                self.peers.lost(peer, error)

    def _tell(self, said: Sequence[tuple[int, Head]], text: Bytes | None = None) -> Errand:
        """Sends these messages, but not to ranks that have ended."""
        letters, ended = Batch(LAST), self.peers.ended_ranks()
        for peer, head in said:
            if peer not in ended:
                self._letter(letters, peer, head, [] if text is None else [text])
        yield from self._wait_until_left(letters)

    def _pass_on(self, said: list[tuple[int, Head]]) -> Errand:
        """Sends what is to be said of the end, and ends all waiting for messages if nothing more comes."""
        while said:
            yield from self._tell(said)
            with self._underway.changed:
                said = self.peers.ending.has_told()
        with self._underway.changed:
            receives = self.peers.ending.receives
            while self.peers.ending.over and receives:
                self._mail.cancel(receives.popitem()[1])

    def _listen(self, peer: int) -> Errand:
        """Receives from a peer while something is due; at the end until nothing more comes from it."""
        due = self.peers.due[peer]
        try:
            while True:
                while not due and not self._over:
                    yield None
                head = yield from self._take_head(peer)
                if head.kind == NOTHING:
                    return
                if head.kind == ASK:
                    self._answer(peer)
                elif head.kind == END:
                    text = yield from self._take_text(peer, head.length)
                    self.peers.note_end(peer, text)
                    if not self._mail.cancels:
                        return
                elif head.kind in (ROWS, FAILED):
                    yield from self._take(peer, head, self._wanted(peer, head))
                if self._mail.cancels:
                    self._note(peer, head)
        except Gone as error:
            self.peers.lost(peer, error)

    def _take_head(self, peer: int) -> Generator[list[Any] | None, None, Head]:
        """Waits for the next message of a peer. Its kind is NOTHING if none comes."""
        came, ending = np.zeros(len(Head._fields), np.int64), self.peers.ending
        with self._underway.changed:
            if ending.over:
                return Head(NOTHING)
            ending.receives[peer] = self._mail.receive(peer, _bytes(came))
        try:
            yield [ending.receives[peer]]
        finally:
            with self._underway.changed:
                ending.receives.pop(peer, None)
        return Head(*came.tolist())

    def _answer(self, peer: int) -> None:
        """Tells a peer that asks that nothing more comes, if that is so."""
        with self._underway.changed:
            now = self.peers.ending.is_asked(peer)
        if now:
            text = encode_text(self.peers.broken)
            self._start(self._tell([(peer, Head(END, LAST, 0, len(text), 1))], text))

    def _note(self, peer: int, head: Head) -> None:
        """Notes that this message is here. No receiving waits for what is sent because of it."""
        with self._underway.changed:
            said = self.peers.ending.takes(peer, head)
            if said or self.peers.ending.over:
                self._start(self._pass_on(said))

    def _wanted(self, peer: int, head: Head) -> DueTransfer | None:
        """Returns what is due if it is this message; None if nobody needs that."""
        due = self.peers.due[peer]
        if not due or not self._fits(peer, head, due[0]):
            return None
        wanted = due.popleft()
        wanted.batch.said = time.monotonic()
        return wanted

    def _fits(self, peer: int, head: Head, due: DueTransfer) -> bool:
        """Returns whether a peer sends what is due. If not, everything that it sends later is thrown away."""
        number, length = due.batch.number, len(due.places)
        fits = (number, due.letter) == (head.number, head.letter) and (head.kind == FAILED or length == head.length)
        if not fits:
            what = f"{head.length} rows of batch {head.number}, and {length} of {number} were to come"
            self.peers.fail(PlanError(f"{self.peers.named(peer)} sends {what}: the ranks carry out different plans"))
        return fits

    def _take(self, peer: int, head: Head, due: DueTransfer | None) -> Errand:
        """Receives what follows a head, and throws it away if nobody needs it."""
        nbytes, error = 0, None
        if head.kind == FAILED:
            text = yield from self._take_text(peer, head.length)
            error = ReadError(f"{self.peers.named(peer)} could not read what it was to send: {text}")
        else:
            yield from self._take_rows(peer, head, due)
            nbytes = head.length * sum(self._running.row_nbytes[self._arrays[head.letter]])
            if due is not None:
                self._underway.count(received_rows=head.length, received_bytes=nbytes)
        if due is not None:
            self._underway.came(peer, due.batch, nbytes, error)

    def _take_text(self, peer: int, length: int) -> Generator[list[Any] | None, None, str]:
        text = np.zeros(length, np.uint8)
        if length:
            yield [self._mail.receive(peer, text)]
        return text.tobytes().decode(errors="replace")

    def _take_rows(self, peer: int, head: Head, due: DueTransfer | None) -> Errand:
        """Receives rows into their places in a batch, if it needs them and has not failed."""
        arrays, length = self._arrays[head.letter], head.length
        values, places = list[NDArray[Any]](), np.empty(0, np.int64)
        if due is not None and due.batch.error is None:
            values, places = due.batch.values[arrays], due.places
        first = int(places[0]) if values else 0
        in_order = bool(values) and np.array_equal(places, np.arange(first, first + length))
        if in_order:  # most often it is one row
            boxes = [_bytes(one[first : first + length]) for one in values]
        else:
            row_nbytes = self._running.row_nbytes[arrays]
            boxes = [_native.take(length * of) if of else np.empty(0, np.uint8) for of in row_nbytes]
        held = 0 if in_order else sum(box.nbytes for box in boxes)
        self._underway.count(inbox_bytes=held)
        try:
            yield [self._mail.receive(peer, box) for box in boxes if box.nbytes]
            if not in_order:
                for one, box in zip(values, boxes, strict=False):
                    one[places] = box.view(one.dtype).reshape(length, *one.shape[1:])
        finally:
            self._underway.count(inbox_bytes=-held)


def _bytes(values: NDArray[np.generic]) -> Bytes:
    return values.reshape(-1).view(np.uint8)


def encode_text(text: str) -> Bytes:
    return np.frombuffer(bytearray(text.encode(errors="replace")[:TEXT]), np.uint8)


log = logging.getLogger("solar")

LAST_WORDS = 5.0  # seconds that the other ranks have to close, once one does
MISSED_WORDS = 0.3  # as long, where one of them is gone: then the others know it, too


class Exchange:
    """A Running whose batches also have the rows that other ranks send.

    It holds at most `window` batches that have not been taken. All ranks must make it together, append matching
    stretches, and take all batches or close it.
    """

    count_names = (*COUNT_NAMES, "exchanged_bytes", "exchange_wait_ns", "travel_wait_ns")

    def __init__(
        self,
        running: Running,
        mail: BulkChannel,
        window: int,
        letters: Sequence[slice] = (slice(None),),
        ended: Callable[[], Sequence[int]] = list,
    ) -> None:
        """`letters` are the arrays of a batch that travel together: all of them, or one group per field. `ended`
        returns the ranks whose processes are known to have ended.
        """
        assert window >= 1
        self._letters = len(letters)
        self.parts, self.nbytes, self.staged = running.parts, running.nbytes, running.staged
        self._running = running
        self._asked: dict[int, float] = {}  # when somebody first waited for a batch, by its number
        self._underway = PendingExchange(window)
        self._traffic: TransferThreads | None = TransferThreads(
            running, mail, self._underway, letters, ended
        )  # None in a forked process
        _live.add(self)

    @property
    def appended(self) -> int:
        """The number of batches appended so far."""
        return self._running.appended

    @property
    def released(self) -> int:
        """The number of batches that will not be asked for again."""
        return self._underway.released

    @property
    def broken(self) -> bool:
        """Whether the exchange failed as a whole, so that no further batch comes."""
        return self._underway.fatal is not None

    def append(self, sizes: NDArray[np.int64], scripts: Sequence[PartScript], parcels: Transfers) -> None:
        """Appends a stretch of batches, whose memory has room for these numbers of rows: its own and the parcel."""
        assert (len(sizes), self._letters) == (len(parcels.sizes), parcels.letters)
        assert np.all(sizes >= parcels.sizes)
        base = self._running.appended
        self._running.append(sizes, scripts)
        sent, come, firsts = parcels.sent, parcels.come, np.arange(len(sizes) + 1) * parcels.letters
        sent_at, come_at = np.searchsorted(sent[:, 0], firsts), np.searchsorted(come[:, 0], firsts)
        self._underway.append(Stretch(base, sizes, sent, sent_at, come, come_at))

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]:
        """Returns the fields of this batch, and counts. A TimeoutError after `seconds` says what is missing.

        One may wait again until `let_go`, so Ctrl-C loses no batch. Besides the counts of a Running there are
        exchanged_bytes, which came from other ranks; exchange_wait_ns, the time that was waited for them alone; and
        travel_wait_ns, the part of it while the rows were travelling.
        """
        at_hand = partial(self.at_hand, number, samples)

        def missing() -> str:
            return "" if self._traffic is None else self._traffic.peers.waiting_for(number)

        if seconds is None:
            found = until_others(at_hand, f"batch {number} of this run", missing)
        else:
            found = until(at_hand, seconds)
        if found is None:
            raise WaitTimeout.values(seconds, missing())
        values, counts = found
        return values, dict(zip(self.count_names, counts, strict=True))

    def at_hand(self, number: int, samples: int, nap: float) -> tuple[list[NDArray[Any]], tuple[int, ...]] | None:
        """Does what `wait` does, within this short time. Counts are in the order of `count_names`."""
        if self._traffic is None:
            raise RuntimeError("this run was closed")
        begin = self._asked.setdefault(number, time.monotonic())
        self._traffic.peers.look()
        if not self._underway.sending():
            self._running.ask(number)
        batch = self._underway.whole(number, nap)
        if batch is None:
            if time.monotonic() - begin >= GLANCE:
                self._traffic.ask(number)
            return None
        if batch.error is not None:
            try:
                raise batch.error
            finally:
                del batch  # or its error and this frame, which is in its traceback, would keep each other alive
        stood = int(1e9 * max(0.0, batch.here - max(begin, batch.read)))
        on_way = int(1e9 * max(0.0, batch.here - max(begin, batch.read, batch.said)))
        self._underway.count(exchange_wait_ns=stood, travel_wait_ns=on_way)
        counts = (batch.counts.get(name, 0) for name in COUNT_NAMES)
        return [one[:samples] for one in batch.values], (*counts, batch.exchanged, stood, on_way)

    def let_go(self, number: int) -> None:
        """Releases a batch that was handed out."""
        self._asked.pop(number, None)
        if self._traffic is not None:
            self._underway.let_go(number)

    def forget(self, number: int) -> None:
        """Drops a batch that will not be taken. Other ranks still get their rows of it."""
        self._asked.pop(number, None)
        if self._traffic is not None:
            self._underway.forget(number)

    def counts(self) -> dict[str, int]:
        """Counts since the run began: what it read, held and found, and what was sent, received, and waited for."""
        if self._traffic is None:
            return {}
        return {**self._running.counts(), **self._underway.counts()}

    def fail(self, why: Exception) -> None:
        """Tells all other ranks why this one stops. Call close() afterwards."""
        self._running.fail(why)
        if self._traffic is not None:
            self._traffic.peers.fail(ReadError(str(why)))

    def close(self) -> None:
        """Ends the exchange and the run. Waits a little for the other ranks, and still receives what they send."""
        traffic = self._traffic
        if traffic is not None and traffic not in _left and not traffic.close(LAST_WORDS):
            log.info(
                "%s not closed their loaders after %g s: what they send is taken until they do",
                traffic.open_peers(), LAST_WORDS,
            )  # fmt: skip
            traffic.stay()

    def drop(self) -> None:
        """Ends the exchange without waiting for other ranks, because the garbage collector may call it anywhere."""
        traffic = getattr(self, "_traffic", None)
        if traffic is not None and traffic not in _left and not sys.is_finalizing():
            _dropped.add(traffic)
            traffic.drop()

    def __del__(self) -> None:
        self.drop()


# --- the end of the process, and its forks ----

_live: weakref.WeakSet[Exchange] = weakref.WeakSet()
_dropped: weakref.WeakSet[TransferThreads] = weakref.WeakSet()  # their own threads close these
_left: list[TransferThreads] = []  # not destroyed: others still send to them, or they belong to another process


def close_exchanges() -> None:
    for exchange in list(_live):
        exchange.close()
    for traffic in list(_dropped):
        traffic.close(LAST_WORDS)


def forget_exchanges() -> None:
    for exchange in list(_live):
        if exchange._traffic is not None:
            _left.append(exchange._traffic)
            exchange._traffic = None
    _left.extend(_dropped)
    _live.clear()
    _dropped.clear()


lifecycle.after_fork(forget_exchanges)
lifecycle.at_exit(lifecycle.Ends.EXCHANGES, close_exchanges)
