"""Thinned: a part of the items stands for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solar import _native
from solar.planning.costs import thin_region
from solar.planning.regions import whole_region
from solar.planning.sweep import MemoryLimits, RetentionPolicy, steady, total
from solar.planning.units import uniform

SAMPLES, NBYTES, MOST = 300_000, 1000, 30_000
STARTS = np.append(np.arange(0, SAMPLES, 64), SAMPLES)
WAYS = (
    RetentionPolicy(direct=True),
    RetentionPolicy(burst=100_000),
    RetentionPolicy(pinned=SAMPLES // 8, burst=100_000),
    RetentionPolicy(pinned=SAMPLES // 5, direct=True),
    RetentionPolicy(lasting=True),
)


def shuffled(epoch: int) -> tuple[np.ndarray, np.ndarray]:
    return _native.randperm(SAMPLES, epoch), STARTS


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("gap", [100, 30_000])
def test_of_a_shuffle_a_tenth_of_the_items_says_what_all_take(way: RetentionPolicy, gap: int) -> None:
    region, terms = whole_region(uniform(SAMPLES, NBYTES)), MemoryLimits(SAMPLES * NBYTES // 4, gap, 6)
    epochs, measured = range(4), range(1, 2)
    exact = total(one.counts for one in steady(region, way, shuffled, epochs, measured, terms))
    thin = thin_region(region, shuffled, MOST)
    assert thin.every == 10
    some = steady(thin.region, thin.policy(way), thin.uses, epochs, measured, thin.terms(terms))
    found = thin.counts(total(one.counts for one in some))
    assert found.bytes == pytest.approx(exact.bytes, rel=0.03)
    # Where a head passes over everything there are few requests, and what counts is what they take beside the bytes.
    cost, known = (one.requests * gap + one.bytes for one in (found, exact))
    assert cost == pytest.approx(known, rel=0.03)


@given(st.integers(1, 400), st.integers(1, 5), st.integers(1, 40), st.lists(st.integers(0, 399), max_size=50))
def test_the_part_has_whole_stretches_in_their_order(samples: int, per_unit: int, most: int, used: list[int]) -> None:
    items = np.array([one for one in used if one < samples], np.int32)
    starts = np.array([0, len(items) // 2, len(items)])
    thin = thin_region(whole_region(uniform(samples, 8, per_unit=per_unit)), lambda epoch: (items, starts), most)
    those = [item for item in range(samples) if item // thin.block % thin.every == 0]
    assert thin.region.items == len(those)
    number = {item: place for place, item in enumerate(those)}
    wanted = [[number[one] for one in half if one in number] for half in np.split(items, starts[1:-1])]
    found, at = thin.uses(0)
    assert [half.tolist() for half in np.split(found, at[1:-1])] == wanted
    assert [thin.among(count) for count in range(samples + 1)] == np.searchsorted(those, range(samples + 1)).tolist()
    assert thin.block % per_unit == 0 or thin.every == 1
