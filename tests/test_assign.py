"""Who takes which sample of a global batch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_kit import assigned

from solar import _native
from solar.planning import regions, torch_shuffles
from solar.planning.pass_uses import SampleUses
from solar.planning.planned_passes import Piece
from solar.planning.sharing import Sharing
from solar.planning.units import Units, uniform


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


def sharing(units: Units, node_of: list[int], balance: str = "equal") -> Sharing:
    """As rank 0 sees it."""
    piece = Piece(0, 0, regions.whole_region(units))
    return Sharing([piece], np.array(node_of, np.int32), len(node_of), 0, [0], 0, balance, "mpi")


def uses_of(made: torch_shuffles.ShuffledUses, batch: int) -> SampleUses:
    starts = torch_shuffles.steps(made, batch, drop_last=True)
    return SampleUses(None, made.of(0)[: starts[-1]], starts)


@pytest.mark.parametrize(("batch", "wanted"), [(16, 0.1), (64, 0.05), (256, 0.025)])
def test_the_overflow_is_what_the_theory_says(batch: int, wanted: float) -> None:
    ranks = 8
    uses = uses_of(torch_shuffles.distributed(80_000, ranks=ranks), batch * ranks)
    taken, provided = sharing(uniform(80_000, 100), list(range(ranks))).who(uses)
    assert np.mean(taken != provided) == pytest.approx(wanted, rel=0.15)
    step = np.repeat(np.arange(len(uses.starts) - 1), np.diff(uses.starts))
    assert np.all(np.bincount(step * ranks + taken) == batch)


def test_uneven_shares_stay_at_home() -> None:
    uses = uses_of(torch_shuffles.distributed(100, ranks=4), 20)
    taken, provided = sharing(uniform(100, 10), [0, 0, 1, 1], "uneven").who(uses)
    assert taken.tolist() == provided.tolist() == (uses.rows // 25).tolist()


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


SUBSETS = {
    "first 80 %": range(80_000),
    "last half": range(50_000, 100_000),
    "the middle": range(30_000, 45_000),
    "every 2nd": range(0, 100_000, 2),
    "every 7th of the end": range(60_000, 100_000, 7),
}


@pytest.mark.parametrize("name", SUBSETS)
@pytest.mark.parametrize("per_unit", [1, 10])
@pytest.mark.parametrize("alike", [True, False])
def test_of_any_subset_each_node_reads_as_much_and_little_travels(name: str, per_unit: int, alike: bool) -> None:
    """Counted for 4 nodes and 64 samples of a rank in a step, of 100,000 samples."""
    nodes, batch, samples = 4, 64, 100_000
    chosen = np.array(SUBSETS[name], np.int32)
    units = uniform(samples, 100, per_unit=per_unit)
    if not alike:
        nbytes = np.random.default_rng(1).integers(80, 120, samples // per_unit) * per_unit
        first = np.arange(0, samples + 1, per_unit)
        units = Units(samples, per_unit, 100, int(nbytes.max()), True, first, np.cumsum(nbytes) - nbytes, nbytes)
    used = SampleUses(None, chosen, np.array([0, len(chosen)]))
    piece = Piece(0, 0, regions.whole_region(units))
    node_of = np.arange(nodes, dtype=np.int32)
    own = [Sharing([piece], node_of, nodes, rank, [rank], rank, "equal", "mpi", lambda: used) for rank in range(nodes)]
    steps = torch_shuffles.distributed(len(chosen), ranks=nodes)
    starts = torch_shuffles.steps(steps, batch * nodes, drop_last=True)
    uses = SampleUses(None, chosen[steps.of(0)[: starts[-1]]], starts)
    taken, provided = own[0].who(uses)
    assert np.mean(taken != provided) <= 0.06
    sizes = units.nbytes if units.nbytes is not None else np.full(units.units, units.stored_nbytes)
    read = [int(sizes[np.unique(uses.rows[provided == rank] // per_unit)].sum()) for rank in range(nodes)]
    assert max(read) - min(read) <= 0.04 * np.mean(read)  # the last steps are dropped, by chance
    for rank, one in enumerate(own):
        [planned] = one.planned()
        here = chosen[(planned.region.begin <= chosen) & (chosen < planned.region.end)]
        assert here.tolist() == chosen[one.homes_of(used) == rank].tolist()
        taking = sizes[np.unique(here // per_unit)].sum()
        exact = sizes[np.unique(chosen // per_unit)].sum() / nodes
        assert abs(taking - exact) <= 2 * sizes.max()  # to a unit


def test_what_no_sample_of_a_subset_lies_in_is_in_no_region() -> None:
    units = uniform(100, 10, per_unit=10)
    used = np.zeros(10, np.bool_)
    used[[3, 4, 7, 8]] = True
    assert regions.homes(units, 2, used).tolist() == [30, 50, 90]
    assert regions.homes(units, 2, used[:0]).tolist() == regions.homes(units, 2).tolist() == [0, 50, 100]
    used[:] = True
    assert regions.homes(units, 2, used).tolist() == [0, 50, 100]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_cuts_are_those_of_one_long_sum(weights: list[int], parts: int, together: int) -> None:
    ends = np.cumsum(weights)
    wanted = np.searchsorted(ends, np.arange(1, parts) * (ends[-1] / parts), side="left") + 1
    before = regions.CUT_TOGETHER
    regions.CUT_TOGETHER = together
    try:
        found = regions.cut_evenly(np.array(weights), parts)
    finally:
        regions.CUT_TOGETHER = before
    assert found.tolist() == np.minimum(wanted, len(weights)).tolist()
