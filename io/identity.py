"""Whether files are still those that were inspected: by their paths, one call of the system for each.

Bytes at the places that a Layout knows are another data set's once its file was replaced, and samples that were kept
are of a file that is no more. What is the same file, and what another: native/include/solar/file.hpp.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.values import Layout

THREADS = 16  # that ask a file system about thousands of files, which may be across a network
Facts = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]


def check_unchanged(layouts: Iterable[Layout], rows: NDArray[np.int64] | None = None, *, gone: bool = True) -> None:
    """ReadError for a file of these Layouts that is another one now; or, where `gone`, that is there no more.

    With `rows`, only the files that these lie in are looked at. What all ranks read together is left out: they look
    together, too, or some would wait for ever.
    """
    asked = [_asked(layout, rows) for layout in _distinct(layouts)]
    if len(asked) == 1:
        paths, facts = asked[0]
        _native.check_unchanged(paths, *facts, gone, THREADS)
    elif asked:
        nbytes, mtime_ns, inode, ctime_ns = map(np.concatenate, zip(*(facts for _, facts in asked), strict=True))
        every = [path for paths, _ in asked for path in paths]
        _native.check_unchanged(every, nbytes, mtime_ns, inode, ctime_ns, gone, THREADS)


def unchanged(layout: Layout, part: int) -> str:
    """The path of a part's file, which is as it was when it was inspected; ReadError if not."""
    file = int(layout.part_file[part])
    _native.check_unchanged([layout.paths[file]], *_facts(layout, np.array([file])), True, 1)
    return layout.paths[file]


def _distinct(layouts: Iterable[Layout]) -> list[Layout]:
    """One for each set of files to look at: fields that were inspected together share it."""
    found: dict[tuple[str, ...], list[Layout]] = {}
    for layout in layouts:
        alike = found.setdefault(layout.paths, [])
        if layout.reader != "mpio-collective" and not any(_inspected_together(layout, other) for other in alike):
            alike.append(layout)
    return [layout for alike in found.values() for layout in alike]


def _inspected_together(one: Layout, other: Layout) -> bool:
    return all(map(np.array_equal, _facts(one), _facts(other)))


def _asked(layout: Layout, rows: NDArray[np.int64] | None) -> tuple[list[str], Facts]:
    if rows is None or len(layout.paths) == 1:
        return list(layout.paths), _facts(layout)
    parts = np.searchsorted(layout.part_first, rows, side="right") - 1
    files = np.unique(layout.part_file[parts])
    return [layout.paths[file] for file in files], _facts(layout, files)


def _facts(layout: Layout, files: NDArray[np.integer] | None = None) -> Facts:
    """What is known of the files, or of some of them."""
    nbytes, mtime_ns, inode, ctime_ns = (
        layout.file_nbytes,
        layout.file_mtime_ns,
        layout.file_inode,
        layout.file_ctime_ns,
    )
    if not len(inode):  # not known: of another machine's
        inode, ctime_ns = np.zeros(len(nbytes), np.uint64), np.zeros(len(nbytes), np.int64)
    if files is None:
        return nbytes, mtime_ns, inode, ctime_ns
    return nbytes[files], mtime_ns[files], inode[files], ctime_ns[files]
