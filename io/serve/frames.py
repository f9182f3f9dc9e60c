"""Frames: JSON objects on a Unix socket, each checked whole before anything of it is used. Nothing is executed."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

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
    """What came is none of what io/SERVICE.md allows."""


class Refused(ReadError):
    """A service does not do what a job asked for; `again`: it may later."""

    def __init__(self, why: str, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


def send(peer: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Sends it whole. OSError where the other has gone."""
    body = json.dumps(message).encode()
    if len(body) > MOST_FRAME:
        raise Fault(f"a message of {len(body):,} bytes: at most {MOST_FRAME:,} are sent in one")
    whole = FRAME_LENGTH.pack(len(body)) + body
    sent = socket.send_fds(peer, [whole], list(descriptors))
    if sent < len(whole):  # to send nothing to one who has answered and gone would be an error
        peer.sendall(whole[sent:])


def receive(peer: socket.socket, known: dict[str, dict[str, type]]) -> tuple[dict[str, Any], list[int]] | None:
    """The next message, and the descriptors that came with it, which are the caller's; None: the other has gone."""
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
        return _checked(body, known), descriptors
    except BaseException:
        close_all(descriptors)
        raise


def close_all(descriptors: Sequence[int]) -> None:
    """Closes them, whatever they are."""
    for one in descriptors:
        with suppress(OSError):
            os.close(one)


def _exactly(peer: socket.socket, size: int, descriptors: list[int], begun: float | None) -> bytes | None:
    """So many bytes; None where the other has gone before the first. Before it one may wait as long as one likes."""
    found, patience = b"", peer.gettimeout()
    try:
        while len(found) < size:
            if begun is not None:
                left = begun + FRAME_PATIENCE - time.monotonic()
                if left <= 0:
                    raise Fault("a frame that takes too long")
                peer.settimeout(left)
            try:
                some, came, flags, _ = socket.recv_fds(peer, size - len(found), DESCRIPTORS)
            except TimeoutError:
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


def _checked(body: bytes, known: dict[str, dict[str, type]]) -> dict[str, Any]:
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
    _within(message, 1)
    keys = known.get(message["is"])
    if keys is None:
        raise Fault(f"no message is {message['is'][:40]!r}")
    if message.keys() - {"is"} != keys.keys():
        raise Fault(f"{message['is']}: its keys are {', '.join(keys) or 'none'}")
    for name, kind in keys.items():
        if type(message[name]) is not kind:
            raise Fault(f"{message['is']}: {name} is a {kind.__name__}")
    return message


def _within(value: Any, depth: int) -> None:
    """Whether it is as small, and as flat, as values may be."""
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
            _within(one, depth + 1)
