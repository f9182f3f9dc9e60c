"""Reads by h5py, in a guarded process, the datasets that native code cannot read: slow, but the same values.

Each process has one guarded process, started when first needed. It serves one thread at a time, and ends with its
caller. If it crashes, hangs or takes too much memory, the caller gets an error that names file and dataset, and the
next request starts a new process. The messages between the two: io/libhdf5/slow_child.py.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.libhdf5 import slow_child
from solar.io.machine.child import Child, Lost
from solar.io.machine.child_end import End
from solar.values import is_url

ANSWER_PATIENCE = 60.0  # seconds without a byte of answer before the process is given up
ASKED_AT_ONCE = 64 << 20  # bytes asked for at a time
MOST_WANTED = 10_000  # pieces of metadata of a far file that one answer may take
PLUGINS = str(Path(_native.__file__).parent / "plugins")  # our filter: a virtual dataset may have bounded chunks


def read_into(
    path: str, dataset: str, rows: NDArray[np.int64] | None, out: NDArray[Any], chunk_nbytes: int = 0
) -> None:
    """Fills `out` with the rows of a dataset in the order asked, or with all of it.

    `rows` must be in range. `chunk_nbytes` is what libhdf5 needs on top to undo the filters of one chunk.
    """
    memory = 3 * chunk_nbytes
    if rows is None and out.ndim and out.nbytes > ASKED_AT_ONCE:
        rows = np.arange(len(out), dtype=np.int64)
    if rows is None:
        _ask(path, dataset, slow_child.ALL_ROWS, b"", memory + 3 * out.nbytes, out)
        return
    row_nbytes = max(1, out.nbytes // max(1, len(rows)))
    step = max(1, ASKED_AT_ONCE // row_nbytes)
    for first in range(0, len(rows), step):
        part = out[first : first + step]
        unique, inverse = np.unique(rows[first : first + step], return_inverse=True)
        ascending = len(unique) == len(part) and bool(np.all(inverse[1:] > inverse[:-1]))
        values = part if ascending else np.empty((len(unique), *part.shape[1:]), part.dtype)
        _ask(path, dataset, len(unique), unique.tobytes(), memory + 3 * values.nbytes, values)
        if not ascending:
            part[...] = values[inverse]


def read_box(path: str, dataset: str, box: tuple[slice, ...], out: NDArray[Any], chunk_nbytes: int = 0) -> None:
    """Fills `out` with a box of a dataset: a slice from begin to end along each axis."""
    ends = np.array([(side.start, side.stop) for side in box], np.int64)
    _ask(path, dataset, slow_child.BOX, ends.tobytes(), 3 * (chunk_nbytes + out.nbytes), out)


def made_of(path: str, dataset: str) -> dict[str, Any]:
    """The shape of a dataset as libhdf5 sees it now, and what it is made of: io/libhdf5/slow_child.py."""
    return _ask(path, dataset, slow_child.SOURCES, b"", 0)


_child = Child(slow_child, PLUGINS)
atexit.register(_child.stop)
os.register_at_fork(after_in_child=_child.forget)


def _ask(
    path: str, dataset: str, count: int, rows: bytes, memory: int, out: NDArray[Any] | None = None
) -> dict[str, Any]:
    """The header of the answer, with its values in `out`. Raises the process's error, or how the process ended."""
    where = f"{path}: {dataset}"
    was = _native.far_look(path) if is_url(path) else None
    try:
        with _child.talk(ANSWER_PATIENCE) as end:
            end.send({"path": path, "dataset": dataset, "rows": count, "memory": memory, "far": was and was[0]}, rows)
            header: dict[str, Any] = end.receive() if was is None else _handing(end, path, was)
            if out is not None and "array" in header:
                _receive_array(end, header, out, where)
    except Lost as lost:
        raise ReadError(f"{where}: libhdf5 {lost} while reading it; the file may be damaged") from None
    if "error" in header:
        raise (LayoutError if header["kind"] == "layout" else ReadError)(f"{where}: {header['error']}")
    return header


def _handing(end: End, url: str, was: _native.FarIdentity) -> dict[str, Any]:
    """The header of the answer, once the process has been given the bytes of a far file that it asks for."""
    for _ in range(MOST_WANTED):
        header: dict[str, Any] = end.receive()
        if "wanted" not in header:
            return header
        offset, nbytes = header["wanted"]
        if nbytes > ASKED_AT_ONCE:
            break
        end.send({}, _native.far_read(url, was, offset, nbytes))
    raise ReadError(f"{url}: libhdf5 wants more of its metadata than there should be; the file may be damaged")


def _receive_array(end: End, header: dict[str, Any], out: NDArray[Any], where: str) -> None:
    """Receives the values of an answer into `out`, after checking that they have the requested shape and type."""
    shape, dtype = tuple(header["array"]["shape"]), slow_child.described(header["array"]["dtype"])
    if shape != out.shape or dtype != out.dtype:
        raise ReadError(
            f"{where}: asked for {out.dtype} of shape {out.shape}, got {dtype} of shape {shape}; "
            "the file changed, or solar and libhdf5 read its header differently"
        )
    if not dtype.hasobject and out.flags.c_contiguous and end.nbytes == out.nbytes:
        end.fill(out.reshape(-1).view(np.uint8).data)
    else:
        slow_child.Values(end.take(end.nbytes)).fill(out)
