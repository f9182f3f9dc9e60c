"""Samples by GPUDirect Storage: from files to memory of a device, past the host, by kvikio where it is installed.

Only samples that lie in their files as they are in memory can be read so. What is read is planned from the Layout as
the engine's reads are: a request for each stretch of a file that goes to one stretch of the memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError, ReadError
from solar.io.identity import unchanged
from solar.values import Layout

KEPT = 64  # files kept open
KINDS = "biufc"  # numbers

Array = NDArray[np.int64]
Place = tuple[int, int, int, int]  # part, offset in its file, first sample of the batch, bytes


class Memory(Protocol):
    """Bytes of a device, of which a slice is such bytes again."""

    def __getitem__(self, part: slice, /) -> Any: ...


class Requests(NamedTuple):
    """What is asked of the storage, an element of each array for each request; in the order of files and offsets."""

    part: Array  # of all Layouts' parts
    offset: Array
    first: Array  # which sample of the batch it begins with
    samples: Array


class Gds:
    """The samples of one field in several alike Layouts, called by one number each, for any thread to read."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._kvikio = _kvikio(layouts[0])
        self._layouts = list(layouts)
        self._firsts = np.cumsum([0, *(layout.samples for layout in layouts)])
        self._parts = np.cumsum([0, *(len(layout.part_file) for layout in layouts)])
        self.sample_nbytes = layouts[0].sample_nbytes
        self._lock = threading.Lock()
        self._open: dict[str, Any] = {}  # path -> kvikio.CuFile, the one used last behind

    def requests(self, names: Array) -> Requests:
        """The requests for a batch of these samples: neighbours of the batch that are neighbours in a file in one."""
        parts, offsets = np.empty(len(names), np.int64), np.empty(len(names), np.int64)
        which = np.searchsorted(self._firsts, names, "right") - 1
        for number in np.unique(which).tolist():
            here = which == number
            part, offsets[here] = _places(self._layouts[number], names[here] - self._firsts[number])
            parts[here] = part + self._parts[number]
        follows = (np.diff(parts) == 0) & (np.diff(offsets) == self.sample_nbytes)
        first = np.flatnonzero(np.concatenate([np.ones(min(1, len(names)), bool), ~follows]))
        samples = np.diff(np.append(first, len(names)))
        order = np.lexsort((offsets[first], parts[first]))
        return Requests(*(one[order] for one in (parts[first], offsets[first], first, samples)))

    def read(self, names: Array, memory: Memory) -> None:
        """Fills the memory with these samples, one behind the other. ReadError says which of them did not come.

        Whether or not: nothing is written there any more afterwards.
        """
        of_batch = zip(*(one.tolist() for one in self.requests(names)), strict=True)
        places = [(part, offset, first, samples * self.sample_nbytes) for part, offset, first, samples in of_batch]
        coming: deque[tuple[Place, Any]] = deque()
        with self._lock:
            try:
                for place in places:
                    coming.append((place, self._begun(memory, names, place)))
                while coming:
                    place, future = coming.popleft()
                    self._wait(future, memory, names, place)
            finally:
                for _, future in coming:  # which write to memory that may soon be another's
                    with suppress(OSError, RuntimeError):
                        future.get()
                self._trim(KEPT)

    def close(self) -> None:
        """Closes the files, which a later read opens again."""
        with self._lock:
            self._trim(0)

    def _begun(self, memory: Memory, names: Array, place: Place, done: int = 0) -> Any:
        """Begins to read what is not `done` of a request. Gives kvikio's IOFuture."""
        part, offset, first, nbytes = place
        begin = first * self.sample_nbytes
        try:
            return self._file(part).pread(memory[begin + done : begin + nbytes], nbytes - done, offset + done)
        except (OSError, RuntimeError) as error:
            raise self._failed(error, names, place, done) from error

    def _wait(self, future: Any, memory: Memory, names: Array, place: Place) -> None:
        """Waits for a request, and for what is left of it where fewer bytes came."""
        done, nbytes = 0, place[-1]
        while done < nbytes:
            if done:
                future = self._begun(memory, names, place, done)
            try:
                came = future.get()
            except (OSError, RuntimeError) as error:
                raise self._failed(error, names, place, done) from error
            if came <= 0:
                raise self._failed(f"the file ends {nbytes - done:,} bytes too early", names, place, done)
            done += came

    def _failed(self, said: Exception | str, names: Array, place: Place, done: int) -> ReadError:
        layout, part = self._part(place[0])
        name = int(names[place[2] + done // self.sample_nbytes])
        sample = name - int(self._firsts[np.searchsorted(self._firsts, name, "right") - 1])
        path, where = layout.paths[int(layout.part_file[part])], f"{layout.title}, sample {sample}"
        if isinstance(said, ReadError):
            error = ReadError(f"{said} ({where})")
            error.errno = said.errno
            return error
        return ReadError(f"{path}: {where}, offset {place[1] + done}: {said} (reader='gds', by kvikio)")

    def _part(self, part: int) -> tuple[Layout, int]:
        number = int(np.searchsorted(self._parts, part, "right")) - 1
        return self._layouts[number], part - int(self._parts[number])

    def _file(self, part: int) -> Any:
        layout, part = self._part(part)
        path = layout.paths[int(layout.part_file[part])]
        file = self._open.pop(path, None)
        if file is None:
            file = self._kvikio.CuFile(unchanged(layout, part), "r")
        self._open[path] = file
        return file

    def _trim(self, kept: int) -> None:
        """Closes all files but so many: those that were used longest ago. Nothing is read from them any more."""
        while len(self._open) > kept:
            self._open.pop(next(iter(self._open))).close()


def refused(layout: Layout) -> str:
    """Why the samples cannot be read so; empty if they can."""
    where = f"{layout.paths[0]}: {layout.title}" if layout.paths else layout.title
    if layout.reader != "direct":
        return f"{where} is read by {layout.reader}, not by solar itself"
    if filters := [one.id for form in layout.forms for one in form.filters]:
        return f"{where} is stored through filters {sorted(set(filters))}, which are undone on the host"
    if not layout.dtype.isnative or layout.dtype.subdtype is not None or layout.dtype.kind not in KINDS:
        return f"{where} is of {layout.dtype}, not of numbers in this machine's byte order"
    if layout.sample_nbytes == 0 or layout.samples == 0:
        return f"{where} has no bytes"
    if any(form.chunk[0] and form.chunk[1:] != layout.sample_shape for form in layout.forms):
        return f"{where} has chunks of {layout.forms[0].chunk}, in which no sample of {layout.sample_shape} is whole"
    rows = np.array([form.chunk[0] for form in layout.forms])[layout.part_form]
    length = np.diff(layout.part_first)
    chunks = np.where(rows == 0, length > 0, -(-length // np.maximum(rows, 1)))
    if len(layout.chunk_index) or not np.array_equal(np.diff(layout.part_chunks), chunks):
        return f"{where} has samples that were never written"
    return ""


def _places(layout: Layout, rows: Array) -> tuple[Array, Array]:
    """The part of each sample, and where in its file it begins."""
    part = np.searchsorted(layout.part_first, rows, "right") - 1
    within = rows - layout.part_first[part]
    each = np.array([form.chunk[0] for form in layout.forms])[layout.part_form[part]]
    each = np.where(each, each, np.iinfo(np.int64).max)  # all in one extent
    chunk = layout.part_chunks[part] + within // each
    return part, layout.chunk_offset[chunk].astype(np.int64) + within % each * layout.sample_nbytes


def _kvikio(layout: Layout) -> Any:
    asked = f"reader='gds' for {layout.paths[0]}: {layout.title}"
    if importlib.util.find_spec("kvikio") is None:
        raise PlanError(
            f"{asked} needs kvikio, which is not installed: pip install kvikio-cu12 (or that for your CUDA), or leave "
            "reader= out"
        )
    try:
        return importlib.import_module("kvikio")  # starts CUDA: only for those who ask
    except (ImportError, OSError, RuntimeError) as error:
        raise PlanError(f"{asked}: kvikio cannot be imported ({error}). Mend it, or leave reader= out") from error
