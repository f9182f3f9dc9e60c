"""Zarr stores in folders of this machine and in zip files: their metadata, and where the chunks of an array lie.

A store comes from anywhere. Only plain files in its folder are read, wherever links lead, and every place is compared
with the size of its file.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zipfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError, ReadError
from solar.io.channels.progress import awaited
from solar.io.hdf5.zarr_arrays import ZarrArray, node_of
from solar.io.remote.fetch import as_read_error, fetched, identity
from solar.values import is_url

# There may be millions of files, and making a Path takes as long as a stat of its file.
# ruff: noqa: PTH112, PTH116, PTH118

AFTER_SLASH = "0"  # the next letter: what lies in a folder is before that, when it is sorted
MOST_METADATA = 16 << 20  # bytes of the metadata of one array or group
ZIP_LOCAL, ZIP_LOCAL_NBYTES = b"PK\x03\x04", 30
MOST_DIRECTORY = 256 << 20  # bytes of what a zip file says of its members
ZIP_END_NBYTES = 64 << 10  # of a far zip file, fetched first: a small directory lies there
ZIP_NEAR_NBYTES = 256 << 10  # between heads of members of a far zip file, that are read along rather than asked anew
FAR_THREADS = 64  # requests at a time
MOST_LOOKED_FOR = 10_000  # requests to find the chunks of an array

Facts = tuple[int, int, int, int]  # bytes, mtime_ns, inode, ctime_ns of a file


class StoredCells(NamedTuple):
    """What a store has of the chunks, or shards, of an array."""

    at: NDArray[np.int64]  # [n, axes]: places in the grid
    file: NDArray[np.int32]  # which of `paths`
    offset: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    paths: list[str]  # the first one is what the metadata lies in
    facts: list[Facts]


def cells_of_files(own: tuple[str, Facts], files: list[tuple[tuple[int, ...], str, Facts]], axes: int) -> StoredCells:
    """Returns the cells that are files each: their places in a grid of so many axes. `own`: the metadata's file."""
    files.sort()  # or the order would be the folder's
    return StoredCells(
        np.array([place for place, *_ in files], np.int64).reshape(len(files), axes),
        np.arange(1, len(files) + 1, dtype=np.int32),
        np.zeros(len(files), np.uint64),
        np.array([facts[0] for *_, facts in files], np.uint64),
        [own[0], *(name for _, name, _ in files)],
        [own[1], *(facts for *_, facts in files)],
    )


def grid_of(array: ZarrArray) -> tuple[int, ...]:
    """Returns how many chunks, or shards, an array has along each axis."""
    return tuple(-(-size // one) for size, one in zip(array.shape, array.stored, strict=True))


def facts_of(found: os.stat_result) -> Facts:
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns


def open_at_once(name: str, _: int) -> int:
    """Opens a file to read it, and waits for nobody if it is a pipe."""
    return os.open(name, os.O_RDONLY | os.O_NONBLOCK)


def _number_below(text: str, limit: int) -> int:
    """Returns the number that a part of a key is; -1 where it is none of a grid of this many cells."""
    if not (text.isascii() and text.isdigit() and len(text) < 20) or (text[0] == "0" and text != "0"):
        return -1
    return number if (number := int(text)) < limit else -1


class FolderStore:
    """A store whose keys are the paths of files in a folder."""

    def __init__(self, path: str) -> None:
        self.path, self._real = path, os.path.realpath(path)

    def place(self, key: str) -> str:
        """Returns the path of a key."""
        return os.path.join(self.path, key)

    def node(self, key: str) -> dict[str, Any] | None:
        """Returns some metadata; None where there is none."""
        path = self.place(key)
        if os.path.lexists(path):
            self._check_inside(path)
        text = text_of_file(path, MOST_METADATA)
        return None if text is None else node_of(text, path)

    def names(self, key: str) -> list[str]:
        """Returns the folders in that of a group."""
        with os.scandir(self.place(key)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def _check_inside(self, path: str) -> None:
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(self._real.rstrip("/") + "/"):
            raise LayoutError(
                f"{path}: it leads to {real}, which is not in {self._real}: a store from elsewhere could read any file "
                "of yours so. If you trust it, copy the file there"
            )

    def cells(self, key: str, array: ZarrArray, metadata: str) -> StoredCells:
        """Returns the files of an array's chunks, by listing its folder: as many are looked at as there are."""
        grid = grid_of(array)
        path = self.place(metadata)
        own = path, facts_of(os.stat(path))
        files: list[tuple[tuple[int, ...], str, Facts]] = []
        with awaited(f"listing the chunks of /{key}"):
            for place, entry in self._entries(self.place(key), array, grid):
                if entry.is_symlink():
                    self._check_inside(entry.path)
                found = entry.stat()
                if stat.S_ISDIR(found.st_mode):
                    continue
                if not stat.S_ISREG(found.st_mode):
                    raise LayoutError(f"{entry.path}: it is no plain file")
                files.append((place, entry.path, facts_of(found)))
        return cells_of_files(own, files, len(grid))

    def _entries(
        self, folder: str, array: ZarrArray, grid: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], os.DirEntry[str]]]:
        """Yields the entries of a folder that are named as chunks of an array are."""
        if not grid or array.separator == ".":
            with os.scandir(folder) as entries:
                for entry in entries:
                    if (place := place_of_key(entry.name, array, grid)) is not None:
                        yield place, entry
            return
        first = os.path.join(folder, array.prefix)
        self._check_inside(first)
        folders: list[tuple[str, tuple[int, ...]]] = [(first, ())] if os.path.isdir(first) else []
        while folders:
            where, above = folders.pop()
            with os.scandir(where) as entries:
                for entry in entries:
                    if (number := _number_below(entry.name, grid[len(above)])) < 0:
                        continue
                    if len(above) + 1 == len(grid):
                        yield (*above, number), entry
                    elif entry.is_symlink():  # such links could lead in circles
                        raise LayoutError(f"{entry.path}: it is a link in place of a folder of chunks: copy that there")
                    elif entry.is_dir():
                        folders.append((entry.path, (*above, number)))


def bytes_at(file: tuple[str, Facts], offset: int, nbytes: int) -> bytes:
    """Returns some bytes of a file of this machine, or of an object that is still the one with these facts."""
    path, was = file
    if is_url(path):
        with as_read_error(path):
            return bytes(fetched(path, offset, nbytes, was))
    try:
        with open(path, "rb", opener=open_at_once) as opened:
            return os.pread(opened.fileno(), nbytes, offset)
    except OSError as error:
        raise ReadError(error.errno, error.strerror, path) from None


def text_of_file(path: str, most: int) -> bytes | None:
    """Returns what a file of this machine holds; None where there is none. LayoutError: it is none to be read."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise LayoutError(f"{path}: it cannot be read: {error}") from None
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        raise LayoutError(f"{path}: it is no file of at most {most:,} bytes")
    try:
        with open(path, "rb", opener=open_at_once) as file:
            return file.read(most)
    except OSError as error:
        raise ReadError(error.errno, error.strerror, path) from None


def place_of_key(key: str, array: ZarrArray, grid: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the place of a chunk in the grid, by its key below that of its array; None for other keys."""
    parts = key.split(array.separator, len(grid) + 1)
    if array.prefix and parts.pop(0) != array.prefix:
        return None
    if not grid:
        return () if parts == ([] if array.prefix else ["0"]) else None
    if len(parts) != len(grid):
        return None
    place = tuple(map(_number_below, parts, grid))
    return None if min(place) < 0 else place


def folders_among(names: Sequence[str], key: str) -> list[str]:
    """Returns the folders in that of a group, where these are the names of all files, sorted.

    >>> folders_among(["a-b/x", "a/b/c/d", "a/b/x", "a/c", "a/d/e"], "a")
    ['b', 'd']
    """
    above, found = f"{key}/" if key else "", []
    at = bisect_left(names, above)
    while at < len(names) and names[at].startswith(above):
        folder, deeper, _ = names[at][len(above) :].partition("/")
        if deeper:
            found.append(folder)
        at = bisect_left(names, f"{above}{folder}{AFTER_SLASH}", at) if deeper else at + 1
    return sorted(found)


def names_below(names: Sequence[str], key: str) -> Sequence[str]:
    """Returns those of the sorted names that lie in the folder of an array, at any depth."""
    return names[bisect_left(names, f"{key}/") : bisect_left(names, f"{key}{AFTER_SLASH}")] if key else names


class _ZipDirectory:
    """What zipfile reads of a zip file: the directory at its end, of which that of a far one comes by two requests."""

    def __init__(self, file: tuple[str, Facts]) -> None:
        self._file, self._nbytes, self._at = file, file[1][0], 0
        self._end_at = max(0, self._nbytes - ZIP_END_NBYTES)
        self._end = self._fetch(self._end_at, self._nbytes)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        if self._at < 0:
            raise OSError(errno.EINVAL, "it is too short")  # zipfile goes on, as of any file
        return self._at

    def read(self, nbytes: int = -1) -> bytes:
        end = self._nbytes if nbytes < 0 else min(self._at + nbytes, self._nbytes)
        if end - self._at > MOST_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has more than {MOST_DIRECTORY:,} bytes")
        begin, self._at = self._at, max(self._at, end)
        if begin >= self._end_at:
            return self._end[begin - self._end_at : max(0, end - self._end_at)]
        return self._fetch(begin, end)

    def _fetch(self, begin: int, end: int) -> bytes:
        return bytes_at(self._file, begin, end - begin) if end > begin else b""


class ZipStore:
    """A store whose keys are the names of what a zip file holds, not compressed, as Zarr writes them."""

    def __init__(self, path: str) -> None:
        self.path, self._far = path, is_url(path)
        try:
            if self._far:
                with as_read_error(path):
                    self._facts = identity(path)
            else:
                self._facts = facts_of(os.stat(path))
            with zipfile.ZipFile(_ZipDirectory((path, self._facts))) as members:
                self._members = {name: one for name, one in members.NameToInfo.items() if not name.endswith("/")}
                self._names = sorted(self._members)
        except ReadError:
            raise
        except OSError as error:
            raise ReadError(error.errno, error.strerror, path) from None
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, RuntimeError) as error:
            raise LayoutError(f"{path}: it is no zip file that can be read: {error}") from None

    def place(self, key: str) -> str:
        """Returns the name of a key in messages."""
        return f"{self.path}: {key}"

    def _extents(self, keys: Sequence[str]) -> list[tuple[int, int]]:
        """Returns where the bytes of members begin, and how many there are. Their heads say how long these are."""
        members = [self._members[key] for key in keys]
        for key, member in zip(keys, members, strict=True):
            stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
            if not stored or member.compress_size != member.file_size:
                raise LayoutError(
                    f"{self.place(key)}: it is compressed by zip, or encrypted: make the zip file without that, "
                    "as zarr.storage.ZipStore does"
                )
            if not 0 <= member.header_offset <= self._facts[0] - ZIP_LOCAL_NBYTES:
                raise LayoutError(f"{self.place(key)}: it leaves the zip file")
        heads = self._heads({member.header_offset for member in members})
        found = []
        for key, member in zip(keys, members, strict=True):
            head = heads[member.header_offset]
            if len(head) < ZIP_LOCAL_NBYTES or head[:4] != ZIP_LOCAL:
                raise LayoutError(f"{self.place(key)}: the zip file is damaged there")
            offset = member.header_offset + ZIP_LOCAL_NBYTES + sum(struct.unpack_from("<HH", head, 26))
            if offset + member.file_size > self._facts[0]:
                raise LayoutError(f"{self.place(key)}: it leaves the zip file")
            found.append((offset, member.file_size))
        return found

    def _heads(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """Returns the heads of members at these offsets. One request brings those that lie near each other."""
        if not self._far:
            with open(self.path, "rb", opener=open_at_once) as file:
                return {offset: os.pread(file.fileno(), ZIP_LOCAL_NBYTES, offset) for offset in offsets}
        groups: list[list[int]] = []
        for offset in sorted(offsets):
            if groups and offset - groups[-1][0] <= ZIP_NEAR_NBYTES:
                groups[-1].append(offset)
            else:
                groups.append([offset])
        if len(groups) > MOST_LOOKED_FOR:
            raise LayoutError(
                f"{self.path}: to ask for the head of each of {len(groups):,} chunks would take too long: write the "
                "array in shards, or copy the file to a local disk"
            )

        def fetch(group: list[int]) -> dict[int, bytes]:
            nbytes = group[-1] + ZIP_LOCAL_NBYTES - group[0]
            some = bytes_at((self.path, self._facts), group[0], nbytes)
            return {one: some[one - group[0] :][:ZIP_LOCAL_NBYTES] for one in group}

        with ThreadPoolExecutor(FAR_THREADS) as threads:
            return {offset: head for heads in threads.map(fetch, groups) for offset, head in heads.items()}

    def node(self, key: str) -> dict[str, Any] | None:
        """Returns some metadata; None where there is none."""
        if (member := self._members.get(key)) is None:
            return None
        if member.file_size > MOST_METADATA:
            raise LayoutError(f"{self.place(key)}: it has more than {MOST_METADATA:,} bytes")
        ((offset, nbytes),) = self._extents([key])
        return node_of(bytes_at((self.path, self._facts), offset, nbytes) if nbytes else b"", self.place(key))

    def names(self, key: str) -> list[str]:
        """Returns the folders in that of a group."""
        return folders_among(self._names, key)

    def cells(self, key: str, array: ZarrArray, metadata: str) -> StoredCells:
        """Returns the places of an array's chunks in the zip file."""
        above, grid = f"{key}/" if key else "", grid_of(array)
        places, names = [], []
        for name in names_below(self._names, key):
            if (place := place_of_key(name[len(above) :], array, grid)) is not None:
                places.append(place)
                names.append(name)
        with awaited(f"looking for the chunks of /{key}"):
            offset, nbytes = np.array(self._extents(names), np.uint64).reshape(-1, 2).T
        at = np.array(places, np.int64).reshape(len(places), len(grid))
        return StoredCells(at, np.zeros(len(at), np.int32), offset, nbytes, [self.path], [self._facts])
