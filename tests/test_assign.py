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
