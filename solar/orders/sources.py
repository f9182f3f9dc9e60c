"""Orders of classes, and of the sources of a mixture: which comes when, and each gone through by its own shuffles."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError
from solar.orders.epoch_order import (
    EpochOrder,
    Floats,
    Indices,
    Longs,
    Turns,
    bits,
    cut,
    digest_of,
    overall,
    put_together,
    word,
)  # fmt: skip

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
        """The sources at these positions, and how many of each came before, in all epochs."""
        first = overall(epoch, length, positions).start
        times, place = np.divmod(first % len(self.sources) + np.arange(len(positions)), len(self.sources))
        times += first // len(self.sources)
        sources, each = self.sources[place], self.shares * (len(self.sources) // int(self.shares.sum()))
        return sources, times * each[sources] + self.before[place]


def pattern_of(shares: Longs) -> Pattern:
    """The pattern of these shares, which are whole numbers."""
    total = int(shares.sum())
    sources = _native.mixed(shares, total * max(1, -(-PATTERN // total)), 0)
    by_source = np.argsort(sources, kind="stable")
    counts = np.bincount(sources, minlength=len(shares))
    before = np.empty(len(sources), np.int32)
    before[by_source] = np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Pattern(shares, sources, before)


def whole_shares(shares: Floats, what: Sequence[str]) -> Longs:
    """Shares as whole numbers: those of simple fractions exactly, others in parts of a million (2^-20).

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
    return _rounded(shares / total, what)


def _rounded(shares: Floats, what: Sequence[str]) -> Longs:
    parts = np.floor(shares * PARTS).astype(np.int64)
    left = shares * PARTS - parts
    parts[np.argsort(-left, kind="stable")[: PARTS - int(parts.sum())]] += 1
    if not parts.all():
        name = what[int(np.argmin(parts))]
        raise PlanError(f"the share of {name} is less than one sample in {PARTS:,}: leave it out, or give it more")
    return parts


def epoch_length(epoch: Any, sizes: Longs, whole: Longs) -> int:
    """How many samples an epoch of a mixture has, of sources of these sizes and shares."""
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
    """Sources one after another, by their shares or (None) each once a round; each gone through by its own shuffles.

    A shuffle of a source goes on where the last epoch left it. `members` are the samples of all sources, one source
    after another; None: they are numbered so.
    """
    turns: Any = partial(_rounds, len(sizes), length) if shares is None else partial(pattern_of(shares).turns, length)
    firsts = np.cumsum(sizes) - sizes
    facts = [sizes, np.zeros(0, np.int64) if shares is None else shares, *([] if members is None else [members])]
    at = partial(_in_turn, samples, turns, sizes, firsts, members)
    return EpochOrder(kind, samples, length, at, digest_of(*facts), tuple(names), turns)


def _in_turn(
    samples: int, turns: Any, sizes: Longs, firsts: Longs, members: Indices | None, seed: int, epoch: int,
    positions: range,
) -> Indices:  # fmt: skip
    def parts() -> Iterator[Indices]:
        for here in cut(positions):
            sources, each = turns(epoch, here)
            found = _native.shuffled_of(word(seed), sources, each, sizes, firsts)
            yield found if members is None else members[found]

    return put_together(parts(), len(positions), samples)


def _rounds(count: int, length: int, epoch: int, positions: range) -> Turns:
    """Each source once in each round, in an order of chance."""
    all_ = overall(epoch, length, positions)
    sources = _native.shuffled(0, count, all_.start, len(all_)).astype(np.int32)
    first = all_.start // count
    return sources, first + (all_.start - first * count + np.arange(len(all_))) // count


def by_classes(classes: NDArray[np.int64], names: Sequence[str], shares: Floats | None, length: int) -> EpochOrder:
    """Samples by their classes, each as often as its share says (None: equally often); of share 0 never."""
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
