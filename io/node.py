"""join: the shared memory of this node's processes, handed from one to the others, and in no file system."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from solar import _native
from solar.errors import PlanError, ReadError

GLANCE = 0.2  # seconds between looks at whether Ctrl-C was pressed, or somebody is gone
RETRY = 0.02  # seconds between attempts to reach a leader who is not there yet
PATIENCE = 2.0  # seconds that somebody who has connected has to say hello

HELLO = struct.Struct("<32sQQ32s")  # proof of the door, place, bytes of memory, digest of the names
PEER = struct.Struct("iII")  # pid, uid, gid
ANSWER = 4 << 10  # bytes of an answer, at most: what is wrong, unless it brings the descriptor


def join(door: str, place: int, names: Sequence[str], nbytes: int, seconds: float = 60) -> _native.Node:
    """The node that all processes of `names` share, once they are all there. `place` is this one's among them.

    Place 0 makes the memory and hands it on at an abstract socket that is named after `door`: a random token which
    only they know. Raises ReadError for those that have not come within `seconds`, PlanError for different memory.
    """
    end = time.monotonic() + seconds
    descriptor = _native.make_node(len(names), nbytes) if place == 0 else _come(door, place, names, nbytes, seconds)
    try:
        node = _native.Node(descriptor, place, list(names), nbytes)
        try:
            if place == 0 and len(names) > 1:
                _hand_on(descriptor, door, names, nbytes, seconds)
            while not node.joined(_left(end)):
                if time.monotonic() >= end:
                    raise _late(node.missing(), names, seconds)
        except BaseException as error:  # Ctrl-C, too: nobody waits for this one then
            node.fail(str(error) or type(error).__name__)
            node.leave()
            raise
    finally:
        os.close(descriptor)
    return node


def _late(missing: Sequence[str], names: Sequence[str], seconds: float) -> ReadError:
    others = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return ReadError(
        f"{len(names)} ranks of a node share a buffer, and {others} did not come within {seconds:g} s: look for their "
        f"errors; all must begin at the same time, in one network namespace"
    )


# --- the door ----


def _address(door: str) -> str:
    """A name in the abstract namespace, which anyone may see. It does not tell the door."""
    return "\0solar-" + hashlib.sha256(b"address " + door.encode()).hexdigest()


def _proof(door: str) -> bytes:
    return hashlib.sha256(b"hello " + door.encode()).digest()


def _digest(names: Sequence[str]) -> bytes:
    return hashlib.sha256("\0".join(names).encode()).digest()


def _is_own(peer: socket.socket) -> bool:
    """Whether a process of the same user is at the other end."""
    _, uid, _ = PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return bool(uid == os.geteuid())


def _left(end: float) -> float:
    return max(0.001, min(GLANCE, end - time.monotonic()))


# --- the leader ----


def _hand_on(descriptor: int, door: str, names: Sequence[str], nbytes: int, seconds: float) -> None:
    """Gives the descriptor to each of the others."""
    end = time.monotonic() + seconds
    missing = set(range(1, len(names)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(_address(door))
        except OSError as error:
            raise ReadError(f"{names[0]} cannot let others join its node: {error.strerror}") from error
        listener.listen(len(names))
        while missing:
            if time.monotonic() >= end:
                raise _late([names[place] for place in sorted(missing)], names, seconds)
            listener.settimeout(_left(end))
            with suppress(TimeoutError):
                peer, _ = listener.accept()
                with peer:
                    missing.discard(_serve(peer, descriptor, door, names, nbytes))


def _serve(peer: socket.socket, descriptor: int, door: str, names: Sequence[str], nbytes: int) -> int:
    """The place of whoever has connected and got the descriptor; 0: a stranger, or one that went away."""
    if not _is_own(peer):
        return 0
    peer.settimeout(PATIENCE)
    try:
        hello = peer.recv(HELLO.size + 1)
        if len(hello) != HELLO.size:
            return 0
        proof, place, wanted, named = HELLO.unpack(hello)
        if not hmac.compare_digest(proof, _proof(door)):
            return 0
        wrong = ""
        if named != _digest(names) or not 0 < place < len(names):
            wrong = f"place {place} of the node is in another list of ranks than that of {names[0]}"
        elif wanted != nbytes:
            wrong = f"{names[place]} shares {wanted} bytes of memory and {names[0]} {nbytes}: give all the same buffer"
        if wrong:
            peer.send(wrong.encode()[:ANSWER])
            raise PlanError(wrong)
        socket.send_fds(peer, [b"\0"], [descriptor])
    except OSError:
        return 0  # its own error says more; if it stays away, so does ours
    return int(place)


# --- the others ----


def _come(door: str, place: int, names: Sequence[str], nbytes: int, seconds: float) -> int:
    """The descriptor, from the leader."""
    end = time.monotonic() + seconds
    hello = HELLO.pack(_proof(door), place, nbytes, _digest(names))
    while True:
        gone = suppress(ConnectionError, BlockingIOError, TimeoutError)
        with gone, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as leader:
            leader.settimeout(_left(end))
            leader.connect(_address(door))
            if not _is_own(leader):
                raise ReadError(f"another user's process stands in for {names[0]} at the door of the node")
            leader.send(hello)
            return _received(leader, end)
        if time.monotonic() >= end:
            raise _late(names[:1], names, seconds)
        time.sleep(RETRY)


def _received(leader: socket.socket, end: float) -> int:
    """What the leader answers with. ConnectionError where it has gone away."""
    while True:
        leader.settimeout(_left(end))
        try:
            answer, descriptors, _, _ = socket.recv_fds(leader, ANSWER, 1, socket.MSG_CMSG_CLOEXEC)
            break
        except TimeoutError:
            if time.monotonic() >= end:
                raise
    if descriptors:
        return descriptors[0]
    if not answer:
        raise ConnectionResetError
    raise PlanError(answer.decode(errors="replace"))
