"""What the host must know of a batch of encoded chunks before it is decoded elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native

NOWHERE, INSIDE, BUILTIN, GIVEN = range(4)  # where a chunk's tables are, as native says


@dataclass(frozen=True)
class Heads:
    """How large a batch's tiles are, and which tables its chunks need.

    Made once the checksums of all its chunks were found right, by `Decoder.inspect`.
    """

    tiles: int  # of the chunk that has most
    values: int  # of the largest tile, in whole blocks of 32
    twice: bool  # some tile needs room for its integers twice
    dense: bool  # some chunk needs tables
    sets: NDArray[np.int32]  # of each chunk: 0 the built-in tables, 1 the field's, from 2 on those inside chunks


def inspect(
    rows: NDArray[np.uint8], lengths: NDArray[np.int64], like: NDArray[Any], nbytes: int, tables: bytes
) -> Heads:
    """Checks a chunk a row, each `nbytes` of numbers of the type of `like`; raises CodecError for what is amiss."""
    where = _native.check_chunks(rows, np.ascontiguousarray(lengths, np.int64), like, nbytes, tables)
    if len(rows) == 0 or nbytes == 0:
        return Heads(0, 0, False, False, np.zeros(len(rows), np.int32))
    shape = np.ascontiguousarray(rows[:, 16:32]).view("<u4").astype(np.int64)
    tile = np.ascontiguousarray(rows[:, 32:38]).view("<u2").astype(np.int64)
    tiles = shape[:, 0] * (-(-shape[:, 1:] // tile)).prod(1)
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


def _needs_two(rows: NDArray[np.uint8], tiles: NDArray[np.int64]) -> bool:
    """Whether a tile is interpolated, or summed along both y and z."""
    directory = 80 + np.ascontiguousarray(rows[:, 12:16]).view("<u4")[:, 0].astype(np.int64)
    tile = np.arange(tiles.max())
    entries = np.where(tile < tiles[:, None], directory[:, None] + 12 * tile, directory[:, None])
    predictors = np.take_along_axis(rows, entries + 4, 1)
    return bool(((predictors >= 8) | (predictors & 6 == 6)).any())
