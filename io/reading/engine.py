"""Engine: the native reader of this process, and Layouts in their native form."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError, SolarError
from solar.io.reading.encoded import CODES, behind_tables
from solar.io.remote.location import ready
from solar.io.system import lifecycle
from solar.io.system import memory as machine
from solar.io.system.cores import THREADS_LIMIT, THREADS_VARIABLE, reading_threads
from solar.values import Form, Layout

if TYPE_CHECKING:
    from solar.io.reading.stage import Tier

log = logging.getLogger("solar")

DEPTH = 64  # requests in flight, over all threads
GAP = 16 << 10  # bytes that are worth reading to save a request
MAPPED = 256  # files of a Layout that are mapped into memory
ROOM = 0.8  # share of the page cache that one Layout may use
SCRATCH = 1 / 32  # share of the memory that what is on its way may take beside batches, over all threads
LEAST_SCRATCH, MOST_SCRATCH = 1 << 20, 64 << 20  # bytes of that for each thread
COUNT_NAMES = _native.count_names()  # of each request, and of all
LAST_WAIT = 1.0  # seconds that reads in flight have to finish when the program ends


def beside_nbytes(threads: int) -> int:
    """Returns the bytes that each thread may use besides for reads in flight: few if there is little memory."""
    return max(LEAST_SCRATCH, min(MOST_SCRATCH, int(SCRATCH * machine.page_cache_nbytes()) // threads))


class Engine:
    """The one native Reader of this process. A forked process makes its own: threads do not survive a fork."""

    reader: _native.Reader | None = None
    inherited: ClassVar[list[_native.Reader]] = []  # never destroyed: their threads live in another process

    @classmethod
    def get(cls) -> _native.Reader:
        if cls.reader is None:
            threads = reading_threads()
            cls.reader = _native.Reader(threads, DEPTH, GAP, "auto", beside_nbytes(threads))
        return cls.reader

    @classmethod
    def progress(cls, last: int) -> tuple[int, int]:
        """Returns how many pieces of the tickets up to `last` are done, of all so far, and how many there are."""
        return (0, 0) if cls.reader is None else cls.reader.progress(last)

    @classmethod
    def forget(cls) -> None:
        if cls.reader is not None:
            cls.inherited.append(cls.reader)
        cls.reader = None

    @classmethod
    def stop(cls) -> None:
        """Joins the threads before the interpreter ends. A thread that hangs in a read is abandoned with its memory."""
        if cls.reader is not None and not cls.reader.close(LAST_WAIT):
            log.info("a read has not returned after %g s: its thread is left to the end of the process", LAST_WAIT)
        cls.reader = None


def get_num_threads() -> int:
    """Returns the number of native threads that read and decode in this process, or will.

    >>> get_num_threads() >= 1
    True
    """
    return reading_threads()


def set_num_threads(threads: int) -> None:
    """Sets the number of native threads that read and decode in this process, before it has read anything.

    It sets the environment variable SOLAR_THREADS, so that processes that this one starts have as many. Without it
    there are as many as the process may use cores, at most 32. Raises PlanError where others read already.

    >>> set_num_threads(get_num_threads())
    """
    if not isinstance(threads, int) or not 1 <= threads <= THREADS_LIMIT:
        raise PlanError(f"set_num_threads({threads!r}): the number of threads is an integer from 1 to {THREADS_LIMIT}")
    if Engine.reader is not None and threads != reading_threads():
        raise PlanError(
            f"set_num_threads({threads}): {reading_threads()} threads of this process have read already: call it first"
        )
    os.environ[THREADS_VARIABLE] = str(threads)
    reading_threads.cache_clear()


lifecycle.after_fork(Engine.forget)
lifecycle.at_exit(lifecycle.Ends.ENGINE, Engine.stop)


class Ticket:
    """A request that the engine works on. Deleting it cancels it; the engine keeps the memory until then."""

    def __init__(
        self,
        source: _native.Source | _native.Boxes,
        rows: NDArray[np.int64],
        memory: NDArray[np.uint8],
        positions: Any = None,
        counts: Any = None,
        corners: NDArray[np.int64] | None = None,
    ) -> None:
        """Reads row i into the i-th place of `memory`, or into place positions[i]. With `counts`, reads that many rows
        from it on; of Boxes, reads the box at corners[i].
        """
        self._counts: tuple[int, ...] | None = ()
        self._reader = Engine.get()
        if positions is not None:
            positions = np.ascontiguousarray(positions, np.int64)
        if counts is not None:
            counts = np.ascontiguousarray(counts, np.int64)
        rows = np.ascontiguousarray(rows, np.int64)
        if isinstance(source, _native.Boxes):
            assert corners is not None, "each box has its corner"
            self.number = self._reader.submit_boxes(source, rows, corners.reshape(-1), memory, positions)
        else:
            self.number = self._reader.submit(source, rows, memory, positions, counts)
        self._counts = None

    @classmethod
    def begun(cls, number: int, memory: NDArray[np.uint8], counts: tuple[int, ...]) -> Ticket:
        """Returns the ticket of this number, which native code began; 0: its read has ended, with these counts."""
        made = cls.__new__(cls)
        made._reader, made.number = Engine.get(), number
        made._counts = counts if not number else None
        if number:
            made._reader.lend(number, memory)
        return made

    def poll(self, seconds: float) -> bool:
        """Returns whether it is done within this time."""
        return self.ended(seconds) is not None

    def ended(self, seconds: float) -> tuple[int, ...] | None:
        """Returns its counts, in the order of COUNT_NAMES, if it is done within this time."""
        if self._counts is None:
            try:
                self._counts = self._reader.wait(self.number, seconds)
            except SolarError:
                self._counts = ()
                raise
        return self._counts

    def waiting_for(self) -> str:
        """Returns what is still missing, as "file: dataset, sample 17, offset 123"."""
        return self._reader.waiting_for(self.number)

    def counts(self) -> dict[str, int]:
        """Returns what was read and decoded for it, once it is done (native/include/solar/reader.hpp)."""
        return dict(zip(COUNT_NAMES, self._counts or (), strict=False))

    def __del__(self) -> None:
        if self._counts is None and not sys.is_finalizing() and self._reader is Engine.reader:
            self._reader.abandon(self.number)


def bypassed_share(layout: Layout, page_cache: bool | None) -> float:
    """Returns the share of the stored bytes to read past the page cache: what it has no room for, unless given.

    If all bytes passed through the cache, they would evict each other before the next epoch uses them again.
    """
    if layout.far:
        return 0.0
    if page_cache is not None:
        return 0.0 if page_cache else 1.0
    stored = max(1, int(layout.chunk_nbytes.sum()))
    return max(0.0, 1 - ROOM * machine.page_cache_nbytes() / stored)


def worth_mapping(layout: Layout, bypass: float) -> bool:
    """Returns whether to map the files into memory: if they fit into the page cache and are not thousands."""
    return bypass == 0 and len(layout.paths) <= MAPPED and not layout.far


def source_of(
    layout: Layout,
    swap: int,
    page_cache: bool | None,
    *,
    mapped: bool = True,
    tier: Tier | None = None,
    unit: str = "sample",
) -> _native.Source:
    """Returns the native form of a Layout that is read directly, through a local disk if there is a Tier, or if a stage
    keeps its chunks decoded.

    `unit` is what messages call its rows.
    """
    ready(layout.paths)
    bypass = bypassed_share(layout, page_cache)
    decoded = decoded_files(layout)
    kept_as_stored = tier is not None and not tier.decoded
    source = _native.Source(
        dataset_in_messages(layout),
        list(layout.paths),
        layout.file_nbytes,
        layout.file_mtime_ns,
        layout.dtype.itemsize,
        swap,
        list(layout.sample_shape),
        [native_form(form, layout.dtype) for form in layout.forms],
        layout.part_file,
        layout.part_form,
        layout.part_first,
        layout.part_chunks,
        layout.chunk_index,
        layout.chunk_offset,
        layout.chunk_nbytes,
        layout.chunk_mask,
        bypass,
        mapped and not kept_as_stored and worth_mapping(layout, bypass),
        layout.file_inode,
        layout.file_ctime_ns,
        [form.nbytes for form in layout.forms],
        unit,
        layout.chunk_file,
        decoded,
    )
    if tier is None or tier.decoded:
        return source
    from solar.io.reading.stage import staged

    return staged(source, layout, tier)


def decoded_files(layout: Layout) -> list[tuple[_native.DecodedFile, _native.Stage | None] | None]:
    """Returns, for each file, what a stage keeps decoded of it, and the stage; nothing if there is no such file."""
    if layout.decoded is None:
        return []
    from solar.io.reading.decoded_stage import native_files

    return native_files(layout.decoded)


def dataset_in_messages(layout: Layout) -> str:
    """Returns the name of the dataset for messages that begin with the file that is read."""
    if len(layout.paths) == len(layout.files):
        return layout.title
    return f"{layout.title} (of {layout.storage} storage in {layout.files[0]})"


def native_form(
    form: Form, dtype: np.dtype[Any], chunk: tuple[int, ...] | None = None
) -> tuple[list[int], _native.Filters, bytes]:
    filters = [(one.id, one.flags, list(one.values)) for one in form.filters]
    if filters and filters[0][0] == _native.codec_filter():
        filters[0] = (*filters[0][:2], filter_values_of(filters[0][2], dtype))
    return list(form.chunk if chunk is None else chunk), filters, form.fill


def filter_values_of(values: list[int], dtype: np.dtype[Any]) -> list[int]:
    """Returns the values of our codec's filter plus the dataset's type, so that the decoder refuses other chunks."""
    end = behind_tables(values)
    code = CODES.get(dtype.str[1:], 0) if dtype.isnative else 0
    if not code or end > len(values) or (values and not end):  # what the decoder is to refuse, or to ignore
        return values
    return [*(values[:end] or [1, 0]), 1, code]


def source_of_part(layout: Layout, part: int) -> _native.Source:
    """Returns a part as a single row, which is read in its own order, chunk after chunk."""
    form = layout.forms[layout.part_form[part]]
    length = int(layout.part_first[part + 1] - layout.part_first[part])
    chunk = (1, *form.chunk) if form.chunk[0] else (0, length, *form.chunk[1:])
    entries = slice(layout.part_chunks[part], layout.part_chunks[part + 1])
    files = layout.part_file[part : part + 1]
    of_chunks = layout.chunk_file[entries]
    if len(of_chunks):
        files, places = np.unique(of_chunks, return_inverse=True)
        of_chunks = places.astype(np.int32)
    return _native.Source(
        dataset_in_messages(layout),
        [layout.paths[file] for file in files.tolist()],
        layout.file_nbytes[files],
        layout.file_mtime_ns[files],
        layout.dtype.itemsize,
        0,
        [length, *layout.sample_shape],
        [native_form(form, layout.dtype, chunk)],
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.array([0, 1], np.int64),
        np.array([0, entries.stop - entries.start], np.int64),
        layout.chunk_index[entries],
        layout.chunk_offset[entries],
        layout.chunk_nbytes[entries],
        layout.chunk_mask[entries],
        file_inode=layout.file_inode[files] if len(layout.file_inode) else None,
        file_ctime_ns=layout.file_ctime_ns[files] if len(layout.file_ctime_ns) else None,
        chunk_file=of_chunks,
    )
