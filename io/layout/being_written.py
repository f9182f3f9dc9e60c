"""Says of a file that cannot be read whether a program has it open for writing."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from solar.errors import LayoutError
from solar.values import is_url

LOCKED = (
    "; a program has this file open for writing and holds a lock on it: a training needs a file that stays as it is, "
    "so wait until that program has closed it"
)


@contextmanager
def naming_writers(files: Sequence[str]) -> Iterator[None]:
    """Adds to a LayoutError about one of these files that it is being written, if it is locked for that."""
    try:
        yield
    except LayoutError as error:
        said = str(error)
        file = next((one for one in files if said.startswith(f"{one}: ")), "")
        if LOCKED in said or not locked_by_writer(file):
            raise
        raise LayoutError(said + LOCKED) from None


def locked_by_writer(file: str) -> bool:
    """Returns whether another program holds the lock by which HDF5 keeps others from a file that it writes."""
    if not file or is_url(file):
        return False
    try:
        with Path(file).open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file gives it back
    except BlockingIOError:
        return True
    except OSError:  # there are no locks here, or no file
        return False
    return False
