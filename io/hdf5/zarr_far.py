"""A Zarr store by URL: its metadata by a request or two, its chunks by listing them, a thousand at a time."""

from __future__ import annotations

import errno
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any
from urllib.parse import quote

from solar import _native
from solar.errors import LayoutError, ReadError
from solar.io.channels.progress import awaited
from solar.io.hdf5.paths import LISTED, nearest, without_mark
from solar.io.hdf5.zarr_arrays import ZarrArray, node_of
from solar.io.hdf5.zarr_stores import (
    FAR_THREADS,
    MOST_LOOKED_FOR,
    MOST_METADATA,
    Facts,
    StoredCells,
    cells_of_files,
    folders_among,
    grid_of,
    place_of_key,
)
from solar.io.remote.fetch import as_read_error, fetched_whole, object_identity
from solar.io.remote.location import can_list, folders_in, objects_below

MOST_LISTED = 20_000_000  # objects: each takes some hundred bytes of memory
NOT_LISTED = "a web server does not tell what lies there"

Node = dict[str, Any]


class FarStore:
    """A store whose keys are the names of objects below a URL."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._root = without_mark(path).rstrip("/")
        self._lists = can_list(path)
        self._fetched: dict[str, tuple[Node, Facts] | None] = {}  # objects of metadata, and those that are not there

    def place(self, key: str) -> str:
        """Returns the URL of a key."""
        return f"{self._root}/{quote(key)}"

    def node(self, key: str) -> Node | None:
        """Returns some metadata; None where there is none. What is consolidated is as good as the store's own."""
        if self._consolidated is None:
            found = self._object(key)
            return None if found is None else found[0]
        node = self._consolidated[1].get(key)
        if node is not None and not isinstance(node, dict):
            raise LayoutError(f"{self.place(self._consolidated[0])}: what it has of {key} is no JSON object")
        return node

    def _object(self, key: str) -> tuple[Node, Facts] | None:
        """Returns the JSON of an object, and which object it is; None where there is none. It is fetched once."""
        if key not in self._fetched:
            url = self.place(key)
            try:
                with as_read_error(url):
                    text, facts = fetched_whole(url, MOST_METADATA)
                self._fetched[key] = node_of(text, url), facts
            except ReadError as error:
                if error.errno != errno.ENOENT:
                    raise
                self._fetched[key] = None
        return self._fetched[key]

    @cached_property
    def _consolidated(self) -> tuple[str, Node] | None:
        """The key of the metadata of all nodes, and these by their keys; None where each is an object alone."""
        if (root := self._object("zarr.json")) is not None:
            held = root[0].get("consolidated_metadata")
            nodes = held.get("metadata") if isinstance(held, dict) else None
            if not isinstance(nodes, dict):
                return None
            return "zarr.json", {"zarr.json": root[0], **{f"{name}/zarr.json": one for name, one in nodes.items()}}
        if (held_of_2 := self._object(".zmetadata")) is not None and isinstance(held_of_2[0].get("metadata"), dict):
            return ".zmetadata", held_of_2[0]["metadata"]
        return None

    @cached_property
    def _names(self) -> list[str]:
        """The keys of consolidated metadata, sorted."""
        return sorted(self._consolidated[1]) if self._consolidated else []

    def names(self, key: str) -> list[str]:
        """Returns the folders in that of a group."""
        if self._consolidated is not None:
            return folders_among(self._names, key)
        url = self.place(key).rstrip("/")
        if not self._lists:
            raise LayoutError(f"{url}: {NOT_LISTED}: consolidate the store's metadata, or name its arrays")
        with as_read_error(url):
            return folders_in(url)

    def beside(self) -> str:
        """Says what may have been meant by a URL at which there is no store."""
        if not self._lists:
            return f"{NOT_LISTED}, so look at the URL again"
        above, _, name = self._root.rpartition("/")
        with as_read_error(above):
            folders = folders_in(above)
        found = nearest(name, folders)
        if found:
            return f"did you mean {' or '.join(f'{above}/{one}' for one in found)}?"
        more = f" and {len(folders) - LISTED:,} more" if len(folders) > LISTED else ""
        return f"{above} has {', '.join(folders[:LISTED]) or 'no folders'}{more}"

    def cells(self, key: str, array: ZarrArray, metadata: str) -> StoredCells:
        """Returns the objects of an array's chunks."""
        source = metadata if self._consolidated is None else self._consolidated[0]
        found = self._object(source)
        assert found is not None, "it described the array"
        grid, above = grid_of(array), f"{key}/" if key else ""
        with awaited(f"listing the chunks of /{key}"):
            if self._lists and math.prod(grid) > 1:
                files = list(self._listed(above, array, grid))
            else:
                files = self._looked_for(above, array, grid)
        return cells_of_files((self.place(source), found[1]), files, len(grid))

    def _listed(
        self, above: str, array: ZarrArray, grid: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], str, Facts]]:
        own = f"{array.prefix}/" if array.prefix and array.separator == "/" else ""  # nothing else lies in this folder
        url = self.place(above + own).rstrip("/")
        seen = set()
        with as_read_error(url):
            for number, (name, meta) in enumerate(objects_below(url)):
                if number == MOST_LISTED:
                    raise LayoutError(f"{url}: it has more than {MOST_LISTED:,} objects: write the array in shards")
                place = place_of_key(own + name, array, grid)
                if place is not None and place not in seen:
                    seen.add(place)
                    yield place, self.place(above + own + name), object_identity(meta, url)

    def _looked_for(
        self, above: str, array: ZarrArray, grid: Sequence[int]
    ) -> list[tuple[tuple[int, ...], str, Facts]]:
        """Returns the objects of chunks by asking for each."""
        if math.prod(grid) > MOST_LOOKED_FOR:
            raise LayoutError(
                f"{self.place(above).rstrip('/')}: {NOT_LISTED}, and to ask it for each of {math.prod(grid):,} chunks "
                "would take too long: name the store by s3://, gs:// or az://, or write the array in shards"
            )

        def look(place: tuple[int, ...]) -> tuple[tuple[int, ...], str, Facts] | None:
            parts = ([array.prefix] if array.prefix else []) + [*map(str, place)]
            url = self.place(above + (array.separator.join(parts) or "0"))
            try:
                return place, url, _native.far_look(url)
            except ReadError as error:
                if error.errno != errno.ENOENT:
                    raise
                return None

        with ThreadPoolExecutor(FAR_THREADS) as threads:
            found = threads.map(look, itertools.product(*map(range, grid)))
            return [one for one in found if one is not None]
