"""What is too long for a frame: values and arrays in sealed anonymous memory, whose descriptor is handed over."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.io.serve.frames import Fault

HANDED_HEAD = struct.Struct("<II")  # bytes of the values, and number of arrays
EACH = struct.Struct("<4sIQ")  # type, nothing, elements
TYPES = {b"<i8\0": np.int64, b"<i4\0": np.int32, b"|u1\0": np.uint8}
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MOST_VALUES, MOST_ARRAYS, MOST_NBYTES = 64 << 20, 4096, 1 << 36


def hand(values: Any, arrays: Sequence[NDArray[Any]]) -> int:
    """A descriptor of memory that has them, for the caller to close."""
    names = {np.dtype(kind): name for name, kind in TYPES.items()}
    body = json.dumps(values).encode()
    body += b" " * (-len(body) % 8)
    parts = [HANDED_HEAD.pack(len(body), len(arrays)), body]
    parts += [EACH.pack(names[one.dtype], 0, one.size) for one in arrays]
    made = os.memfd_create("solar-handed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(made), "wb") as file:
            file.writelines(parts)
            for one in arrays:
                file.write(np.ascontiguousarray(one).data)
                file.write(bytes(-one.nbytes % 8))
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(made)
        raise
    return made


def take(descriptor: int) -> tuple[Any, list[NDArray[Any]]]:
    """What was handed over. The arrays are read-only, and keep the memory. Fault for what nobody hands over."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
    except OSError:
        raise Fault("what was handed over is no memory") from None
    if seals & SEALS != SEALS:
        raise Fault("what was handed over could change")
    if not HANDED_HEAD.size <= size <= MOST_NBYTES:
        raise Fault(f"{size:,} bytes were handed over")
    memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    length, count = HANDED_HEAD.unpack_from(memory)
    at = HANDED_HEAD.size + length
    if length > MOST_VALUES or count > MOST_ARRAYS or at + count * EACH.size > size:
        raise Fault("what was handed over is shorter than it says")
    try:
        values = json.loads(memory[HANDED_HEAD.size : at].decode())
    except (ValueError, RecursionError):
        raise Fault("what was handed over is no JSON") from None
    told = [EACH.unpack_from(memory, at + number * EACH.size) for number in range(count)]
    at += count * EACH.size
    arrays: list[NDArray[Any]] = []
    for name, _, elements in told:
        kind = TYPES.get(name)
        if kind is None or elements > size or at + elements * np.dtype(kind).itemsize > size:
            raise Fault("an array that was handed over is shorter than it says")
        arrays.append(np.frombuffer(memory, kind, elements, at))
        at += -(-elements * np.dtype(kind).itemsize // 8) * 8
    return values, arrays
