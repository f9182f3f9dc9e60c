"""What tests of several modules need: when two values are the same, files that look old, the engine's backends."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from solar import _native
from solar.errors import CodecError, ReadError
from solar.io.reading.engine import Engine

# The folder of files that nobody in this project wrote; it may be absent.
SHARED = Path(os.environ.get("SOLAR_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"


def open_files() -> set[str]:
    """What this process has open, by descriptor and name."""
    return {f"{link.name} {link.readlink()}" for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


@contextmanager
def engine(threads: int, backend: str) -> Iterator[None]:
    """Another engine for what reads meanwhile."""
    before, Engine.reader = Engine.reader, _native.Reader(threads, 8, 0, backend)
    try:
        yield
    finally:
        Engine.reader.close()
        Engine.reader = before


def settle(path: str | Path) -> None:
    """Makes a file look as if it was written a while ago."""
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))


def resident(path: str | Path) -> int:
    """How many pages of a file the page cache holds, as mincore tells the file's owner."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        held = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        answer = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(held.ctypes.data))
        assert answer == 0, os.strerror(ctypes.get_errno())
        return int((held & 1).sum())


def forgotten(path: str | Path) -> str:
    """Makes the page cache forget a file, which can then be read past it; or says why that cannot be here."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if resident(path):
        return f"the file system of {path} keeps its files in memory"
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        return f"the file system of {path} refuses to read past the page cache: {error}"
    return ""


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal in type, dtype, shape and content, objects inside them too."""
    if type(ours) is not type(theirs):
        return False
    if not isinstance(ours, (np.ndarray, np.generic)):
        return ours == theirs
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if ours.dtype.names:
        return all(same(ours[name], theirs[name]) for name in ours.dtype.names)
    if ours.dtype.hasobject:
        return all(map(same, np.ravel(ours), np.ravel(theirs)))
    return ours.tobytes() == theirs.tobytes()


def uring_works() -> bool:
    try:
        _native.Reader(1, 4, 0, "uring").close()
    except ReadError:
        return False
    return True


BACKENDS = [
    "pread",
    pytest.param("uring", marks=pytest.mark.skipif(not uring_works(), reason="the kernel has or allows no io_uring")),
]


def broken_file(folder: Path) -> Path:
    """A file of 400 samples, number i all of i, of which sample 217 is damaged."""
    path = folder / "broken.h5"
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (400, 16), "f4", chunks=(1, 16), fletcher32=True)
        x[:] = np.arange(400)[:, None]
        broken = x.id.get_chunk_info(217).byte_offset
    with path.open("r+b") as raw:
        raw.seek(broken)
        raw.write(b"\xff")
    return path


def check_all_but_the_broken(batches: Iterator[Any]) -> None:
    """Of that file in batches of 4, after the first one: the damaged one is told in its turn, and all others come."""
    seen, failed = [], 0
    for number in range(1, 100):
        try:
            seen.append((number, int(next(batches)[0, 0])))
        except CodecError as error:
            assert "sample 217" in str(error)
            failed = number
    assert failed == 217 // 4
    assert seen == [(number, 4 * number) for number in range(1, 100) if number != failed]
    assert next(batches, None) is None
