"""Opens an HDF5 file with h5py after another process has looked through it without a crash.

libhdf5 crashes on some damaged files, and takes the process with it. It crashes on links, headers, types, attributes
and chunk indexes, so the other process reads these, and the values that libhdf5 decodes to copy them. All other values
with filters are read through io/hdf5/guarded_reader.py.
"""

from __future__ import annotations

import errno
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.hdf5 import opening_child
from solar.io.system.child import Child, Lost
from solar.io.system.identity import refuse_zarr

OPENING_PATIENCE = 60.0  # seconds without a sign of life


def open_file_checked(path: Path) -> Any:
    """Returns the h5py.File, to be read. `look` at it first, unless that was done elsewhere."""
    try:
        return h5py.File(path, "r", locking=False)
    except FileNotFoundError:
        raise ReadError(errno.ENOENT, "no such file or directory", str(path)) from None
    except (OSError, RuntimeError) as error:
        _native.read_metadata(str(path), most=1)  # says in better words what it is, and where it is cut off
        raise LayoutError(f"{path}: libhdf5 cannot open it: {error}") from error


def look(path: Path) -> None:
    """Raises LayoutError if libhdf5 crashes on a file, hangs, or wants far more memory than the file has bytes.

    The answer is kept for as long as the file does not change.
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
    child, where = Child(opening_child, path, confined=True), "this file"
    try:
        with child.talk(OPENING_PATIENCE) as end:
            while True:  # until it has ended
                name = end.receive().get("values")
                where = where if name is None else f"the values of {name} in this file" if name else "this file"
    except Lost as lost:
        if lost.code == 0:
            return
        what = "needed more memory than its size justifies" if lost.code == opening_child.TOO_MUCH else lost
    raise LayoutError(
        f"{path}: libhdf5 {what} when it went through {where}, which must be damaged: `solar inspect` shows "
        "what can be read of it"
    )
