"""How ranks meet, under a real mpiexec and under gloo: agreement, each kind of difference, who is late, nodes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
from mpi_kit import under_gloo, under_mpi

from solar import PlanError
from solar.io.channels import meeting as peers_module
from solar.io.channels.meeting import peers

BEGINS = {
    "mpi": "from mpi4py import MPI\nrank, ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size\n",
    "torch": "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "rank, ranks = dist.get_rank(), dist.get_world_size()\n",
}
ALL = """
import json, os, signal, sys, threading, time
from solar import PlanError
from solar.io.channels.meeting import peers

def say(value):
    print(json.dumps([rank, value]))

def meet(what="a test", same={}, own={}, least={}, **more):
    try:
        met = these.meet(what, same, own, least, **more)
        return [met.node_of, met.mates, met.least]
    except PlanError as error:
        return str(error)

these = peers("auto")
"""
ENDS = {
    "mpi": "",
    "torch": "\nfrom contextlib import suppress\nwith suppress(Exception): dist.destroy_process_group()\n",
}
Start = Callable[..., dict[int, Any]]


def ranks_by(by: str, ranks: int, body: str, *args: object) -> dict[int, Any]:
    """What each rank has said, after the body was run on all of them."""
    start = {"mpi": under_mpi, "torch": under_gloo}[by]
    return dict(start(ranks, BEGINS[by] + ALL + body + ENDS[by], *args))


@pytest.fixture(params=["mpi", "torch"])
def on(request: pytest.FixtureRequest) -> Start:
    """on(ranks, body): ranks_by, by one means after the other."""
    return partial(ranks_by, request.param)


# --- meeting ----


@pytest.mark.slow(but=["torch-3"])
@pytest.mark.parametrize(("by", "ranks"), [("mpi", 2), ("torch", 3), ("mpi", 4)])
def test_all_ranks_learn_who_is_there_what_they_tell_and_the_least(by: str, ranks: int) -> None:
    said = ranks_by(
        by,
        ranks,
        """
say([these.rank == rank, these.ranks == ranks, these.by, meet(
    same={"length": 1000, "order": ["a", 1, None, {"x": [1.5]}], "nan": float("nan")},
    own={"door": f"token {rank}", "numbers": [rank, rank]},
    least={"memory": 100 - rank, "cores": 5 + rank},
), peers("auto") is these is peers("read")])
""",
    )
    mates = {str(rank): {"door": f"token {rank}", "numbers": [rank, rank]} for rank in range(ranks)}
    least = {"memory": 101 - ranks, "cores": 5}
    assert said == {rank: [True, True, by, [[0] * ranks, mates, least], True] for rank in range(ranks)}


@pytest.mark.slow(but=["torch"])
def test_many_meetings_follow_each_other_and_none_is_taken_for_another(on: Start) -> None:
    """Also those of several threads, and those with letters of a megabyte."""
    said = on(
        3,
        """
import random
random.seed(rank)
found = []
for number in range(40):
    time.sleep(random.random() * 0.004)
    nodes, mates, least = meet(f"meeting {number}", own={"number": number}, least={"number": number * (1 + rank)})
    found.append([least["number"], sorted(mate["number"] for mate in mates.values())])
of_threads = []
threads = [threading.Thread(target=lambda: of_threads.append(meet()[0])) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
large = [len(mate["text"]) for mate in meet(own={"text": "x" * 1_000_000})[1].values()]
say([found, of_threads, large])
""",
    )
    found = [[number, [number] * 3] for number in range(40)]
    assert said == {rank: [found, [[0, 0, 0]] * 4, [1_000_000] * 3] for rank in range(3)}


# --- what is not the same ----

DIFFERENCES = """
from solar.io.channels import meeting
say({
    "one": meet("dataset /x in scan.h5", {"length": 1000 - (rank == 3), "seed": 0}),
    "alike": meet(same={"length": 5 if rank else 6}),
    "many": meet(same={f"fact {number}": [rank == 2, "y" * 200] for number in range(9)}),
    "some": meet(same={"codec": "lossless"} if rank == 1 else {}),
    "what": meet("the first batch of scan.h5" if rank != 1 else "a new run of other.h5"),
    "after": meet()[0],
    "version": [setattr(meeting, "__version__", ["0.1.0", "0.2.0"][rank == 2]), meet()][1],
})
"""


@cache
def differences(by: str) -> dict[int, dict[str, Any]]:
    return ranks_by(by, 4, DIFFERENCES)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("by", ["mpi", "torch"])
@pytest.mark.parametrize(
    ("which", "parts"),
    [
        ("one", ["on dataset /x in scan.h5: rank 3 has length 999, rank 0 has 1000. Give", 'exchange="off"']),
        ("alike", ["ranks 1, 2, 3 have length 5, rank 0 has 6"]),
        ("many", ['rank 2 has fact 0 [true, "yyy', "fact 2", "and 6 more"]),
        ("some", ['rank 1 has codec "lossless", rank 0 has null']),
        ("what", ["rank 0 came for the first batch of scan.h5, rank 1 for a new run of other.h5", "same order"]),
        ("version", ['rank 2 has version of solar "0.2.0", rank 0 has "0.1.0"']),
    ],
)
def test_a_difference_is_an_error_on_every_rank_that_says_who_has_what(by: str, which: str, parts: list[str]) -> None:
    texts = [of_rank[which] for of_rank in differences(by).values()]
    assert len(texts) == 4
    assert len(set(texts)) == 1
    for part in parts:
        assert part in texts[0]
    assert len(texts[0]) < 900


@pytest.mark.parametrize("by", ["mpi", "torch"])
def test_after_a_difference_the_ranks_can_meet_again(by: str) -> None:
    assert [of_rank["after"] for of_rank in differences(by).values()] == [[0] * 4] * 4


# --- who is late ----


@pytest.mark.slow(but=["torch"])
def test_a_rank_that_does_not_come_is_named_and_finds_why_the_others_left(on: Start) -> None:
    said = on(
        3,
        """
meet("getting to know each other")
if rank == 1:
    time.sleep(2.5)
say([meet("the first batch", seconds=1.0), meet("something else")[0]])
""",
    )
    texts = {text for text, _ in said.values()}
    assert len(texts) == 1
    assert "rank 1 did not come for the first batch: rank 0 waited 1 s" in texts.pop()
    assert [nodes for _, nodes in said.values()] == [[0, 0, 0]] * 3, "the meeting after it is none the worse"


@pytest.mark.slow(but=["mpi"])
def test_rank_0_that_does_not_come_is_named(on: Start) -> None:
    said = on(
        3,
        """
meet("getting to know each other")
if rank == 0:
    time.sleep(2.5)
say(meet("the first batch", seconds=1.0))
""",
    )
    for rank in (1, 2):
        assert f"rank 0, where all ranks meet, did not come for the first batch: rank {rank} waited 1 s" in said[rank]
    assert said[0].startswith(("rank 1 came for the first batch, and waited 1 s and gave up", "rank 2 came for"))


@pytest.mark.slow
def test_who_comes_first_waits_as_long_as_rank_0_who_comes_later(on: Start) -> None:
    said = on(
        3,
        """
meet("getting to know each other")
time.sleep([3.5, 0, 7][rank])
say(meet("the first batch", seconds=6.0)[0])
""",
    )
    assert said == {rank: [0, 0, 0] for rank in range(3)}, "rank 1 waits 7 s: rank 0 is there after 3.5"


def test_the_first_meeting_is_not_waited_for_longer_than_allowed() -> None:
    """Under MPI it needs all of them to find out who is missing."""
    body = """
if rank == 1:
    time.sleep(1.5)
    meet()
else:
    first = meet("the first batch", seconds=0.3)
    say([first, meet()[0]])
"""
    said = dict(under_mpi(2, BEGINS["mpi"] + ALL + body))
    assert "some of the 2 ranks did not come for the first batch: rank 0 waited 0.3 s" in said[0][0]
    assert said[0][1] == [0, 0]


def test_a_program_whose_ranks_failed_to_meet_ends() -> None:
    body = "\nif rank == 0:\n    say(meet(seconds=0.3))\n"
    assert len(under_mpi(2, BEGINS["mpi"] + ALL + body)) == 1


@pytest.mark.slow(but=["mpi-0"])
@pytest.mark.parametrize("who", [0, 1])
def test_ctrl_c_ends_the_waiting_and_tells_the_others(on: Start, who: int) -> None:
    said = on(
        3,
        """
who = int(sys.argv[1])
meet("getting to know each other")
if rank == 2:
    time.sleep(2)
if rank == who:
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    say(meet("the first batch", seconds=30))
except KeyboardInterrupt:
    say("interrupted")
""",
        who,
    )
    assert said.pop(who) == "interrupted"
    why = {
        0: "rank 0 left the meeting for the first batch: KeyboardInterrupt",
        1: "rank 1 came for the first batch, and was interrupted",
    }[who]
    assert said.pop(0, why) == said.pop(1, why) == why
    assert said[2] == why or "rank 2 of 3 cannot reach the others" in said[2], "rank 0 had ended, its store with it"


def test_who_has_lost_the_store_of_torch_is_told_so() -> None:
    body = """
meet()
if rank == 0:
    os._exit(0)
time.sleep(1)
say(meet("the first batch", seconds=30))
"""
    ((rank, text),) = under_gloo(2, BEGINS["torch"] + ALL + body + "sys.stdout.flush(); os._exit(0)", dying=[0, 1])
    assert rank == 1
    assert "rank 1 of 2 cannot reach the others for the first batch, by torch" in text


# --- where they are ----


def test_hosts_of_mpiexec_are_nodes_also_on_one_machine() -> None:
    program = BEGINS["mpi"] + ALL + "nodes, mates, _ = meet(own={'rank': rank})\nsay([nodes, list(mates)])"
    hosts = ["-launcher", "fork", "-hosts", "a:1,b:3"]
    said = dict(under_mpi(4, program, options=hosts))
    assert {tuple(nodes) for nodes, _ in said.values()} == {(0, 1, 1, 1)}
    assert [mates for _, mates in said.values()] == [[0]] + [[1, 2, 3]] * 3


def test_two_torchruns_on_one_machine_are_two_nodes() -> None:
    program = """
import os
rank = int(os.environ["RANK"])
node, place, places = [(0, 0, 2), (0, 1, 2), (1, 0, 1)][rank]
os.environ |= {"LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": str(places), "GROUP_RANK": str(node)}
"""
    said = dict(under_gloo(3, program + BEGINS["torch"] + ALL + "say(meet()[0])" + ENDS["torch"]))
    assert said == {rank: [0, 0, 1] for rank in range(3)}


def test_nodes_are_numbered_by_their_lowest_ranks_however_ranks_are_dealt_out() -> None:
    """One after the other to the nodes, as Slurm's cyclic distribution does it."""
    program = """
import os
rank = int(os.environ["RANK"])
os.environ |= {"LOCAL_RANK": str(rank // 2), "LOCAL_WORLD_SIZE": "2"}
"""
    body = "nodes, mates, _ = meet()\nsay([nodes, list(mates)])"
    said = dict(under_gloo(4, program + BEGINS["torch"] + ALL + body + ENDS["torch"]))
    assert said == {rank: [[0, 1, 0, 1], [rank % 2, rank % 2 + 2]] for rank in range(4)}


def test_a_rank_in_a_network_of_its_own_is_a_node_of_its_own() -> None:
    """It could not find the others' sockets."""
    if os.getuid() != 0:
        pytest.skip("a network namespace needs root")
    body = "\nif rank == 1: os.unshare(os.CLONE_NEWNET)\nsay(meet()[0])"
    program = BEGINS["mpi"] + ALL + "these.meet('before it is cut off', {}, {}, {})" + body
    unshare = "import ctypes, os\nos.CLONE_NEWNET = 0x40000000\n"
    unshare += "os.unshare = lambda flags: ctypes.CDLL(None, use_errno=True).unshare(flags)\n"
    said = dict(under_mpi(3, unshare + program))
    assert said == {rank: [0, 1, 0] for rank in range(3)}


# --- by what they talk ----


def test_an_exchange_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="exchange='tcp': one of 'auto', 'mpi', 'torch', 'read', 'off'"):
        peers("tcp")


@pytest.mark.parametrize("exchange", ["auto", "read", "off"])
def test_one_process_has_no_peers(exchange: str) -> None:
    assert peers(exchange) is None


@pytest.mark.parametrize(
    ("exchange", "missing"),
    [("mpi", "MPI has not begun: import mpi4py.MPI"), ("torch", "torch.distributed is not initialised: call torch")],
)
def test_what_was_asked_for_and_is_not_there_is_an_error(exchange: str, missing: str) -> None:
    with pytest.raises(PlanError, match=missing):
        peers(exchange)


def test_ranks_that_nothing_lets_talk_are_told_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(peers_module, "_said", set())
    caplog.set_level("INFO", "solar")
    assert peers("auto") is None
    assert peers("read") is None
    (record,) = caplog.records
    assert "torchrun says that there are 3 ranks, but neither is torch.distributed init" in record.message


def test_a_world_of_one_needs_no_peers_whatever_is_asked_for() -> None:
    assert under_mpi(1, BEGINS["mpi"] + ALL + "say([these, peers('mpi')])") == [[0, [None, None]]]
    body = "say([these, peers('torch')])" + ENDS["torch"]
    assert under_gloo(1, BEGINS["torch"] + ALL + body) == [[0, [None, None]]]


def test_where_both_are_there_torch_counts_because_the_ranks_are_its() -> None:
    """Its ranks are MPI's turned round here: by MPI, they would be others than the sampler's."""
    program = """
from mpi4py import MPI
import json, torch.distributed as dist
rank, ranks = 1 - MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=ranks)
"""
    body = """
try:
    peers("mpi")
except PlanError as error:
    say([these.by, these.rank == rank, meet()[0], str(error)])
"""
    with tempfile.TemporaryDirectory() as folder:
        program = "import sys\n" + program + ALL + body + ENDS["torch"]
        said = dict(under_mpi(2, program, folder))
    for rank in range(2):
        by, same, nodes, error = said[rank]
        assert (by, same, nodes) == ("torch", True, [0, 0])
        assert f"MPI says rank {1 - rank} of 2 and torch.distributed, which counts, rank {rank} of 2" in error


def test_a_process_group_that_is_made_anew_meets_anew() -> None:
    body = """
import os
first = meet(same={"seed": rank})
dist.destroy_process_group()
dist.init_process_group("gloo", f"file://{os.path.abspath('second')}", rank=rank, world_size=ranks)
again = peers("auto")
say([isinstance(first, str), again is not these, again.meet("once more", {}, {}, {"one": 1}).least])
"""
    said = dict(under_gloo(2, BEGINS["torch"] + ALL + body + ENDS["torch"]))
    assert said == {rank: [True, True, {"one": 1}] for rank in range(2)}


def test_a_fork_of_a_rank_is_none() -> None:
    body = """
import warnings
meet()
warnings.simplefilter("ignore")  # of threads that may hold locks: this child only asks
child = os.fork()
if not child:
    right = peers("auto") is None and "forked from rank" in meet()
    try:
        peers("torch")
        right = False
    except PlanError as error:
        right = right and "forked from rank" in str(error)
    os._exit(0 if right else 1)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert dict(under_gloo(2, BEGINS["torch"] + ALL + body + ENDS["torch"])) == {0: 0, 1: 0}
