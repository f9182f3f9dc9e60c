"""Messages that are nearly right, with descriptors of anything: they end their own connection, or are answered."""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_kit import FIELDS, HELLO, alone, job, piece_of, scan, serving, soon

from solar import H5Dataset
from solar.io.channels import frames, service_sockets

_ = scan  # a fixture

ODD: list[Any] = [
    -1,
    0,
    1,
    1 << 31,
    -(1 << 63),
    (1 << 63) - 1,
    1.5,
    True,
    None,
    "",
    "x" * 4096,
    [],
    {},
    [[]],
    "\0",
    "é",
]


def told(path: Path) -> tuple[Any, list[Any]]:
    """Data and an order as a job tells them."""
    return [piece_of(path)], [np.arange(8, dtype=np.int32), np.array([0, 4, 8])]


def changed(draw: random.Random, value: Any) -> Any:
    """The same with one thing in it that is another."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.15:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: changed(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], changed(draw, value[at]), *value[at + 1 :]]
    return draw.choice(ODD)


def descriptor(draw: random.Random, right: int) -> int:
    """One that was meant, the same with a byte of it changed, or another kind of file."""
    kind = draw.randrange(6)
    if kind == 0:
        return os.open(draw.choice(["/dev/null", "/dev/zero", "/proc/self/mem", "/"]), os.O_RDONLY)
    if kind == 1:
        one, other = socket.socketpair()
        other.close()
        return one.detach()
    if kind == 2:
        return os.eventfd(0)
    if kind == 3:
        return os.dup(right)
    body = bytearray(os.pread(right, 1 << 20, 0))
    for _ in range(draw.randrange(1, 4)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    if kind == 4:
        body = body[: draw.randrange(1, len(body))]
    made = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
    os.write(made, body)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, frames.SEALS)
    return made


def spoken(draw: random.Random, path: Path, data: int, order: int) -> None:
    """One connection, on which something is wrong sooner or later."""
    lines: list[tuple[dict[str, Any], list[int]]] = [
        (HELLO, []), ({"is": "data"}, [data]), ({"is": "join", "data": 0, "batch": 4}, [order]),
        ({"is": "more", "job": 0}, [order]), ({"is": "status"}, []), ({"is": "leave", "job": 0}, []),
    ]  # fmt: skip
    with service_sockets.connect(path, 20) as peer:
        for message, own in lines[: draw.randrange(1, len(lines) + 1)]:
            wrong = draw.random() < 0.4
            body = json.dumps(changed(draw, message) if wrong else message).encode()
            if wrong and draw.random() < 0.2:
                body = body[: draw.randrange(len(body))]
            made = [descriptor(draw, one) if draw.random() < 0.4 else os.dup(one) for one in own]
            if draw.random() < 0.05:
                made += [os.dup(data) for _ in range(draw.randrange(20))]
            try:
                socket.send_fds(peer, [struct.pack("<I", len(body)) + body], made)
                came = frames.receive(peer, frames.OF_SERVICE)
                if came is None or came[0]["is"] == "fault":
                    return
                frames.close_all(came[1])
            except (OSError, frames.Fault):
                return
            finally:
                frames.close_all(made)


@pytest.mark.slow(but=["0"])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_nearly_right_costs_nobody_else(seed: int, scan: Path, tmp_path: Path) -> None:
    draw = random.Random(seed)
    values, arrays = told(scan)
    data, order = frames.hand(values, []), frames.hand(None, arrays)
    with serving(scan, where=tmp_path) as service:

        def left() -> int:
            assert soon(lambda: service.status()["connections"] == 0)
            return len(list(Path("/proc/self/fd").iterdir()))

        found: dict[int, Any] = {}
        job(H5Dataset(scan, FIELDS), 1, 8, str(service.path), found)
        before = left()
        for _ in range(100):
            with suppress(BrokenPipeError, ConnectionResetError):
                spoken(draw, service.path, data, order)
        assert soon(lambda: left() <= before + 12)  # what was announced last stays until the next step
        job(H5Dataset(scan, FIELDS), 2, 8, str(service.path), found)
        assert all(found[own][0] == alone(H5Dataset(scan, FIELDS), own, 8) for own in (1, 2))
        assert found[2][1]["alone"] == 1  # its first, while the service waits for others
    os.close(data)
    os.close(order)
