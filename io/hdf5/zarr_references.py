"""Zarr stores that are one JSON file of references: chunks that lie in other files, as kerchunk and VirtualiZarr write.

A reference file comes from anywhere, and names files. Of this machine it may name those in its own folder or below,
with all links followed; elsewhere, objects of the stores that `location` knows (docs/decisions/0070).
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

import numpy as np

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.channels.progress import awaited
from solar.io.hdf5.chunk_index import Folder, default_folder, keep, quietly
from solar.io.hdf5.zarr_arrays import ZarrArray, node_of
from solar.io.hdf5.zarr_stores import (
    FAR_THREADS,
    Facts,
    StoredCells,
    facts_of,
    folders_among,
    grid_of,
    names_below,
    place_of_key,
    text_of_file,
)
from solar.io.remote.fetch import as_read_error, fetched_whole
from solar.io.remote.location import place_of, ready, sibling
from solar.values import is_unversioned, is_url

MOST_REFERENCES = 256 << 20  # bytes of a reference file: some millions of chunks
MOST_FILES = 100_000  # that references name
MOST_INLINE = 16 << 20  # bytes of an array that stand in the reference file itself
AS_WRITTEN = "write the references again by kerchunk or VirtualiZarr, as JSON of version 1"
KEPT_SECONDS = 10**9  # what is kept has the same time everywhere, for its name says what it is


class _Reference(NamedTuple):
    """Where a chunk lies: in a file, or in the reference file itself."""

    place: tuple[int, ...]
    file: str  # as the reference names it; empty: in `inline`
    offset: int
    nbytes: int  # -1: all of the file
    inline: bytes = b""


class ReferenceStore:
    """A store whose keys are those of a reference file."""

    def __init__(self, path: str, cache: Folder) -> None:
        self.path, self._cache = path, cache
        text, self._facts = _whole(path)
        found = node_of(text, path)
        version, references, templates = found.get("version"), found.get("refs"), found.get("templates") or {}
        if version != 1 or not isinstance(references, dict) or not isinstance(templates, dict):
            raise LayoutError(f"{path}: it is no reference file of version 1: {AS_WRITTEN}")
        if found.get("gen"):
            raise LayoutError(f'{path}: its references are generated ("gen"), which solar does not read: {AS_WRITTEN}')
        self._references: dict[str, Any] = references
        self._names = sorted(references)
        self._templates: dict[str, Any] = templates

    def place(self, key: str) -> str:
        """Returns the name of a key in messages."""
        return f"{self.path}: {key}"

    def node(self, key: str) -> dict[str, Any] | None:
        """Returns some metadata; None where there is none."""
        found = self._references.get(key)
        if found is None or isinstance(found, dict):
            return found
        if not isinstance(found, str):
            raise LayoutError(f"{self.place(key)}: its metadata lie in another file: {AS_WRITTEN}")
        return node_of(_inline(found, self.place(key)), self.place(key))

    def names(self, key: str) -> list[str]:
        """Returns the folders in that of a group."""
        return folders_among(self._names, key)

    def cells(self, key: str, array: ZarrArray, metadata: str) -> StoredCells:
        """Returns where the chunks of an array lie, in the files that references name."""
        above, grid = f"{key}/" if key else "", grid_of(array)
        found = [
            self._reference(place, name, self._references[name])
            for name in names_below(self._names, key)
            if (place := place_of_key(name[len(above) :], array, grid)) is not None
        ]
        names = [*dict.fromkeys(one.file for one in found if one.file)]
        if len(names) > MOST_FILES:
            raise LayoutError(f"{self.place(key)}: its chunks are said to lie in more than {MOST_FILES:,} files")
        paths = [self._file(name) for name in names]
        with awaited(f"looking at the files of /{key}"):
            facts = _looked_at(paths, self.path)
        if inline := b"".join(one.inline for one in found):
            names, paths = [*names, ""], [*paths, self._kept(key, inline)]
            facts.append((len(inline), KEPT_SECONDS * 10**9, 0, 0))  # another process may have written the same anew
        number = {name: at for at, name in enumerate(names)}
        file = np.array([number[one.file] for one in found], np.int32)
        size = np.array([one[0] for one in facts], np.int64)[file]
        offset, nbytes = np.array([one[2:4] for one in found], np.int64).reshape(-1, 2).T
        inside = np.array([len(one.inline) for one in found], np.int64)
        offset = np.where(inside > 0, np.cumsum(inside) - inside, offset)
        nbytes = np.where(nbytes < 0, size, nbytes)
        if np.any(wrong := (nbytes > size) | (offset > size - nbytes)):
            at = int(np.flatnonzero(wrong)[0])
            raise LayoutError(
                f"{self.place(key)}: {nbytes[at]:,} bytes at {offset[at]:,} leave {paths[file[at]]}, which has "
                f"{size[at]:,}: the file is another one than that of which the references were made"
            )
        return StoredCells(
            np.array([one.place for one in found], np.int64).reshape(len(found), len(grid)), file + np.int32(1),
            offset.astype(np.uint64), nbytes.astype(np.uint64), [self.path, *paths], [self._facts, *facts],
        )  # fmt: skip

    def _reference(self, place: tuple[int, ...], key: str, value: Any) -> _Reference:
        if isinstance(value, str):
            stored = _inline(value, self.place(key))
            if not stored:
                raise LayoutError(f"{self.place(key)}: it is a chunk of no bytes")
            return _Reference(place, "", 0, len(stored), stored)
        whole = isinstance(value, list) and len(value) == 1
        if whole and isinstance(value[0], str) and value[0]:
            return _Reference(place, value[0], 0, -1)
        numbers = value[1:] if isinstance(value, list) and len(value) == 3 else []
        if not numbers or not isinstance(value[0], str) or not value[0] or not all(map(_is_offset, numbers)):
            raise LayoutError(f"{self.place(key)}: {value!r:.80} is neither text nor [url], nor [url, offset, length]")
        return _Reference(place, value[0], *numbers)

    def _file(self, name: str) -> str:
        """Returns the path or the URL of a file that references name. LayoutError: they must not."""
        name = re.sub(r"\{\{\s*(\w+)\s*\}\}", self._template, name)
        if "{{" in name:
            raise LayoutError(f"{self.path}: {name!r:.200} is made by a template that computes: {AS_WRITTEN}")
        if is_url(name) and not name.startswith("file://"):
            return self._object(re.sub("^gcs://", "gs://", name))
        local = unquote(name.removeprefix("file://")) if name.startswith("file://") else name
        if is_url(self.path):
            if (beside := sibling(self.path, local)) is None:
                raise LayoutError(
                    f"{self.path}: it leads to {local!r:.200}, which does not lie beside it, and from afar nothing "
                    "leads to files of this machine: copy the reference file to the files that it names"
                )
            return beside
        folder = os.path.realpath(Path(self.path).parent)
        try:
            real = os.path.realpath(Path(folder, local))
        except ValueError:  # a zero in it
            real = "/"
        if not real.startswith(folder.rstrip("/") + "/"):
            raise LayoutError(
                f"{self.path}: it leads to {real}, which is not in {folder} or below: references from elsewhere could "
                "read any file of yours so. If you trust them, move the reference file to that file, or above"
            )
        return real

    def _template(self, found: re.Match[str]) -> str:
        if not isinstance(text := self._templates.get(found[1]), str):
            raise LayoutError(f"{self.path}: there is no template {found[1]!r:.60}")
        return text

    def _object(self, url: str) -> str:
        root = place_of(url).root
        own = place_of(self.path).root if is_url(self.path) else ""
        if is_unversioned(url) or (url.startswith("http:") and root != own):
            raise LayoutError(
                f"{self.path}: it leads to {url!r:.200}: references may name https://, s3://, gs:// and az://, and "
                "http:// only on the server that they themselves are from"
            )
        return url

    def _kept(self, key: str, inline: bytes) -> str:
        """Returns the path of a file of the cache with values that stand in the reference file."""
        if len(inline) > MOST_INLINE or self._cache is None:
            what = "cache=None keeps none of them" if self._cache is None else f"more than {MOST_INLINE:,} bytes"
            raise LayoutError(
                f"{self.place(key)}: values stand in the reference file itself, and {what}: make the references with "
                "a smaller inline_threshold, or give cache= a folder"
            )
        folder = default_folder() if self._cache == "auto" else Path(self._cache)
        path = folder / f"{hashlib.blake2b(inline, digest_size=32).hexdigest()}.values"

        def write(file: BinaryIO) -> None:
            file.write(inline)
            file.flush()
            os.utime(file.fileno(), (KEPT_SECONDS, KEPT_SECONDS))

        try:
            if not quietly(lambda: path.stat().st_mtime == KEPT_SECONDS and path.read_bytes() == inline):
                keep(path, write)
        except (OSError, ValueError) as error:
            raise LayoutError(
                f"{self.place(key)}: values that stand in the reference file cannot be kept in {folder}: {error}: "
                "give cache= a folder that only you can write to"
            ) from None
        return str(path)


def _whole(path: str) -> tuple[bytes, Facts]:
    """Returns a reference file, and its identity."""
    if is_url(path):
        with as_read_error(path):
            return fetched_whole(path, MOST_REFERENCES)
    text = text_of_file(path, MOST_REFERENCES)
    if text is None:
        raise ReadError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return text, facts_of(Path(path).stat())


def _inline(value: str, where: str) -> bytes:
    try:
        if value.startswith("base64:"):
            return base64.b64decode(value.removeprefix("base64:"), validate=True)
        return value.encode()
    except (binascii.Error, ValueError) as error:
        raise LayoutError(f"{where}: its value is no text that can be decoded: {error}") from None


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _looked_at(paths: Iterable[str], of: str) -> list[Facts]:
    """Returns the identities of files, some of which may be elsewhere."""

    def look(path: str) -> Facts:
        if is_url(path):
            return _native.far_look(path)
        try:
            found = Path(path).stat()
        except OSError as error:
            raise ReadError(error.errno, f"{error.strerror}; {of} leads there", path) from None
        if not stat.S_ISREG(found.st_mode):
            raise LayoutError(f"{path}: it is no plain file; {of} leads there")
        return facts_of(found)

    ready(paths)
    with ThreadPoolExecutor(FAR_THREADS) as threads:
        return list(threads.map(look, paths))
