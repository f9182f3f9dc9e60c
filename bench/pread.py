"""bench/pread.c from Python: compiles it with the system's compiler, keeps it among the user's caches, and calls it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import compiled

SOURCE = Path(__file__).with_name("pread.c")


def lacking() -> str:
    return "" if compiler() else "there is no C compiler"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def build() -> ctypes.CDLL:
    """The compiled helper; compiled again only when its source has changed."""
    key = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = compiled.kept(f"pread-{key}.so", [compiler() or "cc", "-O2", "-pthread", "-shared", "-fPIC", SOURCE])
    return ctypes.CDLL(str(library))


def read_samples(
    paths: Sequence[Path],
    offsets: NDArray[np.int64],
    nbytes: int,
    order: NDArray[np.int64],
    out: NDArray[np.uint8],
    threads: int,
    direct: bool,
) -> None:
    """Reads the samples of `order` into `out` [slot, byte], slot after slot and around again."""
    files = (ctypes.c_char_p * len(paths))(*[os.fsencode(path) for path in paths])
    offsets = np.ascontiguousarray(offsets, np.int64)
    order = np.ascontiguousarray(order.ravel(), np.int64)
    error = build().read_samples(
        files, ctypes.c_int64(len(paths)), pointer(offsets), ctypes.c_int64(offsets.shape[1]), ctypes.c_int64(nbytes),
        pointer(order), ctypes.c_int64(order.size), pointer(out), ctypes.c_int64(len(out)), threads, int(direct),
    )  # fmt: skip
    if error:
        raise OSError(error, os.strerror(error), str(paths[0]))


def copy_pieces(
    base: NDArray[np.uint8] | None,
    file: int,
    pieces: Sequence[NDArray[np.int64]],
    out: NDArray[np.uint8],
    threads: int,
) -> None:
    """Copies pieces (where each begins, where it goes, how long it is) out of a mapped file, or reads them."""
    begins, to, nbytes = (np.ascontiguousarray(one, np.int64) for one in pieces)
    error = build().copy_pieces(
        pointer(base) if base is not None else None, file, pointer(begins), pointer(to), pointer(nbytes),
        ctypes.c_int64(len(begins)), pointer(out), threads,
    )  # fmt: skip
    if error:
        raise OSError(error, os.strerror(error))


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def resident(path: Path) -> float:
    """The share of a file that is in the page cache; not a number when it cannot be told."""
    thousandths = build().resident(os.fsencode(path)) if compiler() else -1
    return thousandths / 1000 if thousandths >= 0 else float("nan")
