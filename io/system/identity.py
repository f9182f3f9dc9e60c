"""Checks that files are still those that were inspected.

If a file was replaced, the bytes at a Layout's places belong to other data, and kept samples to a file that is gone.
What counts as the same file is in native/include/solar/file.hpp.
"""

# ruff: noqa: PTH118
from __future__ import annotations

import math
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.remote.location import ready
from solar.values import Layout

ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")  # files with the metadata of an array or a group
STAT_THREADS = 16  # threads that stat thousands of files, perhaps across a network
Facts = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]


def check_unchanged(layouts: Iterable[Layout], rows: NDArray[np.int64] | None = None, *, gone: bool = True) -> None:
    """Raises ReadError if a file of these Layouts was replaced; with `gone`, also if it was deleted.

    With `rows`, only the files that hold these rows are checked. Files that all ranks read together are left out: all
    ranks check them together, or some would wait for ever.
    """
    asked = [paths_and_facts(layout, rows) for layout in distinct_files(layouts)]
    for paths, _ in asked:
        ready(paths)
    if len(asked) == 1:
        paths, facts = asked[0]
        _native.check_unchanged(paths, *facts, gone, STAT_THREADS)
    elif asked:
        nbytes, mtime_ns, inode, ctime_ns = map(np.concatenate, zip(*(facts for _, facts in asked), strict=True))
        every = [path for paths, _ in asked for path in paths]
        _native.check_unchanged(every, nbytes, mtime_ns, inode, ctime_ns, gone, STAT_THREADS)


def unchanged(layout: Layout, part: int) -> str:
    """Returns the path of a part's file. Raises ReadError if it has changed since it was inspected."""
    file = int(layout.part_file[part])
    ready([layout.paths[file]])
    _native.check_unchanged([layout.paths[file]], *known_identities(layout, np.array([file])), True, 1)
    return layout.paths[file]


def distinct_files(layouts: Iterable[Layout]) -> list[Layout]:
    """Returns one Layout for each set of files: fields that were inspected together share theirs."""
    found: dict[tuple[str, ...], list[Layout]] = {}
    for layout in layouts:
        alike = found.setdefault(layout.paths, [])
        if layout.reader != "mpio-collective" and not any(_are_inspected_together(layout, other) for other in alike):
            alike.append(layout)
    return [layout for alike in found.values() for layout in alike]


def _are_inspected_together(one: Layout, other: Layout) -> bool:
    return all(map(np.array_equal, known_identities(one), known_identities(other)))


def paths_and_facts(layout: Layout, rows: NDArray[np.int64] | None) -> tuple[list[str], Facts]:
    if len(layout.chunk_file) and layout.far:  # objects may be as many as chunks, and each answer says of which it is
        files = layout.dataset_file
        return [layout.paths[file] for file in files], known_identities(layout, files)
    if rows is None or len(layout.paths) == 1:
        return list(layout.paths), known_identities(layout)
    parts = np.searchsorted(layout.part_first, rows, side="right") - 1
    files = np.unique(layout.part_file[parts] if not len(layout.chunk_file) else _files_of_chunks(layout, rows, parts))
    return [layout.paths[file] for file in files], known_identities(layout, files)


def _files_of_chunks(layout: Layout, rows: NDArray[np.int64], parts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the files of the chunks of these rows, if each chunk is a file of its own."""
    chunk_rows = np.array([form.chunk[0] for form in layout.forms], np.int64)[layout.part_form[parts]]
    lines = np.unique(np.stack((parts, (rows - layout.part_first[parts]) // chunk_rows)), axis=1).T.tolist()
    found = []
    for part, line in lines:
        form = layout.forms[layout.part_form[part]]
        across = math.prod(-(-n // c) for n, c in zip(layout.sample_shape, form.chunk[1:], strict=True))
        begin, end = layout.part_chunks[part : part + 2].tolist()
        if len(layout.chunk_index):
            wanted = np.array([line * across, (line + 1) * across], np.uint64)
            first, last = (np.searchsorted(layout.chunk_index[begin:end], wanted) + begin).tolist()
        else:
            first, last = (min(begin + number * across, end) for number in (line, line + 1))
        found.append(layout.chunk_file[first:last])
    return np.concatenate(found) if found else np.empty(0, np.int32)


def known_identities(layout: Layout, files: NDArray[np.integer] | None = None) -> Facts:
    """Returns the known identities of the files, or of some of them."""
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


def is_zarr_folder(path: str | os.PathLike[str]) -> bool:
    """Returns whether a folder is a Zarr store, rather than a folder of HDF5 files."""
    return any(os.path.lexists(os.path.join(path, mark)) for mark in ZARR_MARKS)


def refuse_zarr(path: str | os.PathLike[str]) -> None:
    """Raises if a folder is a Zarr store, which h5py does not open."""
    if is_zarr_folder(path):
        raise LayoutError(f"{path}: it is a Zarr store, not HDF5: read it with zarr, and write its arrays with h5py")
