"""The files of a data set, in an order that does not depend on the machine.

A path may be a file, a directory (its HDF5 files, not those of folders below) or a pattern (the files it matches).
A URL may end in a slash, or be a pattern, where the store can list what it has.
Files of directories and patterns are sorted by the bytes of their paths: run10.h5 comes before run9.h5. A list keeps
its order.
"""

# A data set may have fifty thousand paths, and making a Path takes as long as a stat of its file.
# ruff: noqa: PTH100, PTH110, PTH112, PTH118, PTH207, PTH208
from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Sequence
from itertools import islice

from solar.errors import LayoutError, ReadError
from solar.io.far.fetch import ready
from solar.io.far.place import listed, place_of
from solar.io.layout.nearest import LOOKED_AT, nearest
from solar.io.machine.identity import refuse_zarr
from solar.values import UNVERSIONED, is_url

SUFFIXES = (".h5", ".hdf5", ".hdf", ".nxs", ".cxi", ".nc", ".nc4")

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]


def files_of(path: Paths) -> list[str]:
    """The absolute paths of the files that `path` means, at least one."""
    if isinstance(path, (str, os.PathLike)):
        return _files_of_one(os.fspath(path))
    if hasattr(path, "filename"):  # an open h5py.File, whose names would be taken for paths
        raise TypeError(f"give the path of the file, not the open {type(path).__name__}: {path.filename!r}")
    if not isinstance(path, Iterable):
        raise TypeError(f"a data set is of a path, a pattern, or a list of paths, not {path!r}")
    files = [file for one in path for file in _files_of_one(os.fspath(one))]
    if not files:
        raise LayoutError("asked for a data set of no files: the list of paths is empty")
    return files


def _files_of_one(path: str) -> list[str]:
    if not isinstance(path, str):
        raise TypeError(f"a path must be str or os.PathLike[str], not {type(path).__name__}")
    if is_url(path):
        return _files_of_url(path)
    if os.path.isdir(path):
        try:
            names = [name for name in os.listdir(path) if name.lower().endswith(SUFFIXES)]
        except OSError as error:  # it may not be read, or is gone since
            raise ReadError(error.errno, error.strerror, path) from None
        if not names:
            refuse_zarr(path)
        return _ordered([os.path.join(path, name) for name in names], f"{path}: no file ends in {' '.join(SUFFIXES)}")
    if os.path.exists(path) or not glob.has_magic(path):
        if not os.path.lexists(path):
            raise ReadError(errno.ENOENT, f"no such file or directory{_meant(path)}", path)
        return [os.path.abspath(path)]
    matches = [match for match in glob.glob(path, recursive=True) if not os.path.isdir(match)]
    return _ordered(matches, f"{path}: no file matches this pattern")


def _meant(path: str) -> str:
    """HDF5 files beside a missing one that are spelled almost alike; or else that its folder is not there either."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder or ".") as beside:
            names = (one.name for one in islice(beside, LOOKED_AT))
            found = nearest(name, (name for name in names if name.lower().endswith(SUFFIXES)))
    except FileNotFoundError:
        return f", nor is there a folder {folder}"
    except OSError:  # it may not be looked into
        return ""
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def _files_of_url(url: str) -> list[str]:
    several = url.endswith("/") or (glob.has_magic(url) and not url.removeprefix(UNVERSIONED).startswith("http"))
    if not several:
        place_of(url)
    ready([url])
    return listed(url, SUFFIXES) if several else [url]


def _ordered(files: list[str], complaint: str) -> list[str]:
    if not files:
        raise LayoutError(complaint)
    return sorted(map(os.path.abspath, files), key=os.fsencode)
