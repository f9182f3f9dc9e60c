"""The ranks of a command: what they give and are told, by MPI and by torch's store, and who is gone."""

from __future__ import annotations

import pytest
from mpi_kit import under_gloo, under_mpi

from solar.io.channels.control import Ranks
from solar.values import World

BEGINS = {
    "mpi": "from solar.io.channels.control import MpiRanks as Met\n",
    "torch": "from solar.distributed.torch_ranks import TorchRanks as Met\n",
}
ALL = """
import json, os, signal, sys, time
from solar.errors import SolarError
from solar.io.channels.world import detect
ranks = Met(detect())

def say(value):
    print(json.dumps([ranks.rank, value]), flush=True)
"""


def test_one_rank_alone_gives_and_is_told_what_it_said() -> None:
    alone = Ranks(World(0, 1))
    assert (alone.name, alone.by) == ("", "alone")
    assert alone.gather({1: (2, 3)}) == [{"1": [2, 3]}]
    assert alone.tell({"one": None}) == {"one": None}
    alone.give_up()
    alone.close()


@pytest.mark.parametrize("by", ["mpi", "torch"])
def test_what_ranks_give_comes_in_their_order_and_what_rank_0_says_comes_to_all(by: str) -> None:
    body = """
time.sleep(0.1 * ((ranks.rank + 1) % 3))
found = [[[one["rank"], len(one["text"])] for one in ranks.gather({"rank": ranks.rank, "text": "x" * 1_000_000})]]
for number in range(20):
    ranks.gather(None)
    found.append(ranks.tell({"number": number} if ranks.rank == 0 else "not mine to say"))
say([ranks.name, found])
ranks.close()
"""
    said = dict((under_mpi if by == "mpi" else under_gloo)(3, BEGINS[by] + ALL + body))
    numbers = [{"number": number} for number in range(20)]
    given = {0: [[rank, 1_000_000] for rank in range(3)], 1: [], 2: []}
    assert said == {rank: [f"rank {rank} of 3: ", [given[rank], *numbers]] for rank in range(3)}


@pytest.mark.parametrize(
    ("how", "why"),
    [("os.kill(os.getpid(), signal.SIGKILL)", "is gone"), pytest.param("left()", "given up", marks=pytest.mark.slow)],
)
def test_a_rank_that_dies_or_gives_up_is_named_by_rank_0_and_the_others_do_not_wait(how: str, why: str) -> None:
    body = f"""
def left():
    ranks.give_up()
    os._exit(1)

ranks.gather(None)
ranks.tell(None)
if ranks.rank == 1:
    {how}
try:
    ranks.gather(None)
    ranks.tell(None)
except SolarError as error:
    say(str(error))
    ranks.give_up()
os._exit(0)
"""
    said = dict(under_gloo(3, BEGINS["torch"] + ALL + body, dying=range(3)))
    assert set(said) == {0, 2}
    assert "rank 1 of 3" in said[0]
    assert why in said[0]
    # It knows as soon as rank 0 does. Who has given up has ended soon after, too.
    assert "rank 1 of 3 is gone" in said[2] or (why != "is gone" and "cannot be reached" in said[2])
