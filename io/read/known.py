"""Remembers where the values of recently read datasets lie, so that a loop over slices inspects a file once.

No file is kept open or mapped for that. Each call checks that the file is still the same.
"""

# Making a Path takes as long as a stat of its file.
# ruff: noqa: PTH116
from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solar.io.layout.hdf5 import inspect
from solar.io.layout.index import SETTLED_NS
from solar.io.layout.paths import Paths
from solar.values import Layout

if TYPE_CHECKING:
    from solar.io.read.reader import Rows

KEPT, KEPT_NBYTES = 32, 64 << 20  # datasets, and bytes of their chunk arrays; the last one is kept in any case


@dataclass
class Known:
    """Where the values of a dataset lie, and the identity of its file."""

    layout: Layout
    was: tuple[int, ...]
    rows: Rows | None = None  # reads them, from the first request on


_kept: dict[tuple[str, str], Known] = {}  # the most recently used at the end
_keeping = threading.Lock()


def known_of(path: Paths, dataset: str) -> Known:
    """Where the values lie: remembered if the file is the same, else inspected now. Only single files are kept."""
    key = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "", dataset
    was = _identity(key[0])
    with _keeping:
        if (known := _kept.pop(key, None)) is not None and known.was == was:
            _kept[key] = known
            return known
    layout = inspect(path, dataset)
    known = Known(layout, _identity_in(layout))
    # A file written just now may be written again without a new time of modification.
    if known.was == was and time.time_ns() - int(layout.file_mtime_ns[0]) > SETTLED_NS:
        with _keeping:
            _kept[key] = known
            while len(_kept) > KEPT or (len(_kept) > 1 and sum(map(_nbytes, _kept.values())) > KEPT_NBYTES):
                del _kept[next(iter(_kept))]
    return known


def _identity(path: str) -> tuple[int, ...]:
    try:
        facts = os.stat(path)
    except (OSError, ValueError, TypeError):  # a pattern, or what is no path: inspecting it says so
        return ()
    return facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_ctime_ns


def _identity_in(layout: Layout) -> tuple[int, ...]:
    """The identity of the one file that holds all values; if there are several, one that no file has."""
    if len(layout.paths) != 1 or layout.reader != "direct":
        return (-1,)
    facts = layout.file_nbytes, layout.file_mtime_ns, layout.file_inode, layout.file_ctime_ns
    return tuple(int(one[0]) for one in facts)


def _nbytes(known: Known) -> int:
    layout = known.layout
    return sum(one.nbytes for one in (layout.chunk_index, layout.chunk_offset, layout.chunk_nbytes, layout.chunk_mask))


def _forget() -> None:
    """Forgets all in a forked process, for another thread may have been changing it."""
    global _keeping
    _kept.clear()
    _keeping = threading.Lock()


os.register_at_fork(after_in_child=_forget)
