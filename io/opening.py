"""Opens an HDF5 file with h5py in this process, after another one has looked at all of it and lived.

libhdf5 crashes on some damaged files, and takes the process with it. What it crashes on are links, headers, types,
attributes and chunk indexes; those are what the other process reads, and of values those that libhdf5 decodes to copy
them. All other values are read through io/slow.py where they went through filters.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io import opening_child
from solar.io.paths import refuse_zarr

LONGEST = 1 << 16  # bytes of what the process says that are kept: a name, and signs of life
PATIENCE = 60.0  # seconds without a sign of life


def opened(path: Path) -> Any:
    """The h5py.File, to be read. `look` at it first, unless that was done elsewhere."""
    try:
        return h5py.File(path, "r", locking=False)
    except FileNotFoundError:
        raise ReadError(errno.ENOENT, "no such file or directory", str(path)) from None
    except (OSError, RuntimeError) as error:
        why = _native.why_not_hdf5(str(path)) or f"libhdf5 cannot open it: {error}"
        raise LayoutError(f"{path}: {why}") from error


def look(path: Path) -> None:
    """LayoutError if libhdf5 crashes on a file, hangs, or asks for far more memory than the file has bytes.

    Of a file that has not changed since, the answer is kept.
    """
    try:
        facts = path.stat()
    except OSError:
        return  # opening it says why
    if not stat.S_ISREG(facts.st_mode):
        refuse_zarr(path)
        raise LayoutError(f"{path} is no plain file: give the name of an HDF5 file")
    _look(str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=64)
def _look(path: str, *facts: int) -> None:
    line = [sys.executable, "-P", opening_child.__file__, path]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            assert child.stdout is not None
            what, said = "", b""
            while not what:
                if not select.select([child.stdout], [], [], PATIENCE)[0]:
                    what = f"gives no sign of life for {PATIENCE:g} s"
                elif some := os.read(child.stdout.fileno(), 4096):
                    said = (said + some)[-LONGEST:]
                else:
                    what = _ending(child.wait()) or "nothing"
        finally:
            child.kill()
    if what != "nothing":
        raise LayoutError(
            f"{path}: libhdf5 {what} when it goes through {_where(said)}, which must be damaged: `solar inspect` shows "
            "what can be read of it"
        )


def _where(said: bytes) -> str:
    """What the process had begun to read last."""
    *_, name, _ = [b"", *said.split(b"\0")]
    return f"the values of {name.decode('utf-8', 'replace')} in this file" if name.strip(b".") else "this file"


def _ending(code: int) -> str:
    """How the process ended, in words; empty if it did so by itself."""
    if code < 0:
        return f"crashes ({signal.Signals(-code).name})"
    return "needs more memory than its size justifies" if code == opening_child.TOO_MUCH else ""
