"""From integers to the bits of values, and to their places in the array.

Values are carried as their bits, so that neither the conversion of NaNs nor fused operations depend on the machine.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def double_word(words, at, mask):
    low = tl.load(words + at, mask=mask, other=0).to(tl.int64) & 0xFFFFFFFF
    return low | (tl.load(words + at + 1, mask=mask, other=0).to(tl.int64) << 32)


@triton.jit
def number(words, at, sixteenths, ITEMSIZE: tl.constexpr, REAL: tl.constexpr):
    """Returns the step or the base at word `at` of the header, in the type used for computing values."""
    low = double_word(words, at, True)
    if REAL:
        real = low.to(tl.float64, bitcast=True)
        real = tl.where(sixteenths, real * 0.0625, real)
        return real if ITEMSIZE == 8 else real.to(tl.float32)
    else:
        return low if ITEMSIZE == 8 else low.to(tl.int32)


@triton.jit
def restored(v, quanta, step, base, ITEMSIZE: tl.constexpr, REAL: tl.constexpr):
    """Returns the values' bits, of the chunk's own type or, for short integers, in 32 bits."""
    if REAL and ITEMSIZE == 4:
        line = v.to(tl.float32)
        real = tl.fma(line, tl.zeros_like(line) + step, tl.zeros_like(line) + base)
        return tl.where(quanta == 2, v ^ ((v >> 31) & 0x7FFFFFFF), real.to(tl.int32, bitcast=True))
    elif REAL:
        line = v.to(tl.float64)
        real = tl.fma(line, tl.zeros_like(line) + step, tl.zeros_like(line) + base)
        return real.to(tl.int64, bitcast=True)
    elif ITEMSIZE == 8:
        return base + step * v.to(tl.int64)
    else:
        return base + step * v


@triton.jit
def stored(words, at, i, mask, ITEMSIZE: tl.constexpr):
    """Returns the bits of value i of those that begin at word `at`, as they were stored."""
    if ITEMSIZE == 8:
        return double_word(words, at + 2 * i, mask)
    elif ITEMSIZE == 4:
        return tl.load(words + at + i, mask=mask, other=0)
    else:
        of_byte = i * ITEMSIZE
        return tl.load(words + at + (of_byte >> 2), mask=mask, other=0) >> (8 * (of_byte & 3))


@triton.jit
def float16_of(bits):
    """Returns the float16 nearest to a float32, ties to even; a NaN keeps the bits that fit."""
    sign = (bits >> 16) & 0x8000
    size = bits & 0x7FFFFFFF
    normal = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13
    small = (size.to(tl.float32, bitcast=True) + 0.5).to(tl.int32, bitcast=True) - 0x3F000000  # the sum rounds
    half = tl.where(size >= 0x38800000, normal, small)
    half = tl.where(size >= 0x477FF000, 0x7C00, half)  # 65520 and more
    return sign | tl.where(size > 0x7F800000, 0x7E00 | ((size >> 13) & 0x3FF), half)


@triton.jit
def bfloat16_of(bits):
    """Returns the bfloat16 nearest to a float32, ties to even; a NaN keeps the bits that fit."""
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, (bits >> 16) | 0x40, rounded)


@triton.jit
def put(out, at, bits, mask, HALF: tl.constexpr):
    """Stores values' bits, of float32 as they are (HALF 0), as float16 (1) or as bfloat16 (2)."""
    if HALF == 1:
        bits = float16_of(bits)
    elif HALF == 2:
        bits = bfloat16_of(bits)
    tl.store(out + at, bits.to(out.dtype.element_ty), mask=mask)


@triton.jit
def place_of(i, y, x, array_y, array_x):
    """Returns where value i of a tile with rows of x and planes of y rows lies, from the tile's first in the array."""
    row = i // x
    plane = row // y
    return (plane * array_y + row - plane * y) * array_x + i - row * x
