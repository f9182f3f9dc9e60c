"""Chunks of `zstd` (after shuffle) and `bitshuffle-zstd`, by zstandard: hdf5plugin reads them, and is not needed."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import zstandard
from numpy.typing import NDArray

NAMES = ("zstd", "bitshuffle-zstd")
VERSION = zstandard.__version__  # chunks depend on it
SHUFFLE, BITSHUFFLE, ZSTD = 2, 32008, 32015
_LEVEL = 3
_FORMAT, _BY_ZSTD = (0, 4), 3  # of bitshuffle: the version its filter has written for years, and its number for zstd
_BITSHUFFLE_BLOCK = 8192  # bytes of a bitshuffle block, about, as its own writers have them
# Transposes the 8 x 8 bits of a word: swaps single bits, then blocks of 2 x 2, then of 4 x 4.
_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))


def filters(name: str, itemsize: int, known: bool) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Number and values of each filter. `known`: libhdf5 has the filter, which then says version and size itself."""
    if name == "zstd":
        return ((SHUFFLE, ()), (ZSTD, (_LEVEL,)))
    return ((BITSHUFFLE, (*(() if known else (*_FORMAT, itemsize)), 0, _BY_ZSTD, _LEVEL)),)


def chunk(name: str, values: NDArray[np.generic]) -> bytes:
    """The chunk of these values."""
    items = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize)
    coder = zstandard.ZstdCompressor(level=_LEVEL)
    if name == "zstd":
        return coder.compress(np.ascontiguousarray(items.T).data.cast("B"))
    made = [struct.pack(">QI", values.nbytes, _block_items(values.itemsize) * values.itemsize)]
    for block in _bit_blocks(items):
        frame = coder.compress(block.data)
        made += (struct.pack(">I", len(frame)), frame)
    made.append(items[len(items) // 8 * 8 :].tobytes())  # the last few items are not shuffled
    return b"".join(made)


def _block_items(itemsize: int) -> int:
    return max(_BITSHUFFLE_BLOCK // itemsize // 8 * 8, 128)


def _bit_blocks(items: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    length, whole = _block_items(items.shape[1]), len(items) // 8 * 8
    last = whole // length * length
    if last > 0:
        yield from _bit_planes(items[:last].reshape(-1, length, items.shape[1]))
    if last < whole:
        yield from _bit_planes(items[None, last:whole])


def _bit_planes(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bits of each block [block, item, byte] regrouped: the first bit of all items, then the second, and so on."""
    words = blocks.transpose(0, 2, 1).copy().view("<u8")  # a copy even where it lies so already: it is changed
    for shift, mask in _SWAPS:
        moved = (words ^ (words >> np.uint64(shift))) & np.uint64(mask)
        words ^= moved ^ (moved << np.uint64(shift))
    count, items, itemsize = blocks.shape
    rows = words.view(np.uint8).reshape(count, itemsize, items // 8, 8).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(rows).reshape(count, -1)
