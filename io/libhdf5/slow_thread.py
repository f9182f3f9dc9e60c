"""Reads rows of a Layout by libhdf5, in a thread that asks its process or MPI and never delays the program's end."""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.io.libhdf5 import slow
from solar.io.machine.identity import unchanged
from solar.io.threads import start_thread
from solar.values import Layout


class SlowRead:
    """Rows that slow.read_into, or a function like it, is reading into `out`."""

    def __init__(
        self,
        layout: Layout,
        rows: NDArray[np.int64],
        out: NDArray[Any],
        read_into: Callable[..., None] = slow.read_into,
    ) -> None:
        self._read_into = read_into
        self._layout, self._rows, self._out = layout, rows, out
        self._part = int(_parts(layout, rows[:1])[0])  # the part being read
        self._done = threading.Event()
        self._error: BaseException | None = None
        _Thread.queue().put(self)

    def poll(self, seconds: float) -> bool:
        """Whether it is done within this time."""
        if not self._done.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True

    def waiting_for(self) -> str:
        """The file and dataset that is being read."""
        layout = self._layout
        way = "through libhdf5's process" if layout.reader == "h5py" else "over MPI"
        return f"{layout.paths[int(layout.part_file[self._part])]}: {layout.title}, {way}"

    def counts(self) -> dict[str, int]:
        """The counts that are known once it is done: nobody counts what libhdf5 reads."""
        return {"rows": len(self._rows)}

    def run(self) -> None:
        """In the thread: asks the process, and keeps an error for whoever waits."""
        try:
            self._read()
        except BaseException as error:
            self._error = error
        self._done.set()

    def _read(self) -> None:
        layout, rows, out = self._layout, self._rows, self._out
        parts = _parts(layout, rows)
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
    """The thread of this process, and its queue. It is a daemon, for it may wait for ever."""

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


os.register_at_fork(after_in_child=_Thread.forget)
atexit.register(_Thread.end)  # after slow.py's own was, and so called before it


def _parts(layout: Layout, rows: NDArray[np.int64]) -> NDArray[np.intp]:
    return np.searchsorted(layout.part_first, rows, side="right") - 1


def chunk_nbytes(layout: Layout, part: int) -> int:
    """The bytes of a chunk of a part; 0 if it is contiguous."""
    chunk = layout.forms[layout.part_form[part]].chunk
    nbytes: int = math.prod(chunk) * layout.dtype.itemsize
    return nbytes
