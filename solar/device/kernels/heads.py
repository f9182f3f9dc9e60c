"""Heads: what the host needs to know about a batch of encoded chunks before a device decodes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError

DENSE = 3  # a coder (io/FORMAT.md)
LEARNED = 24  # a predictor that was removed, and the first that no kernel knows
NOWHERE, INSIDE, BUILTIN, GIVEN = range(4)  # where a chunk's tables are, as native says
FLAGS_AT, TABLES_AT = 8, 64  # where a chunk says that its tables are inside, and which they are (io/FORMAT.md)


@dataclass(frozen=True)
class Heads:
    """The sizes of a batch's tiles, and the tables that its chunks need.

    It is made once the checksums of all its chunks were found right, by `Decoder.inspect` or when they were read.
    """

    tiles: int  # of the chunk that has most
    values: int  # of the largest tile, in whole blocks of 32
    twice: bool  # some tile needs room for its integers twice
    dense: bool  # some chunk needs tables
    sets: NDArray[np.int32]  # of each chunk: 0 the built-in tables, 1 the field's, from 2 on those inside chunks


class Inspector:
    """Looks at chunks of one field, one per row, each with `nbytes` of numbers of the type of `like`.

    What was checked when it was read is not checked again: then only headers and directories are looked at, and a chunk
    is checked whole only if it names new tables, contains tables, or has something that reading does not check.
    """

    def __init__(self, like: NDArray[Any], nbytes: int, tables: bytes) -> None:
        self._like, self._nbytes, self._tables = like, nbytes, tables
        self._known = {0: NOWHERE}  # checksum of tables -> where they are

    def __call__(self, rows: NDArray[np.uint8], lengths: NDArray[np.int64], checked: bool = False) -> Heads:
        """Returns the facts about the chunks. Raises CodecError for damage that reading has not checked."""
        lengths = np.ascontiguousarray(lengths, np.int64)
        where = self._named(rows, lengths) if checked and len(rows) and self._nbytes else self._check(rows, lengths)
        return make_heads(rows, where, self._nbytes)

    def _check(self, rows: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
        return _native.check_chunks(rows, lengths, self._like, self._nbytes, self._tables)

    def _named(self, rows: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns where the tables of checked chunks are, by the checksums that they name."""
        sums = np.ascontiguousarray(rows[:, TABLES_AT : TABLES_AT + 8]).view("<u8")[:, 0]
        doubtful = (rows[:, FLAGS_AT] & 1 != 0) | doubtful_chunks(rows, sums)
        where = np.full(len(rows), INSIDE, np.uint8)
        for name in np.unique(sums[~doubtful]).tolist():
            here = ~doubtful & (sums == name)
            if name not in self._known:
                first = np.flatnonzero(here)[:1]
                self._known[name] = int(self._check(rows[first], lengths[first])[0])
            where[here] = self._known[name]
        left = np.flatnonzero(doubtful)
        if len(left):  # tables inside, which nobody has looked at, or what is wrong
            where[left] = self._check(rows[left], lengths[left])
        return where


def make_heads(rows: NDArray[np.uint8], where: NDArray[np.uint8], nbytes: int) -> Heads:
    if len(rows) == 0 or nbytes == 0:
        return Heads(0, 0, False, False, np.zeros(len(rows), np.int32))
    tiles, shape, tile = tile_counts(rows)
    values = np.minimum(shape[:, 1:], tile).prod(1).max()
    sets = np.where(where == GIVEN, 1, 0)
    inside = np.flatnonzero(where == INSIDE)
    sets[inside] = 2 + np.arange(len(inside))
    return Heads(
        tiles=int(tiles.max()),
        values=32 * math.ceil(values / 32),
        twice=_needs_two(rows, tiles),
        dense=bool((where != NOWHERE).any()),
        sets=sets.astype(np.int32),
    )


def doubtful_chunks(rows: NDArray[np.uint8], sums: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Returns which chunks have a step that is no number, or tiles of the coder `dense` and name no tables."""
    steps = np.ascontiguousarray(rows[:, 48:64]).view("<f8")
    found: NDArray[np.bool_] = (rows[:, 7] == 0) & ~np.isfinite(steps).all(1)
    bare = sums == 0
    if bare.any():
        tiles = tile_counts(rows)[0]
        found |= bare & (_of_tiles(rows, tiles, 5) == DENSE).any(1) & (tiles > 0)
    return found


def tile_counts(rows: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns how many tiles each chunk has, its shape, and a tile's."""
    shape = np.ascontiguousarray(rows[:, 16:32]).view("<u4").astype(np.int64)
    tile = np.ascontiguousarray(rows[:, 32:38]).view("<u2").astype(np.int64)
    return shape[:, 0] * (-(-shape[:, 1:] // tile)).prod(1), shape, tile


def _needs_two(rows: NDArray[np.uint8], tiles: NDArray[np.int64]) -> bool:
    """Returns whether a tile is interpolated, in the order of patches, or summed along both y and z."""
    predictors = _of_tiles(rows, tiles, 4)
    if (predictors >= LEARNED).any():
        raise CodecError(
            "the chunk was written with the learned predictor, which solar no longer reads: decompress its file with "
            "solar 0.1.0, or compress the original again"
        )
    return bool(((predictors >= 8) | (predictors & 6 == 6)).any())


def _of_tiles(rows: NDArray[np.uint8], tiles: NDArray[np.int64], byte: int) -> NDArray[np.uint8]:
    """Returns a byte of each entry of each chunk's directory, repeating the first if other chunks have more tiles."""
    directory = 80 + np.ascontiguousarray(rows[:, 12:16]).view("<u4")[:, 0].astype(np.int64)
    tile = np.arange(tiles.max())
    entries = np.where(tile < tiles[:, None], directory[:, None] + 12 * tile, directory[:, None])
    return np.take_along_axis(rows, entries + byte, 1)
