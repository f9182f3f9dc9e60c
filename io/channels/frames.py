"""Frames: JSON objects on a Unix socket, each checked before it is used; and values in sealed memory."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import ReadError

SPEAKS = (3, 1)  # version of io/SERVICE.md
FRAME_LENGTH = struct.Struct("<I")
MOST_FRAME = 1 << 16  # bytes of a frame
DESCRIPTORS = 16  # that come with it
FRAME_PATIENCE = 2.0  # seconds from its first byte to its last
DEEP, LONG_TEXT, LONG_LIST, WHOLE = 5, 4096, 4096, 1 << 63

# What each message has beside "is", and of which type.
OF_JOBS: dict[str, dict[str, type]] = {
    "hello": {"speaks": list, "solar": str, "pid": int, "name": str},
    "data": {},
    "join": {"data": int, "batch": int},
    "more": {"job": int},
    "leave": {"job": int},
    "status": {},
    "stop": {},
}
OF_SERVICE: dict[str, dict[str, type]] = {
    "welcome": {"speaks": list, "solar": str, "memory": int},
    "opened": {"data": int, "fields": list},
    "joined": {"job": int, "entries": int, "begins": int},
    "noted": {},
    "left": {},
    "status": {"told": dict},
    "stopping": {},
    "refused": {"why": str, "again": bool},
    "fault": {"why": str},
}


class Fault(ReadError):
    """A message that io/SERVICE.md does not allow."""


class Refused(ReadError):
    """A service refuses what a job asked for; `again`: it may accept later."""

    def __init__(self, why: str, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


def send(peer: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Sends a whole message. Raises OSError if the other side has gone."""
    body = json.dumps(message).encode()
    if len(body) > MOST_FRAME:
        raise Fault(f"a message of {len(body):,} bytes: at most {MOST_FRAME:,} are sent in one")
    whole = FRAME_LENGTH.pack(len(body)) + body
    sent = socket.send_fds(peer, [whole], list(descriptors))
    if sent < len(whole):  # to send nothing to one who has answered and gone would be an error
        peer.sendall(whole[sent:])


def receive(peer: socket.socket, known: dict[str, dict[str, type]]) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the next message, and its descriptors, which the caller owns; None if the other side has gone."""
    descriptors: list[int] = []
    try:
        head = _exactly(peer, FRAME_LENGTH.size, descriptors, begun=None)
        if head is None:
            return None
        (size,) = FRAME_LENGTH.unpack(head)
        if not 2 <= size <= MOST_FRAME:
            raise Fault(f"a frame of {size:,} bytes")
        body = _exactly(peer, size, descriptors, begun=time.monotonic())
        if body is None:
            raise Fault("a frame that ends early")
        return check_message(body, known), descriptors
    except BaseException:
        close_all(descriptors)
        raise


def close_all(descriptors: Sequence[int]) -> None:
    """Closes all of the descriptors."""
    for one in descriptors:
        with suppress(OSError):
            os.close(one)


def _exactly(peer: socket.socket, size: int, descriptors: list[int], begun: float | None) -> bytes | None:
    """Returns exactly this many bytes; None if the other side goes before the first. It waits for that one."""
    found, patience = b"", peer.gettimeout()
    try:
        while len(found) < size:
            if begun is not None:  # what is there counts, however late: this process itself may have stood still
                peer.settimeout(max(0.0, begun + FRAME_PATIENCE - time.monotonic()))
            try:
                some, came, flags, _ = socket.recv_fds(peer, size - len(found), DESCRIPTORS)
            except (TimeoutError, BlockingIOError):
                if begun is None:
                    raise
                raise Fault("a frame that takes too long") from None
            descriptors += came
            if flags & socket.MSG_CTRUNC or len(descriptors) > DESCRIPTORS:
                raise Fault("more descriptors than a frame may have, or than this process may open")
            if not some:
                if found:
                    raise Fault("a frame that ends early")
                return None
            found += some
            begun = begun or time.monotonic()
        return found
    finally:
        peer.settimeout(patience)


def check_message(body: bytes, known: dict[str, dict[str, type]]) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Fault("a key comes twice")
        return found

    def no_number(word: str) -> None:
        raise Fault(f"{word} is no number")

    try:
        message = json.loads(body.decode(), object_pairs_hook=once, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Fault(f"a frame that is no JSON: {str(error)[:80]}") from None
    if not isinstance(message, dict) or not isinstance(message.get("is"), str):
        raise Fault("a frame that is no message")
    fits_depth(message, 1)
    keys = known.get(message["is"])
    if keys is None:
        raise Fault(f"no message is {message['is'][:40]!r}")
    if message.keys() - {"is"} != keys.keys():
        raise Fault(f"{message['is']}: its keys are {', '.join(keys) or 'none'}")
    for name, kind in keys.items():
        if type(message[name]) is not kind:
            raise Fault(f"{message['is']}: {name} is a {kind.__name__}")
    return message


def fits_depth(value: Any, depth: int) -> None:
    """Returns whether a value is as small, and as flat, as values may be."""
    if depth > DEEP:
        raise Fault("a value that is too deep")
    if isinstance(value, str) and len(value) > LONG_TEXT:
        raise Fault("a text that is too long")
    if isinstance(value, int) and not -WHOLE <= value < WHOLE:
        raise Fault("a number that is too large")
    if isinstance(value, list | dict):
        if len(value) > LONG_LIST:
            raise Fault("a list that is too long")
        for one in value.values() if isinstance(value, dict) else value:
            fits_depth(one, depth + 1)


# What is too long for a frame: values and arrays in sealed anonymous memory, whose descriptor is handed over.


HANDED_HEAD = struct.Struct("<II")  # bytes of the values, and number of arrays
EACH = struct.Struct("<4sIQ")  # type, nothing, elements
TYPES = {b"<i8\0": np.int64, b"<i4\0": np.int32, b"|u1\0": np.uint8}
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MOST_VALUES, MOST_ARRAYS, MOST_NBYTES = 1 << 20, 6 * 64, 1 << 36


def hand(values: Any, arrays: Sequence[NDArray[Any]]) -> int:
    """Returns a descriptor of memory with these values, for the caller to close.

    Raises Refused for a text too long, and ReadError where the system gives no memory or no descriptor.
    """
    names = {np.dtype(kind): name for name, kind in TYPES.items()}
    body = json.dumps(values).encode()
    body += b" " * (-len(body) % 8)
    if len(body) > MOST_VALUES:
        raise Refused(f"names of files and datasets take {len(body):,} bytes, and a service takes {MOST_VALUES:,}")
    parts: list[bytes | memoryview] = [HANDED_HEAD.pack(len(body), len(arrays)), body]
    parts += [EACH.pack(names[one.dtype], 0, one.size) for one in arrays]
    parts += [part for one in arrays for part in (np.ascontiguousarray(one).data, bytes(-one.nbytes % 8))]
    try:
        made = os.memfd_create("solar-handed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(made, "wb", closefd=False) as file:
                file.writelines(parts)
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            os.close(made)
            raise
    except OSError as error:
        raise ReadError(
            f"nothing can be handed to a service: {error.strerror}; see `ulimit -n` and the free memory"
        ) from error
    return made


def sizes(descriptor: int) -> tuple[int, int]:
    """Returns how many bytes of text were handed over, and how many others, without mapping them.

    Raises Fault for anything else, also for memory that was never written, which would be charged to this process when
    read.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
    except OSError:
        raise Fault("what was handed over is no memory") from None
    if seals & SEALS != SEALS:
        raise Fault("what was handed over could change")
    if not HANDED_HEAD.size <= size <= MOST_NBYTES:
        raise Fault(f"{size:,} bytes were handed over")
    if os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
        raise Fault("what was handed over was not all written")
    length, count = HANDED_HEAD.unpack(os.pread(descriptor, HANDED_HEAD.size, 0))
    if length > MOST_VALUES or count > MOST_ARRAYS:
        raise Fault(f"{length:,} bytes of text and {count:,} arrays: at most {MOST_VALUES:,} and {MOST_ARRAYS:,}")
    if HANDED_HEAD.size + length + count * EACH.size > size:
        raise Fault("what was handed over is shorter than it says")
    return length, size - length


def take(descriptor: int) -> tuple[Any, list[NDArray[Any]]]:
    """Returns the values that were handed over, with read-only arrays. Raises Fault as `sizes` does."""
    size = sum(sizes(descriptor))
    memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    length, count = HANDED_HEAD.unpack_from(memory)
    at = HANDED_HEAD.size + length
    try:
        values = json.loads(memory[HANDED_HEAD.size : at].decode())
    except (ValueError, RecursionError):
        raise Fault("what was handed over is no JSON") from None
    lengths = [EACH.unpack_from(memory, at + number * EACH.size) for number in range(count)]
    at += count * EACH.size
    arrays: list[NDArray[Any]] = []
    for name, _, elements in lengths:
        kind = TYPES.get(name)
        if kind is None or elements > size or at + elements * np.dtype(kind).itemsize > size:
            raise Fault("an array that was handed over is shorter than it says")
        arrays.append(np.frombuffer(memory, kind, elements, at))
        at += -(-elements * np.dtype(kind).itemsize // 8) * 8
    return values, arrays
