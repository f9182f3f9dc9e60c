"""Layout -> arrays: starts reads in the native engine, or in libhdf5's process where a Layout says so."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError, SolarError
from solar.io import machine, slow
from solar.io.hdf5 import inspect
from solar.io.paths import Paths
from solar.values import Form, Layout

log = logging.getLogger("solar")

DEPTH = 64  # requests in flight, over all threads
GAP = 16 << 10  # bytes worth reading to save a request
GLANCE = 0.5  # seconds between looks at Ctrl-C while waiting
MAPPED = 256  # files of a Layout that are mapped into memory
ROOM = 0.8  # of what the page cache could hold, for one Layout
LARGE = 256 << 20  # bytes of memory worth asking the machine about before they are taken


def read(path: Paths, dataset: str, index: Any = None, out: NDArray[Any] | None = None) -> Any:
    """The values of a dataset: all of them, or those at `index` along axis 0 in the order asked.

    `index` is an integer, a slice, a sequence or array of integers (negative ones count from the end), or of booleans.
    Values and dtype are those that h5py gives. With `out`, an array of that shape and dtype, they are written there.

    >>> import h5py, numpy, tempfile
    >>> path = tempfile.mkdtemp() + "/scan.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["x"] = numpy.arange(10)
    >>> read(path, "x", [7, 2, -1])
    array([7, 2, 9])
    """
    layout = inspect(path, dataset)
    if index is None:
        values = _destination(layout, (layout.samples,) if layout.shape else (), out)
        _read_whole(layout, values)
    else:
        rows, single = _rows_at(index, layout)
        values = _destination(layout, () if single else (len(rows),), out)
        target = values[np.newaxis] if single else values
        Rows(layout).start(rows, target).wait()
    if out is not None:
        if values is not out:
            out[...] = values
        return out
    return values[()] if values.ndim == 0 else values


class Pending:
    """Values on their way. Keeps their memory until the native threads are done with it."""

    def __init__(self, values: NDArray[Any], poll: Callable[[float], bool], dtype: np.dtype[Any] | None = None) -> None:
        self._values = values
        self._poll = poll
        self._dtype = values.dtype if dtype is None else dtype.base
        self._here = False

    def wait(self, seconds: float | None = None) -> NDArray[Any]:
        """The values, when they are all there. TimeoutError after `seconds`; one may wait again."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not self._here:
            left = end - time.monotonic()
            self._here = self._poll(max(0.0, min(GLANCE, left)))
            if not self._here and left <= 0:
                raise TimeoutError(f"no values after {seconds:g} s")
        return self._values.astype(self._dtype, copy=False)


class Rows:
    """The samples of one Layout, ready to be read in this process; with `native_order`, in the machine's byte order.

    `page_cache` says whether the system's page cache keeps what is read; None: as much of it as there is room for.
    """

    def __init__(self, layout: Layout, native_order: bool = False, page_cache: bool | None = None) -> None:
        _check_readable(layout)
        self.layout = layout
        self.dtype = layout.dtype.newbyteorder("=") if native_order else layout.dtype
        # The engine turns numbers around; structures, and what libhdf5 read, are turned when they are here.
        swap = layout.swap if native_order and layout.reader == "direct" else 0
        self._read_dtype = self.dtype if swap else layout.dtype
        self._source = _source(layout, swap, page_cache) if layout.reader == "direct" else None

    def start(self, rows: NDArray[np.int64], out: NDArray[Any] | None = None) -> Pending:
        """Starts reading the rows at these positions, which must be in range."""
        if out is None:
            out = _batch_memory((len(rows), *self.layout.sample_shape), self._read_dtype)
        if out.size == 0 or out.nbytes == 0:
            return Pending(out, lambda _: True, self.dtype)
        if self._source is None:
            return Pending(out, _in_slow_thread(self.layout, rows, out), self.dtype)
        return Pending(out, _in_engine(self._source, rows, out), self.dtype)


def bypassed_share(layout: Layout, page_cache: bool | None) -> float:
    """The share of the stored bytes that is read past the page cache: what it has no room for, unless told.

    Were all of it to pass through, it would evict itself: shuffled reading finds little of the last epoch again.
    """
    if page_cache is not None:
        return 0.0 if page_cache else 1.0
    stored = max(1, int(layout.chunk_nbytes.sum()))
    return max(0.0, 1 - ROOM * machine.page_cache_nbytes() / stored)


def worth_mapping(layout: Layout, bypass: float) -> bool:
    """Whether the files are mapped into memory: they stay in the page cache, and there are not thousands of them."""
    return bypass == 0 and len(layout.paths) <= MAPPED


def _check_readable(layout: Layout) -> None:
    if layout.reader == "none":
        raise LayoutError(f"{layout.paths[0]}: {layout.name}: {layout.reason}")
    if layout.reader == "h5py":
        log.info("%s: %s is read through libhdf5: %s", layout.paths[0], layout.name, layout.reason)


# --- the native engine ----


class _Engine:
    """The one native Reader of this process. A forked process makes its own: threads do not survive a fork."""

    reader: _native.Reader | None = None
    inherited: ClassVar[list[_native.Reader]] = []  # never destroyed: their threads live in another process

    @classmethod
    def get(cls) -> _native.Reader:
        if cls.reader is None:
            threads = max(1, min(32, len(os.sched_getaffinity(0))))
            cls.reader = _native.Reader(threads, DEPTH, GAP, "auto")
        return cls.reader

    @classmethod
    def forget(cls) -> None:
        if cls.reader is not None:
            cls.inherited.append(cls.reader)
        cls.reader = None

    @classmethod
    def stop(cls) -> None:
        """Joins the threads before the interpreter goes."""
        if cls.reader is not None:
            cls.reader.close()
        cls.reader = None


os.register_at_fork(after_in_child=_Engine.forget)
atexit.register(_Engine.stop)


class _Ticket:
    """A request the engine works on. Dropped before its end, it is given up: the engine keeps its memory till then."""

    def __init__(self, reader: _native.Reader, number: int) -> None:
        self._reader = reader
        self._number = number
        self._done = False

    def poll(self, seconds: float) -> bool:
        try:
            self._done = self._reader.wait(self._number, seconds)
        except SolarError:
            self._done = True
            raise
        return self._done

    def __del__(self) -> None:
        if not self._done and not sys.is_finalizing() and self._reader is _Engine.reader:
            self._reader.abandon(self._number)


def _in_engine(source: _native.Source, rows: NDArray[np.int64], out: NDArray[Any]) -> Callable[[float], bool]:
    reader = _Engine.get()
    number = reader.submit(source, np.ascontiguousarray(rows, np.int64), out.reshape(-1).view(np.uint8))
    return _Ticket(reader, number).poll


def _source(layout: Layout, swap: int, page_cache: bool | None) -> _native.Source:
    bypass = bypassed_share(layout, page_cache)
    return _native.Source(
        layout.name,
        list(layout.paths),
        layout.file_nbytes,
        layout.file_mtime_ns,
        layout.dtype.itemsize,
        swap,
        list(layout.sample_shape),
        [_form(form) for form in layout.forms],
        layout.part_file,
        layout.part_form,
        layout.part_first,
        layout.part_chunks,
        layout.chunk_index,
        layout.chunk_offset,
        layout.chunk_nbytes,
        layout.chunk_mask,
        bypass,
        worth_mapping(layout, bypass),
    )


def _form(form: Form, chunk: tuple[int, ...] | None = None) -> tuple[list[int], _native.Filters, bytes]:
    filters = [(one.id, one.flags, list(one.values)) for one in form.filters]
    return list(form.chunk if chunk is None else chunk), filters, form.fill


def _source_of_part(layout: Layout, part: int) -> _native.Source:
    """A part as one single row: so it is read in its own order, chunk after chunk."""
    form = layout.forms[layout.part_form[part]]
    length = int(layout.part_first[part + 1] - layout.part_first[part])
    chunk = (1, *form.chunk) if form.chunk[0] else (0, length, *form.chunk[1:])
    file = int(layout.part_file[part])
    entries = slice(layout.part_chunks[part], layout.part_chunks[part + 1])
    return _native.Source(
        layout.name,
        [layout.paths[file]],
        layout.file_nbytes[file : file + 1],
        layout.file_mtime_ns[file : file + 1],
        layout.dtype.itemsize,
        0,
        [length, *layout.sample_shape],
        [_form(form, chunk)],
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.array([0, 1], np.int64),
        np.array([0, entries.stop - entries.start], np.int64),
        layout.chunk_index[entries],
        layout.chunk_offset[entries],
        layout.chunk_nbytes[entries],
        layout.chunk_mask[entries],
    )


def _read_whole(layout: Layout, values: NDArray[Any]) -> None:
    _check_readable(layout)
    if values.size == 0 or values.nbytes == 0:
        return
    pending = []
    rows = values if layout.shape else values[np.newaxis]
    for part in range(len(layout.part_file)):
        target = rows[layout.part_first[part] : layout.part_first[part + 1]]
        if layout.reader == "h5py":
            whole = values if not layout.shape else target
            slow.read_into(_unchanged(layout, part), layout.name, None, whole, _chunk_nbytes(layout, part))
        elif target.size:
            pending.append(Pending(target, _in_engine(_source_of_part(layout, part), np.zeros(1, np.int64), target)))
    for one in pending:
        one.wait()


# --- libhdf5's process ----


class _SlowThread:
    """The one thread that talks to libhdf5's process."""

    thread: ThreadPoolExecutor | None = None

    @classmethod
    def get(cls) -> ThreadPoolExecutor:
        if cls.thread is None:
            cls.thread = ThreadPoolExecutor(1, "solar-h5py")
        return cls.thread

    @classmethod
    def forget(cls) -> None:
        cls.thread = None


os.register_at_fork(after_in_child=_SlowThread.forget)


def _in_slow_thread(layout: Layout, rows: NDArray[np.int64], out: NDArray[Any]) -> Callable[[float], bool]:
    future: Future[None] = _SlowThread.get().submit(_read_slowly, layout, rows, out)

    def poll(seconds: float) -> bool:
        if not wait([future], seconds).done:
            return False
        future.result()
        return True

    return poll


def _read_slowly(layout: Layout, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    parts = np.searchsorted(layout.part_first, rows, side="right") - 1
    for part in np.unique(parts):
        here = np.flatnonzero(parts == part)
        path = _unchanged(layout, part)
        if layout.per_file:
            for position in here:
                slow.read_into(path, layout.name, None, out[position, ...])
            continue
        values = out if len(here) == len(rows) else np.empty((len(here), *out.shape[1:]), out.dtype)
        slow.read_into(path, layout.name, rows[here] - layout.part_first[part], values, _chunk_nbytes(layout, part))
        if values is not out:
            out[here] = values


def _unchanged(layout: Layout, part: int) -> str:
    """The path of a part's file, which must be as it was when it was inspected. (The engine sees to that itself.)"""
    file = int(layout.part_file[part])
    path = layout.paths[file]
    try:
        facts = Path(path).stat()
    except OSError as error:
        raise ReadError(error.errno, error.strerror, path) from None
    if (facts.st_size, facts.st_mtime_ns) != (layout.file_nbytes[file], layout.file_mtime_ns[file]):
        raise ReadError(f"{path}: the file changed after it was inspected")
    return path


def _chunk_nbytes(layout: Layout, part: int) -> int:
    chunk = layout.forms[layout.part_form[part]].chunk
    nbytes: int = math.prod(chunk) * layout.dtype.itemsize
    return nbytes  # 0 when contiguous


# --- memory, and which rows ----


def _batch_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory from the pool for plain values; objects are numpy's."""
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _native.take(nbytes))


def _destination(layout: Layout, counts: tuple[int, ...], out: NDArray[Any] | None) -> NDArray[Any]:
    """Where to read to: `out` if it will do, else new memory."""
    shape = (*counts, *layout.sample_shape)
    base, inner = layout.dtype.base, layout.dtype.shape
    if out is not None:
        if not isinstance(out, np.ndarray) or out.shape != shape + inner or out.dtype != base:
            found = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ValueError(f"out must be an array of {base} of shape {shape + inner}, not {found}")
        if not out.flags.writeable:
            raise ValueError("out is read-only")
        if out.flags.c_contiguous and out.flags.aligned:
            return out
    nbytes = math.prod(shape) * layout.dtype.itemsize
    where = f"{layout.paths[0]}: {layout.name}"
    if nbytes > LARGE and nbytes > (free := machine.free_nbytes()):
        raise ReadError(
            f"{where}: {nbytes:,} bytes were asked for and {free:,} bytes of memory are free: read fewer at a time"
        )
    try:
        return np.empty(shape, layout.dtype)
    except (MemoryError, ValueError) as error:
        raise ReadError(f"{where}: no memory for {nbytes:,} bytes: read fewer at a time") from error


def _rows_at(index: Any, layout: Layout) -> tuple[NDArray[np.int64], bool]:
    """The rows an index means, in range and from 0; and whether it means a single one."""
    if not layout.shape:
        raise IndexError(f"{layout.name} is a scalar: it has no axis to index")
    if isinstance(index, tuple):
        raise TypeError("an index along axis 0 is an integer, a slice or a sequence of integers; make a tuple a list")
    if isinstance(index, slice):
        return np.arange(*index.indices(layout.samples), dtype=np.int64), False
    asked = np.asarray(index)
    if asked.dtype == bool:
        if asked.shape != (layout.samples,):
            raise IndexError(f"a mask of shape {asked.shape} does not fit {layout.samples} samples")
        return np.flatnonzero(asked).astype(np.int64), False
    return checked_rows(asked, layout.samples, layout.name), asked.ndim == 0


def checked_rows(asked: NDArray[Any], samples: int, name: str) -> NDArray[np.int64]:
    """Positions from 0 for integers of which negative ones count from the end; IndexError when out of range."""
    if asked.size == 0:
        return np.empty(0, np.int64)
    if asked.dtype.kind not in "iu" or asked.ndim > 1:
        raise TypeError(f"samples are chosen by integers along axis 0, not by {asked.dtype} of shape {asked.shape}")
    rows = asked.reshape(-1)
    if int(rows.min()) < -samples or int(rows.max()) >= samples:
        wrong = next(int(row) for row in rows if not -samples <= row < samples)
        raise IndexError(f"sample {wrong} of {name}, which has {samples}")
    rows = rows.astype(np.int64)
    return np.where(rows < 0, rows + samples, rows)
