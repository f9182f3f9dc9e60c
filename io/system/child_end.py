"""The start of such a program, and the messages with it; imports no solar.

PROGRAM is a file with a function `main(caller, *arguments)`, which returns the exit code. Neither imports solar. The
caller's side is io/system/child.py. Where MODE is "confined", the process confines itself first (confinement.py). Both
ends of a socket, which is the child's stdin, send messages:

    message   u64 bytes of its header, u64 bytes of its payload; the header as JSON; the payload
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LENGTHS = struct.Struct("<QQ")
TAKEN_AT_ONCE = 1 << 20  # bytes; a size in a message is not trusted, so memory grows as bytes come
SPARE = 1 << 30  # address space for libraries, their caches, and values of unknown size


class ChildEnd:
    """One end of the conversation. It raises EOFError if the other end is closed. `wait` is called before each read."""

    def __init__(self, end: socket.socket, wait: Callable[[], object] = lambda: None) -> None:
        self._end, self._wait = end, wait
        self.nbytes = 0  # bytes left of the last header's payload

    def send(self, header: Any, payload: bytes | bytearray = b"") -> None:
        text = json.dumps(header).encode()
        try:
            self._end.sendall(LENGTHS.pack(len(text), len(payload)) + text)
            self._end.sendall(payload)
        except ConnectionError:
            raise EOFError from None

    def receive(self) -> Any:
        """Returns the header of the next message. Its payload must be taken before the next one is received."""
        length, self.nbytes = LENGTHS.unpack(self.take(LENGTHS.size))
        return json.loads(self.take(length))

    def take(self, nbytes: int) -> bytearray:
        """Returns the next bytes."""
        data = bytearray()
        while len(data) < nbytes:
            part = bytearray(min(nbytes - len(data), TAKEN_AT_ONCE))
            self.fill(memoryview(part))
            data += part
        return data

    def fill(self, view: memoryview) -> None:
        """Reads the next bytes to where the caller wants them."""
        while view:
            self._wait()
            try:
                received = self._end.recv_into(view)
            except ConnectionError:
                received = 0
            if not received:
                raise EOFError
            view = view[received:]


class Caller(ChildEnd):
    """The caller's end, as the child sees it."""

    def allow(self, nbytes: int) -> None:
        """Limits this process's growth to `nbytes` plus what libraries need."""
        with Path("/proc/self/statm").open() as facts:
            pages = int(facts.read().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = pages * resource.getpagesize() + nbytes + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def load(path: str | Path) -> Any:
    """Returns a module that is loaded from this file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(mode: str, program: str, *arguments: str) -> int:
    """Runs the program until it ends, or the caller is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    caller = Caller(socket.socket(fileno=os.dup(0)))
    if mode == "confined":  # before libraries are loaded: they start threads
        load(Path(__file__).with_name("confinement.py")).confine()
    try:
        return int(load(program).main(caller, *arguments) or 0)
    except EOFError:
        return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # without cleaning up, and without waiting for workers of its own
