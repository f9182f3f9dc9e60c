"""Lets one thread's calls of h5py be seen and answered, and says which values they select."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from solar.errors import SolarError
from solar.io.reading.reader import known_of, layout_identity, stat_identity
from solar.io.system import lifecycle
from solar.io.system.waiting import WaitTimeout, within
from solar.values import Layout

# Numbers only: h5py makes objects of its own of text, references, enumerations and structures.
NUMERIC = "biufc"

FILE_PATIENCE = 60.0  # seconds that a file system has to say whether a file is what it was

ReadCall = Callable[..., Any]
T = TypeVar("T")


class H5pyReader(Protocol):
    """Answers one thread's calls of h5py.Dataset.__getitem__ and read_direct."""

    def getitem(self, of_h5py: ReadCall, dataset: Any, args: Any) -> Any:
        """Returns the values of `dataset[args]`; `of_h5py(dataset, args)` reads them."""

    def read_direct(self, of_h5py: ReadCall, dataset: Any, dest: Any, source_sel: Any, dest_sel: Any) -> None:
        """Reads into `dest` as `of_h5py(dataset, dest, source_sel, dest_sel)` does."""


_asked: dict[int, H5pyReader] = {}  # by thread
_changing = threading.Lock()
_of_h5py: list[ReadCall] = []  # the methods in the place of which ours are, or were
_of_objects: dict[int, tuple[str, tuple[int, ...]]] = {}  # by HDF5's number of an open file: its path and identity
MOST_OBJECTS = 1 << 12  # open files that are remembered
_in_place = False


def _getitem(self: Any, args: Any, new_dtype: Any = None) -> Any:
    of_h5py = _of_h5py[0]
    asked = _asked.get(threading.get_ident())
    if asked is None:
        return of_h5py(self, args) if new_dtype is None else of_h5py(self, args, new_dtype)
    if new_dtype is not None:
        return of_h5py(self, args, new_dtype)
    return asked.getitem(of_h5py, self, args)


def _read_direct(self: Any, dest: Any, source_sel: Any = None, dest_sel: Any = None) -> None:
    of_h5py = _of_h5py[1]
    asked = _asked.get(threading.get_ident())
    if asked is None:
        of_h5py(self, dest, source_sel, dest_sel)
    else:
        asked.read_direct(of_h5py, self, dest, source_sel, dest_sel)


def _init_file(self: Any, name: Any, *args: Any, **more: Any) -> None:
    _of_h5py[2](self, name, *args, **more)
    if threading.get_ident() in _asked and (plain := _plain_file(name)) is not None:
        if len(_of_objects) >= MOST_OBJECTS:
            _of_objects.clear()
        _of_objects[int(sys.modules["h5py"].h5o.get_info(self.id).fileno)] = plain


def _plain_file(name: Any) -> tuple[str, tuple[int, ...]] | None:
    """Returns the path and identity of a local file that a file object reads unchanged; None for anything else."""
    kind = type(name)
    if kind not in (io.BufferedReader, io.FileIO):
        of = f"{kind.__module__}.{kind.__qualname__}"
        if of != "fsspec.implementations.local.LocalFileOpener" or getattr(name, "compression", None):
            return None
    try:
        descriptor = name.fileno()
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        return path, stat_identity(answered(lambda: os.fstat(descriptor), path))
    except (OSError, ValueError):
        return None


class H5pyCalls:
    """Sends this thread's reads by h5py.Dataset to `reader` inside a `with` block. Other threads are not affected.

    Blocks may be nested, also for different readers; leaving one restores the one around it. Nothing happens if the
    program has not imported h5py.
    """

    def __init__(self, reader: H5pyReader) -> None:
        self._reader = reader
        self._before: list[H5pyReader | None] = []

    def __enter__(self) -> Self:
        thread = threading.get_ident()
        self._before.append(_asked.get(thread))
        if (h5py := sys.modules.get("h5py")) is not None and hasattr(h5py, "Dataset"):
            with _changing:
                _put_in_place(h5py)
                _asked[thread] = self._reader
        return self

    def __exit__(self, *_: object) -> None:
        thread, before = threading.get_ident(), self._before.pop()
        with _changing:
            if before is not None:
                _asked[thread] = before
            elif _asked.pop(thread, None) is not None and not _asked:
                _put_back(sys.modules["h5py"])


def _put_in_place(h5py: Any) -> None:
    global _in_place
    if not _in_place:
        _of_h5py[:] = h5py.Dataset.__getitem__, h5py.Dataset.read_direct, h5py.File.__init__
        h5py.Dataset.__getitem__, h5py.Dataset.read_direct, h5py.File.__init__ = _getitem, _read_direct, _init_file
        _in_place = True


def _put_back(h5py: Any) -> None:
    """Restores h5py's own methods, unless somebody has replaced ours: then ours only pass calls on."""
    global _in_place
    ours = _getitem, _read_direct, _init_file
    if _in_place and (h5py.Dataset.__getitem__, h5py.Dataset.read_direct, h5py.File.__init__) == ours:
        h5py.Dataset.__getitem__, h5py.Dataset.read_direct, h5py.File.__init__ = _of_h5py
        _in_place = False


def _forget_calls() -> None:
    """Forgets the readers in a forked process, where their threads do not exist."""
    global _changing
    _changing = threading.Lock()
    _asked.clear()
    if (h5py := sys.modules.get("h5py")) is not None:
        _put_back(h5py)


lifecycle.after_fork(_forget_calls)


# --- what a call asks for ----


class Selected(NamedTuple):
    """The values that a selection has: rows `start` to `stop`, every `step`-th, or a single one; and `within` these."""

    start: int
    stop: int
    step: int
    single: bool
    within: tuple[Any, ...]  # integers and slices, from axis 1 on


def selected(args: Any, shape: tuple[int, ...]) -> Selected | None:
    """Returns what `dataset[args]` has of a dataset of this shape; None: nothing, an error, or no plain selection.

    Plain are integers and slices with at most one Ellipsis.

    >>> selected((3, slice(0, 2)), (10, 4))
    Selected(start=3, stop=4, step=1, single=True, within=(slice(0, 2, None),))
    """
    if type(args) is int and 0 <= args < shape[0]:
        return Selected(args, args + 1, 1, True, ())
    given = args if type(args) is tuple else (args,)
    axes = _without_ellipsis(given, len(shape))
    if axes is None:
        return None
    plain = []
    for one, length in zip(axes, shape, strict=False):
        axis = _plain_axis(one, length)
        if axis is None:
            return None
        plain.append(axis)
    first, within = plain[0] if plain else slice(0, shape[0], 1), tuple(plain[1:])
    if isinstance(first, int):
        return Selected(first, first + 1, 1, True, within)
    return Selected(first.start, first.stop, first.step, False, within)


def _without_ellipsis(given: tuple[Any, ...], rank: int) -> tuple[Any, ...] | None:
    places = [at for at, one in enumerate(given) if one is Ellipsis]
    if len(given) - len(places) > rank or len(places) > 1:
        return None
    if not places:
        return given
    everything = (slice(None),) * (rank + 1 - len(given))
    return (*given[: places[0]], *everything, *given[places[0] + 1 :])


def _plain_axis(one: Any, length: int) -> int | slice | None:
    """Returns the position, or the slice with all its numbers if it is not empty; None for anything else."""
    if isinstance(one, slice):
        if not all(part is None or _is_integer(part) for part in (one.start, one.stop, one.step)):
            return None
        start, stop, step = one.indices(length) if one.step is None or one.step > 0 else (0, 0, 1)
        return slice(start, stop, step) if start < stop else None
    if not _is_integer(one):
        return None
    at = int(one)
    at = at + length if at < 0 else at
    return at if 0 <= at < length else None


def _is_integer(one: Any) -> bool:
    return type(one) is int or isinstance(one, np.integer)


# --- where a dataset's values lie ----


def answered(work: Callable[[], T], *files: str) -> T:
    """Returns what `work` finds out about files. Raises WaitTimeout if their file system does not answer in a minute.

    h5py has these files open, and goes on as it can.
    """
    more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    return within(FILE_PATIENCE, work, f"still waiting for the file system of {files[0]}{more}")


class DatasetPlace(NamedTuple):
    """Identifies the dataset and the file of an h5py.Dataset."""

    path: str
    name: str
    identity: tuple[int, ...]  # of the file that is open


def open_dataset(dataset: Any) -> DatasetPlace | None:
    """Returns the place of a dataset, if its file is a local one that is open only for reading; else None."""
    file = dataset.file
    if file.mode != "r" or file.swmr_mode or dataset.name is None:
        return None
    if file.driver == "fileobj":
        plain = _of_objects.get(identity_of(dataset)[0])
        return None if plain is None else DatasetPlace(plain[0], dataset.name, plain[1])
    if file.driver != "sec2":
        return None
    path, descriptor = str(Path(file.filename).absolute()), file.id.get_vfd_handle()
    return DatasetPlace(path, dataset.name, stat_identity(answered(lambda: os.fstat(descriptor), path)))


def readable_layout(dataset: Any, opened: DatasetPlace) -> Layout | None:
    """Returns where the values of an h5py.Dataset lie, if native code reads them as h5py does; else None.

    It checks that the file at this path is still the one that is open. Raises WaitTimeout if nobody answers.
    """
    kind = dataset.dtype
    if kind.kind not in NUMERIC or kind.metadata is not None or not dataset.shape or not dataset.size:
        return None
    try:
        layout = answered(lambda: known_of(opened.path, opened.name).layout, opened.path)
    except WaitTimeout:
        raise
    except (SolarError, OSError):
        return None
    if layout.reader != "direct" or layout.dtype != kind or layout.shape != dataset.shape:
        return None
    whole = layout.part_first[-1] == layout.shape[0]
    return layout if whole and opened.identity == layout_identity(layout) else None


def identity_of(dataset: Any) -> tuple[int, ...]:
    """Returns a number of the open file, and one of the dataset in it: equal for h5py.Datasets of one dataset."""
    facts = sys.modules["h5py"].h5o.get_info(dataset.id)
    return int(facts.fileno), int(facts.addr)


def plain_values(values: NDArray[Any], selection: Selected) -> Any:
    """Returns these rows of `values` as h5py does: a scalar, or a new array that owns its memory."""
    rows: Any = values[0] if selection.single else values[:: selection.step]
    if selection.within:
        rows = rows[selection.within if selection.single else (slice(None), *selection.within)]
    return rows.copy() if getattr(rows, "ndim", 0) else rows
