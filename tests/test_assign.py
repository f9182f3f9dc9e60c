"""Who takes which sample of a global batch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_kit import assigned

from solar import _native
from solar.planner import order, regions
from solar.planner.assign import Flow
from solar.planner.units import Units, uniform
from solar.values import World


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_each_rank_gets_its_share_at_home_as_far_as_it_goes(data: st.DataObject) -> None:
    ranks, items = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 40))
    per_node = data.draw(st.integers(1, ranks))
    cuts = sorted(data.draw(st.lists(st.integers(0, items), min_size=ranks - 1, max_size=ranks - 1)))
    homes = [0, *cuts, items]
    steps = data.draw(st.lists(st.lists(st.integers(0, items - 1), max_size=20), min_size=1, max_size=4))
    starts = np.cumsum([0, *map(len, steps)])
    flat = np.array([item for step in steps for item in step], np.int32)
    taking = _native.assign(flat, starts, np.array(homes), per_node)
    if items not in cuts:  # no empty region at the end, which the slow way does not know
        assert taking.tolist() == [taker for step in steps for taker in assigned(homes, step, ranks, per_node)]
    for step, took in zip(steps, np.split(taking, starts[1:-1]), strict=True):
        wanted = [len(step) // ranks + (rank < len(step) % ranks) for rank in range(ranks)]
        assert np.bincount(took, minlength=ranks).tolist() == wanted


@pytest.mark.parametrize(("batch", "wanted"), [(16, 0.1), (64, 0.05), (256, 0.025)])
def test_the_overflow_is_what_the_theory_says(batch: int, wanted: float) -> None:
    ranks = 8
    flow = Flow(
        order.distributed(80_000, ranks=ranks), uniform(80_000, 100), World(0, ranks, 0, 1), batch, drop_last=True
    )
    away, travels, busiest = flow.overflow(0)
    assert away == travels  # a rank a node
    assert away / int(flow.starts[-1]) == pytest.approx(wanted, rel=0.15)
    assert busiest <= batch


def test_on_one_node_nothing_travels() -> None:
    flow = Flow(order.distributed(1000, ranks=4), uniform(1000, 100), World(0, 4, 0, 4), 8)
    away, travels, busiest = flow.overflow(0)
    assert away > 0
    assert (travels, busiest) == (0, 0)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.booleans())
@settings(max_examples=100, deadline=None)
def test_homes_are_whole_units_about_equal_in_bytes_and_every_item_has_one(
    count: int, ranks: int, per_unit: int, alike: bool
) -> None:
    samples = count * per_unit
    if alike:
        units = uniform(samples, 10, per_unit=per_unit)
        nbytes = np.full(count, 10 * per_unit)
    else:
        nbytes = np.random.default_rng(count).integers(1, 50, count)
        first = np.arange(count + 1, dtype=np.int64) * per_unit
        units = Units(samples, per_unit, 10, 50, True, first, np.cumsum(nbytes) - nbytes, nbytes)
    bounds = regions.homes(units, ranks)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, samples, ranks + 1)
    assert not np.any(bounds % per_unit)
    home_nbytes = [nbytes[a // per_unit : b // per_unit].sum() for a, b in pairwise(bounds)]
    assert max(home_nbytes) <= nbytes.sum() / ranks + nbytes.max()


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_nodes_provide_every_use_once(exchange: bool, drop_last: bool) -> None:
    made, units, world = order.distributed(103, ranks=6), uniform(103, 10, per_unit=4), World(0, 6, 0, 2)
    flow = Flow(made, units, world, 5, drop_last, exchange)
    for epoch in range(2):
        wanted = [step.tolist() for step in np.split(made.of(epoch)[: flow.starts[-1]], flow.starts[1:-1])]
        found: list[list[int]] = [[] for _ in wanted]
        for node in regions.of_nodes(units, world):
            items, starts = flow.uses(node)(epoch)
            for step, mine in zip(found, np.split(items + node.begin, starts[1:-1]), strict=True):
                step += mine.tolist()
        missing = sum(len(step) for step in wanted) - sum(len(step) for step in found)
        assert missing == (0 if exchange else flow.overflow(epoch)[1])
        if exchange:
            assert [sorted(step) for step in found] == [sorted(step) for step in wanted]
