"""The order "mixed": blocks of neighbours are shuffled, then the samples of each window, or whole groups in it.

    file        [ 0 1 2 | 3 4 5 6 | 7 8 9 10 | 11 12 ]       cut into blocks, at an offset of the epoch
    blocks      [ 7 8 9 10 | 0 1 2 | 11 12 | 3 4 5 6 ]       shuffled
    windows     [ 1 8 0 10 9 7 ] [ 4 12 2 3 11 6 ] [ 5 ]     each shuffled by itself

A block ends where a chunk ends, so no chunk has samples in two blocks. All of it is a function of seed, epoch and
position: the window of a position is known from its number, and what the window holds from the blocks of the epoch. So
any position costs the memory of its window and of the list of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.samplers.orders import POSITIONS, EpochOrder, Indices, Longs, bits, digest_of, join_order, overall, word

Edges = int | Longs  # where a block may begin: at multiples of a number, or at these samples
# What is added to a seed for the draws that are not of the blocks: 2^64 over the golden ratio, and twice that.
OF_WINDOWS, OF_OFFSETS = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A


@dataclass(frozen=True, eq=False)
class BlockMix:
    """The parameters of a mixed order."""

    samples: int
    block: int  # samples, before it goes on to the end of a chunk
    window: int  # samples
    edges: Edges = 1
    members: Indices | None = None  # the sample at each place of the file; None: they are numbered so
    study: int | None = None  # whose blocks come in one order for all seeds


def by_mixed_blocks(mix: BlockMix) -> EpochOrder:
    """Returns the order that shuffles blocks of neighbours, then the samples of each window. Each sample comes once."""
    arrays = [one for one in (mix.edges, mix.members) if isinstance(one, np.ndarray)]
    digest = f"{mix.block} in {mix.window} of {mix.samples}"
    if arrays or mix.edges != 1:
        digest = digest_of(np.array([mix.block, mix.window, mix.samples]), *(np.asarray(one) for one in arrays))
        digest = digest if arrays else f"{mix.block} in {mix.window} of {mix.samples}, by {mix.edges}"
    return EpochOrder("mixed", mix.samples, mix.samples, partial(_mix, mix), digest, facts=facts_of(mix))


def facts_of(mix: BlockMix) -> dict[str, int]:
    """Returns what a state stores about a mixed order."""
    study = {} if mix.study is None else {"study": mix.study}
    chunk = {"chunk": mix.edges} if isinstance(mix.edges, int) and mix.edges > 1 else {}
    return {"block": mix.block, "window": mix.window, **chunk, **study}


def block_ends(samples: int, block: int, edges: Edges, offset: int) -> Longs:
    """Returns where the blocks of an epoch end: at `offset`, and then after each `block` samples.

    A cut inside a chunk moves to the chunk's end.
    """
    cuts = np.arange(offset, samples, block)
    if isinstance(edges, int):
        cuts = -(-cuts // edges) * edges
    else:
        cuts = np.append(edges, samples)[np.searchsorted(edges, cuts)]
    return np.append(np.unique(cuts[(cuts > 0) & (cuts < samples)]), samples)


def block_seed(mix: BlockMix, seed: int) -> int:
    """Returns the seed by which blocks are cut and shuffled: the order's own, or that of the study."""
    return seed if mix.study is None else mix.study


def blocks_of_epoch(mix: BlockMix, seed: int, epoch: int) -> tuple[Longs, Longs]:
    """Returns the blocks in the order of an epoch: where each begins in the file, and how many samples it has."""
    of_blocks = block_seed(mix, seed)
    offset = int(_native.shuffled(word(of_blocks + OF_OFFSETS), mix.block, epoch * mix.block, 1)[0])
    ends = block_ends(mix.samples, mix.block, mix.edges, offset)
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    order = _native.shuffled(word(of_blocks), len(ends), overall(epoch, len(ends), range(0)).start, len(ends))
    return begins[order], (ends - begins)[order]


def _mix(mix: BlockMix, seed: int, epoch: int, positions: range) -> Indices:
    overall(epoch, mix.samples, positions)  # which refuses what is no epoch
    begins, lengths = blocks_of_epoch(mix, seed, epoch)
    ends = np.cumsum(lengths)
    moved = begins - (ends - lengths)  # from a place among the shuffled blocks to the file
    windows = -(-mix.samples // mix.window)
    firsts = np.arange(windows) * mix.window
    sizes = np.minimum(mix.window, mix.samples - firsts)
    some = max(1, POSITIONS // mix.window) * mix.window  # positions looked at together: whole windows

    def parts() -> Iterator[Indices]:
        for begin in range(positions.start // some * some, positions.stop, some):
            here = np.arange(max(begin, positions.start), min(begin + some, positions.stop))
            window = here // mix.window
            turns = epoch * sizes[window] + (here - firsts[window])
            place = _native.shuffled_of(
                word(seed + OF_WINDOWS), window.astype(np.int32), turns, sizes, firsts
            )  # among the shuffled blocks
            held = in_file(moved, ends, begin, min(begin + some, mix.samples))
            found = held[place - begin]
            yield found if mix.members is None else mix.members[found]

    return join_order(parts(), len(positions), mix.samples)


def in_file(moved: Longs, ends: Longs, begin: int, end: int) -> Longs:
    """Returns where the samples at places `begin` to `end` of the shuffled blocks lie in the file."""
    first, last = (int(np.searchsorted(ends, at, side="right")) for at in (begin, end - 1))
    here = slice(first, last + 1)
    upto = np.minimum(ends[here], end)
    counts = np.diff(upto, prepend=begin)
    found: Longs = np.arange(begin, end) + np.repeat(moved[here], counts)
    return found


def by_mixed_groups(groups: NDArray[np.int64], block: int, window: int, study: int | None = None) -> EpochOrder:
    """Returns the order that shuffles whole groups: blocks of about `block` samples, then the groups of each window.

    `groups` numbers the group of each sample from 0 without gaps. Groups are neighbours in the order of their first
    samples. A window has the groups that begin in `window` samples of the shuffled blocks.
    """
    sizes = np.bincount(groups)
    members = np.argsort(groups, kind="stable").astype(bits(len(groups)))
    firsts = np.cumsum(sizes) - sizes
    lie = np.argsort(members[firsts], kind="stable")  # the groups as they lie
    mix = BlockMix(len(groups), block, window, np.cumsum(sizes[lie]) - sizes[lie], study=study)
    at = partial(_mix_groups, mix, members, sizes, lie)
    digest = digest_of(groups, np.array([block, window]))
    return EpochOrder("mixed groups", len(groups), len(groups), at, digest, facts=facts_of(mix))


def _mix_groups(
    mix: BlockMix, members: Indices, sizes: Longs, lie: Longs, seed: int, epoch: int, positions: range
) -> Indices:
    """Returns the samples at these positions. An epoch is laid out whole: each place depends on those before."""
    overall(epoch, mix.samples, positions)
    assert isinstance(mix.edges, np.ndarray)
    begins, lengths = blocks_of_epoch(mix, seed, epoch)
    first, last = np.searchsorted(mix.edges, begins), np.searchsorted(mix.edges, begins + lengths)
    counts = last - first
    ends = np.cumsum(counts)
    groups = lie[np.arange(len(lie)) + np.repeat(first - (ends - counts), counts)]
    window = np.unique((np.cumsum(sizes[groups]) - sizes[groups]) // mix.window, return_inverse=True)[1]
    in_window = np.bincount(window)
    begin = np.cumsum(in_window) - in_window
    turns = epoch * in_window[window] + np.arange(len(groups)) - begin[window]
    place = _native.shuffled_of(word(seed + OF_WINDOWS), window.astype(np.int32), turns, in_window, begin)
    groups = groups[place]
    counts, firsts = sizes[groups], (np.cumsum(sizes) - sizes)[groups]
    ends = np.cumsum(counts)
    here = np.arange(positions.start, positions.stop)
    number = np.searchsorted(ends, here, side="right")
    found: Indices = members[here + (firsts - (ends - counts))[number]]
    return found
