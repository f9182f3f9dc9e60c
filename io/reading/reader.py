"""`read`, and the asynchronous reads that H5Dataset is made of."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.hdf5.chunk_index import SETTLED_NS
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.paths import Paths
from solar.io.reading.engine import Ticket, source_of, source_of_part
from solar.io.reading.engine import bypassed_share as bypassed_share
from solar.io.system import lifecycle
from solar.io.system import memory as machine
from solar.io.system.identity import unchanged
from solar.io.system.waiting import WaitTimeout, until
from solar.samples.row_windows import RowWindows
from solar.values import Layout

# Making a Path takes as long as a stat of its file.
# ruff: noqa: PTH116


if TYPE_CHECKING:
    from solar.io.hdf5 import mpio
    from solar.io.hdf5.guarded_reader import SlowRead
    from solar.io.reading.stage import Tier

KEPT, KEPT_NBYTES = 32, 64 << 20  # datasets, and bytes of their chunk arrays; the last one is kept in any case


@dataclass
class KnownLayouts:
    """Where the values of a dataset lie, and the identity of its file."""

    layout: Layout
    was: tuple[int, ...]
    rows: Rows | None = None  # reads them, from the first request on


_kept: dict[tuple[str, str], KnownLayouts] = {}  # the most recently used at the end
_keeping = threading.Lock()


def known_of(path: Paths, dataset: str) -> KnownLayouts:
    """Returns where the values lie, remembered while the file is the same. Only single files are remembered."""
    key = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "", dataset
    was = file_identity(key[0])
    with _keeping:
        if (known := _kept.pop(key, None)) is not None and known.was == was:
            _kept[key] = known
            return known
    layout = inspect(path, dataset)
    known = KnownLayouts(layout, layout_identity(layout))
    # A file written just now may be written again without a new time of modification.
    if known.was == was and time.time_ns() - int(layout.file_mtime_ns[0]) > SETTLED_NS:
        with _keeping:
            _kept[key] = known
            while len(_kept) > KEPT or (len(_kept) > 1 and sum(map(known_nbytes, _kept.values())) > KEPT_NBYTES):
                del _kept[next(iter(_kept))]
    return known


def file_identity(path: str) -> tuple[int, ...]:
    try:
        facts = os.stat(path)
    except (OSError, ValueError, TypeError):  # a pattern, or what is no path: inspecting it says so
        return ()
    return stat_identity(facts)


def stat_identity(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_ctime_ns


def layout_identity(layout: Layout) -> tuple[int, ...]:
    """Returns the identity of the one file that holds all values; if there are several, one that no file has."""
    if len(layout.paths) != 1 or layout.reader != "direct":
        return (-1,)
    facts = layout.file_nbytes, layout.file_mtime_ns, layout.file_inode, layout.file_ctime_ns
    return tuple(int(one[0]) for one in facts)


def known_nbytes(known: KnownLayouts) -> int:
    layout = known.layout
    return sum(one.nbytes for one in (layout.chunk_index, layout.chunk_offset, layout.chunk_nbytes, layout.chunk_mask))


def forget_reads() -> None:
    """Forgets everything in a forked process, because another thread may have been changing it."""
    global _keeping
    _kept.clear()
    _keeping = threading.Lock()


lifecycle.after_fork(forget_reads)


log = logging.getLogger("solar")

Finish = Callable[[NDArray[Any]], NDArray[Any]]
LARGE_MEMORY = 256 << 20  # bytes of memory worth asking the machine about before they are taken


def read(path: Paths, dataset: str, index: Any = None, out: NDArray[Any] | None = None) -> Any:
    """Returns the values of a dataset: all of them, or those at `index` along axis 0 in the order asked.

    `index` is an integer, a slice, a sequence or array of integers (negative ones count from the end), or of booleans.
    Values and dtype are those that h5py gives. With `out`, an array of that shape and dtype, they are written there.

    For the next call, the places of the values are remembered for some files. Each call checks that the file is still
    the same. This keeps no file open, but native threads close a file only when they need others.

    >>> import h5py, numpy, tempfile
    >>> path = tempfile.mkdtemp() + "/scan.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["x"] = numpy.arange(10)
    >>> read(path, "x", [7, 2, -1])
    array([7, 2, 9])
    """
    if not isinstance(dataset, str):
        raise TypeError(f"dataset is the name of one dataset, not {type(dataset).__name__}: call read for each")
    known = known_of(path, dataset)
    layout = known.layout
    if index is None:
        values = _destination(layout, (layout.samples,) if layout.shape else (), out)
        _read_whole(layout, values)
    else:
        rows, single = _rows_at(index, layout)
        values = _destination(layout, () if single else (len(rows),), out)
        target = values[np.newaxis] if single else values
        if known.rows is None:
            known.rows = Rows(layout, mapped=False)  # or the file would stay mapped after the last read
        known.rows.start(rows, target).wait()
    if out is not None:
        if values is not out:
            out[...] = values
        return out
    return values[()] if values.ndim == 0 else values


class Pending:
    """Values that are being read. It keeps their memory until the native threads are done with it."""

    def __init__(
        self,
        values: NDArray[Any],
        work: Ticket | SlowRead | mpio.CollectiveRead | _NoWork,
        nbytes: int,
        finish: Finish | None = None,
    ) -> None:
        self.nbytes = nbytes  # of these rows' values
        self._values = values
        self.work = work
        self._finish = finish
        self._here = False

    def wait(self, seconds: float | None = None) -> NDArray[Any]:
        """Waits for the values. A TimeoutError after `seconds` says what is missing; one may wait again."""
        self._here = self._here or until(self.work.poll, seconds)
        if not self._here:
            raise WaitTimeout.values(seconds, self.work.waiting_for())
        if self._finish is not None:
            self._values, self._finish = self._finish(self._values), None
        return self._values

    @property
    def counts(self) -> dict[str, int]:
        """Returns counts, after wait: rows, requests, bytes_read, …; if libhdf5's process read them, only rows."""
        return self.work.counts()


class _NoWork:
    """The work of reading rows without bytes, which is done at once."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def poll(self, seconds: float) -> bool:
        return True

    def waiting_for(self) -> str:
        return ""

    def counts(self) -> dict[str, int]:
        return {"rows": self._rows}


class Rows:
    """The samples of one Layout, ready to be read in this process; with `native_order`, in the machine's byte order.

    A sample is a row, or what `extents` make of rows; messages call a row `unit`. `page_cache` says whether the
    system's page cache keeps what is read; None: as much as there is room for. With a `tier`, a local disk keeps it.
    """

    def __init__(
        self,
        layout: Layout,
        native_order: bool = False,
        page_cache: bool | None = None,
        *,
        mapped: bool = True,
        extents: RowWindows | None = None,
        sample_shape: tuple[int, ...] | None = None,
        tier: Tier | None = None,
        unit: str = "sample",
    ) -> None:
        _check_readable(layout)
        self.layout, self.extents, self.tier = layout, extents, tier
        self._unit = unit if extents is None else "row"
        self.dtype = layout.dtype.newbyteorder("=") if native_order else layout.dtype
        # The engine swaps the bytes of numbers; structures, and values from libhdf5, are swapped here.
        swap = layout.swap if native_order and layout.reader == "direct" else 0
        self._read_dtype = self.dtype if swap else layout.dtype
        self._as_read = self._read_dtype.base == self.dtype.base
        of_rows = (*(() if extents is None else extents.shape), *layout.sample_shape)
        self._shape = of_rows if sample_shape is None else sample_shape
        self._sample_nbytes = math.prod(self._shape) * self._read_dtype.itemsize
        self._source = self._source_of(swap, page_cache, mapped) if layout.reader == "direct" else None

    def _source_of(self, swap: int, page_cache: bool | None, mapped: bool) -> _native.Source:
        return source_of(self.layout, swap, page_cache, mapped=mapped, tier=self.tier, unit=self._unit)

    @property
    def boxes(self) -> _native.Boxes | None:
        """What cuts samples from blocks; None if they are not boxes."""
        return None

    @property
    def held(self) -> list[tuple[Layout, Any]]:
        """What a buffer holds of it: layouts, each with its map."""
        return [(self.layout, self.extents)]

    @property
    def held_rows(self) -> list[Rows]:
        """The readers of what a buffer holds, which also assemble samples."""
        return [self]

    @property
    def blocks(self) -> Rows:
        """The reader of the rows or blocks that a buffer holds."""
        return self

    @property
    def read_as(self) -> Layout:
        """The reader that the engine knows: its rows are what a buffer holds."""
        return self.layout

    @property
    def source(self) -> _native.Source | None:
        """The native form of the Layout; None if libhdf5 reads it."""
        return self._source

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return self._shape

    def rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the row of the Layout that each of these samples is, or where its place is."""
        return samples if self.extents is None else self.extents.of(samples).start

    @property
    def sample_nbytes(self) -> int:
        """The bytes of a sample as the engine reads it."""
        return self._sample_nbytes

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of a sample of each field that is read together."""
        if self.extents is None:
            return [self._shape]
        of_steps = [() if steps is None else (len(steps),) for steps in self.extents.fields]
        return [(*one, *self.layout.sample_shape) for one in of_steps]

    @property
    def parts_nbytes(self) -> list[int]:
        """The bytes of a sample of each field that is read together."""
        if self.extents is None:
            return [self._sample_nbytes]
        return [self._sample_nbytes // self.extents.slots * size for size in self.extents.sizes]

    def parts(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Returns the values of each field that is read together with others."""
        return [values] if self.extents is None else self.extents.parts(values)

    def from_bytes(self, memory: NDArray[np.uint8], samples: int) -> NDArray[Any]:
        """Returns the first samples whose bytes, as the engine reads them, are in this memory."""
        values: NDArray[Any] = np.ndarray((samples, *self._shape), self._read_dtype, memory)
        return values if self._as_read else self._turn_axes(values)

    def _turn_axes(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.astype(self.dtype.base, copy=False)

    def room(self, samples: int) -> NDArray[Any]:
        """Returns memory for this many samples, into which `start` can read."""
        return np.ndarray((samples, *self._shape), self.dtype, self._memory(samples))

    def _memory(self, samples: int) -> NDArray[np.uint8] | None:
        """Returns memory from the pool for plain values; None for objects or no bytes, which numpy allocates."""
        nbytes = samples * self._sample_nbytes
        return None if nbytes == 0 or self.dtype.hasobject else _native.take(nbytes)

    @property
    def plain(self) -> bool:
        """Whether samples are rows that the engine reads, with nothing left to do afterwards."""
        return (
            self._source is not None
            and self.boxes is None
            and self._as_read
            and self._sample_nbytes > 0
            and not self.dtype.hasobject
        )

    def start(
        self,
        rows: NDArray[np.int64],
        out: NDArray[Any] | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> Pending:
        """Starts to read sample rows[i] into out[i], or into out[positions[i]]. Samples must be in range.

        `out` is C-contiguous and of this dtype. Its other places are not changed, so several reads may share it.
        """
        if out is None:
            if positions is not None:
                raise ValueError("positions are places in `out`, and there is none")
            return self._start(rows, None if self._as_read else self._turn_axes)
        nbytes = len(rows) * self._sample_nbytes
        self._check_out(out, len(rows) if positions is None else len(out))
        in_place = out.dtype == self._read_dtype.base
        if positions is not None and (self._source is None or nbytes == 0 or not in_place):
            _check_positions(positions, len(rows), len(out))
            in_place = False  # otherwise the engine places them, and checks the positions
        if in_place:
            memory = None if self._source is None or nbytes == 0 else out.reshape(-1).view(np.uint8)
            return Pending(out, self._begin(rows, out, memory, positions), nbytes)

        def put(values: NDArray[Any]) -> NDArray[Any]:
            for ours, theirs in zip(self.parts(out), self.parts(values), strict=True):
                ours[... if positions is None else positions] = theirs
            return out

        return self._start(rows, put)

    def _start(self, rows: NDArray[np.int64], finish: Finish | None) -> Pending:
        """Starts to read into new memory."""
        samples = len(rows)
        memory = self._memory(samples)
        values = np.ndarray((samples, *self._shape), self._read_dtype, memory)
        return Pending(values, self._begin(rows, values, memory), samples * self._sample_nbytes, finish)

    def _begin(
        self,
        rows: NDArray[np.int64],
        out: NDArray[Any],
        memory: NDArray[np.uint8] | None,
        positions: NDArray[np.int64] | None = None,
    ) -> Ticket | SlowRead | mpio.CollectiveRead | _NoWork:
        """Returns the work of reading into `out`; `memory` is its bytes if the engine can fill them."""
        if self.extents is not None:  # from here on there are rows alone
            if positions is None:
                rows = self.extents.joined(rows)
            else:
                rows, positions = self.extents.rows(rows).reshape(-1), self.extents.places(positions, len(out))
            out = out.reshape(len(out) * self.extents.slots, *out.shape[1 + len(self.extents.shape) :])
        if self._source is not None and memory is not None and len(rows):
            return Ticket(self._source, rows, memory, positions)
        reader = self.layout.reader
        collective = reader == "mpio-collective" and self._sample_nbytes > 0
        if not collective and (len(rows) == 0 or out.nbytes == 0):
            return _NoWork(len(rows))
        from solar.io.hdf5 import guarded_reader, mpio  # only where libhdf5 reads

        if collective:  # even without rows: the other ranks wait for this one
            return mpio.CollectiveRead(self.layout, rows, out)
        return guarded_reader.SlowRead(
            self.layout, rows, out, mpio.read_into if reader == "mpio" else guarded_reader.read_into
        )

    def _check_out(self, out: NDArray[Any], length: int) -> None:
        """Raises unless rows can be read into `out`, in the byte order of the file or of `dtype`."""
        _check_shape(out, (length, *self._shape), self.dtype, self._read_dtype.base)
        if not out.flags.c_contiguous:
            raise ValueError("out is not C-contiguous")


def _check_readable(layout: Layout) -> None:
    if layout.reader == "none":
        raise LayoutError(f"{layout.paths[0]}: {layout.title}: {layout.reason}")
    if layout.reader == "h5py":
        slower = "which is often slower than PyTorch with h5py"
        log.info("%s: %s is read through libhdf5, %s: %s", layout.paths[0], layout.title, slower, layout.reason)


def _read_whole(layout: Layout, values: NDArray[Any]) -> None:
    _check_readable(layout)
    if values.size == 0 or values.nbytes == 0:
        return
    pending = []
    rows = values if layout.shape else values[np.newaxis]
    for part in range(len(layout.part_file)):
        target = rows[layout.part_first[part] : layout.part_first[part + 1]]
        if layout.reader == "h5py":
            from solar.io.hdf5 import guarded_reader

            whole = values if not layout.shape else target
            name = layout.name_in(int(layout.part_file[part]))
            guarded_reader.read_into(
                unchanged(layout, part), name, None, whole, guarded_reader.chunk_nbytes(layout, part)
            )
        elif target.size:
            memory = target.reshape(-1).view(np.uint8)
            ticket = Ticket(source_of_part(layout, part), np.zeros(1, np.int64), memory)
            pending.append(Pending(target, ticket, target.nbytes))
    for one in pending:
        one.wait()


# --- memory, and which rows ----


def _destination(layout: Layout, counts: tuple[int, ...], out: NDArray[Any] | None) -> NDArray[Any]:
    """Returns the array to read into: `out` if given, which is checked, else new memory."""
    shape = (*counts, *layout.sample_shape)
    if out is not None:
        _check_shape(out, shape, layout.dtype, layout.dtype.base)
        if out.flags.c_contiguous and out.flags.aligned:
            return out
    nbytes = math.prod(shape) * layout.dtype.itemsize
    where = f"{layout.paths[0]}: {layout.title}"
    if nbytes > LARGE_MEMORY and nbytes > (free := machine.free_nbytes()):
        raise ReadError(
            f"{where}: {nbytes:,} bytes were asked for and {free:,} bytes of memory are free: read fewer at a time"
        )
    try:
        return np.empty(shape, layout.dtype)
    except (MemoryError, ValueError) as error:
        raise ReadError(f"{where}: no memory for {nbytes:,} bytes: read fewer at a time") from error


def _check_shape(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], stored: np.dtype[Any]) -> None:
    """Raises ValueError unless samples of this dtype, or as stored, can be written to `out`."""
    whole = shape + dtype.shape
    if not isinstance(out, np.ndarray) or out.shape != whole or out.dtype not in (dtype.base, stored):
        found = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"out must be an array of {dtype.base} of shape {whole}, not {found}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def _check_positions(positions: NDArray[Any], rows: int, slots: int) -> None:
    """Raises ValueError unless each row has a position of its own. (The engine checks that itself.)"""
    if len(positions) != rows:
        raise ValueError(f"{len(positions)} positions for {rows} rows")
    wrong = next((int(one) for one in positions if not 0 <= one < slots), None)
    if wrong is not None:
        raise ValueError(f"position {wrong} in an output of {slots} rows")
    if len(np.unique(positions)) != rows:
        raise ValueError("a position is given twice")


def _rows_at(index: Any, layout: Layout) -> tuple[NDArray[np.int64], bool]:
    """Returns the rows that an index selects, in range and counted from 0; and whether it selects a single row."""
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
    """Returns positions counted from 0; negative integers count from the end. Raises IndexError if out of range.

    The result may be the given array itself.
    """
    if asked.size == 0:
        return np.empty(0, np.int64)
    if asked.dtype.kind not in "iu" or asked.ndim > 1:
        which = f"{asked.dtype} of shape {asked.shape}" if asked.dtype.kind in "iu" else f"{asked.item(0)!r}"
        hint = "; lists of samples come from a batch_sampler=" if asked.dtype.kind in "iu" else ""
        which += ": several by data.__getitems__([0, 1, 2])" if which.startswith("slice(") else hint
        raise TypeError(f"samples are chosen by integers along axis 0, not by {which}")
    rows = asked if asked.ndim else asked.reshape(1)
    # The ordinary case takes one pass, as every batch needs it: as unsigned integers, negative ones are too large.
    if rows.dtype in (np.int64, np.int32) and np.maximum.reduce(rows.view(f"u{rows.itemsize}")) < samples:
        return rows.astype(np.int64, copy=False)
    if int(rows.min()) < -samples or int(rows.max()) >= samples:
        wrong = next(int(row) for row in rows if not -samples <= row < samples)
        raise IndexError(f"sample {wrong} of {name}, which has {samples}")
    rows = rows.astype(np.int64)
    return np.where(rows < 0, rows + samples, rows)
