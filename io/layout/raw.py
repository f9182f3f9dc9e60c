"""Datasets whose values are in other, raw files: the stretches of these that native code reads in their place."""

# ruff: noqa: PTH100, PTH113, PTH116
from __future__ import annotations

import math
import os

import numpy as np

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.far.place import beside
from solar.io.layout.stretches import Made, Place
from solar.io.libhdf5 import elsewhere
from solar.values import is_url


class Unresolved(Exception):
    """Why native code cannot read it."""


def of_raw_files(file: str, dataset: _native.Dataset, external: list[tuple[str, int, int]]) -> Made:
    """The extents of a contiguous dataset in raw files, one after another."""
    row_nbytes = math.prod(dataset["shape"][1:]) * dataset["itemsize"]
    left = math.prod(dataset["shape"]) * dataset["itemsize"]
    places, rows = [], []
    for name, offset, size in external:
        nbytes = min(size, left)
        if not nbytes:
            continue
        if nbytes % row_nbytes:
            raise Unresolved(f"{name} ends within a row")
        path, facts = _from_afar(file, name) if is_url(file) else _here(file, name)
        if offset + nbytes > facts["file_nbytes"]:
            raise Unresolved(f"{path} is shorter than its share of the values: libhdf5 gives zeros for the rest")
        there = {"storage": "contiguous", "elsewhere": "", "address": offset, "nbytes": nbytes, **facts}
        shape = [nbytes // row_nbytes, *dataset["shape"][1:]] if dataset["shape"] else []
        place: _native.Dataset = {**dataset, **there, "shape": shape}  # type: ignore[typeddict-item]
        places.append(Place(path, place, place))
        rows.append(nbytes // row_nbytes)
        left -= nbytes
    if left:
        raise Unresolved("its raw files have too few bytes")
    return Made(places, np.arange(len(places)), np.zeros(len(places), np.int64), np.array(rows, np.int64))


def _here(file: str, name: str) -> tuple[str, dict[str, int]]:
    """The path of a raw file, and its identity; LayoutError if it must not be read for this file."""
    try:
        path = os.path.abspath(elsewhere.raw_file(file, name))  # relative to the working directory, as libhdf5 has it
    except elsewhere.Unreadable as error:
        raise LayoutError(f"{file}: {error}") from None
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links
        raise Unresolved(f"its raw file {name} cannot be found: {error}") from None
    if os.environ.get("HDF5_EXTFILE_PREFIX"):
        raise Unresolved("HDF5_EXTFILE_PREFIX is set")
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        raise Unresolved(f"there is no file {path}") from None
    if not os.path.isfile(path):
        raise Unresolved(f"{path} is no plain file")
    return path, _identity(facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_ctime_ns)


def _from_afar(file: str, name: str) -> tuple[str, dict[str, int]]:
    """The same of one that lies beside a far file: there is no working directory there."""
    url = beside(file, name)
    if url is None:
        raise Unresolved(f"its raw file {name} does not lie beside it, and from afar nothing leads elsewhere")
    try:
        return url, _identity(*_native.far_look(url))
    except ReadError as error:
        raise Unresolved(f"of its raw file: {error}") from None


def _identity(nbytes: int, mtime_ns: int, inode: int, ctime_ns: int) -> dict[str, int]:
    return {"file_nbytes": nbytes, "file_mtime_ns": mtime_ns, "file_inode": inode, "file_ctime_ns": ctime_ns}
