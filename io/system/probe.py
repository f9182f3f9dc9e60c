"""Measures a storage with the engine that reads samples.

It makes small requests at random places, no two adjacent, and large ones in order, with more and more in flight until
that gains nothing. They bypass the page cache if the file system allows it; if not, the file is dropped from the cache
before each measurement. In a folder it writes a temporary file; a file is only read. Everything is measured in three
rounds: if these disagree, something else kept the machine or the storage busy.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import stat
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError, ReadError, renamed_arguments
from solar.io.remote.fetch import fetched, identity
from solar.io.remote.location import printable_url as in_public
from solar.io.remote.location import ready
from solar.io.system.identity import is_zarr_folder
from solar.io.system.profile import Profile, Rate, file_system, fit_storage, merge_rates
from solar.io.system.waiting import GLANCE, until
from solar.values import is_url

SMALL_REQUEST = 4 << 10
LARGE_REQUEST = 8 << 20
DEPTHS = {SMALL_REQUEST: (1, 2, 4, 8, 16, 32, 64), LARGE_REQUEST: (1, 2, 4, 8, 16)}
ROUNDS = 3  # of measuring everything
LEAST = 4 * LARGE_REQUEST  # bytes of a file worth measuring
SPARE_ROOM = 1.05  # times a temporary file's size must be free, so that nobody else's write fails for it
WORTH_MORE_DEPTH = 1.05  # times the rate, below which more in flight has gained nothing
QUICK_TICKET = 0.005  # seconds; a ticket that takes less may be larger
PROBED_PLACES = 1 << 17  # different blocks that small requests go to
WRITE_BLOCK = 4 << 20  # of the temporary file, written at a time

IN_MEMORY = {"tmpfs", "ramfs"}

ProgressCallback = Callable[[str], object]


@renamed_arguments(told="progress")
def probe(
    path: str | os.PathLike[str], seconds: float = 10.0, nbytes: int = 1 << 30, progress: ProgressCallback | None = None
) -> Profile:
    """Returns the profile of the storage of `path`, measured in about this many seconds, a third of them per round.

    In a folder it writes a temporary file of `nbytes`, and removes it in any case; a file is only read. `progress` is
    called with a line of progress now and then.
    """
    progress = progress or no_lines
    load = load_average()
    with contextlib.ExitStack() as after:
        file = os.fspath(path)
        if Path(file).is_dir():
            file = beside_stores(file)
            progress(f"writing a temporary file of {nbytes:,} bytes in {file}")
            file = after.enter_context(temporary_file(file, nbytes))
        measured = _File.of(file)
        rounds = probe_rounds(measured, seconds, progress)
        measured.drop()
        held = measured.held()  # not before the rates: looking brings in what is looked for
    kind = "an object store or the web" if is_url(file) else file_system(path)
    rates = merge_rates(rate for one in rounds for rate in one)
    how = _in_words(rates, held, kind, Path(os.fspath(path)).is_dir())
    made = datetime.now(UTC).isoformat(timespec="seconds")
    place = file if is_url(file) else os.path.realpath(path)
    return Profile(
        place, made, how, rates, fit_storage(rates), tuple(map(fit_storage, rounds)), load, os.cpu_count() or 1
    )


def load_average() -> float | None:
    """Returns the load average of the last minute. Measuring adds to it, so call this before."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def no_lines(line: str) -> None:
    pass


def beside_stores(folder: str) -> str:
    """Returns the folder, or that in which the Zarr store lies of which it is a part: a store holds nothing else."""
    real = Path(os.path.realpath(folder))
    stores = [one for one in (real, *real.parents) if is_zarr_folder(one)]
    if not stores:
        return folder
    beside = stores[-1].parent
    if beside.stat().st_dev != real.stat().st_dev:
        raise PlanError(
            f"{folder}: nothing is written into a Zarr store, and what lies beside it is another file system: give a "
            "large file of the store"
        )
    return str(beside)


@contextlib.contextmanager
def temporary_file(folder: str, nbytes: int) -> Iterator[str]:
    """Yields a file of incompressible bytes, on the storage and not in memory, and removes it at the end."""
    least = int(nbytes * SPARE_ROOM)
    try:
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
        if free < least:
            raise PlanError(
                f"{folder}: a temporary file of {nbytes:,} bytes needs {least:,} free, and {free:,} are: "
                "give a smaller --size, or measure a file that is there"
            )
        descriptor, path = tempfile.mkstemp(dir=folder, prefix=".solar-probe-")
    except OSError as error:
        raise ReadError(f"{folder}: no temporary file can be made: {error.strerror}; measure a file there") from error
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            rng = np.random.default_rng()
            for begin in range(0, nbytes, WRITE_BLOCK):
                file.write(rng.bytes(min(WRITE_BLOCK, nbytes - begin)))
            os.fsync(file.fileno())
        yield path
    except OSError as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"{folder}: the temporary file cannot be written: {error.strerror}") from error
    finally:
        Path(path).unlink(missing_ok=True)


@dataclass(frozen=True)
class _File:
    """The file that is read."""

    path: str
    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str) -> _File:
        if is_url(path):
            ready([path])
            nbytes, mtime_ns, *_ = identity(path)
            if nbytes < LEAST:
                raise ReadError(f"{path}: of {nbytes:,} bytes; measuring takes a file of {LEAST:,} at least")
            return cls(path, nbytes, mtime_ns)
        try:
            facts = Path(path).stat()
            readable = os.access(path, os.R_OK)
        except OSError as error:
            raise ReadError(f"{path}: cannot be measured: {error.strerror}") from error
        if not stat.S_ISREG(facts.st_mode):
            raise ReadError(f"{path}: neither a plain file nor a folder: give one that lies on the storage")
        if not readable:
            raise ReadError(f"{path}: may not be read by you")
        if facts.st_size < LEAST:
            raise ReadError(f"{path}: of {facts.st_size:,} bytes; measuring takes a file of {LEAST:,} at least")
        return cls(path, facts.st_size, facts.st_mtime_ns)

    def drop(self) -> None:
        """Drops the file from the page cache, as far as that is possible."""
        if is_url(self.path):
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def held(self) -> float:
        """Returns the share of the file in the page cache, as far as a look at some places can tell."""
        if is_url(self.path):
            return 0.0
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            places = range(0, self.nbytes - SMALL_REQUEST, max(SMALL_REQUEST, self.nbytes // 64))
            return sum(_is_held(descriptor, place) for place in places) / len(places)
        finally:
            os.close(descriptor)

    def source(self, row_nbytes: int) -> _native.Source:
        """Returns the file as rows of this many bytes, to be read past the page cache."""
        rows = self.nbytes // row_nbytes
        form: tuple[list[int], _native.Filters, bytes] = ([0, row_nbytes], [], b"")  # contiguous
        none, zero = np.empty(0, np.uint64), np.zeros(1, np.uint64)
        part = np.zeros(1, np.int32)
        return _native.Source(
            "probe",
            [self.path],
            np.array([self.nbytes], np.uint64),
            np.array([self.mtime_ns], np.int64),
            1,
            0,
            [row_nbytes],
            [form],
            part,
            part,
            np.array([0, rows], np.int64),
            np.array([0, 1], np.int64),
            none,
            zero,
            np.array([rows * row_nbytes], np.uint64),
            np.zeros(1, np.uint32),
            bypass=1.0,
        )


def _is_held(descriptor: int, offset: int) -> bool:
    """Returns whether the page cache holds the byte there; False if the system cannot tell."""
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def probe_rounds(file: _File, seconds: float, progress: ProgressCallback) -> list[tuple[Rate, ...]]:
    """Yields the rates of each round. A round continues in the file where the one before ended."""
    places = {nbytes: itertools.cycle(rows_to_read(file, nbytes)) for nbytes in DEPTHS}
    found = []
    for number in range(1, ROUNDS + 1):

        def of_round(line: str, number: int = number) -> None:
            progress(f"round {number} of {ROUNDS}: {line}")

        found.append(tuple(measure_rates(file, seconds / ROUNDS, places, of_round)))
    return found


def measure_rates(
    file: _File, seconds: float, places_of: Mapping[int, Iterator[int]], progress: ProgressCallback
) -> Iterator[Rate]:
    """Measures each size at each depth, until more in flight gains nothing twice."""
    share = seconds / sum(map(len, DEPTHS.values()))
    for nbytes, depths in DEPTHS.items():
        places = places_of[nbytes]
        most, in_vain = 0.0, 0
        for depth in depths:
            if depth > max(1, file.nbytes // nbytes // 4):
                break  # or the same bytes would be in flight twice
            file.drop()
            rate = (_small_rate if nbytes == SMALL_REQUEST else _large_rate)(file, depth, places, share)
            progress(f"{nbytes:>9,} bytes, {depth:>2} in flight: {rate.per_second:,.0f} requests/s")
            yield rate
            in_vain = 0 if rate.per_second > WORTH_MORE_DEPTH * most else in_vain + 1
            most = max(most, rate.per_second)
            if in_vain == 2:
                break


def rows_to_read(file: _File, nbytes: int) -> list[int]:
    """Returns the rows to read, in order: large ones one after another, of small ones every other at random."""
    rows = file.nbytes // nbytes
    if nbytes == LARGE_REQUEST:
        return list(range(rows))
    rng = np.random.default_rng(0)
    # Neighbours would be joined into one request.
    even = rng.integers(0, rows // 2, PROBED_PLACES) if rows // 2 > PROBED_PLACES else np.arange(rows // 2)
    places: list[int] = (2 * rng.permutation(np.unique(even))).tolist()
    return places


def _small_rate(file: _File, depth: int, places: Iterator[int], seconds: float) -> Rate:
    """Returns the rate of small requests by the engine, with `depth` in flight, within about this time."""
    reader = _native.Reader(1, depth, 0, "auto")
    most_rows, window = 1024, 2  # one in work, one behind it
    memory = np.frombuffer(mmap.mmap(-1, window * most_rows * SMALL_REQUEST), np.uint8).reshape(
        window, most_rows * SMALL_REQUEST
    )
    try:
        begin = time.monotonic()
        rows = _read_until(begin + seconds, reader, file.source(SMALL_REQUEST), (memory, depth), places)
        passed = time.monotonic() - begin
        counts = reader.stats()
    finally:
        reader.close(GLANCE)  # after Ctrl-C a read may be on its way yet; the engine keeps its memory
    if counts["requests"] != rows:
        raise ReadError(f"{file.path}: {rows:,} reads took {counts['requests']:,} requests: it cannot be measured so")
    return Rate(SMALL_REQUEST, depth, counts["requests"], counts["bypassed"], passed)


def _read_until(
    end: float,
    reader: _native.Reader,
    source: _native.Source,
    slots: tuple[NDArray[np.uint8], int],
    places: Iterator[int],
) -> int:
    """Keeps a ticket in each slot of the memory until the time is up. Returns the number of rows read."""
    memory, length = slots
    free = deque(range(len(memory)))
    under_way: deque[tuple[int, int, float]] = deque()  # ticket, slot, since
    total, most = 0, memory.shape[1] // SMALL_REQUEST
    while under_way or time.monotonic() < end:
        now = time.monotonic()
        if free and now < end:
            rows = np.fromiter(itertools.islice(places, length), np.int64, length)
            slot = free.popleft()
            under_way.append((reader.submit(source, rows, memory[slot, : length * SMALL_REQUEST]), slot, now))
            total += length
            continue
        ticket, slot, since = under_way.popleft()
        until(lambda nap, ticket=ticket: reader.wait(ticket, nap) is not None)  # type: ignore[misc]
        if time.monotonic() - since < QUICK_TICKET:
            length = min(2 * length, most)
        free.append(slot)
    return total


def _large_rate(file: _File, depth: int, places: Iterator[int], seconds: float) -> Rate:
    """Returns the rate of large requests, `depth` in flight, one per thread: the engine would split them."""
    if is_url(file.path):
        return _large_far_rate(file, depth, places, seconds)
    descriptor, direct = _open_past_the_cache(file.path)
    memory = mmap.mmap(-1, depth * LARGE_REQUEST)  # whole pages
    begin = time.monotonic()

    def read(slot: int) -> int:
        view = memoryview(memory)[slot * LARGE_REQUEST : (slot + 1) * LARGE_REQUEST]
        for done in itertools.count(1):
            if os.preadv(descriptor, [view], next(places) * LARGE_REQUEST) != LARGE_REQUEST:
                raise ReadError(f"{file.path}: it became shorter while it was measured")
            if time.monotonic() >= begin + seconds:
                return done
        raise AssertionError("never ends")

    try:
        with ThreadPoolExecutor(depth) as threads:
            requests = sum(threads.map(read, range(depth)))
        passed = time.monotonic() - begin
    except OSError as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"{file.path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return Rate(LARGE_REQUEST, depth, requests, requests if direct else 0, passed)


def _large_far_rate(file: _File, depth: int, places: Iterator[int], seconds: float) -> Rate:
    begin, was = time.monotonic(), identity(file.path)

    def read(_: int) -> int:
        for done in itertools.count(1):
            fetched(file.path, next(places) * LARGE_REQUEST, LARGE_REQUEST, was)
            if time.monotonic() >= begin + seconds:
                return done
        raise AssertionError("never ends")

    try:
        with ThreadPoolExecutor(depth) as threads:
            requests = sum(threads.map(read, range(depth)))
    except Exception as error:  # of the library that fetches
        raise ReadError(f"{file.path}: cannot be measured: {in_public(str(error))}") from None
    return Rate(LARGE_REQUEST, depth, requests, requests, time.monotonic() - begin)


def _open_past_the_cache(path: str) -> tuple[int, bool]:
    """Returns the open file, and whether reads bypass the page cache."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
        return os.open(path, flags), False


def _in_words(rates: tuple[Rate, ...], held: float, kind: str, written: bool) -> str:
    """Describes how the rates were measured, and how far to trust them."""
    if all(rate.bypassed >= 0.99 * rate.requests for rate in rates):
        way = "past the page cache (O_DIRECT)"
    else:
        nbytes = sum(rate.requests * rate.nbytes for rate in rates)
        share = 1 - sum(rate.bypassed * rate.nbytes for rate in rates) / nbytes
        way = f"through the page cache for {share:.0%} of the bytes, emptied of the file before"
        if held:
            way += f", though {held:.0%} of it stayed: that share is the speed of memory"
    of = "a file written for it, which servers may still have in memory" if written else "a file that was there"
    if kind in IN_MEMORY:
        return f"{kind}: this is the speed of memory"
    return f"{kind or 'unknown file system'}, {way}; {of}"
