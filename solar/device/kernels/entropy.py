"""The coder dense on the device: the 32 coders of a tile are the lanes of one warp.

Lanes exchange only requests for words: a vote of the warp tells who needs one, and each lane counts the votes before
its own. The places lie in global memory and stay in the first-level cache: 68 KB for all 17 tables.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from solar.device.kernels.chunk import entry_of, extent_of, field, set_bits, tiles_of, words_a_run


@triton.jit
def vote(which):
    """Returns a number with a bit for each lane."""
    return tl.sum(which.to(tl.int32) << tl.arange(0, 32), 0)


@triton.jit
def those_before(votes):
    return set_bits(votes & ((1 << tl.arange(0, 32)) - 1))


@triton.jit
def step(halves, stream_words, table, state, bits, counts, taken):
    """Decodes one symbol of each coder. Returns the symbols and the coders after it; `taken` counts the words used."""
    few = counts < 10
    votes = vote(few)
    mine = taken + those_before(votes)
    word = tl.load(halves + mine, mask=few & (mine < stream_words), other=0).to(tl.int32) & 0xFFFF
    bits = bits | (word << counts)
    place = tl.load(table + state)
    width = (place >> 8) & 255
    state = ((place >> 16) + (bits & ((1 << width) - 1))) & 1023
    counts = tl.where(few, counts + 16, counts) - width
    return (place << 24) >> 24, state, bits >> width, counts, taken + set_bits(votes)


@triton.jit
def escaped(symbol, which, votes, words, at, count, taken):
    """Returns the symbols with escapes replaced by the next escaped values."""
    mine = taken + those_before(votes)
    return tl.where(which, tl.load(words + at + mine, mask=which & (mine < count), other=0), symbol)


@triton.jit
def dense_tile(words, halves, table, at, end, blocks, classes, out):
    """Fills `out` with the residuals of the tile from word `at` to `end`."""
    lanes = tl.arange(0, 32)
    most = end - at - 18  # checked on the host: not below 0
    stream_words = tl.maximum(0, tl.minimum(tl.load(words + at), 2 * most))
    escapes = tl.maximum(0, tl.minimum(tl.load(words + at + 1), most))
    escapes_at = end - escapes
    start = tl.load(halves + 2 * (at + 2) + lanes).to(tl.int32) & 0xFFFF
    state, bits = start & 1023, start >> 10
    counts = tl.full([32], 6, tl.int32)
    halves += 2 * (at + 18)
    low_at = at + 18 + (stream_words + 1) // 2
    taken = 0
    escapes_taken = 0
    last = 0
    for first in range(0, blocks, 32):
        symbol, state, bits, counts, taken = step(halves, stream_words, table + 16 * 1024, state, bits, counts, taken)
        there = first + lanes < blocks
        escape = there & (symbol == -128)
        votes = vote(escape)
        if votes != 0:
            symbol = escaped(symbol, escape, votes, words, escapes_at, escapes, escapes_taken)
            escapes_taken += set_bits(votes)
        symbol = tl.where(there, symbol, 0)
        tl.store(classes + first + lanes, (last + tl.cumsum(symbol, 0)) & 63, mask=there)
        last += tl.sum(symbol, 0)
    tl.debug_barrier()
    following = tl.load(classes)
    for block in range(blocks):
        of = following
        following = tl.load(classes + tl.minimum(block + 1, blocks - 1))  # on its way while this block is decoded
        own = table + 1024 * tl.where(of < 16, of, 14 + (of & 1))
        low_bits = tl.where(of < 16, 0, (of - 14) >> 1)
        symbol, state, bits, counts, taken = step(halves, stream_words, own, state, bits, counts, taken)
        escape = symbol == -128
        votes = vote(escape)
        residual = symbol
        if low_bits > 0:
            residual = (symbol << low_bits) + field(words, low_at, lanes, tl.zeros_like(lanes) + low_bits, end)
            low_at += low_bits
        if votes != 0:
            residual = escaped(residual, escape, votes, words, escapes_at, escapes, escapes_taken)
            escapes_taken += set_bits(votes)
        tl.store(out + block * 32 + lanes, residual)


@triton.jit(do_not_specialize=["stride", "most_tiles", "set_step", "room", "classes_at"])
def entropy(words, halves, stride, most_tiles, sets, set_step, made, room, classes_at, scratch, ITEMSIZE: tl.constexpr):
    """Fills each dense tile's room in `scratch` with its residuals; programs of other tiles end at once."""
    program = tl.program_id(0).to(tl.int64)
    chunk, tile = program // most_tiles, (program % most_tiles).to(tl.int32)
    words += chunk * stride
    halves += chunk * stride * 2
    tiles = tiles_of(words)
    if tile < tiles:
        at, end, _predictor, coder, runs, _origin = entry_of(words, tile, tiles, stride)
        if coder == 3:
            z, y, x, _first = extent_of(words, tile)
            own_set = tl.load(sets + chunk * set_step).to(tl.int64)
            scratch += program * room
            dense_tile(
                words, halves, made + own_set * 17 * 1024, at, end - runs * words_a_run(ITEMSIZE),
                tl.cdiv(z * y * x, 32), scratch + classes_at, scratch,
            )  # fmt: skip
