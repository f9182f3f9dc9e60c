"""Reads through h5py, in a guarded process, what native code does not read: slow, but the same values.

One process for each process that asks, started when first needed, asked by one thread at a time, ended with its caller.
It crashes, hangs or eats memory in our stead: any of these is an error that names file and dataset, and the next
request gets a new process. What is said to it, and how values come back: io/slow_child.py.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io import slow_child

PATIENCE = 60.0  # seconds without a byte of answer before the process is given up
PIECE = 64 << 20  # bytes asked for at a time
PLUGINS = str(Path(_native.__file__).parent / "plugins")  # our filter's: a virtual dataset may be of bounded chunks


def read_into(
    path: str, dataset: str, rows: NDArray[np.int64] | None, out: NDArray[Any], chunk_nbytes: int = 0
) -> None:
    """Fills `out` with the rows of a dataset in the order asked, or with all of it.

    `rows` must be in range. `chunk_nbytes` is what libhdf5 needs on top to undo the filters of one chunk.
    """
    memory = 3 * chunk_nbytes
    if rows is None and out.ndim and out.nbytes > PIECE:
        rows = np.arange(len(out), dtype=np.int64)
    if rows is None:
        _child.ask(path, dataset, slow_child.ALL_ROWS, b"", memory + 3 * out.nbytes, out)
        return
    row_nbytes = max(1, out.nbytes // max(1, len(rows)))
    step = max(1, PIECE // row_nbytes)
    for first in range(0, len(rows), step):
        part = out[first : first + step]
        unique, inverse = np.unique(rows[first : first + step], return_inverse=True)
        ascending = len(unique) == len(part) and bool(np.all(inverse[1:] > inverse[:-1]))
        values = part if ascending else np.empty((len(unique), *part.shape[1:]), part.dtype)
        _child.ask(path, dataset, len(unique), unique.tobytes(), memory + 3 * values.nbytes, values)
        if not ascending:
            part[...] = values[inverse]


def read_box(path: str, dataset: str, box: tuple[slice, ...], out: NDArray[Any], chunk_nbytes: int = 0) -> None:
    """Fills `out` with a box of a dataset: what lies between begin and end along each axis."""
    ends = np.array([(side.start, side.stop) for side in box], np.int64)
    _child.ask(path, dataset, slow_child.BOX, ends.tobytes(), 3 * (chunk_nbytes + out.nbytes), out)


def shape_of(path: str, dataset: str) -> tuple[int, ...]:
    """The shape of a dataset as libhdf5 sees it now: that of a virtual one depends on the files it is made of."""
    header = _child.ask(path, dataset, slow_child.ONLY_SHAPE, b"", 0)
    return tuple(header["shape"])


def sources_of(path: str, dataset: str) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    """The shape of a virtual dataset, and what it is made of as io/slow_child.py says it."""
    header = _child.ask(path, dataset, slow_child.SOURCES, b"", 0)
    return tuple(header["shape"]), header["sources"]


class _Child:
    """The process and our end of the conversation with it."""

    _process: subprocess.Popen[bytes] | None = None
    _socket: socket.socket | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def ask(
        self, path: str, dataset: str, count: int, rows: bytes, memory: int, out: NDArray[Any] | None = None
    ) -> dict[str, Any]:
        """The header of the answer, its values in `out`; or raises what the process says, or what became of it."""
        where = f"{path}: {dataset}"
        request = {"path": path, "dataset": dataset, "rows": count, "nbytes": len(rows), "memory": memory}
        with self._lock:
            try:
                header = self._exchange(json.dumps(request).encode() + b"\n" + rows, out, where)
            except BaseException:
                self.stop()  # the conversation is out of step, or the process is no more
                raise
        if "error" in header:
            raise (LayoutError if header["kind"] == "layout" else ReadError)(f"{where}: {header['error']}")
        return header

    def _exchange(self, request: bytes, out: NDArray[Any] | None, where: str) -> dict[str, Any]:
        end = self._connected()
        try:
            end.sendall(request)
            header: dict[str, Any] = json.loads(_line(end))
            if out is not None and "array" in header:
                _receive_array(end, header, out, where)
            return header
        except ReadError:
            raise
        except TimeoutError:
            raise ReadError(
                f"{where}: libhdf5 gave no sign of life for {PATIENCE:g} s; the file may be damaged"
            ) from None
        except (OSError, EOFError):
            raise ReadError(f"{where}: {self._end()} while reading it; the file may be damaged") from None

    def _connected(self) -> socket.socket:
        if self._socket is None or self._process is None or self._process.poll() is not None:
            self.stop()
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", slow_child.__file__, PLUGINS],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=dict(os.environ, HDF5_USE_FILE_LOCKING="FALSE"),
                )
        self._socket.settimeout(PATIENCE)
        return self._socket

    def _end(self) -> str:
        """How the process ended, in words."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "libhdf5's process closed its end"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"libhdf5 crashed ({how})"

    def stop(self) -> None:
        """Ends the process; the next request starts another."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None

    def forget(self) -> None:
        """In a forked process: the parent's child is not ours to talk to, nor to end."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.returncode = (
                0  # or its destructor would warn of, and wait for, a process that is not our child
            )
        self._socket = self._process = None
        self._lock = threading.Lock()


def _receive_array(end: socket.socket, header: dict[str, Any], out: NDArray[Any], where: str) -> None:
    """Receives the values of an answer into `out`, after checking that they are what was asked for."""
    shape, dtype = tuple(header["array"]["shape"]), slow_child.described(header["array"]["dtype"])
    if shape != out.shape or dtype != out.dtype:
        raise ReadError(
            f"{where}: asked for {out.dtype} of shape {out.shape}, got {dtype} of shape {shape}; "
            "the file changed, or solar and libhdf5 read its header differently"
        )
    nbytes = header["nbytes"]
    plain = not dtype.hasobject and out.flags.c_contiguous
    if plain and nbytes == out.nbytes:
        if nbytes:
            _fill(end, out.reshape(-1).view(np.uint8).data)
        return
    data = bytearray()
    while len(data) < nbytes:
        data += _some(end, min(nbytes - len(data), 1 << 20))
    slow_child.Values(data).fill(out)


def _line(end: socket.socket) -> bytes:
    """The header's line, without taking a byte that follows it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        seen = end.recv(4096, socket.MSG_PEEK)
        if not seen:
            raise EOFError
        line += _some(end, seen.find(b"\n") + 1 or len(seen))
    return bytes(line)


def _some(end: socket.socket, nbytes: int) -> bytes:
    data = end.recv(nbytes)
    if not data:
        raise EOFError
    return data


def _fill(end: socket.socket, view: memoryview) -> None:
    while view:
        received = end.recv_into(view)
        if received == 0:
            raise EOFError
        view = view[received:]


_child = _Child()
atexit.register(_child.stop)
os.register_at_fork(after_in_child=_child.forget)
