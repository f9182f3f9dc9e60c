"""Reads datasets that native code cannot read, by h5py in a guarded process.

Each process has one guarded process, started when first needed. It serves one thread at a time, and ends with its
caller. If it crashes, hangs or takes too much memory, the caller gets an error that names file and dataset, and the
next request starts a new process. The messages between the two are in io/hdf5/guarded_child.py.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.hdf5 import guarded_child
from solar.io.system import lifecycle
from solar.io.system.child import Child, Lost
from solar.io.system.child_end import ChildEnd
from solar.io.system.identity import unchanged
from solar.io.system.waiting import start_thread
from solar.values import Layout, is_url

ANSWER_PATIENCE = 60.0  # seconds without a byte of answer before the process is given up
ASKED_AT_ONCE = 64 << 20  # bytes asked for at a time
MOST_WANTED = 10_000  # pieces of metadata of a far file that one answer may take
PLUGINS = str(Path(_native.__file__).parent / "plugins")  # our filter: a virtual dataset may have bounded chunks


def read_into(
    path: str, dataset: str, rows: NDArray[np.int64] | None, out: NDArray[Any], chunk_nbytes: int = 0
) -> None:
    """Fills `out` with the rows of a dataset in the order asked, or with all of it. `rows` must be in range.

    `chunk_nbytes` is what libhdf5 also needs to undo the filters of one chunk.
    """
    memory = 3 * chunk_nbytes
    if rows is None and out.ndim and out.nbytes > ASKED_AT_ONCE:
        rows = np.arange(len(out), dtype=np.int64)
    if rows is None:
        _ask(path, dataset, guarded_child.ALL_ROWS, b"", memory + 3 * out.nbytes, out)
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
    _ask(path, dataset, guarded_child.BOX, ends.tobytes(), 3 * (chunk_nbytes + out.nbytes), out)


def sources_of_dataset(path: str, dataset: str) -> dict[str, Any]:
    """Returns the shape of a dataset as libhdf5 sees it now, and its sources: io/hdf5/guarded_child.py."""
    return _ask(path, dataset, guarded_child.SOURCES, b"", 0)


_child = Child(guarded_child, PLUGINS, confined=True)
lifecycle.at_exit(lifecycle.Ends.GUARDED_PROCESS, _child.stop)
lifecycle.after_fork(_child.forget)


def _ask(
    path: str, dataset: str, count: int, rows: bytes, memory: int, out: NDArray[Any] | None = None
) -> dict[str, Any]:
    """Returns the header of the answer, with its values in `out`. Raises the error of the process."""
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


def _handing(end: ChildEnd, url: str, was: _native.FarIdentity) -> dict[str, Any]:
    """Returns the header of the answer after giving the process the bytes of a remote file that it asks for."""
    for _ in range(MOST_WANTED):
        header: dict[str, Any] = end.receive()
        if "wanted" not in header:
            return header
        offset, nbytes = header["wanted"]
        if nbytes > ASKED_AT_ONCE:
            break
        end.send({}, _native.far_read(url, was, offset, nbytes))
    raise ReadError(f"{url}: libhdf5 wants more of its metadata than there should be; the file may be damaged")


def _receive_array(end: ChildEnd, header: dict[str, Any], out: NDArray[Any], where: str) -> None:
    """Receives the values of an answer into `out`, after checking that they have the requested shape and type."""
    shape, dtype = tuple(header["array"]["shape"]), guarded_child.described(header["array"]["dtype"])
    if shape != out.shape or dtype != out.dtype:
        raise ReadError(
            f"{where}: asked for {out.dtype} of shape {out.shape}, got {dtype} of shape {shape}; "
            "the file changed, or solar and libhdf5 read its header differently"
        )
    if not dtype.hasobject and out.flags.c_contiguous and end.nbytes == out.nbytes:
        end.fill(out.reshape(-1).view(np.uint8).data)
    else:
        guarded_child.Values(end.take(end.nbytes)).fill(out)


# Reads rows of a Layout by libhdf5, in a thread that asks its process or MPI and never delays the program's end.


class SlowRead:
    """Rows that `read_into`, or a function like it, is reading into `out`."""

    def __init__(
        self,
        layout: Layout,
        rows: NDArray[np.int64],
        out: NDArray[Any],
        read_into: Callable[..., None] = read_into,
    ) -> None:
        self._read_into = read_into
        self._layout, self._rows, self._out = layout, rows, out
        self._part = int(parts_of_rows(layout, rows[:1])[0])  # the part being read
        self._done = threading.Event()
        self._error: BaseException | None = None
        _Thread.queue().put(self)

    def poll(self, seconds: float) -> bool:
        """Returns whether it is done within this time."""
        if not self._done.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True

    def waiting_for(self) -> str:
        """Returns the file and dataset that is being read."""
        layout = self._layout
        way = "through libhdf5's process" if layout.reader == "h5py" else "over MPI"
        return f"{layout.paths[int(layout.part_file[self._part])]}: {layout.title}, {way}"

    def counts(self) -> dict[str, int]:
        """Returns what is known once it is done: libhdf5's reads are not counted."""
        return {"rows": len(self._rows)}

    def run(self) -> None:
        """Asks the process, in the thread, and keeps an error for the one that waits."""
        try:
            self._read()
        except BaseException as error:
            self._error = error
        self._done.set()

    def _read(self) -> None:
        layout, rows, out = self._layout, self._rows, self._out
        parts = parts_of_rows(layout, rows)
        for part in np.unique(parts):
            self._part = int(part)
            here = np.flatnonzero(parts == part)
            path, name = unchanged(layout, self._part), layout.name_in(int(layout.part_file[part]))
            if layout.per_file:
                for position in here:
                    self._read_into(path, name, None, out[position, ...])
                continue
            values = out if len(here) == len(rows) else np.empty((len(here), *out.shape[1:]), out.dtype)
            of_part = rows[here] - layout.part_first[part]
            self._read_into(path, name, of_part, values, chunk_nbytes(layout, self._part))
            if values is not out:
                out[here] = values


class _Thread:
    """The thread of this process, and its queue. It is a daemon, because it may wait for ever."""

    waiting: SimpleQueue[SlowRead] | None = None
    ending = False

    @classmethod
    def queue(cls) -> SimpleQueue[SlowRead]:
        if cls.waiting is None:
            waiting: SimpleQueue[SlowRead] = SimpleQueue()
            start_thread("solar-h5py", cls.serve, waiting)
            cls.waiting = waiting  # only now: what is put into a queue without a thread is waited for without an end
        return cls.waiting

    @classmethod
    def serve(cls, waiting: SimpleQueue[SlowRead]) -> None:
        while not cls.ending:
            waiting.get().run()

    @classmethod
    def forget(cls) -> None:
        cls.waiting = None

    @classmethod
    def end(cls) -> None:
        """Ends the queue before libhdf5's process ends, so that no request starts another process."""
        cls.ending = True


lifecycle.after_fork(_Thread.forget)
lifecycle.at_exit(lifecycle.Ends.GUARDED_READS, _Thread.end)


def parts_of_rows(layout: Layout, rows: NDArray[np.int64]) -> NDArray[np.intp]:
    return np.searchsorted(layout.part_first, rows, side="right") - 1


def chunk_nbytes(layout: Layout, part: int) -> int:
    """Returns the bytes of a chunk of a part; 0 if it is contiguous."""
    chunk = layout.forms[layout.part_form[part]].chunk
    nbytes: int = math.prod(chunk) * layout.dtype.itemsize
    return nbytes
