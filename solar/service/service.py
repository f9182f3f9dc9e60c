"""Service: listens on a socket, and brings each job to the reader of its data."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from solar import __version__
from solar.errors import SolarError
from solar.io.channels import frames
from solar.io.channels.frames import MOST_FRAME, OF_JOBS, SPEAKS, Fault, Refused, close_all, receive, send
from solar.io.channels.node_memory import HELLO_PATIENCE, is_own
from solar.io.channels.service_sockets import listen, may_come, real
from solar.planning.pass_uses import SampleUses
from solar.service.job_orders import (
    OF_TEXT,
    check_length,
    check_room,
    ledger_nbytes,
    member_nbytes,
    order_nbytes,
    order_of_arrays,
)
from solar.service.nodes import Nodes
from solar.service.pace import SLACK, typical
from solar.service.scheduler import ENTRIES
from solar.service.shared_data import SharedData, data_digest, open_data
from solar.service.shared_reader import BEGINS, SharedReader, SharedReaders
from solar.service.window import Member

log = logging.getLogger("solar")

IDLE_CALLER = 60.0  # seconds that one who takes part in nothing may stay
MEMBERSHIPS = 16  # of one job
BESIDE_JOBS = 64  # connections more than jobs: of who only asks, and of who is refused
MOST_DATA = 32  # that differ, of all jobs
LATELY = 128  # batches by which its pace is told
TICK = 0.05


@dataclass(eq=False)
class Client:
    """A connected job, and its requests."""

    peer: socket.socket
    name: str = ""
    process: int = 0
    data: list[SharedData] = field(default_factory=list)
    members: dict[int, tuple[SharedReader, Member]] = field(default_factory=dict)
    next: int = 0
    telling: int = 0  # bytes that what it tells just now takes
    lately: deque[float] = field(default_factory=lambda: deque(maxlen=LATELY))  # seconds that its batches took


class Clients:
    """All connected jobs: how many may come, and how much memory the data and orders take that they have sent."""

    def __init__(self, memory: int, jobs: int) -> None:
        self._memory, self._jobs = memory, jobs
        self._all: dict[Client, None] = {}  # in the order in which they came
        self.lock = threading.RLock()
        self.taking = threading.Lock()  # one order, or one text, is looked at at a time: while it is, it takes more

    def each(self) -> list[Client]:
        """Returns the clients that are connected now."""
        with self.lock:
            return list(self._all)

    def add(self, client: Client) -> bool:
        """Adds a client. Returns False if there are too many."""
        with self.lock:
            if len(self._all) >= self._jobs + BESIDE_JOBS:
                return False
            self._all[client] = None
            return True

    def remove(self, client: Client) -> None:
        """Removes a client, which leaves the readers of its data."""
        with self.lock:
            self._all.pop(client, None)
            for hall, member in client.members.values():
                hall.leave(member)
            client.members.clear()

    def opened(self) -> dict[str, SharedData]:
        """Returns all data that clients have opened, by their facts."""
        with self.lock:
            return {one.facts: one for client in self._all for one in client.data}

    def open(self, client: Client, data: SharedData) -> int:
        """Returns the number by which a client names these data. Raises Refused if there are too many."""
        with self.lock:  # who only asks, or has it end, is not counted
            if sum(bool(one.data) for one in self._all if one is not client) >= self._jobs:
                raise Refused(f"{self._jobs} jobs are there, as many as this service takes (`--jobs`)", again=True)
            if len(client.data) >= MEMBERSHIPS:
                raise Fault("too many data sets")
            if len(self.opened().keys() | {data.facts}) > MOST_DATA:
                raise Refused(f"{MOST_DATA} data sets are read that differ, as many as a service takes", again=True)
            client.data.append(data)
            return len(client.data) - 1

    def join(self, client: Client, hall: SharedReader, member: Member) -> int:
        """Returns the number by which a client names this membership."""
        with self.lock:
            number, client.next = client.next, client.next + 1
            client.members[number] = hall, member
            return number

    def make_room(self, client: Client, more: int) -> None:
        """Reserves memory for what this client sends. Raises Refused if there is none."""
        with self.lock:
            members = [one for other in self._all for _, one in other.members.values()]
            taken = sum(one.description_nbytes for one in self.opened().values()) + sum(map(member_nbytes, members))
            check_room(self._memory, taken + sum(one.telling for one in self._all), more)
            client.telling = more


class Service:
    """Reads files for all jobs that connect. `run` returns after `stop`."""

    def __init__(
        self, files: Sequence[str], memory: int, path: Path, jobs: int = 200, idle: float | None = None,
        group: int | None = None, slack: float = SLACK,
    ) -> None:  # fmt: skip
        self.files, self.path, self.idle = list(files), path, idle
        self.served = {real(one) for one in files}
        self.began = time.monotonic()
        self._halls = SharedReaders(memory, slack)
        self._clients = Clients(memory, jobs)
        self._stopping = threading.Event()
        self.group = group  # whose members may come, beside the user
        self._listener, self._held = listen(path, group)

    @property
    def memory(self) -> int:
        """The bytes that it may take for data."""
        return self._halls.memory

    @property
    def nodes(self) -> Nodes | None:
        """The services of all nodes, if it is one of several."""
        return self._halls.nodes

    def run(self) -> None:
        """Serves until `stop`, or until no job has been connected for `idle` seconds."""
        last = time.monotonic()
        self._listener.settimeout(TICK)
        if self.nodes is not None:
            self.nodes.start(self._take_part, self.stop)
        try:
            while not self._stopping.is_set():
                if self._clients.each():
                    last = time.monotonic()
                elif self.idle is not None and time.monotonic() - last > self.idle:
                    return
                try:
                    peer, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:  # no descriptor is left: others go on
                    log.warning("nobody more can come: %s", error)
                    self._stopping.wait(TICK)
                    continue
                self._let_in(peer)
        finally:
            self.close()

    def _let_in(self, peer: socket.socket) -> None:
        caller = Client(peer)
        if not may_come(peer, self.group) or not self._clients.add(caller):
            peer.close()
            return
        try:
            threading.Thread(target=self._serve, args=(caller,), name="solar-caller", daemon=True).start()
        except RuntimeError:  # there are too many threads
            self._forget(caller)

    def stop(self) -> None:
        """Makes `run` return."""
        self._stopping.set()

    def close(self) -> None:
        """Ends the service. Jobs continue by themselves."""
        self._stopping.set()
        with suppress(OSError):
            self.path.unlink()
        self._listener.close()
        callers = self._clients.each()
        if self.nodes is not None:
            self.nodes.stop_all()
        self._halls.close()
        for caller in callers:
            with suppress(OSError):
                caller.peer.shutdown(socket.SHUT_RDWR)
        if self.nodes is not None:
            self.nodes.close()
        os.close(self._held)

    # --- services of other nodes ----

    def joins(self, nodes: Nodes) -> None:
        """Reads together with the services of these nodes. It is called before `run`."""
        self._halls = SharedReaders(self.memory, self._halls.slack, nodes)

    def _take_part(self, values: Any, arrays: list[NDArray[Any]]) -> None:
        """Reads this node's home region of data that a job of another node has opened."""
        assert self.nodes is not None
        facts = data_digest(values, arrays)
        try:
            found = self._halls.known(facts) or open_data(values, arrays, self.served)
            self._halls.of(found, self._wanted())
        except (SolarError, MemoryError, OSError) as error:
            again = isinstance(error, Refused) and error.again
            self.nodes.refuse(facts, str(error) or type(error).__name__, again=again)

    def _wanted(self) -> Collection[str]:
        """Returns the facts of all data that jobs have opened: here, or on any node."""
        own = self._clients.opened().keys()
        return own if self.nodes is None else self.nodes.tell_open(sorted(own))

    # --- one job ----

    def _serve(self, caller: Client) -> None:
        peer = caller.peer
        peer.settimeout(HELLO_PATIENCE)
        try:
            while (came := receive(peer, OF_JOBS)) is not None:
                message, descriptors = came
                try:
                    self._answer(caller, message, descriptors)
                finally:
                    caller.telling = 0
                    close_all(descriptors)
                peer.settimeout(None if caller.members else IDLE_CALLER)
        except Fault as error:
            log.info("%s: %s", caller.name or "somebody", error)
            with suppress(OSError):
                send(peer, {"is": "fault", "why": str(error)})
        except OSError:  # it has gone, or said nothing for too long
            pass
        finally:
            self._forget(caller)

    def _forget(self, caller: Client) -> None:
        self._clients.remove(caller)
        caller.peer.close()
        if self.nodes is not None and caller.data:
            with suppress(SolarError):
                self._wanted()  # told to other nodes

    def _answer(self, caller: Client, message: dict[str, Any], descriptors: list[int]) -> None:
        kind = message["is"]
        if (kind == "hello") == bool(caller.name):
            raise Fault("hello comes first, and once")
        wanted = {"data": 1, "join": 1, "more": 1}.get(kind, 0)
        if len(descriptors) != wanted:
            raise Fault(f"{kind} comes with {wanted} descriptors, and {len(descriptors)} came")
        try:
            answer, handed_on = getattr(self, f"_{kind}")(caller, message, descriptors)
        except Refused as error:
            log.info("%s is refused: %s", caller.name or "somebody", error)
            answer, handed_on = {"is": "refused", "why": str(error), "again": error.again}, []
        except Fault:
            raise
        except (SolarError, MemoryError, OSError) as error:
            answer, handed_on = {"is": "refused", "why": str(error) or type(error).__name__, "again": True}, []
        try:
            send(caller.peer, answer, handed_on)
        finally:
            close_all(handed_on)

    def _hello(self, caller: Client, message: dict[str, Any], _: list[int]) -> Any:
        speaks = message["speaks"]
        if len(speaks) != 2 or not all(isinstance(one, int) for one in speaks):
            raise Fault("speaks is a major and a minor number")
        if speaks[0] != SPEAKS[0]:
            raise Refused(
                f"this service (solar {__version__}) speaks version {SPEAKS[0]}, and the job (solar "
                f"{message['solar'][:40]}) version {speaks[0]}: end it by its own `solar serve --stop`, or by `kill "
                f"{os.getpid()}`, and start one of the same version"
            )
        caller.name, caller.process = f"{message['name'][:80]} (process {message['pid']})", message["pid"]
        return {"is": "welcome", "speaks": list(SPEAKS), "solar": __version__, "memory": self.memory}, []

    def _data(self, caller: Client, _: dict[str, Any], descriptors: list[int]) -> Any:
        with self._clients.taking:
            text, others = frames.sizes(descriptors[0])
            self._clients.make_room(caller, OF_TEXT * text + others)
            values, arrays = frames.take(descriptors[0])
            facts = data_digest(values, arrays)
        found = self._halls.known(facts) or self._clients.opened().get(facts) or open_data(values, arrays, self.served)
        found = replace(found, description_nbytes=caller.telling) if found.description[0] is values else found
        return {"is": "opened", "data": self._clients.open(caller, found), "fields": found.fields}, []

    def _order(self, caller: Client, descriptor: int, data: SharedData, most: int) -> SampleUses:
        """Receives an order from a job, for batches of `most` samples; 0: the job's ledger exists already."""
        with self._clients.taking:
            nbytes = sum(frames.sizes(descriptor))
            check_length(nbytes, data)
            self._clients.make_room(caller, order_nbytes(nbytes, len(data.pieces) > 1) + ledger_nbytes(most))
            return order_of_arrays(frames.take(descriptor)[1], data)

    def _join(self, caller: Client, message: dict[str, Any], descriptors: list[int]) -> Any:
        if not 0 <= message["data"] < len(caller.data) or len(caller.members) >= MEMBERSHIPS:
            raise Fault("no such data, or too many memberships")
        data = caller.data[message["data"]]
        uses = self._order(caller, descriptors[0], data, message["batch"])
        wanted = self._wanted()
        hall = self._halls.of(data, wanted)
        terms = caller.name, caller.process, uses, message["batch"], caller.lately
        try:
            member, handed_on = hall.admit(*terms)
        except Refused:
            if not hall.over:
                raise
            hall = self._halls.of(data, wanted)  # the memory was divided anew in between
            member, handed_on = hall.admit(*terms)
        number = self._clients.join(caller, hall, member)
        return {"is": "joined", "job": number, "entries": ENTRIES, "begins": BEGINS}, handed_on

    def _member(self, caller: Client, message: dict[str, Any]) -> tuple[SharedReader, Member]:
        found = caller.members.get(message["job"])
        if found is None:
            raise Fault("no such membership")
        return found

    def _more(self, caller: Client, message: dict[str, Any], descriptors: list[int]) -> Any:
        hall, member = self._member(caller, message)
        if member.left:
            raise Refused(f"it was left behind: {member.why}", again=True)
        hall.more(member, self._order(caller, descriptors[0], hall.opened, 0))
        return {"is": "noted"}, []

    def _leave(self, caller: Client, message: dict[str, Any], _: list[int]) -> Any:
        hall, member = self._member(caller, message)
        with self._clients.lock:
            del caller.members[message["job"]]
        hall.leave(member)
        return {"is": "left"}, []

    def _status(self, *_: Any) -> Any:
        status, more = self.status(), 0
        while len(json.dumps(status)) > MOST_FRAME - 100:  # and what is around it
            keeps = len(status["jobs"]) * 7 // 8
            more += len(status["jobs"]) - keeps
            del status["jobs"][keeps:]
        return {"is": "status", "told": {**status, "more_jobs": more}}, []

    def _stop(self, caller: Client, *_: Any) -> Any:
        if not is_own(caller.peer):
            raise Refused("a service is ended by the user who began it")
        self._stopping.set()
        return {"is": "stopping"}, []

    def status(self) -> dict[str, Any]:
        """Returns the jobs, and counts of what was read and handed out."""
        halls, callers = self._halls.each(), len(self._clients.each())
        jobs = []
        for one in [one for hall in halls for one in list(hall.members)]:
            waits = one.ledger.waits > one.ledger.made
            done = {"batches": one.ledger.made, "told": one.order.known}
            pace = {"seconds": typical(one.pace.lately), "rate": one.rate, "held": one.pace.held}
            jobs.append({"name": one.name, **done, **pace, "waits": waits, "why": one.why})
        counts = self._halls.counts()
        return {
            "pid": os.getpid(), "files": len(self.files), "memory": self.memory,
            "seconds": time.monotonic() - self.began, "slack": self._halls.slack, "connections": callers, "jobs": jobs,
            "first_file": real(min(self.files))[:1000],
            "read_bytes": counts.get("bytes", 0), "requests": counts.get("requests", 0),
            "held_bytes": counts.get("held_bytes", 0), "handed_bytes": counts.get("handed", 0),
            "head": max(halls, key=lambda one: one.memory).queue.head if halls else -1.0,
            "waited": max((one.pool.waited for one in halls), default=0.0),
            "nodes": 1 if self.nodes is None else self.nodes.ranks,
            "node": 0 if self.nodes is None else self.nodes.rank,
            "sent_samples": counts.get("sent_rows", 0), "received_samples": counts.get("received_rows", 0),
        }  # fmt: skip
