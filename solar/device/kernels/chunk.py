"""Where a tile lies in its chunk and in the array.

A row of `words` is one chunk as int32. Kernels get the length of rows and read nothing behind them, whatever a chunk
says.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def set_bits(of):
    """Returns how many bits are set; LLVM recognises this sum and makes it one instruction."""
    x = of.to(tl.uint32)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def field(words, at, i, width, end):
    """Returns the `width` bits (0 to 32) of field i of the block at word `at`, for arrays of each; 0 behind `end`."""
    bit = i * width
    word = at + (bit >> 5)
    shift = (bit & 31).to(tl.uint32)
    low = tl.load(words + word, mask=(width > 0) & (word < end), other=0).to(tl.uint32)
    beyond = ((bit & 31) + width > 32) & (word + 1 < end)
    high = tl.load(words + word + 1, mask=beyond, other=0).to(tl.uint32)
    both = (low >> shift) | ((high << 1) << (31 - shift))  # never a shift by 32
    kept = both & (0xFFFFFFFF >> ((32 - width) & 31).to(tl.uint32))
    return tl.where(width > 0, kept, 0).to(tl.int32)


@triton.jit
def tiles_of(words):
    """Returns how many tiles the chunk has."""
    zy = tl.load(words + 8)
    z, y, x = zy & 0xFFFF, (zy >> 16) & 0xFFFF, tl.load(words + 9) & 0xFFFF
    along_zy = tl.cdiv(tl.load(words + 5), z) * tl.cdiv(tl.load(words + 6), y)
    return tl.load(words + 4) * along_zy * tl.cdiv(tl.load(words + 7), x)


@triton.jit
def extent_of(words, tile):
    """Returns a tile's extents z, y, x, and its first value's position in the array."""
    zy = tl.load(words + 8)
    z, y, x = zy & 0xFFFF, (zy >> 16) & 0xFFFF, tl.load(words + 9) & 0xFFFF
    all_z, all_y, all_x = tl.load(words + 5), tl.load(words + 6), tl.load(words + 7)
    many_z, many_y, many_x = tl.cdiv(all_z, z), tl.cdiv(all_y, y), tl.cdiv(all_x, x)
    at_x, at_y = (tile % many_x) * x, (tile // many_x % many_y) * y
    at_z, at_w = (tile // (many_x * many_y) % many_z) * z, tile // (many_x * many_y * many_z)
    first = ((at_w * all_z + at_z) * all_y + at_y) * all_x + at_x
    return tl.minimum(z, all_z - at_z), tl.minimum(y, all_y - at_y), tl.minimum(x, all_x - at_x), first


@triton.jit
def entry_of(words, tile, tiles, stride):
    """Returns a tile's first word, the word behind it, its predictor, coder, runs and origin."""
    at = 20 + (tl.load(words + 3) >> 2) + 3 * tile
    limit = tl.minimum(tl.load(words + 18) >> 2, stride) - 2
    following = tl.load(words + at + 3, mask=tile + 1 < tiles, other=0)
    end = tl.where(tile + 1 < tiles, tl.minimum(following, limit), limit)
    kind = tl.load(words + at + 1)
    return tl.load(words + at), end, kind & 255, (kind >> 8) & 255, (kind >> 16) & 0xFFFF, tl.load(words + at + 2)


@triton.jit
def words_a_run(ITEMSIZE: tl.constexpr):
    """Returns how many words a run of values kept bit for bit takes."""
    return 3 if ITEMSIZE == 8 else 2
