"""Simulates what others do: PyTorch, a cache in each rank, a fixed part in memory, and the published SOLAR policy.

Each is a pure function of the order, the units, the world and the memory of a node, and returns the Outcome of one
epoch, with caches warm from those before it. Samples are counted one by one; only the price of the storage is a
formula. All of them get the benefit of the doubt: requests are made at the best depth, work is spread evenly, and
caches hold decoded samples, as HDF5's does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solar.planning.torch_shuffles import Samples, ShuffledUses
from solar.planning.units import Units
from solar.values import Outcome, Storage, World

Ints = NDArray[np.int64]
POLICY_BLOCK = 1 << 22  # uses looked at together, so that memory does not grow with the data set


def torch(order: ShuffledUses, units: Units, world: World, *, batch: int, storage: Storage, epoch: int = 1) -> Outcome:
    """Simulates PyTorch's loader: each sample is one request, and is forgotten with its batch."""
    unit = unit_of(units, order.of(epoch))
    peak = max(_staged(held, world, batch) for held in _in_steps(held_nbytes(units)[unit], world, batch))
    return _outcome(units, storage, len(unit), 0, len(unit), stored_nbytes(units)[unit].sum(), unit, peak)


def lru(
    order: ShuffledUses, units: Units, world: World, *, memory: int, storage: Storage, epoch: int = 1,
    as_stored: bool = False,
) -> Outcome:  # fmt: skip
    """Simulates a least-recently-used cache in each rank. The ranks of a node divide its memory equally.

    Whole units are kept, as HDF5's chunk cache does, so samples read along with another are hits later. With
    `as_stored`, as the page cache does, each use decodes again.
    """
    room, sizes = memory // world.ranks_per_node, stored_nbytes(units)
    whole = sizes if as_stored else _whole_nbytes(units)
    uses = [unit_of(units, order.of(e)) for e in range(epoch + 1)]
    missed, peaks = [], np.zeros(-(-world.ranks // world.ranks_per_node), np.int64)
    fits = int(whole.min()) <= room  # or nothing is ever found again, however many ranks there are
    missed += [] if fits else [uses[-1]]
    for rank in range(world.ranks if fits else 0):
        own = [epoch_uses[rank :: world.ranks] for epoch_uses in uses]
        misses, peak = _lru_misses(np.concatenate(own), whole, room)
        missed.append(own[-1][misses[len(misses) - len(own[-1]) :]])
        peaks[rank // world.ranks_per_node] += peak
    read = np.concatenate(missed)
    hits, decodes = len(uses[-1]) - len(read), uses[-1] if as_stored else read
    return _outcome(units, storage, len(read), hits, len(read), sizes[read].sum(), decodes, int(peaks.max()))


def _lru_misses(uses: Ints, nbytes: Ints, room: int) -> tuple[NDArray[np.bool_], int]:
    """Returns which uses are misses, and the most that is held. A unit that has no room even alone is never kept."""
    held: OrderedDict[int, int] = OrderedDict()
    misses = np.zeros(len(uses), bool)
    resident = peak = 0
    for position, (unit, size) in enumerate(zip(uses.tolist(), nbytes[uses].tolist(), strict=True)):
        if unit in held:
            held.move_to_end(unit)
            continue
        misses[position] = True
        if size > room:
            continue
        while resident + size > room:
            resident -= held.popitem(last=False)[1]
        held[unit] = size
        resident += size
        peak = max(peak, resident)
    return misses, peak


def pinned(
    order: ShuffledUses, units: Units, world: World, *, batch: int, memory: int, storage: Storage, epoch: int = 1,
    ready: int = 0,
) -> Outcome:  # fmt: skip
    """Simulates a fixed set that fits into the memory of all nodes, with the rest read one by one: the best any cache
    can do.

    A use is a hit on whichever node the sample is held. A node keeps room for a batch of each of its ranks, and for
    `ready` more, unless nothing is left to be read. Of units that differ in size the smallest are held, because they
    save most requests. A batch reads a unit once if memory has room for the batches; otherwise each use reads it, as in
    `torch`. Encoded chunks are held decoded or as stored, whichever costs less.
    """
    ways = (False, True) if units.encoded else (False,)
    uses, staged = order.of(epoch), 1 + ready
    each = [_pinned(uses, units, world, batch, memory, storage, as_stored, staged) for as_stored in ways]
    return min(each, key=lambda outcome: outcome.seconds)


def _pinned(
    uses: Samples, units: Units, world: World, batch: int, memory: int, storage: Storage, as_stored: bool, batches: int
) -> Outcome:
    nodes = -(-world.ranks // world.ranks_per_node)
    whole = stored_nbytes(units) if as_stored else _whole_nbytes(units)
    staging = batches * world.ranks_per_node * batch * int(held_nbytes(units).max())
    is_pinned, fullest = _pinned_set(whole, memory, nodes)
    if not is_pinned.all():
        is_pinned, fullest = _pinned_set(whole, max(0, memory - staging), nodes)
    requests = nbytes = hits = staged = 0
    decoded = []
    for unit in _in_steps(unit_of(units, uses), world, batch):
        missed = ~is_pinned[unit]
        hits += len(unit) - int(missed.sum())
        staged = max(staged, _staged(held_nbytes(units)[unit] * missed, world, batch))
        place = np.arange(len(unit))
        rank_and_step = place // (batch * world.ranks) * world.ranks + place % world.ranks
        once = distinct_units(rank_and_step[missed], unit[missed]) if staging <= memory else unit[missed]
        requests, nbytes = requests + len(once), nbytes + int(stored_nbytes(units)[once].sum())
        decoded += [once, unit[~missed]] if as_stored else [once]
    peak = fullest + batches * staged
    return _outcome(units, storage, len(uses) - hits, hits, requests, nbytes, np.concatenate(decoded), peak)


def _pinned_set(nbytes: Ints, room: int, nodes: int) -> tuple[NDArray[np.bool_], int]:
    """Returns which units are held, smallest first, node after node, and how much the fullest node holds."""
    is_pinned = np.zeros(len(nbytes), bool)
    smallest_first = np.argsort(nbytes, kind="stable")
    ends = np.cumsum(nbytes[smallest_first])
    begin, fullest = 0, 0
    for _ in range(nodes):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + room, side="right"))
        if end == begin:
            break
        is_pinned[smallest_first[begin:end]] = True
        fullest = max(fullest, int(ends[end - 1]) - before)
        begin = end
    return is_pinned, fullest


def solar_paper(
    order: ShuffledUses, units: Units, world: World, *, batch: int, memory: int, storage: Storage, epoch: int = 1
) -> Outcome:
    """Simulates SOLAR (Sun et al., PVLDB 16(1), 2022): what ends one epoch serves the beginning of the next.

    All buffers together hold the C samples used last, first in, first out. Of the whole steps within the first C uses
    of the next epoch, samples that are held are hits on any rank: the samples of a global batch go to the ranks that
    hold them. The missing ones are divided equally, so that batches are uneven, and each rank reads its share in file
    order, joined over gaps that cost less than a request. As in the paper, buffers have all of the memory M. Its
    reordering of epochs is left out: it changes the training's order and gains less than 0.4 % of the hits.
    """
    nodes = -(-world.ranks // world.ranks_per_node)
    size_of = held_nbytes(units)
    before, now = order.of(epoch - 1), order.of(epoch)
    tail = longest_prefix(size_of[unit_of(units, before[::-1])], memory * nodes)
    head = longest_prefix(size_of[unit_of(units, now)], memory * nodes)
    head = head if head == len(now) else head - head % (batch * world.ranks)
    is_held = np.zeros(units.samples, bool)
    is_held[before[len(before) - tail :]] = True
    filled = int(size_of[unit_of(units, before[len(before) - tail :])].sum())
    reads = requests = nbytes = done = 0
    read = []
    for block in _in_steps(now, world, batch):
        step = np.arange(len(block)) // (batch * world.ranks)
        missed = ~(is_held[block] & (np.arange(done, done + len(block)) < head))
        done += len(block)
        own_step, unit = _equal_loads(step[missed], unit_of(units, block[missed]), world.ranks)
        once, more, bytes_read = join_units(units, own_step, unit, storage.gap)
        reads, requests, nbytes = reads + int(missed.sum()), requests + more, nbytes + bytes_read
        read.append(once)
    peak = -(-filled // nodes)
    return _outcome(units, storage, reads, len(now) - reads, requests, nbytes, np.concatenate(read), peak)


def longest_prefix(nbytes: Ints, room: int) -> int:
    """Returns how many of the first sizes fit."""
    return int(np.searchsorted(np.cumsum(nbytes), room, side="right"))


def _equal_loads(step: Ints, unit: Ints, ranks: int) -> tuple[Ints, Ints]:
    """Returns the reads of each step in file order, and the rank that makes each: equally many per rank."""
    place = np.lexsort((unit, step))
    step, unit = step[place], unit[place]
    counts = np.bincount(step)
    within = np.arange(len(step)) - np.repeat(np.cumsum(counts) - counts, counts)
    return step * ranks + within * ranks // np.repeat(counts, counts), unit


# --- what they have in common ----


def unit_of(units: Units, samples: NDArray[np.int32] | Ints) -> Ints:
    """Returns the unit that each of these samples is in."""
    item = samples if units.item is None else units.item[samples]
    if units.first is None:
        return item.astype(np.int64) // units.per_unit
    return np.searchsorted(units.first, item, side="right") - 1


def held_nbytes(units: Units) -> Ints:
    """Returns the memory that one sample of each unit takes, decoded if it is encoded."""
    if units.per_unit > 1 or units.encoded:
        return np.full(units.units, units.sample_nbytes, np.int64)
    return stored_nbytes(units)


def stored_nbytes(units: Units) -> Ints:
    """Returns the bytes that each unit takes in storage."""
    return np.full(units.units, units.stored_nbytes, np.int64) if units.nbytes is None else units.nbytes


def _whole_nbytes(units: Units) -> Ints:
    """Returns the memory that a unit with all its samples takes."""
    return held_nbytes(units) * _counts(units)


def _counts(units: Units) -> Ints:
    """Returns how many samples each unit holds."""
    if units.first is not None:
        return np.diff(units.first)
    counts = np.full(units.units, units.per_unit, np.int64)
    counts[-1] = units.samples - units.per_unit * (units.units - 1)
    return counts


def _in_steps(uses: NDArray[np.int64] | NDArray[np.int32], world: World, batch: int) -> Iterator[Ints]:
    """Yields the uses in blocks of whole steps."""
    step = batch * world.ranks
    length = max(1, POLICY_BLOCK // step) * step
    for begin, end in pairwise((*range(0, len(uses), length), len(uses))):
        yield uses[begin:end]  # type: ignore[misc]


def _staged(nbytes: Ints, world: World, batch: int) -> int:
    """Returns the most bytes of one step on one node."""
    place = np.arange(len(nbytes))
    nodes = -(-world.ranks // world.ranks_per_node)
    node = place // (batch * world.ranks) * nodes + place % world.ranks // world.ranks_per_node
    return int(np.bincount(node, nbytes).max(initial=0))


def distinct_units(key: Ints, unit: Ints) -> Ints:
    """Returns the units, each once per key."""
    place = np.lexsort((unit, key))
    key, unit = key[place], unit[place]
    return unit[_is_new(key, unit)]


def _is_new(key: Ints, unit: Ints) -> NDArray[np.bool_]:
    new = np.ones(len(unit), bool)
    new[1:] = (key[1:] != key[:-1]) | (unit[1:] != unit[:-1])
    return new


def join_units(units: Units, key: Ints, unit: Ints, gap: int) -> tuple[Ints, int, int]:
    """Returns the units, each once per key, with the requests and bytes of joined reads."""
    new = _is_new(key, unit)
    key, unit = key[new], unit[new]
    begin = unit * units.stored_nbytes if units.offset is None else units.offset[unit]
    end = begin + stored_nbytes(units)[unit]
    hole = begin[1:] - end[:-1]
    joins = (key[1:] == key[:-1]) & ((hole <= 0) | (hole < gap))
    return unit, len(unit) - int(joins.sum()), int((end - begin).sum() + hole[joins].sum())


def _outcome(
    units: Units, storage: Storage, reads: int, hits: int, requests: int, nbytes: int, decodes: Ints, peak: int
) -> Outcome:
    decoded = int(_counts(units)[decodes].sum()) * units.sample_nbytes if units.encoded else 0
    seconds = storage.seconds(requests, int(nbytes), decoded)
    scan = storage.seconds(1, units.total_nbytes)
    return Outcome(reads, requests, int(nbytes), seconds / scan, seconds, hits, peak)
