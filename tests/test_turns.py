"""What a rank takes and provides where ranks take turns, without a list of who takes what: as the list says."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from solar.planning.pass_uses import SampleUses
from solar.planning.sharing import by_turns, divide_uses, number_within_steps, turns_of_node
from solar.values import Turns

SIZES = {
    "alike": [8, 8, 8],
    "the last one shorter": [8, 8, 5],
    "an exact end": [8, 7, 4],
    "any": [7, 3, 0, 1, 8],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_turns_give_what_a_list_of_who_takes_what_gives(ranks: int, sizes: list[int]) -> None:
    starts = np.concatenate(([0], np.cumsum(sizes)))
    every, turns = np.arange(starts[-1]), by_turns(starts, ranks)
    for mates in chain.from_iterable(combinations(range(ranks), count) for count in range(1, ranks + 1)):
        for rank in mates:
            wanted = divide_uses(starts, turns, turns, rank, mates, sends=False)
            own, here = turns_of_node(starts, ranks, rank, mates)
            for group, other in ((own, wanted.batch), (here, wanted.here)):
                assert every[group.uses].tolist() == every[other.uses].tolist()
                assert group.starts.tolist() == other.starts.tolist()
            uses = SampleUses(np.zeros(len(every[here.uses]), np.int64), every[here.uses], here.starts, here.places)
            assert np.array_equal(uses.positions(0), wanted.here.places)
            if isinstance(here.places, Turns):
                assert len(mates) == ranks
                within = number_within_steps(starts)
                places = np.where(within % ranks == rank, within // ranks, -1)
                assert np.array_equal(places, wanted.here.places)
