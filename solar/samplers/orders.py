"""Orders that are functions of (seed, epoch, position): of samples, of classes, of a mixture."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError

# EpochOrder: the samples of an epoch over all ranks, as a function of (seed, epoch, position); the kinds of it.


Indices = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Turns = tuple[NDArray[np.int32], Longs]  # of each position the source, and how many of that source came before

POSITIONS = 1 << 16  # looked at together, so that what is between takes no memory
MOST_SAMPLES = 2**31 - 1  # that draws by weight can tell apart
POSITIONS_EVER = 2**62  # positions of all epochs together
STRETCH = 0.05  # of an epoch, in which all jobs of a study want the same samples, if nobody says
POOL = 64  # runs of similar length whose samples are compared with each other


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """What comes at the positions of an epoch: the same for the same seed and epoch, on any number of ranks."""

    kind: str
    samples: int  # of the data set
    length: int  # positions of an epoch
    at: Callable[[int, int, range], Indices]  # the samples at these positions, by seed and epoch
    digest: str  # of what it was made of; "": that may differ from epoch to epoch
    names: tuple[str, ...] = ()  # of the classes, or sources, that it tells apart
    turns: Callable[[int, range], Turns] | None = None  # which of them comes when
    facts: Mapping[str, Any] = field(default_factory=dict)  # numbers that a state says, too, for people to read

    def whole(self, seed: int, epoch: int) -> Indices:
        """Returns the samples of an epoch, as a read-only array."""
        made = self.at(seed, epoch, range(self.length))
        made.setflags(write=False)
        return made

    def saved_facts(self, seed: int, epoch: int) -> dict[str, Any]:
        """Returns what a state stores about it besides seed and epoch: JSON that is short however large it is."""
        digest = self.digest or digest_of(self.whole(seed, epoch))
        return {"by": self.kind, **self.facts, "digest": digest, "num_samples": self.length}

    def counts(self, epoch: int, positions: int) -> dict[str, int]:
        """Returns how many samples of each class or source are among the first `positions` of an epoch."""
        if self.turns is None:
            return {}
        found = np.zeros(len(self.names), np.int64)
        for here in some_positions(range(min(positions, self.length))):
            found += np.bincount(self.turns(epoch, here)[0], minlength=len(self.names))
        return dict(zip(self.names, found.tolist(), strict=True))


def some_positions(positions: range) -> Iterator[range]:
    """Yields the positions, some at a time."""
    return (positions[begin : begin + POSITIONS] for begin in range(0, len(positions), POSITIONS))


def join_order(parts: Iterable[NDArray[Any]], count: int, samples: int) -> Indices:
    """Returns the parts of an order as one array, of 32 bits each if that is enough."""
    out: Indices = np.empty(count, bits(samples))
    begin = 0
    for part in parts:
        out[begin : begin + len(part)] = part
        begin += len(part)
    return out


def bits(samples: int) -> Any:
    """Returns the smallest type for numbers below `samples`."""
    return np.int32 if samples < 1 << 31 else np.int64


def digest_of(*arrays: NDArray[Any]) -> str:
    """Identifies exactly these values."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype.str}{array.shape}".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()[:16]


def word(seed: int) -> int:
    """Returns the 64 bits of a seed that count."""
    return seed & (2**64 - 1)


def overall(epoch: int, length: int, positions: range) -> range:
    """Returns the positions of an epoch, numbered through all epochs."""
    first = epoch * length
    if not 0 <= first <= POSITIONS_EVER - length:
        raise PlanError(f"epoch {epoch} of {length:,} samples lies too far away: this order goes on for 2^62 samples")
    return range(first + positions.start, first + positions.stop)


# --- draws by weight ----


def by_weights(weights: Floats, length: int) -> EpochOrder:
    """Returns samples drawn with replacement, each as often as its weight says."""
    table = _native.alias_table(checked_weights(weights))
    at = partial(draw_weighted, table)
    return EpochOrder("weights", len(weights), length, at, digest_of(weights))


def draw_weighted(table: NDArray[np.uint64], seed: int, epoch: int, positions: range) -> Indices:
    parts = (_native.draw_by(table, word(seed), epoch, here.start, len(here)) for here in some_positions(positions))
    return join_order(parts, len(positions), len(table))


def checked_weights(weights: Floats) -> Floats:
    """Returns the weights, if samples can be drawn by them."""
    if not 0 < len(weights) <= MOST_SAMPLES:
        raise PlanError(f"weights: there are {len(weights):,}; an order takes 1 to {MOST_SAMPLES:,}")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        more = f", and {len(wrong) - 1:,} others like it" if len(wrong) > 1 else ""
        raise PlanError(
            f"weights: that of sample {wrong[0]:,} is {weights[wrong[0]]}{more}; give numbers of 0 or more, and 0 to "
            "what is never to come"
        )
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if not total:
        raise PlanError(f"weights: all {len(weights):,} are 0, so nothing can be drawn; give some of them more")
    if not np.isfinite(total):
        raise PlanError(
            f"weights: their sum is more than a number can be (the largest is {weights.max():g}); divide all by that"
        )
    return np.ascontiguousarray(weights)


# --- groups, blocks, what the user gives ----


def by_groups(groups: NDArray[np.int64], *, shuffle: bool) -> EpochOrder:
    """Returns the order in which the samples of a group follow one another; groups are shuffled, or in order.

    `groups` numbers the group of each sample from 0 without gaps.
    """
    sizes = np.bincount(groups)
    members = np.argsort(groups, kind="stable").astype(bits(len(groups)))
    at = partial(_group, members, sizes, shuffle)
    return EpochOrder("groups", len(groups), len(groups), at, digest_of(groups))


def _group(members: Indices, sizes: Longs, shuffle: bool, seed: int, epoch: int, positions: range) -> Indices:
    """Yields the samples at these positions. An epoch is laid out whole: each place depends on those before."""
    count, firsts = len(sizes), np.cumsum(sizes) - sizes
    if shuffle:
        groups = _native.shuffled(word(seed), count, overall(epoch, count, range(0)).start, count)
    else:
        groups = np.argsort(members[firsts], kind="stable")
    ends = np.cumsum(sizes[groups])
    moved = firsts[groups] - (ends - sizes[groups])  # from a position to the place among the members

    def parts() -> Iterator[Indices]:
        for here in some_positions(positions):
            place = np.arange(here.start, here.stop)
            yield members[place + moved[np.searchsorted(ends, place, side="right")]]

    return join_order(parts(), len(positions), len(members))


def by_blocks(samples: int, size: int) -> EpochOrder:
    """Returns the order that shuffles blocks of `size` neighbours, and each block within. It is far from a shuffle."""
    return EpochOrder("blocks", samples, samples, partial(_in_blocks, samples, size), f"{size} of {samples}")


def _in_blocks(samples: int, size: int, seed: int, epoch: int, positions: range) -> Indices:
    count = -(-samples // size)
    blocks = _native.shuffled(word(seed), count, overall(epoch, count, range(0)).start, count)
    sizes = np.full(count, size)
    sizes[-1] = samples - (count - 1) * size
    firsts, ends = np.arange(count) * size, np.cumsum(sizes[blocks])

    def parts() -> Iterator[Indices]:
        for here in some_positions(positions):
            place = np.arange(here.start, here.stop)
            number = np.searchsorted(ends, place, side="right")
            block = blocks[number]
            within = place - (ends - sizes[blocks])[number]
            turns = epoch * sizes[block] + within
            yield _native.shuffled_of(word(seed + 1), block.astype(np.int32), turns, sizes, firsts)

    return join_order(parts(), len(positions), samples)


def by_study(samples: int, study: int, share: float) -> EpochOrder:
    """Returns the study's shuffle, shuffled again by the seed within stretches of this share of the epoch.

    Each is a proper shuffle, because the study's is one and the seed's numbers are independent of it. All jobs of a
    study have the same samples in a stretch.
    """
    if samples > MOST_SAMPLES:
        raise PlanError(f"study: there are {samples:,} samples; an order of a study takes up to {MOST_SAMPLES:,}")
    places = max(1, round(samples * share))
    facts = {"study": study, "stretch": places}
    at = partial(_of_study, samples, study, places)
    return EpochOrder("study", samples, samples, at, f"{study} in {places} of {samples}", facts=facts)


def _of_study(samples: int, study: int, places: int, seed: int, epoch: int, positions: range) -> Indices:
    overall(epoch, samples, positions)  # which refuses what is no epoch
    order = _native.study_order(samples, word(study), word(seed), epoch, places)
    return order[positions.start : positions.stop]


def by_length(lengths: NDArray[np.integer[Any]], run: int) -> EpochOrder:
    """Returns the order of shuffled runs, each of `run` samples of similar length. Runs differ from epoch to epoch.

    A shuffle is cut into pools of 64 runs. Each pool is sorted by length and cut into runs, and all runs are shuffled.
    If `run` does not divide the samples, some of similar length, fewer than a run, end the epoch.
    """
    digest = digest_of(lengths, np.array([run]))
    return EpochOrder("length", len(lengths), len(lengths), partial(similar_length_order, lengths, run), digest)


def similar_length_order(
    lengths: NDArray[np.integer[Any]], run: int, seed: int, epoch: int, positions: range
) -> Indices:
    """Returns the samples at these positions. A pool needs all its samples, so an epoch is laid out whole."""
    count = len(lengths)
    order = _native.shuffled(word(seed), count, overall(epoch, count, range(0)).start, count)
    order = order[np.lexsort((lengths[order], np.arange(count) // (POOL * run)))]
    runs, over = divmod(count, run)
    if over:  # those that make no run are taken out of any place of the last pool
        first = runs // POOL * POOL
        cut_out = (first + int(order[0]) % (runs + 1 - first)) * run
        order = np.concatenate((order[:cut_out], order[cut_out + over :], order[cut_out : cut_out + over]))
    if runs:
        turns = _native.shuffled(word(seed + 1), runs, overall(epoch, runs, range(0)).start, runs)
        order[: runs * run] = order[: runs * run].reshape(runs, run)[turns].reshape(-1)
    return order[positions.start : positions.stop].astype(bits(count), copy=False)


def in_given_order(order: Indices | Callable[[int], Any], samples: int) -> EpochOrder:
    """Returns the user's order: an array for every epoch, or a function that returns one for an epoch."""
    if callable(order):
        length = len(checked_order(order(0), samples, 0))
        return EpochOrder("given", samples, length, partial(call_order, order, samples, length), "")
    array = checked_order(order, samples, None)
    return EpochOrder("given", samples, len(array), partial(_copy, array), digest_of(array))


def _copy(array: Indices, seed: int, epoch: int, positions: range) -> Indices:
    return array[positions.start : positions.stop].copy()


def call_order(
    order: Callable[[int], Any], samples: int, length: int, seed: int, epoch: int, positions: range
) -> Indices:
    array = checked_order(order(epoch), samples, epoch)
    if len(array) != length:
        raise PlanError(
            f"order: the function gives {len(array):,} samples for epoch {epoch}, and {length:,} for epoch 0; epochs "
            "of a sampler have one length: give as many for each"
        )
    return _copy(array, seed, epoch, positions)


def checked_order(order: Any, samples: int, epoch: int | None) -> Indices:
    """Returns the user's order as whole numbers, 32 bits each where that is enough."""
    array, of = np.asarray(order), "order" if epoch is None else f"order: what the function gives for epoch {epoch}"
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise PlanError(
            f"{of} has the shape {array.shape} and type {array.dtype}; give the numbers of the samples in the order in "
            "which they are to come, one after another"
        )
    wrong = np.flatnonzero((array < 0) | (array >= samples))
    if len(wrong):
        raise PlanError(
            f"{of} asks for sample {array[wrong[0]]} at position {wrong[0]:,}; the dataset has 0 to {samples - 1:,}"
        )
    return array.astype(bits(samples))


# Orders of classes, and of the sources of a mixture: which comes when, and each gone through by its own shuffles.


Epoch = int | Literal["first", "all"]
PARTS = 1 << 20  # shares are whole numbers of so many parts, unless they are simple fractions
SIMPLE = 10_000  # denominators up to this are looked for
PATTERN = 1 << 16  # positions of a mixture that are told apart at least, before they come again


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which source comes when, over and over. After any number of samples each has had its share, within one."""

    shares: Longs  # whole numbers
    sources: NDArray[np.int32]  # at each position of it
    before: NDArray[np.int32]  # how many of that source came before, in it

    def turns(self, length: int, epoch: int, positions: range) -> Turns:
        """Returns the sources at these positions, and how many of each came before, in all epochs."""
        first = overall(epoch, length, positions).start
        times, place = np.divmod(first % len(self.sources) + np.arange(len(positions)), len(self.sources))
        times += first // len(self.sources)
        sources, each = self.sources[place], self.shares * (len(self.sources) // int(self.shares.sum()))
        return sources, times * each[sources] + self.before[place]


def pattern_of(shares: Longs) -> Pattern:
    """Returns the pattern of these shares, which are whole numbers."""
    total = int(shares.sum())
    sources = _native.mixed(shares, total * max(1, -(-PATTERN // total)), 0)
    by_source = np.argsort(sources, kind="stable")
    counts = np.bincount(sources, minlength=len(shares))
    before = np.empty(len(sources), np.int32)
    before[by_source] = np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Pattern(shares, sources, before)


def whole_shares(shares: Floats, what: Sequence[str]) -> Longs:
    """Returns shares as whole numbers: simple fractions exactly, others in parts of a million (2^-20).

    `what` names them in messages.
    """
    for share, name in zip(shares.tolist(), what, strict=True):
        if not (math.isfinite(share) and share > 0):
            raise PlanError(f"the share of {name} is {share}; give a number above 0, or leave {name} out")
    with np.errstate(over="ignore"):
        total = float(shares.sum())
    if total <= PARTS and not np.any(shares % 1):
        whole: Longs = shares.astype(np.int64)
        return whole // int(np.gcd.reduce(whole))
    if not math.isfinite(total):
        raise PlanError(f"the shares are too large for their sum (the largest is {shares.max():g}); divide all by that")
    exact = [Fraction(share / total).limit_denominator(SIMPLE) for share in shares.tolist()]
    parts = math.lcm(*(one.denominator for one in exact))
    simple = sum(exact) == 1 and parts <= PARTS
    if simple and all(abs(float(one) - share) < 1e-12 for one, share in zip(exact, shares / total, strict=True)):
        return np.array([one.numerator * (parts // one.denominator) for one in exact], np.int64)
    return round_shares(shares / total, what)


def round_shares(shares: Floats, what: Sequence[str]) -> Longs:
    parts = np.floor(shares * PARTS).astype(np.int64)
    left = shares * PARTS - parts
    parts[np.argsort(-left, kind="stable")[: PARTS - int(parts.sum())]] += 1
    if not parts.all():
        name = what[int(np.argmin(parts))]
        raise PlanError(f"the share of {name} is less than one sample in {PARTS:,}: leave it out, or give it more")
    return parts


def epoch_length(epoch: Any, sizes: Longs, whole: Longs) -> int:
    """Returns how many samples an epoch of a mixture has, of sources of these sizes and shares."""
    total = int(whole.sum())
    pairs: list[tuple[int, int]] = [*zip(sizes.tolist(), whole.tolist(), strict=True)]
    if epoch == "first":
        return min(size * total // share for size, share in pairs)
    if epoch == "all":
        return max(-(-size * total // share) for size, share in pairs)
    try:
        length = operator.index(epoch)
    except TypeError:
        length = 0
    if isinstance(epoch, bool) or length < 1:
        raise ValueError(f'epoch={epoch!r}: it is a number of samples, "first", or "all"')
    return length


# --- orders ----


def by_sources(
    kind: str,
    samples: int,
    length: int,
    sizes: Longs,
    names: Sequence[str],
    shares: Longs | None,
    members: Indices | None = None,
) -> EpochOrder:
    """Returns the order that mixes sources by their shares, or (None) each once a round; each is shuffled by itself.

    A source's shuffle continues where the last epoch left it. `members` are the samples of all sources, one source
    after another; None: they are numbered so.
    """
    turns: Any = (
        partial(rounds_order, len(sizes), length) if shares is None else partial(pattern_of(shares).turns, length)
    )
    firsts = np.cumsum(sizes) - sizes
    facts = [sizes, np.zeros(0, np.int64) if shares is None else shares, *([] if members is None else [members])]
    at = partial(_in_turn, samples, turns, sizes, firsts, members)
    return EpochOrder(kind, samples, length, at, digest_of(*facts), tuple(names), turns)


def _in_turn(
    samples: int, turns: Any, sizes: Longs, firsts: Longs, members: Indices | None, seed: int, epoch: int,
    positions: range,
) -> Indices:  # fmt: skip
    def parts() -> Iterator[Indices]:
        for here in some_positions(positions):
            sources, each = turns(epoch, here)
            found = _native.shuffled_of(word(seed), sources, each, sizes, firsts)
            yield found if members is None else members[found]

    return join_order(parts(), len(positions), samples)


def rounds_order(count: int, length: int, epoch: int, positions: range) -> Turns:
    """Returns each source once per round, in random order."""
    all_ = overall(epoch, length, positions)
    sources = _native.shuffled(0, count, all_.start, len(all_)).astype(np.int32)
    first = all_.start // count
    return sources, first + (all_.start - first * count + np.arange(len(all_))) // count


def by_classes(classes: NDArray[np.int64], names: Sequence[str], shares: Floats | None, length: int) -> EpochOrder:
    """Returns the order that draws samples by class, each class as often as its share says (None: equally often)."""
    samples = len(classes)
    members: Indices = np.argsort(classes, kind="stable").astype(bits(samples))
    sizes = np.bincount(classes, minlength=len(names)).astype(np.int64)
    if shares is None:
        return by_sources("classes", samples, length, sizes, names, None, members)
    kept = shares != 0
    if not kept.any():
        raise PlanError(f"per_class: all {len(names):,} classes have weight 0, so nothing can come; give some more")
    members = members[np.repeat(kept, sizes)]
    chosen = [name for name, keep in zip(names, kept.tolist(), strict=True) if keep]
    whole = whole_shares(shares[kept], [f"class {name}" for name in chosen])
    return by_sources("classes", samples, length, sizes[kept], chosen, whole, members)
