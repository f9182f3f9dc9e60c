"""What rank 0 sends and receives at the meetings of ten thousand ranks: counted, with all of them in this process."""

from __future__ import annotations

import json
import random
from collections import defaultdict, deque
from typing import Any

import pytest

from solar.errors import PlanError
from solar.io.channels import alive, meeting
from solar.io.channels.meeting import Meeting, letter_of, pack_nodes, unpack_nodes

RANKS, PER_NODE = 10_000, 8


class Counted:
    """A ControlChannel of rank 0 to which all others have written. It counts what is sent."""

    def __init__(self, letters: dict[int, bytes]) -> None:
        self.coming = {rank: deque([letter]) for rank, letter in letters.items()}
        self.sent: dict[int, list[bytes]] = defaultdict(list)

    def ready(self) -> bool:
        return True

    def send(self, rank: int, letter: bytes) -> None:
        self.sent[rank].append(letter)

    def poll(self, rank: int) -> bytes | None:
        return self.coming[rank].popleft() if self.coming[rank] else None

    def needed(self, rank: int) -> bool:
        return False


def letter(rank: int, *, first: bool, cyclic: bool) -> dict[str, Any]:
    """As a rank's of a job that a launcher placed on nodes one after another, or in turns."""
    nodes = RANKS // PER_NODE
    node, place = (rank % nodes, rank // nodes) if cyclic else divmod(rank, PER_NODE)
    machine = ["8e1f7a52-7f0d-4a44-9f8e-6d3b6a2f8c11", f"node{node:05}.cluster.example", 4026531840, 1000]
    line = {"at": [f"10.0.{node // 250}.{node % 250}"], "port": 41234, "token": "5a" * 32, "machine": machine}
    needs = {"needs": [67108864, 8388608, 8388608, 16, 4, 1, 2, 0], "door": "0123456789abcdef" * 2}
    process = [f"{node:016x}", 100_000 + rank, 123_456_789]
    made = letter_of(
        "a new run", {"buffer": 1 << 30}, needs, {}, [place, PER_NODE], process, None, line if first else None
    )
    return {**made, "machine": machine}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_rank_0_sends_each_rank_little_however_many_there_are(
    first: bool, cyclic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [letter(rank, first=first, cyclic=cyclic) for rank in range(RANKS)]
    post = Counted({rank: json.dumps({"number": 1, **one}).encode() for rank, one in enumerate(made)})
    came = sum(len(queue[0]) for rank, queue in post.coming.items() if rank)
    monkeypatch.setattr(meeting, "NUDGE", 1e6)  # all are there
    watch = alive.Watch(0)
    answer = Meeting(post, watch, 1, RANKS, made[0], 60).lead()
    nodes = RANKS // PER_NODE
    wanted = [rank % nodes if cyclic else rank // PER_NODE for rank in range(RANKS)]
    assert list(unpack_nodes(answer["node_of"], RANKS)) == wanted
    assert sorted(post.sent) == list(range(1, RANKS))
    assert {len(letters) for letters in post.sent.values()} == {2 if first else 1}
    answers = [letters[-1] for letters in post.sent.values()]
    assert {len(json.loads(one)["mates"]) for one in answers} == {PER_NODE}
    sent = sum(len(one) for letters in post.sent.values() for one in letters)
    assert sent <= (2200 if first else 1900) * RANKS, sent / RANKS  # 51 KB for each, as a list of all ranks' nodes
    assert came <= 1000 * RANKS, came / RANKS
    if first:  # whom each connects to, in a tree
        above = [json.loads(letters[0])["above"]["rank"] for letters in post.sent.values()]
        assert sorted(above) == sorted((rank - 1) // 32 for rank in range(1, RANKS))


def test_nodes_of_ranks_are_told_in_few_letters_and_read_back() -> None:
    draw = random.Random(1)
    anyhow = [draw.randrange(50) for _ in range(1000)]
    for nodes in ([0], [0, 0, 1, 1], [0, 1, 0, 1], anyhow):
        assert list(unpack_nodes(pack_nodes(nodes), len(nodes))) == nodes
    with pytest.raises(PlanError, match="the nodes of 4 ranks, and there are 5"):
        unpack_nodes(pack_nodes([0, 0, 1, 1]), 5)
