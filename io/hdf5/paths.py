"""The files of a data set, in an order that does not depend on the machine.

A path may be a file, a directory (its HDF5 files, not those of folders below) or a pattern (the files that match it). A
URL may end in a slash, or be a pattern, if the store can list its objects. Files of directories and patterns are sorted
by the bytes of their paths: run10.h5 comes before run9.h5. A list keeps its order.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import fnmatch
import glob
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from solar.errors import LayoutError, ReadError
from solar.io.remote.location import HUB, at_commit, can_list, folders_in, listed, ready
from solar.io.system.identity import ZARR_MARKS, is_zarr_folder
from solar.values import is_url

SUGGESTIONS = 3  # suggestions at most
LOOKED_AT = 10_000  # paths compared at most
LISTED = 20  # datasets listed if no name is near
LONGEST_PATH = 500  # letters of a path; comparing takes longer the longer they are


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the full paths that `name` may have meant, the likeliest first; at most three.

    >>> nearest("counts", ["/entry/data/counts", "/entry/title"])
    ['/entry/data/counts']
    >>> nearest("/entry/data/count", ["/entry/data/counts", "/entry/title"])
    ['/entry/data/counts']
    """
    paths = sorted(path for path in islice(names, LOOKED_AT) if len(path) <= LONGEST_PATH)
    asked, last = "/" + name.strip("/"), name.strip("/").rpartition("/")[2]
    ends: dict[str, list[str]] = {}
    for path in paths:
        ends.setdefault(path.rpartition("/")[2], []).append(path)
    found = [path for end in (last, *difflib.get_close_matches(last, ends, SUGGESTIONS)) for path in ends.get(end, ())]
    # If several end alike, prefer the one whose groups are most like those asked for.
    found.sort(key=lambda path: -difflib.SequenceMatcher(None, asked, path).ratio())
    return list(dict.fromkeys(found))[:SUGGESTIONS] or difflib.get_close_matches(asked, paths, SUGGESTIONS)


def hint(name: str, shapes: Mapping[str, Sequence[int]], file: str) -> str:
    """Suggests what to do about a wrong `name`: "did you mean /entry/data/counts?", or else the datasets that exist."""
    found = nearest(name, shapes)
    return f"did you mean {' or '.join(found)}?" if found else list_names(shapes, file)


def list_names(shapes: Mapping[str, Sequence[int]], file: str) -> str:
    """Lists at most 20 datasets. Those with as many samples as the largest come first."""
    if not shapes:
        return "it has no dataset"
    largest = max(shapes.values(), key=math.prod)
    names = sorted(shapes, key=lambda path: tuple(shapes[path][:1]) != tuple(largest[:1]))
    shown = ", ".join(path if len(path) <= LONGEST_PATH else path[:LONGEST_PATH] + "…" for path in names[:LISTED])
    more = f" and {len(names) - LISTED:,} more: `solar inspect {file}` lists all" if len(names) > LISTED else ""
    return f"it has {shown}{more}"


# Says of a file that cannot be read whether a program has it open for writing.


LOCKED = (
    "; a program has this file open for writing and holds a lock on it: a training needs a file that stays as it is, "
    "so wait until that program has closed it"
)


@contextmanager
def naming_writers(files: Sequence[str]) -> Iterator[None]:
    """Adds to a LayoutError about one of these files that it is being written, if a writer has locked it."""
    try:
        yield
    except LayoutError as error:
        said = str(error)
        file = next((one for one in files if said.startswith(f"{one}: ")), "")
        if LOCKED in said or not locked_by_writer(file):
            raise
        raise LayoutError(said + LOCKED) from None


def locked_by_writer(file: str) -> bool:
    """Returns whether another program holds the lock by which HDF5 protects a file that is being written."""
    if not file or is_url(file) or is_zarr(file):
        return False
    try:
        with pathlib.Path(file).open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file gives it back
    except BlockingIOError:
        return True
    except OSError:  # there are no locks here, or no file
        return False
    return False


# A data set may have fifty thousand paths, and making a Path takes as long as a stat of its file.
# ruff: noqa: PTH100, PTH110, PTH112, PTH118, PTH207, PTH208


ZARR_SUFFIXES = (".zarr", ".zip", ".json")  # of stores, and of references to chunks
SUFFIXES = (".h5", ".hdf5", ".hdf", ".nxs", ".cxi", ".nc", ".nc4")

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]


def files_of(path: Paths) -> list[str]:
    """Returns the absolute paths of the files that `path` means, at least one."""
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


def is_zarr(file: str) -> bool:
    """Returns whether what `files_of` gives is a Zarr store: a folder, a zip file, or references to chunks."""
    if file.endswith((".zip", ".json")) or without_mark(file) != file:
        return True
    if not is_url(file):
        return os.path.isdir(file)
    return any(part.endswith(".zarr") for part in file.split("/")[3:]) and not file.lower().endswith(SUFFIXES)


def without_mark(file: str) -> str:
    """Returns the store whose metadata a path or a URL names; any other is returned as it is.

    >>> without_mark("https://example.org/scan/zarr.json"), without_mark("scan.zarr")
    ('https://example.org/scan', 'scan.zarr')
    """
    above, _, name = file.rpartition("/")
    return above if name in ZARR_MARKS else file


@contextmanager
def naming_stores(files: Sequence[str]) -> Iterator[None]:
    """Says of a URL that cannot be read as HDF5 that there is a Zarr store, if there is one."""
    try:
        yield
    except (LayoutError, ReadError) as error:
        url = files[0].rstrip("/")
        if not is_url(url) or url.startswith(HUB) or is_zarr(url) or url.lower().endswith(SUFFIXES):
            raise
        mark = next((mark for mark in ZARR_MARKS if _is_there(f"{url}/{mark}")), "")
        if not mark or url not in str(error):
            raise
        raise LayoutError(
            f"{url}: there is a Zarr store, whose name does not end in .zarr, as it would have to: give {url}/{mark}"
        ) from None


def _is_there(url: str) -> bool:
    from solar.io.remote.fetch import as_read_error, identity  # only where a URL cannot be read

    try:
        with as_read_error(url):
            identity(url)
    except ReadError as error:
        return error.errno == errno.ENOTSUP  # it has no mark of its version
    return True


def _files_of_one(path: str) -> list[str]:
    if not isinstance(path, str):
        raise TypeError(f"a path must be str or os.PathLike[str], not {type(path).__name__}")
    if is_url(path):
        return _files_of_url(path)
    if os.path.lexists(path) and without_mark(path) != path and is_zarr_folder(without_mark(path)):
        path = without_mark(path)
    if os.path.isdir(path):
        try:
            names = [name for name in os.listdir(path) if name.lower().endswith(SUFFIXES)]
        except OSError as error:  # it may not be read, or is gone since
            raise ReadError(error.errno, error.strerror, path) from None
        if not names and is_zarr_folder(path):
            return [os.path.abspath(path)]
        if not names and os.path.exists(os.path.join(path, ".zmetadata")):
            raise LayoutError(f"{path}: it has references as Parquet, which solar does not read: write them as JSON")
        return sort_files([os.path.join(path, name) for name in names], f"{path}: no file ends in {' '.join(SUFFIXES)}")
    if os.path.exists(path) or not glob.has_magic(path):
        if not os.path.lexists(path):
            raise ReadError(errno.ENOENT, f"no such file or directory{_meant(path)}", path)
        return [os.path.abspath(path)]
    matches = [match for match in glob.glob(path, recursive=True)]
    matches = [match for match in matches if not os.path.isdir(match) or is_zarr_folder(match)]
    return sort_files(matches, f"{path}: no file matches this pattern")


def _meant(path: str) -> str:
    """Suggests HDF5 files and Zarr stores with a similar name beside a missing one; or says that there is no folder."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder or ".") as beside:
            names = (one.name for one in islice(beside, LOOKED_AT))
            found = nearest(name, (name for name in names if name.lower().endswith((*SUFFIXES, *ZARR_SUFFIXES))))
    except FileNotFoundError:
        return f", nor is there a folder {folder}"
    except OSError:  # it may not be looked into
        return ""
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def _files_of_url(url: str) -> list[str]:
    if is_zarr(url) and not url.endswith(".zip"):
        if url.startswith(HUB):
            raise LayoutError(
                f"{url}: of Zarr stores on the Hugging Face Hub only zip files are read: make one of the store (its "
                "name ends in .zip, its files are not compressed), or copy the store to a local disk"
            )
        url = url.rstrip("/")
    pattern = glob.has_magic(url) and can_list(url)
    several = url.endswith("/") or pattern
    ready([url])
    url = at_commit(url)
    if pattern and is_zarr(url) and not url.endswith((".json", ".zip")):
        return _stores_that_match(url)
    if not several:
        return [url]
    with naming_stores([url]):
        return listed(url, SUFFIXES)


def _stores_that_match(url: str) -> list[str]:
    folder, _, name = url.rpartition("/")
    if glob.has_magic(folder):
        raise LayoutError(f"{url}: of stores only the last name may be a pattern")
    from solar.io.remote.fetch import as_read_error

    with as_read_error(url):
        found = [f"{folder}/{one}" for one in folders_in(folder) if fnmatch.fnmatchcase(one, name)]
    if not found:
        raise LayoutError(f"{url}: no store matches")
    return sorted(found, key=os.fsencode)


def sort_files(files: list[str], complaint: str) -> list[str]:
    if not files:
        raise LayoutError(complaint)
    return sorted(map(os.path.abspath, files), key=os.fsencode)
