"""Sockets in memory: a stream may come late and in parts, and its ends may stop, go and be killed."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .tasks import Actor, Killed, Simulation

ROOM = 1 << 18  # bytes of a stream that nobody has received


@dataclass
class Wire:
    """How messages travel, as a seed draws it."""

    late: float = 0.0  # share of the messages that come late
    latest: float = 0.0  # seconds
    parts: float = 0.0  # share of the calls that send or receive a part of what they could
    stood: float = 0.0  # seconds by which messages were late, all together

    def arrives(self, simulation: Simulation, before: float) -> float:
        """Returns when something arrives that is sent now, behind something else."""
        draw = simulation.draw
        late = self.latest * draw.random() if draw.random() < self.late else 1e-4 * draw.random()
        self.stood += late
        return max(before, simulation.now + late)


@dataclass(eq=False)
class Stream:
    """One direction of a connection."""

    coming: deque[tuple[float, bytes, list[int]]] = field(default_factory=deque)
    nbytes: int = 0
    at: float = 0.0  # when the last bytes arrive
    ended: bool = False  # nothing more is sent
    reset: bool = False  # it ended with bytes that were not received
    closed: bool = False  # nobody receives any more


class Listener:
    """Where connections wait to be accepted."""

    def __init__(self, actor: Actor, backlog: int) -> None:
        self.waiting: deque[Socket] = deque()
        self.actor, self.open, self.backlog = actor, True, backlog


class Wires:
    """All sockets of a simulation. Those that listen are found by their file, as the system finds them."""

    def __init__(self, simulation: Simulation, how: Wire) -> None:
        self.simulation, self.how = simulation, how
        self.listening: dict[tuple[int, int], Listener] = {}
        self.open: list[Socket] = []

    def socket(self, *_: Any) -> Socket:
        task = self.simulation.current
        assert task is not None
        return Socket(self, task.actor)

    def send_fds(self, peer: Socket, buffers: Sequence[bytes], fds: Sequence[int]) -> int:
        return peer.send(b"".join(buffers), fds)

    def recv_fds(self, peer: Socket, nbytes: int, most: int, flags: int = 0) -> tuple[bytes, list[int], int, None]:
        found, descriptors = peer.receive(nbytes)
        assert len(descriptors) <= most
        return found, descriptors, 0, None


class Socket:
    """socket.socket, of the family AF_UNIX, which is a stream."""

    def __init__(self, wires: Wires, actor: Actor) -> None:
        self._wires, self._simulation, self.actor = wires, wires.simulation, actor
        self._timeout: float | None = None
        self._in, self._out = Stream(), Stream()
        self.peer: Actor | None = None
        self._listens: Listener | None = None
        self._path: tuple[int, int] | None = None
        self._closed = False
        wires.open.append(self)
        actor.closing.append(self._close)

    # --- connections ----

    def bind(self, path: str) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(path)
        finally:
            made.close()
        self._path = _file_of(path)

    def listen(self, backlog: int) -> None:
        assert self._path is not None
        self._listens = self._wires.listening[self._path] = Listener(self.actor, backlog)

    def accept(self) -> tuple[Socket, str]:
        listens = self._listens
        assert listens is not None
        if not self._simulation.wait(lambda: listens.waiting or self._closed, self._timeout):
            raise TimeoutError("timed out")
        self._check()
        return listens.waiting.popleft(), ""

    def connect(self, path: str) -> None:
        self._simulation.give_way()
        listens = self._wires.listening.get(_file_of(path))
        if listens is None or not listens.open:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        if not self._simulation.wait(lambda: len(listens.waiting) < listens.backlog or not listens.open, self._timeout):
            raise TimeoutError("timed out")
        if not listens.open:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        other = Socket(self._wires, listens.actor)
        other._in, other._out, other.peer = self._out, self._in, self.actor
        self.peer = other.actor
        listens.waiting.append(other)

    def getsockopt(self, level: int, name: int, nbytes: int = 0) -> bytes:
        assert (level, name) == (socket.SOL_SOCKET, socket.SO_PEERCRED) and self.peer is not None
        return struct.pack("iII", self.peer.process, self.peer.user, self.peer.user)

    # --- bytes ----

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def setblocking(self, blocks: bool) -> None:
        self._timeout = None if blocks else 0.0

    def sendall(self, what: bytes) -> None:
        while what:
            what = what[self.send(what) :]

    def send(self, what: bytes, descriptors: Sequence[int] = ()) -> int:
        wires, simulation, stream = self._wires, self._simulation, self._out
        simulation.give_way()
        self._check()

        def may() -> bool:
            return stream.nbytes < ROOM or stream.closed or stream.ended

        if not may() and not simulation.wait(may, self._timeout):
            raise TimeoutError("timed out")
        self._check()
        if stream.closed or stream.ended:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        _check_descriptors(what, descriptors)
        if len(what) > 1 and simulation.draw.random() < wires.how.parts:
            what = what[: simulation.draw.randrange(1, len(what))]
        stream.at = wires.how.arrives(simulation, stream.at)
        stream.coming.append((stream.at, what, [os.dup(one) for one in descriptors]))
        stream.nbytes += len(what)
        return len(what)

    def recv(self, nbytes: int) -> bytes:
        found, descriptors = self.receive(nbytes)
        for one in descriptors:
            os.close(one)
        return found

    def receive(self, nbytes: int) -> tuple[bytes, list[int]]:
        simulation, stream = self._simulation, self._in
        simulation.give_way()
        self._check()

        def came() -> bool:
            if stream.coming:
                return stream.coming[0][0] <= simulation.now
            return stream.ended or self._closed

        if not came():
            if self._timeout == 0:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self._wait_for_bytes(came, stream)
        self._check()
        if not stream.coming:
            if stream.reset:
                stream.reset = False
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            return b"", []
        at, what, descriptors = stream.coming.popleft()
        taken = min(len(what), nbytes)
        if taken > 1 and simulation.draw.random() < self._wires.how.parts:
            taken = simulation.draw.randrange(1, taken)
        if taken < len(what):
            stream.coming.appendleft((at, what[taken:], []))
        stream.nbytes -= taken
        return what[:taken], descriptors

    def _wait_for_bytes(self, came: Any, stream: Stream) -> None:
        """Waits as the system does: bytes that are under way count from when they arrive."""
        end = None if self._timeout is None else self._simulation.now + self._timeout
        while not came():
            left = None if end is None else end - self._simulation.now
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            arrives = stream.coming[0][0] - self._simulation.now if stream.coming else None
            nap = min((one for one in (left, arrives) if one is not None), default=None)
            known = arrives is not None
            self._simulation.wait(lambda known=known: came() or (not known and stream.coming), nap)

    # --- the end ----

    def shutdown(self, how: int) -> None:
        self._simulation.give_way()
        self._check()
        self._in.ended = self._out.ended = True

    def close(self) -> None:
        task = self._simulation.current
        if task is not None and not task.actor.alive:
            raise Killed
        self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wires.open.remove(self)
        self._out.ended, self._in.closed = True, True
        if self._in.coming:
            self._out.reset = True
        for _, _, descriptors in self._in.coming:
            for one in descriptors:
                os.close(one)
        self._in.coming.clear()
        if self._listens is not None:
            self._listens.open = False
            for one in self._listens.waiting:
                one._close()

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_descriptors(what: bytes, descriptors: Sequence[int]) -> None:
    """Raises AssertionError if one was closed, or if another file has the number of what rings by now."""
    kinds = [_kind_of(one) for one in descriptors]
    assert all(kinds), "a descriptor is sent that was closed"
    if kinds and b'"joined"' in what:
        assert "eventfd" in kinds[-1], f"{kinds[-1]} is sent in the place of a bell"


def _kind_of(descriptor: int) -> str:
    """Returns what the system calls an open file; nothing if none has this number."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""


def _file_of(path: str) -> tuple[int, int]:
    facts = Path(path).stat()
    return facts.st_dev, facts.st_ino
