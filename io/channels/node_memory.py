"""The shared memory of the processes of a node. One process makes it and passes it on; no file is involved."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from solar import _native
from solar.errors import PlanError, ReadError
from solar.io.channels.alive import meeting_others
from solar.io.system.waiting import GLANCE, SAID_AFTER, polling, until

log = logging.getLogger("solar")

HELLO_PATIENCE = 2.0  # seconds that somebody who has connected has to say hello

HELLO = struct.Struct("<32sQQ32s")  # proof of the door, place, bytes of memory, digest of the names
PEER = struct.Struct("iII")  # pid, uid, gid
ANSWER = 4 << 10  # bytes of an answer, at most: what is wrong, unless it brings the descriptor


def join(
    door: str,
    place: int,
    names: Sequence[str],
    nbytes: int,
    seconds: float = 60,
    check: Callable[[], None] = lambda: None,
) -> _native.Node:
    """Returns the shared node of all processes in `names`, once they are all there. `place` is this process's index.

    Place 0 makes the memory and passes it on through an abstract socket, whose name is derived from `door`, a random
    token that only these processes know. Raises ReadError for processes that do not come within `seconds`, PlanError
    for different memory, and the errors of `check`, which is called now and then to see whether the others live.
    """
    end = time.monotonic() + seconds
    hall = _MeetingPoint(door, list(names), nbytes, seconds, end, check, [])
    descriptor = _native.make_node(len(names), nbytes) if place == 0 else _have_come(hall, place)
    try:
        node = _native.Node(descriptor, place, list(names), nbytes)
        try:
            if place == 0 and len(names) > 1:
                _hand_on(hall, descriptor)
            until(node.joined, look=lambda: hall.look(node.missing))
        except BaseException as error:  # Ctrl-C, too: nobody waits for this one then
            node.fail(str(error) or type(error).__name__)
            node.leave()
            raise
    finally:
        os.close(descriptor)
    return node


def pass_on(
    door: str, place: int, names: Sequence[str], make: Callable[[], int], seconds: float, check: Callable[[], None]
) -> int:
    """Returns a descriptor that place 0 makes, in each of the processes in `names`. Arguments are those of `join`."""
    hall = _MeetingPoint(door, list(names), 0, seconds, time.monotonic() + seconds, check, [])
    if place:
        return _have_come(hall, place)
    descriptor = make()
    try:
        if len(names) > 1:
            _hand_on(hall, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class _MeetingPoint(NamedTuple):
    """The arguments that all joining processes share, and how long they wait for each other."""

    door: str
    names: list[str]
    nbytes: int
    seconds: float
    end: float
    check: Callable[[], None]
    said: list[str]  # whom it waits for, when that has been said

    def look(self, missing: Callable[[], Sequence[str]]) -> None:
        """Raises ReadError if it is too late for the missing processes, or if they will never come."""
        self.check()
        left = self.end - time.monotonic()
        says_so = left < self.seconds - SAID_AFTER and not self.said
        if left > 0 and not says_so:
            return
        late = missing()
        others = ", ".join(late[:8]) + (f" and {len(late) - 8} more" if len(late) > 8 else "")
        if left > 0:
            self.said.append(others)
            log.warning(
                "%d ranks of a node wait for %s; they give up after %g s", len(self.names), others, self.seconds
            )
            return
        raise ReadError(
            f"{len(self.names)} ranks of a node share a buffer, and {others} did not come within {self.seconds:g} s: "
            f"look for their errors; all must begin at the same time, in one network namespace"
        )


# --- the door ----


def socket_address(door: str) -> str:
    """Returns a name in the abstract namespace, which anyone may see. It does not reveal the secret."""
    return "\0solar-" + hashlib.sha256(b"address " + door.encode()).hexdigest()


def _proof(door: str) -> bytes:
    return hashlib.sha256(b"hello " + door.encode()).digest()


def names_digest(names: Sequence[str]) -> bytes:
    return hashlib.sha256("\0".join(names).encode()).digest()


def peer_of(peer: socket.socket) -> tuple[int, int, int]:
    """Returns the process at the other end, its user and its group, from the kernel."""
    pid, uid, gid = PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return pid, uid, gid


def is_own(peer: socket.socket) -> bool:
    """Returns whether the process at the other end is of the same user."""
    return peer_of(peer)[1] == os.geteuid()


# --- the leader ----


def _hand_on(hall: _MeetingPoint, descriptor: int) -> None:
    """Gives the descriptor to each of the others."""
    missing = set(range(1, len(hall.names)))
    with (
        meeting_others(f"{hall.names[0]} cannot let others join its node"),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(socket_address(hall.door))
        listener.listen(len(hall.names))

        def served(nap: float) -> bool:
            listener.settimeout(max(nap, 1e-3))
            with suppress(TimeoutError):
                peer, _ = listener.accept()
                with peer:
                    missing.discard(_serve(hall, peer, descriptor))
            return not missing

        until(served, look=lambda: hall.look(lambda: [hall.names[place] for place in sorted(missing)]))


def _serve(hall: _MeetingPoint, peer: socket.socket, descriptor: int) -> int:
    """Returns the place of the process that connected and got the descriptor; 0 for a stranger, or if it went away."""
    if not is_own(peer):
        return 0
    peer.settimeout(HELLO_PATIENCE)
    names = hall.names
    try:
        hello = peer.recv(HELLO.size + 1)
        if len(hello) != HELLO.size:
            return 0
        proof, place, wanted, named = HELLO.unpack(hello)
        if not hmac.compare_digest(proof, _proof(hall.door)):
            return 0
        wrong = ""
        if named != names_digest(names) or not 0 < place < len(names):
            wrong = f"place {place} of the node is in another list of ranks than that of {names[0]}"
        elif wanted != hall.nbytes:
            wrong = (
                f"{names[place]} shares {wanted} bytes of memory and {names[0]} {hall.nbytes}: give all the same buffer"
            )
        if wrong:
            peer.send(wrong.encode()[:ANSWER])
            raise PlanError(wrong)
        socket.send_fds(peer, [b"\0"], [descriptor])
    except OSError:
        return 0  # its own error says more; if it stays away, so does ours
    return int(place)


# --- the others ----


def _have_come(hall: _MeetingPoint, place: int) -> int:
    """Returns the descriptor, received from the leader."""
    hello = HELLO.pack(_proof(hall.door), place, hall.nbytes, names_digest(hall.names))

    def received() -> list[int]:
        gone = suppress(ConnectionError, BlockingIOError, TimeoutError)
        with gone, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as leader:
            leader.settimeout(GLANCE)
            leader.connect(socket_address(hall.door))
            if not is_own(leader):
                raise ReadError(f"another user's process stands in for {hall.names[0]} at the door of the node")
            leader.send(hello)
            return [receive_descriptor(hall, leader)]
        return []

    with meeting_others(f"{hall.names[place]} cannot join the node of {hall.names[0]}"):
        return until(polling(received), look=lambda: hall.look(lambda: hall.names[:1]))[0]


def receive_descriptor(hall: _MeetingPoint, leader: socket.socket) -> int:
    """Returns the descriptor that the leader answers with. Raises ConnectionError if it has gone."""

    def received(nap: float) -> Any:
        leader.settimeout(max(nap, 1e-3))
        with suppress(TimeoutError):
            return socket.recv_fds(leader, ANSWER, 1, socket.MSG_CMSG_CLOEXEC)
        return None

    answer, descriptors, _, _ = until(received, look=lambda: hall.look(lambda: hall.names[:1]))
    if descriptors:
        return int(descriptors[0])
    if not answer:
        raise ConnectionResetError
    raise PlanError(answer.decode(errors="replace"))
