"""Turns the coding tables of chunks into the states of the coder dense.

FORMAT.md defines the places of each symbol. Here each place computes which symbol it has, and how many places of that
symbol come before it.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def byte(words, at, end):
    """Returns the byte at `at`, counted from the first word; 0 behind `end`."""
    return (tl.load(words + (at >> 2), mask=at < end, other=0) >> (8 * (at & 3))) & 255


@triton.jit(do_not_specialize=["stride", "set_step", "inside"])
def frequencies(words, stride, sets, set_step, inside, found):
    """Fills found[chunk, table, 128 + symbol], which is zero, for each chunk whose set of tables is its own."""
    chunk = tl.program_id(0)
    words += chunk.to(tl.int64) * stride
    found += chunk.to(tl.int64) * 17 * 256
    if tl.load(sets + chunk * set_step) >= inside:
        at = 80
        end = tl.minimum(80 + tl.load(words + 3), 4 * stride)
        for table in range(17):
            first, count = byte(words, at, end), byte(words, at + 1, end)
            at += 2
            for i in range(count + 1):
                low = byte(words, at, end)
                more = byte(words, at + 1, end)
                long = low >= 128
                symbol = tl.where(i < count, first + 128 + i, 0) & 255  # -128, the escape, comes last
                tl.store(found + table * 256 + symbol, tl.where(long, (low & 127) | (more << 7), low))
                at += tl.where(long, 2, 1)


@triton.jit(do_not_specialize=["set_step", "inside"])
def places(found, sets, set_step, inside, made, AT_ONCE: tl.constexpr):
    """Fills made[set, table, place] for each chunk whose set of tables is its own."""
    chunk, table = tl.program_id(0), tl.program_id(1)
    own_set = tl.load(sets + chunk * set_step)
    found += (chunk.to(tl.int64) * 17 + table) * 256
    made += (own_set.to(tl.int64) * 17 + table) * 1024
    if own_set >= inside:
        symbols = tl.arange(0, 256)
        frequency = tl.load(found + symbols)
        behind = tl.cumsum(frequency, 0)
        for first in range(0, 1024, AT_ONCE):
            place = first + tl.arange(0, AT_ONCE)
            turn = (place * 43) & 1023  # 643 x 43 = 1 modulo 1024: in which turn this place was given away
            below = (behind[None, :] <= turn[:, None]).to(tl.int32)
            symbol = tl.sum(below, 1)
            start = tl.sum(below * frequency[None, :], 1)
            own = tl.sum(tl.where(symbols[None, :] == symbol[:, None], frequency[None, :], 0), 1)
            x = own
            for other in range(0, 1024, 256):
                turns = (other + symbols)[None, :]
                same = (turns >= start[:, None]) & (turns < (start + own)[:, None])
                x += tl.sum((same & (((turns * 643) & 1023) < place[:, None])).to(tl.int32), 1)
            width = tl.full([AT_ONCE], 10, tl.int32)
            for bit in tl.static_range(1, 11):
                width -= (x >= (1 << bit)).to(tl.int32)
            base = ((x << width) - 1024) & 1023
            tl.store(made + place, ((symbol - 128) & 255) | (width << 8) | (base << 16))
