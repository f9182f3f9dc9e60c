"""Writes one tile into the array, whatever its coder and predictor."""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from solar.device.kernels.chunk import entry_of, extent_of, tiles_of, words_a_run
from solar.device.kernels.dequantise import number, place_of, put, restored, stored
from solar.device.kernels.sums import interpolate, run_on, sum_planes, summed_row, to_rows, unpack


@triton.jit
def put_stored(words, at, same, out, count, y, x, array_y, array_x, SIZE: tl.constexpr, HALF: tl.constexpr,
               LENGTH: tl.constexpr):  # fmt: skip
    """Puts a tile's values as they were stored: each, or one that is all the same."""
    for first in range(0, count, LENGTH):
        i = first + tl.arange(0, LENGTH)
        bits = stored(words, at, tl.where(same, 0, i), i < count, SIZE)
        put(out, place_of(i, y, x, array_y, array_x), bits, i < count, HALF)


@triton.jit
def put_flat(values, along_x, origin, quanta, step, base, out, count, y, x, array_y, array_x, SIZE: tl.constexpr,
             REAL: tl.constexpr, HALF: tl.constexpr, LENGTH: tl.constexpr):  # fmt: skip
    """Puts a tile whose integers are there but for the sums along x."""
    for first in range(0, count, LENGTH):
        i = first + tl.arange(0, LENGTH)
        v = summed_row(values, i, x, along_x, i < count) + origin
        put(out, place_of(i, y, x, array_y, array_x), restored(v, quanta, step, base, SIZE, REAL), i < count, HALF)


@triton.jit
def put_summed(values, along_x, pitch, length, origin, quanta, step, base, out, count, y, x, array_y, array_x,
               SIZE: tl.constexpr, REAL: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr):  # fmt: skip
    """Puts a tile whose last sums are along an axis where `length` neighbours lie `pitch` apart."""
    columns = count // length
    for first_column in range(0, columns, COLUMNS):
        column = first_column + tl.arange(0, COLUMNS)
        top = column // pitch * (pitch * length) + column % pitch
        sums = tl.zeros([COLUMNS], tl.int32)
        for first_row in range(0, length, ROWS):
            row = first_row + tl.arange(0, ROWS)
            i = top[None, :] + row[:, None] * pitch
            mask = (column < columns)[None, :] & (row < length)[:, None]
            value = summed_row(values, i, x, along_x, mask)
            v = tl.cumsum(value, 0) + sums[None, :] + origin
            put(out, place_of(i, y, x, array_y, array_x), restored(v, quanta, step, base, SIZE, REAL), mask, HALF)
            sums += tl.sum(value, 0)


@triton.jit
def put_runs(words, at, runs, out, count, y, x, array_y, array_x, SIZE: tl.constexpr, HALF: tl.constexpr):
    """Puts the runs of values kept bit for bit, 32 of them at once, 32 values of each."""
    for first in range(0, runs, 32):
        run = first + tl.arange(0, 32)
        of = at + run * words_a_run(SIZE)
        said = tl.load(words + of, mask=run < runs, other=0)
        begin, length = said & 0xFFFF, (said >> 16) & 0xFFFF
        bits = tl.broadcast_to(stored(words, of + 1, tl.zeros([32], tl.int32), run < runs, SIZE)[:, None], [32, 32])
        for passed in range(0, tl.max(length, 0), 32):
            of_run = passed + tl.arange(0, 32)
            i = begin[:, None] + of_run[None, :]
            mask = (of_run[None, :] < length[:, None]) & (i < count)
            put(out, place_of(i, y, x, array_y, array_x), bits, mask, HALF)


@triton.jit(do_not_specialize=["stride", "most_tiles", "sample", "room", "second"])
def restore(words, stride, most_tiles, out, sample, scratch, room, second, SIZE: tl.constexpr, REAL: tl.constexpr,
            HALF: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Puts each tile of each chunk into `out` [chunk, sample]; dense ones from their residuals in `scratch`."""
    program = tl.program_id(0).to(tl.int64)
    chunk, tile = program // most_tiles, (program % most_tiles).to(tl.int32)
    words += chunk * stride
    tiles = tiles_of(words)
    if tile < tiles:
        z, y, x, first = extent_of(words, tile)
        at, end, predictor, coder, runs, origin = entry_of(words, tile, tiles, stride)
        array_y, array_x = tl.load(words + 6), tl.load(words + 7)
        count = z * y * x
        kept_at = end - runs * words_a_run(SIZE)
        out += chunk * sample + first
        values = scratch + program * room
        if coder < 2:
            put_stored(words, at, coder == 1, out, count, y, x, array_y, array_x, SIZE, HALF, LENGTH)
        else:
            quanta = (tl.load(words + 1) >> 24) & 255
            between = (predictor & 24) == 8
            ordered = predictor >= 16  # in the order of patches
            step = number(words, 12, between, SIZE, REAL)
            base = number(words, 14, False, SIZE, REAL)
            along_x = (predictor & 9) == 1
            along_y = ((predictor & 10) == 2) & (y > 1)
            along_z = ((predictor & 12) == 4) & (z > 1)
            if coder == 2:
                unpack(words, at, kept_at, tl.cdiv(count, 32), along_x & (ordered == 0), values, LENGTH // 32)
            if ordered:
                tl.debug_barrier()
                to_rows(values, values + second, z, y, x, LENGTH)
                tl.debug_barrier()
                values += second  # from here on the two are the other way round
                second = -second
            if along_x & ((coder == 3) | ordered):
                run_on(values, count, LENGTH)
            tl.debug_barrier()
            if along_y & along_z:
                sum_planes(values, values + second, count, y, x, along_x, ROWS, COLUMNS)
                tl.debug_barrier()
            if between:
                interpolate(values, values + second, z, y, x, 8 << (predictor & 3), origin, LENGTH)
                tl.debug_barrier()
            summed = along_y & along_z
            last = values + tl.where(summed | between, second, 0)
            left_x = along_x & (summed == 0)
            if along_y | along_z:
                pitch, length = tl.where(along_z, x * y, x), tl.where(along_z, z, y)
                put_summed(last, left_x, pitch, length, origin, quanta, step, base, out, count, y, x, array_y, array_x,
                           SIZE, REAL, HALF, ROWS, COLUMNS)  # fmt: skip
            else:
                put_flat(last, left_x, tl.where(between, 0, origin), quanta, step, base, out, count, y, x, array_y,
                         array_x, SIZE, REAL, HALF, LENGTH)  # fmt: skip
        if runs > 0:
            tl.debug_barrier()  # they replace what is there
            put_runs(words, kept_at, runs, out, count, y, x, array_y, array_x, SIZE, HALF)
