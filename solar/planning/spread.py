"""Measures how random an order is: from how many places of the file a batch comes, and which samples meet again."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.signedinteger[Any]]

REGIONS = 128  # equal parts of the data set
STEPS_LOOKED_AT = 256  # of an order whose epoch is not laid out


class Spread(NamedTuple):
    """Three measures of an order. An exact shuffle has the largest, the largest and the smallest value of them."""

    regions: float  # of REGIONS that the samples of a step come from, on average
    apart: float  # positions between two samples that are neighbours in the file: the median
    again: float  # share of those in a step with a sample that are in a step with it in the next epoch, too


def spread_of(first: Samples, second: Samples, step: int) -> Spread:
    """Returns the figures of two epochs that follow each other. Samples are numbered as they lie; each comes at most
    once.

    >>> spread_of(np.arange(8), np.array([0, 4, 1, 5, 2, 6, 3, 7]), step=2)
    Spread(regions=2.0, apart=1.0, again=0.0)
    """
    samples = int(max(first.max(), second.max())) + 1
    return Spread(
        regions_of_steps(first, samples, step), positions_apart(first, samples), company_again(first, second, step)
    )


def regions_of_steps(order: Samples, samples: int, step: int) -> float:
    """Returns how many of the regions the samples of a whole step come from, on average."""
    steps = max(1, len(order) // step)
    region = order[: steps * step].astype(np.int64) * REGIONS // samples
    number = np.arange(len(region)) // step
    return len(np.unique(number * REGIONS + region)) / steps


def regions_of_mixed(samples: int, block: int, window: int, chunk: int, step: int) -> float:
    """Returns the same of a mixed order, by the first steps of an epoch."""
    from solar.samplers.mixed_blocks import BlockMix, by_mixed_blocks  # only here: most have another order

    some = range(min(samples, STEPS_LOOKED_AT * step))
    return regions_of_steps(by_mixed_blocks(BlockMix(samples, block, window, chunk)).at(0, 0, some), samples, step)


def regions_of_shuffle(step: int) -> float:
    """Returns the same of an exact shuffle of many samples.

    >>> round(regions_of_shuffle(64), 1)
    50.5
    """
    return REGIONS * (1 - (1 - 1 / REGIONS) ** step)


def positions_apart(order: Samples, samples: int) -> float:
    """Returns how many positions lie between samples that are neighbours in the file: half of them are closer."""
    position = np.full(samples, -1, np.int64)
    position[order] = np.arange(len(order))
    there = position[position >= 0]
    return float(np.median(np.abs(np.diff(there)))) if len(there) > 1 else 0.0


def company_again(first: Samples, second: Samples, step: int) -> float:
    """Returns the share of pairs of a step that are in a step of the next epoch together."""
    samples = int(max(first.max(), second.max())) + 1
    steps = -(-len(second) // step)
    later = np.full(samples, steps, np.int64)
    later[second] = np.arange(len(second)) // step
    here = np.arange(len(first)) // step
    met = np.unique(here * (steps + 1) + later[first], return_counts=True)[1]
    sizes = np.bincount(here)
    pairs = int((sizes * (sizes - 1)).sum())
    return float((met * (met - 1)).sum() / pairs) if pairs else 0.0
