"""From residuals to integers: fields of fixed width, sums along axes, interpolation.

A tile's integers lie in global memory, in room that only its program uses, between barriers: the chunk decides the
extents of tiles, and 64 KB pass through the second-level cache in less time than fetching the words takes.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from solar.device.kernels.chunk import field


@triton.jit
def summed(values):
    """Returns the sum of a vector modulo 2**32. The interpreter of Triton 3.7 refuses overflow, a device does not."""
    return tl.sum(values.to(tl.int64), 0).to(tl.int32)


@triton.jit
def unpack(words, at, end, blocks, along_x, out, BLOCKS: tl.constexpr):
    """Fills `out` with a pack tile's residuals, or with their running sums over the whole tile."""
    fields_at = at + 4 + (blocks + 7) // 8
    passed = 0
    sums = 0
    i = tl.arange(0, 32)[None, :]
    for first in range(0, blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)
        there = block < blocks
        pick = (tl.load(words + at + 4 + (block >> 3), mask=there, other=0) >> (4 * (block & 7))) & 15
        width = (tl.load(words + at + (pick >> 2), mask=there, other=0) >> (8 * (pick & 3))) & 255
        width = tl.minimum(tl.where(there, width, 0), 32)
        begin = fields_at + passed + tl.cumsum(width, 0) - width
        passed += tl.sum(width, 0)
        wide = tl.broadcast_to(width[:, None], [BLOCKS, 32])
        half = tl.where(wide > 0, 1 << ((wide - 1) & 31), 0)
        residual = tl.reshape(field(words, begin[:, None], i, wide, end) - half, [BLOCKS * 32])
        if along_x:
            total = summed(residual)
            residual = tl.cumsum(residual, 0) + sums
            sums += total
        value = first * 32 + tl.arange(0, BLOCKS * 32)
        tl.store(out + value, residual, mask=value < blocks * 32)


@triton.jit
def to_rows(values, out, z, y, x, LENGTH: tl.constexpr):
    """Fills `out` with residuals that lie in the order of patches, row by row."""
    depth, high = tl.where(z == 1, 1, 4), tl.where(z == 1, 8, 4)  # patches of 8 x 8, or 4 x 4 x 4
    wide = high
    for first in range(0, z * y * x, LENGTH):
        each = first + tl.arange(0, LENGTH)
        mask = each < z * y * x
        i = tl.where(mask, each, 0)
        # Of value i: the slab of patches, in it the band, in that the patch; then the place in the patch.
        at_z = i // (depth * y * x) * depth
        slab = tl.minimum(depth, z - at_z)
        i -= at_z * y * x
        at_y = i // (high * x * slab) * high
        band = tl.minimum(high, y - at_y)
        i -= at_y * x * slab
        at_x = i // (wide * slab * band) * wide
        row = tl.minimum(wide, x - at_x)
        i -= at_x * slab * band
        plane = i // (row * band)
        i -= plane * row * band
        at = ((at_z + plane) * y + at_y + i // row) * x + at_x + i % row
        tl.store(out + at, tl.load(values + each, mask=mask, other=0), mask=mask)


@triton.jit
def run_on(values, count, LENGTH: tl.constexpr):
    """Replaces values by their running sums over the whole tile."""
    sums = 0
    for first in range(0, count, LENGTH):
        i = first + tl.arange(0, LENGTH)
        value = tl.load(values + i, mask=i < count, other=0)
        tl.store(values + i, tl.cumsum(value, 0) + sums, mask=i < count)
        sums += summed(value)


@triton.jit
def summed_row(values, i, x, along_x, mask):
    """Returns value i after the sums along x: from running sums over the tile, less the one before its row."""
    value = tl.load(values + i, mask=mask, other=0)
    if along_x:
        before = i - i % x - 1
        value -= tl.load(values + before, mask=mask & (before >= 0), other=0)
    return value


@triton.jit
def sum_planes(values, out, count, y, x, along_x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Fills `out` with the sums along y, and along x if `values` are running sums."""
    columns = count // y  # of all planes
    for first_column in range(0, columns, COLUMNS):
        column = first_column + tl.arange(0, COLUMNS)
        top = column // x * (x * y) + column % x
        sums = tl.zeros([COLUMNS], tl.int32)
        for first_row in range(0, y, ROWS):
            row = first_row + tl.arange(0, ROWS)
            i = top[None, :] + row[:, None] * x
            mask = (column < columns)[None, :] & (row < y)[:, None]
            value = summed_row(values, i, x, along_x, mask)
            tl.store(out + i, tl.cumsum(value, 0) + sums[None, :], mask=mask)
            sums += tl.sum(value, 0)


@triton.jit
def halfway(a, b, c, d, before, after):
    """Returns the prediction between b and c on a b . c d. `before`: a exists; `after`: how many of c and d do."""
    two = tl.where(before, (9 * (b + c) - a - d + 8) >> 4, (3 * b + 6 * c - d + 4) >> 3)
    one = tl.where(before, (6 * b + 3 * c - a + 4) >> 3, (b + c + 1) >> 1)
    none = tl.where(before, (3 * b - a + 1) >> 1, b)
    return tl.where(after == 2, two, tl.where(after == 1, one, none))


@triton.jit
def one_pass(residuals, values, z, y, x, h, AXIS: tl.constexpr, LENGTH: tl.constexpr):
    """Predicts the points halfway along one axis from known ones. Returns how many they are."""
    many_z = (z + h - 1) // (2 * h) if AXIS == 0 else tl.cdiv(z, h)
    many_y = tl.cdiv(y, 2 * h) if AXIS == 0 else (y + h - 1) // (2 * h) if AXIS == 1 else tl.cdiv(y, h)
    many_x = (x + h - 1) // (2 * h) if AXIS == 2 else tl.cdiv(x, 2 * h)
    count = many_z * many_y * many_x
    hop = h * (y * x if AXIS == 0 else x if AXIS == 1 else 1)
    length = z if AXIS == 0 else y if AXIS == 1 else x
    for first in range(0, count, LENGTH):
        i = first + tl.arange(0, LENGTH)
        mask = i < count
        row = i // many_x
        at_z = row // many_y
        at_y = row - at_z * many_y
        at_x = i - row * many_x
        at_z = at_z * 2 * h + h if AXIS == 0 else at_z * h
        at_y = at_y * 2 * h if AXIS == 0 else at_y * 2 * h + h if AXIS == 1 else at_y * h
        at_x = at_x * 2 * h + h if AXIS == 2 else at_x * 2 * h
        at = (at_z * y + at_y) * x + at_x
        along = at_z if AXIS == 0 else at_y if AXIS == 1 else at_x
        before, one, two = along >= 3 * h, along + h < length, along + 3 * h < length
        a = tl.load(values + at - 3 * hop, mask=mask & before, other=0)
        b = tl.load(values + at - hop, mask=mask, other=0)
        c = tl.load(values + at + hop, mask=mask & one, other=0)
        d = tl.load(values + at + 3 * hop, mask=mask & two, other=0)
        foretold = halfway(a, b, c, d, before, one.to(tl.int32) + two.to(tl.int32))
        residual = tl.load(residuals + i, mask=mask, other=0)
        tl.store(values + at, foretold + 16 * residual, mask=mask)
    return count


@triton.jit
def interpolate(residuals, values, z, y, x, stride, origin, LENGTH: tl.constexpr):
    """Fills `values`, in sixteenths of a quantum, from residuals in the order of the passes."""
    many_y, many_x = tl.cdiv(y, stride), tl.cdiv(x, stride)
    taken = tl.cdiv(z, stride) * many_y * many_x
    last = origin
    for first in range(0, taken, LENGTH):
        i = first + tl.arange(0, LENGTH)
        change = 16 * tl.load(residuals + i, mask=i < taken, other=0)
        row = i // many_x
        at_z = row // many_y
        at = ((at_z * stride) * y + (row - at_z * many_y) * stride) * x + (i - row * many_x) * stride
        tl.store(values + at, tl.cumsum(change, 0) + last, mask=i < taken)
        last += summed(change)
    h = stride // 2
    while h > 0:
        for axis in tl.static_range(3):
            tl.debug_barrier()
            taken += one_pass(residuals + taken, values, z, y, x, h, axis, LENGTH)
        h = h // 2
