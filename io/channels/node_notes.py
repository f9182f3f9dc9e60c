"""NodeNotes: what one process of a node works out and all of them use, in memory that they share.

    the file:  the run that ended last | entries | for each entry and process, whether it has let it go | values

The first process of a node makes values, and the others wait for them, each by its key. A value is a pickle, and its
arrays lie beside it: they are mapped where they are, never copied. A value's memory is freed when every process has had
it and has no array of it any more.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import pickle
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError, ReadError
from solar.io.channels.node_memory import pass_on
from solar.io.system.waiting import polling, until_others

NOTES = 256  # values at a time: a few for each pass that is planned
ENTRY = struct.Struct("<32sQQQ")  # digest of the key, state, where it begins, bytes
RUN = struct.Struct("<Q")
LET_GO = RUN.size + ENTRY.size * NOTES  # where they begin
FREE, MADE, FAILED = range(3)
ALIGNED = 64  # bytes, at which arrays begin
WRITTEN_AT_ONCE = 1 << 30  # bytes written by one call: Linux takes no more than 2 GiB


class RunEnded(ReadError):
    """The process that makes values has ended a run, for a reason that it tells at the next meeting."""


class Waiting(NamedTuple):
    """How long a process waits for a value."""

    what: str  # it waits for, in messages
    run: int  # that the value is of: if it has ended, nobody makes the value
    seconds: float
    look: Callable[[], object]  # called now and then: raises if waiting is useless


class Entry(NamedTuple):
    """Where a value is."""

    number: int
    name: bytes
    state: int
    begin: int
    nbytes: int


def join_notes(door: str, place: int, names: Sequence[str], seconds: float, check: Callable[[], None]) -> NodeNotes:
    """Returns the notes of all processes in `names`, once they are all there. See node_memory.join."""
    return NodeNotes(pass_on(door, place, names, lambda: make_file(len(names)), seconds, check), place, names)


def make_file(processes: int) -> int:
    """Returns the descriptor of a file without values, for so many processes."""
    descriptor = os.memfd_create("solar-notes")
    os.ftruncate(descriptor, _begin(processes))
    return descriptor


def _begin(processes: int) -> int:
    """Returns where values begin."""
    return -(-(LET_GO + NOTES * processes) // mmap.PAGESIZE) * mmap.PAGESIZE


class NodeNotes:
    """The notes of a node, as one of its processes has them. Any thread may use them."""

    def __init__(self, descriptor: int, place: int, names: Sequence[str]) -> None:
        self._descriptor, self._place, self._names = descriptor, place, list(names)
        self._close = weakref.finalize(self, os.close, descriptor)
        self._process = os.getpid()
        self._had: dict[bytes, weakref.ref[mmap.mmap] | None] = {}  # values by name; None: it was not waited for
        self._lock = threading.RLock()

    @property
    def makes(self) -> bool:
        """Whether this process is the one that makes values."""
        return self._place == 0

    def share(self, key: object, make: Callable[[], Any], waiting: Waiting) -> Any:
        """Returns a value that the first process makes; its arrays are read-only. An error is that of all processes.

        Raises ReadError if it does not come in time, or if the first process has ended the run. A process that asks
        again after it has let a value go makes one of its own.
        """
        name = hashlib.sha256(repr(key).encode()).digest()
        with self._lock:
            mapped = self._mapped(name)
            if mapped is None and name not in self._had:
                entry = None if self.makes else self._wait(name, waiting)
                mapped = self._made(name, make) if entry is None else self._map(entry)
        if mapped is None:
            return make()
        return _loaded(mapped)

    # --- runs ----

    @property
    def ended(self) -> int:
        """The run that has ended last in the process that makes values."""
        found: int = RUN.unpack(self._read(0, RUN.size))[0]
        return found

    def end(self, run: int) -> None:
        """Says that no value of this run will be made, nor of those before it."""
        if self.makes and self._process == os.getpid() and run > self.ended:
            os.pwrite(self._descriptor, RUN.pack(run), 0)

    def begin(self) -> None:
        """Lets go what was made for earlier runs and was not waited for. No thread may wait for a value meanwhile."""
        with self._lock:
            for entry in self._entries():
                if entry.state != FREE and entry.name not in self._had:
                    self._had[entry.name] = None
                    self.let_go(entry.number)

    # --- a value ----

    def _mapped(self, name: bytes) -> mmap.mmap | None:
        """Returns a value that this process has, or that it made and others have not let go."""
        had = self._had.get(name)
        mapped = None if had is None else had()
        if mapped is None and had is not None and self.makes:
            entry = self._find(name)
            mapped = self._map(entry) if entry is not None and entry.state == MADE else None
        return mapped

    def _wait(self, name: bytes, waiting: Waiting) -> Entry:
        """Returns the entry of a value, once the first process has made it."""

        def looked() -> None:
            waiting.look()
            if self.ended >= waiting.run and self._find(name) is None:
                raise RunEnded(f"{self._names[0]} has ended the run for which it makes {waiting.what}")

        found = polling(lambda: self._find(name))
        entry = until_others(found, waiting.what, lambda: self._names[0], waiting.seconds, looked, logging.INFO)
        assert entry is not None, "else waiting has ended in an error"
        return entry

    def _made(self, name: bytes, make: Callable[[], Any]) -> mmap.mmap:
        """Makes a value, or says why there is none."""
        try:
            value = make()
        except BaseException as error:
            self._had[name] = None
            self.let_go(self._write(name, FAILED, str(error) or type(error).__name__).number)
            raise
        return self._map(self._write(name, MADE, value))

    def _map(self, entry: Entry) -> mmap.mmap:
        """Returns the memory of a value. When nobody refers to it any more, this process has let the value go."""
        mapped = mmap.mmap(self._descriptor, entry.nbytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=entry.begin)
        os.pwrite(self._descriptor, b"\0", self._flag(entry.number))
        self._had[entry.name] = weakref.ref(mapped)
        weakref.finalize(mapped, _let_go, weakref.ref(self), entry.number).atexit = False
        if entry.state == FAILED:
            raise PlanError(_loaded(mapped))
        return mapped

    def let_go(self, number: int) -> None:
        """Says that this process has no array of an entry. A fork of it says nothing."""
        if self._process == os.getpid() and self._close.alive:
            os.pwrite(self._descriptor, b"\1", self._flag(number))

    def _write(self, name: bytes, state: int, value: object) -> Entry:
        """Writes a value to where there is room, and then its entry."""
        self._free()
        arrays: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        pieces = [memoryview(head), *(one.raw() for one in arrays)]
        sizes = np.array([len(pieces), *map(len, pieces)], np.int64)
        begins, nbytes = _begins(sizes)
        entry = self._room(name, state, nbytes)
        os.ftruncate(self._descriptor, max(os.fstat(self._descriptor).st_size, entry.begin + nbytes))
        for piece, begin in zip([memoryview(sizes.tobytes()), *pieces], [0, *begins], strict=True):
            for at in range(0, len(piece), WRITTEN_AT_ONCE):
                _write_all(self._descriptor, piece[at : at + WRITTEN_AT_ONCE], entry.begin + begin + at)
        os.pwrite(self._descriptor, bytes(len(self._names)), self._flag(entry.number) - self._place)
        os.pwrite(self._descriptor, ENTRY.pack(*entry[1:]), RUN.size + ENTRY.size * entry.number)
        return entry

    # --- entries ----

    def _read(self, begin: int, nbytes: int) -> bytes:
        return os.pread(self._descriptor, nbytes, begin)

    def _entries(self) -> list[Entry]:
        table = self._read(RUN.size, ENTRY.size * NOTES)
        return [Entry(number, *fields) for number, fields in enumerate(ENTRY.iter_unpack(table))]

    def _find(self, name: bytes) -> Entry | None:
        return next((one for one in self._entries() if one.state != FREE and one.name == name), None)

    def _flag(self, number: int) -> int:
        """Returns where it stands whether this process has let an entry go."""
        return LET_GO + number * len(self._names) + self._place

    def _free(self) -> None:
        """Frees the values that every process has let go."""
        ranks = len(self._names)
        flags = self._read(LET_GO, NOTES * ranks)
        for entry in self._entries():
            if entry.state != FREE and all(flags[entry.number * ranks : (entry.number + 1) * ranks]):
                os.pwrite(self._descriptor, bytes(ENTRY.size), RUN.size + ENTRY.size * entry.number)
                with mmap.mmap(self._descriptor, entry.nbytes, offset=entry.begin) as memory:
                    memory.madvise(mmap.MADV_REMOVE)

    def _room(self, name: bytes, state: int, nbytes: int) -> Entry:
        """Returns a free entry, at a place where so many bytes are free."""
        entries = self._entries()
        number = next((one.number for one in entries if one.state == FREE), None)
        if number is None:
            raise PlanError(f"{NOTES} plans of a node wait for its other ranks: look what those wait for")
        begin = _begin(len(self._names))
        for one in sorted((one for one in entries if one.state != FREE), key=lambda one: one.begin):
            if begin + nbytes <= one.begin:
                break
            begin = -(-(one.begin + one.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        return Entry(number, name, state, begin, nbytes)


def _let_go(notes: weakref.ref[NodeNotes], number: int) -> None:
    own = notes()
    if own is not None:
        own.let_go(number)


def _begins(sizes: NDArray[np.int64]) -> tuple[list[int], int]:
    """Returns where the pieces of a value begin, behind the list of their sizes, and its bytes."""
    steps = -(-np.array([sizes.nbytes, *sizes[1:]]) // ALIGNED) * ALIGNED
    ends = np.cumsum(steps)
    return ends[:-1].tolist(), int(ends[-1])


def _loaded(mapped: mmap.mmap) -> Any:
    """Returns a value. Its arrays keep the memory."""
    memory = memoryview(mapped)
    count = int(np.frombuffer(memory, np.int64, 1)[0])
    sizes = np.frombuffer(memory, np.int64, count + 1)
    begins, _ = _begins(sizes)
    head, *arrays = (memory[begin : begin + size] for begin, size in zip(begins, sizes[1:].tolist(), strict=True))
    return pickle.loads(head, buffers=arrays)


def _write_all(descriptor: int, piece: memoryview, at: int) -> None:
    while piece:
        done = os.pwrite(descriptor, piece, at)
        piece, at = piece[done:], at + done
