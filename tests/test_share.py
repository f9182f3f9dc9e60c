"""One memory for several data sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solar.planning.budget import shares
from solar.planning.regions import whole_region
from solar.planning.units import Units, uniform


def test_small_ones_get_all_they_take_and_others_their_part() -> None:
    assert shares(
        1000, [whole_region(uniform(10, 100)), whole_region(uniform(30, 100)), whole_region(uniform(1, 20))]
    ) == [245, 735, 20]


def test_small_ones_get_no_more_than_an_eighth_together() -> None:
    given_ = shares(3200, [whole_region(uniform(1, 100)) for _ in range(10)] + [whole_region(uniform(100, 100))])
    assert given_.count(100) >= 4
    assert sum(given_) <= 3200
    assert given_[-1] > 2000


def test_what_one_does_not_need_goes_to_the_others() -> None:
    assert shares(10_000, [whole_region(uniform(50, 100)), whole_region(uniform(60, 50))]) == [5000, 3000]


def test_encoded_ones_get_their_part_by_what_is_stored() -> None:
    raw, packed = uniform(1000, 65536), uniform(1000, 65536, stored=16384)
    assert shares(10 * 2**20, [whole_region(raw), whole_region(packed)]) == [8 * 2**20, 2 * 2**20]


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 5000), st.booleans()), min_size=1, max_size=6), st.data())
@settings(max_examples=200, deadline=None)
def test_all_together_get_no_more_than_there_is_and_none_more_than_it_takes(
    sets: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    units = [uniform(samples, size, stored=max(1, size // 2) if half else None) for samples, size, half in sets]
    memory = data.draw(st.integers(0, 3 * sum(one.total_nbytes for one in units)))
    given_ = shares(memory, [whole_region(one) for one in units])
    assert sum(given_) <= memory
    everything = [one.samples * one.sample_nbytes for one in units]
    assert all(0 <= share <= most for share, most in zip(given_, everything, strict=True))
    if memory >= 2 * sum(everything):
        assert all(share >= one.total_nbytes for share, one in zip(given_, units, strict=True))


def test_what_was_never_written_has_a_share_too() -> None:
    empty = Units(4, 1, 100, 0, False, np.arange(5), np.zeros(4, np.int64), np.zeros(4, np.int64))
    assert sum(shares(100, [whole_region(empty), whole_region(uniform(10, 100))])) <= 100
