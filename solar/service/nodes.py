"""Nodes: the services of several nodes, which MPI started together, their messages, and the data that all read."""

from __future__ import annotations

import json
import logging
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError, ReadError, SolarError
from solar.io.channels.bulk import BulkChannel, numbered_mail
from solar.io.channels.control import LETTER_GRACE, posted, reached, start_mpi
from solar.io.channels.frames import Refused
from solar.io.channels.meeting import TROUBLE, Peers, peers
from solar.io.channels.world import detect, launched_ranks, mpi_module
from solar.io.system.waiting import polling, until, until_others
from solar.service.cluster import Cluster, Said
from solar.service.shared_data import SharedData

log = logging.getLogger("solar")

LETTER_HEAD = struct.Struct("<I")  # bytes of the JSON text before the arrays
MEET_WITHIN = 300.0  # seconds that services wait for each other when they begin
SHORTEST, LONGEST = 0.5e-3, 0.01  # seconds between two looks for messages
SAYS_SO = 1.0  # seconds after which one that has nothing to tell says that it is there
SILENT, LOST = 5.0, 1800.0  # seconds without a word after which another is not waited for; and is given up
ALL_END_WITHIN = 60.0  # seconds that others have to end, as long as they are heard
STOOD = 0.25  # seconds: what passes between two looks counts for no more, as this process may have stood still
BY_PROCESSES = ("Open MPI", "PMI", "Slurm")  # launchers that begin services: torchrun begins trainings


def several() -> int:
    """Returns how many services the launcher started together; 1 for one alone."""
    by, ranks = launched_ranks()
    return ranks if by in BY_PROCESSES else 1


def met(files: Sequence[str], description: str, memory: int) -> tuple[Peers, int]:
    """Meets the services of all nodes. Raises PlanError if they do not fit together."""
    start_mpi(detect())
    found = peers("mpi")
    if found is None:
        raise PlanError("this service was to be one of several, and MPI says that it is alone: look at its mpiexec")
    shown = [*files[:8], *([f"and {len(files) - 8} more"] if len(files) > 8 else [])]
    same = {"files": shown, "all files": sorted(files), "memory": description}
    came = found.meet("the services of several nodes", same, {}, {"memory": memory}, MEET_WITHIN)
    if len(set(came.node_of)) < found.ranks:
        raise PlanError(
            f"{found.ranks} services were begun on {len(set(came.node_of))} nodes: a node has one, which all of its "
            "trainings share; begin one a node (`mpiexec -ppn 1`, `srun --ntasks-per-node=1`)"
        )
    return found, came.least["memory"]


def agreed(found: Peers, trouble: SolarError | None) -> None:
    """Waits until all services listen. An error of one is raised on all."""
    try:
        found.meet("the sockets of services", {TROUBLE: None if trouble is None else str(trouble)}, {}, {}, MEET_WITHIN)
    except PlanError:
        if trouble is None:
            raise
    if trouble is not None:
        raise trouble


Hear: TypeAlias = Callable[[int, dict[str, Any], list[NDArray[Any]]], None]  # from which rank, what, and its arrays


class NodeMessages:
    """The messages between the services of several nodes. Any thread may send; one listens, and notes who is silent."""

    def __init__(self, found: Peers) -> None:
        self.rank, self.ranks = found.rank, found.ranks
        self._check = found.check
        self._post = posted("mpi", found.rank, 0)
        until_others(
            polling(self._post.ready), "this service", lambda: "those of other nodes", MEET_WITHIN, found.check
        )
        self._posting = threading.Lock()
        self._nap = SHORTEST
        self._last_sent = 0.0  # when anything was told last
        # For how many seconds each of the others has said nothing.
        self._silent = {rank: 0.0 for rank in range(self.ranks) if rank != self.rank}
        self._parted: set[int] = set()  # ranks that have told their last
        self._sent_last = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, hear: Hear, drop: Callable[[str], None], stop: Callable[[], None]) -> None:
        """Begins to listen: `hear` gets each message.

        `drop` ends, for a reason, what all read together while another node is silent. If one is gone, `stop` ends this
        service, too.
        """
        thread = threading.Thread(target=self._listen, args=(hear, drop, stop), name="solar-nodes", daemon=True)
        thread.start()
        self._thread = thread

    def tell(self, letter: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None:
        """Sends a message to all other nodes. Messages of a node arrive in order; its last one ends them."""
        header = json.dumps({**letter, "arrays": [[one.dtype.str, len(one)] for one in arrays]}).encode()
        whole = b"".join(
            [LETTER_HEAD.pack(len(header)), header, *(np.ascontiguousarray(one).tobytes() for one in arrays)]
        )
        self._nap, self._last_sent = SHORTEST, time.monotonic()  # an answer may come soon
        with self._posting, reached():
            for rank in [] if self._sent_last else self._silent:
                self._post.send(rank, whole)
            self._sent_last = self._sent_last or letter["is"] == "last"

    def tell_end(self, letter: dict[str, Any]) -> None:
        """Tells the other nodes that this one ends something. Some may be gone: it ends in any case."""
        try:
            self.tell(letter)
        except SolarError as error:
            log.info("the other services cannot be told that this one ends something: %s", error)

    # --- what this node hears ----

    def _listen(self, hear: Hear, drop: Callable[[str], None], stop: Callable[[], None]) -> None:
        last = time.monotonic()
        try:
            while not self._over.wait(self._nap):
                last = self._look(last)
                if why := self.silence():
                    drop(why)
                self._nap = min(2 * self._nap, LONGEST)
                for rank in self._silent:
                    with reached():
                        letter = self._post.poll(rank)
                    if letter is not None:
                        if self._silent[rank] > SILENT:
                            log.info("rank %d of %d services is heard again", rank, self.ranks)
                        self._silent[rank] = 0.0
                        self._take(rank, letter, hear)
                        self._nap = SHORTEST
                self._check()
        except Exception as error:  # nobody else would see it; and who has died ends all
            if self._over.is_set() or self.all_end():
                return
            log.error("the services of several nodes end: %s", error)
            drop(str(error))
            stop()

    def _look(self, last: float) -> float:
        """Says that this node is alive, and notes for how long each of the others is silent. Returns the time."""
        now = time.monotonic()
        if now - self._last_sent > SAYS_SO:
            self.tell({"is": "here"})
        for rank in (one for one in self._silent if one not in self._parted):
            before = self._silent[rank]
            self._silent[rank] += min(now - last, STOOD)
            if self._silent[rank] > LOST:
                raise ReadError(f"rank {rank} of {self.ranks} services has said nothing for {LOST:g} s")
            if before <= SILENT < self._silent[rank]:
                log.warning("%s", self._of_silent(rank))
        return now

    def _take(self, rank: int, letter: bytes, hear: Hear) -> None:
        (length,) = LETTER_HEAD.unpack_from(letter)
        header = json.loads(letter[LETTER_HEAD.size : LETTER_HEAD.size + length])
        arrays, at = list[NDArray[Any]](), LETTER_HEAD.size + length
        for kind, count in header["arrays"]:
            arrays.append(np.frombuffer(letter, kind, count, at))
            at += arrays[-1].nbytes
        if header["is"] == "last":
            self._parted.add(rank)
        elif header["is"] != "here":
            hear(rank, header, arrays)

    def _silent_ranks(self) -> list[int]:
        """Returns the ranks that have sent nothing for too long."""
        return [rank for rank, seconds in self._silent.items() if seconds > SILENT]

    def silence(self) -> str:
        """Says which rank has sent nothing for too long, if there is one."""
        return next(map(self._of_silent, self._silent_ranks()), "")

    def _of_silent(self, rank: int) -> str:
        return (
            f"rank {rank} of {self.ranks} services has said nothing for {SILENT:g} s: until it does trainings read by "
            "themselves"
        )

    # --- the end ----

    def close(self) -> None:
        """Stops listening after all nodes have sent their last message, since MPI would make them wait."""
        self.tell_end({"is": "last"})
        try:
            with reached():
                until(polling(self._nobody_to_wait_for), ALL_END_WITHIN)
        except SolarError as error:
            log.info("%s", error)
        self._over.set()
        if self._thread is not None:
            self._thread.join(LETTER_GRACE)

    def _nobody_to_wait_for(self) -> bool:
        """Returns whether each of the others has ended and knows that this one has, or is silent."""
        ended = [rank for rank in self._parted if not self._post.needed(rank)]
        listens = self._thread is not None and self._thread.is_alive()
        return not listens or {*self._silent_ranks(), *ended} == {*self._silent}

    def all_end(self) -> bool:
        """Returns whether all other nodes have sent their last message."""
        return len(self._parted) == len(self._silent)


class Nodes:
    """The services of several nodes, and the data that they read together."""

    def __init__(self, found: Peers) -> None:
        self._messages = NodeMessages(found)
        self._mail = numbered_mail(found.check)
        self._mails = 0  # bulk channels so far
        self._lock = threading.RLock()
        self._halls: dict[tuple[str, int], Cluster] = {}  # until all nodes have ended them
        self._early: dict[tuple[str, int], list[tuple[int, int, Said]]] = {}  # messages to those that are to begin here
        self._ended: dict[str, int] = {}  # by data, how often they have ended
        self._refused: dict[str, str] = {}  # data that a node does not read, and why
        self._open: list[list[str]] = [[] for _ in range(self.ranks)]  # data that jobs of each node have opened
        self._take_part: Callable[[Any, list[NDArray[Any]]], None] = lambda values, arrays: None
        self._stop: Callable[[], None] = lambda: None

    @property
    def rank(self) -> int:
        """The rank of this node."""
        return self._messages.rank

    @property
    def ranks(self) -> int:
        """The number of nodes."""
        return self._messages.ranks

    def start(self, take_part: Callable[[Any, list[NDArray[Any]]], None], stop: Callable[[], None]) -> None:
        """Begins to listen. `take_part` begins with data that another node names; `stop` ends this service."""
        self._take_part, self._stop = take_part, stop
        self._messages.start(self._hear, self._drop_all, stop)

    # --- what this node tells ----

    def tell(self, letter: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None:
        """Sends a message to all other nodes."""
        self._messages.tell(letter, arrays)

    def tell_open(self, own: Sequence[str]) -> set[str]:
        """Returns the data that jobs of any node have opened. `own` are those of this node."""
        with self._lock:
            if sorted(own) != self._open[self.rank]:
                self._open[self.rank] = sorted(own)
                self.tell({"is": "open", "data": sorted(own)})
            return {one for of in self._open for one in of}

    def next_number(self) -> int:
        """Returns a number for a bulk channel that is not in use."""
        with self._lock:
            self._mails += 1
            return self._mails

    def mail(self, number: int) -> BulkChannel:
        """Returns the bulk channel of this number, which carries samples to other nodes."""
        return self._mail(number)

    # --- data that all read together ----

    def check(self, data: SharedData) -> None:
        """Raises Refused if another node does not read these data, or does not answer."""
        if silent := self._messages.silence():
            raise Refused(silent, again=True)
        with self._lock:
            if why := self._refused.get(data.facts):
                raise Refused(why)

    def of(self, data: SharedData) -> Cluster:
        """Returns this node's part in reading these data."""
        with self._lock:
            made = Cluster(self, data, 1 + self._ended.get(data.facts, 0))
            self._halls[made.key, made.number] = made
        values, arrays = data.description
        self.tell({"is": "data", "key": made.key, "number": made.number, "values": values}, arrays)
        return made

    def begin(self, one: Cluster) -> None:
        """Delivers to a part what has arrived for it, from now on."""
        with self._lock:
            for early in self._early.pop((one.key, one.number), []):
                one.came(*early)

    def bye(self, one: Cluster, why: str) -> None:
        """Ends a part of this node, and thereby the reading of all nodes."""
        self._bye(one.key, one.number, why)

    def refuse(self, key: str, why: str, *, again: bool) -> None:
        """Says that this node does not read these data, so that none does. `again`: it may do so later."""
        why = f"rank {self.rank} of {self.ranks} services: {why}"
        with self._lock:
            if not again:
                self._refused[key] = why
        log.warning("%s", why)
        self._bye(key, None, why, final=not again)

    def _bye(self, key: str, number: int | None, why: str, *, final: bool = False) -> None:
        """Says once that a part ends; without a number, that the next one would."""
        with self._lock:
            number = 1 + self._ended.get(key, 0) if number is None else number
            self._ended[key] = max(self._ended.get(key, 0), number)
            self._early.pop((key, number), None)
        self._messages.tell_end({"is": "bye", "key": key, "number": number, "why": why, "final": final})

    # --- what this node hears ----

    def _hear(self, rank: int, header: dict[str, Any], arrays: list[NDArray[Any]]) -> None:
        if header["is"] == "stop":
            self._stop()
        elif header["is"] == "open":
            with self._lock:
                self._open[rank] = header["data"]
        elif header["is"] == "round":
            self._hear_round(rank, header, Said(header["value"], arrays))
        elif header["is"] == "waits":
            with self._lock:
                one = self._halls.get((header["key"], header["number"]))
            if one is not None:
                one.heard(rank, header["value"])
        elif header["is"] == "bye":
            self._hear_bye(rank, **header)
        else:
            with self._lock:
                new = header["number"] > self._ended.get(header["key"], 0)
                new = new and (header["key"], header["number"]) not in self._halls
            if new:  # it opens files: others are heard meanwhile
                threading.Thread(target=self._take_part, args=(header["values"], arrays), daemon=True).start()

    def _hear_round(self, rank: int, header: dict[str, Any], said: Said) -> None:
        key = header["key"], header["number"]
        with self._lock:
            one = self._halls.get(key)
            if one is None or not one.begun:
                if header["number"] > self._ended.get(header["key"], 0):
                    self._early.setdefault(key, []).append((rank, header["round"], said))
                return
        one.came(rank, header["round"], said)

    def _hear_bye(self, rank: int, key: str, number: int, why: str, final: bool, **_: Any) -> None:
        with self._lock:
            one = self._halls.get((key, number))
            if final:
                self._refused[key] = why
            if one is None and number > self._ended.get(key, 0):
                self._bye(key, number, why)  # it never began here, and shall not: others wait for this word
        if one is not None and one.over(why, [rank]):
            with self._lock:
                self._halls.pop((key, number), None)

    def _drop_all(self, why: str) -> None:
        """Ends what all read together without waiting for the other nodes."""
        with self._lock:
            gone, self._halls = [*self._halls.values()], {}
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        for one in gone:
            one.over(why, others)

    # --- the end ----

    def stop_all(self) -> None:
        """Ends the services of all nodes."""
        self._messages.tell_end({"is": "stop"})

    def close(self) -> None:
        """Stops listening after all nodes have sent their last message."""
        self._messages.close()

    def leave(self) -> None:
        """Leaves MPI. If another node did not end, MPI would wait for it for ever, so the launcher has to end them."""
        if not self._messages.all_end():
            log.error("the services of other nodes do not answer: what began them is told to end them")
            sys.stderr.flush()
            mpi = mpi_module()
            if mpi is not None:
                mpi.COMM_WORLD.Abort(1)
            os._exit(1)
