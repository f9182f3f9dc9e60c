"""The letters of ten thousand ranks, at meetings and at the end of an exchange: counted, all in this process."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import pytest

from solar.distributed.ending import ASK, DIRECTLY_BELOW, DOWN, END, ROWS, UP, Ending, Head
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


# The end of an exchange. Its letters are carried by hand, late and in any order but that of two ranks.


class Ends:
    """All ranks of an exchange, as far as its end goes, and the letters between them."""

    def __init__(self, ranks: int, draw: random.Random) -> None:
        self.ranks = [Ending(rank, ranks) for rank in range(ranks)]
        self.sent: Counter[int] = Counter()  # by kind
        self.named: set[tuple[int, int]] = set()  # who was told that who has closed
        self._draw = draw
        self._wires: dict[tuple[int, int], deque[Head]] = defaultdict(deque)
        self._busy: list[tuple[int, int]] = []  # each as often as it has letters

    def send(self, sender: int, letters: Iterable[tuple[int, Head]]) -> None:
        for peer, plain in letters:
            head = self.ranks[sender].sends(peer, plain) if plain.kind == ROWS else plain
            self.sent[head.kind] += 1
            self._wires[sender, peer].append(head)
            self._busy.append((sender, peer))

    def ask(self, rank: int, peers: set[int]) -> None:
        self.send(rank, [(peer, Head(ASK)) for peer in self.ranks[rank].asks(peers)])

    def close(self, rank: int) -> None:
        self.send(rank, [(peer, Head(END, answers=1)) for peer in self.ranks[rank].close()])
        self.send(rank, self.ranks[rank].sum_up())

    def carry(self, letters: int | None = None) -> None:
        """Carries so many letters, or all."""
        while self._busy and letters != 0:
            at = self._draw.randrange(len(self._busy))
            self._busy[at], self._busy[-1] = self._busy[-1], self._busy[at]
            sender, peer = self._busy.pop()
            self._take(sender, peer, self._wires[sender, peer].popleft())
            letters = None if letters is None else letters - 1

    def _take(self, sender: int, peer: int, head: Head) -> None:
        this = self.ranks[peer]
        assert not this.over, "a letter comes after the end"
        if head.kind == ASK and this.is_asked(sender):
            self.send(peer, [(sender, Head(END, answers=1))])
        elif head.kind == END:
            self.named.add((peer, sender))
        self.send(peer, this.takes(sender, head))
        if head.kind == UP:
            self.send(sender, self.ranks[sender].has_told())


@pytest.mark.parametrize("rows", [0, 30_000])
def test_ten_thousand_ranks_end_an_exchange_in_few_letters_of_each(rows: int) -> None:
    draw = random.Random(7)
    ends = Ends(RANKS, draw)
    for _ in range(rows):
        sender, peer = draw.sample(range(RANKS), 2)
        ends.send(sender, [(peer, Head(ROWS))])
    for rank in draw.sample(range(RANKS), RANKS):
        ends.close(rank)
    ends.carry()
    assert all(one.over for one in ends.ranks)
    assert ends.sent[END] == ends.sent[ASK] == 0  # 10⁸, when each told each
    assert ends.sent[DOWN] == RANKS - 1
    assert RANKS - 1 <= ends.sent[UP] <= RANKS - 1 + 5 * rows  # the tree is five ranks high
    print(ends.sent)
    assert max(len(one.below) for one in ends.ranks) == DIRECTLY_BELOW


def test_who_closes_early_is_named_to_those_who_wait_and_to_no_others() -> None:
    ends = Ends(RANKS, random.Random(3))
    ends.close(77)
    for rank in (3, 500, 9_999):
        for _ in range(3):  # it asks once
            ends.ask(rank, {77})
    ends.ask(3, {5_000})  # which closes later, and has not answered
    ends.carry()
    assert ends.sent[ASK] == 4
    assert ends.sent[END] == 3
    for rank in range(RANKS):
        if rank != 77:
            ends.close(rank)
    ends.carry()
    assert ends.named == {(3, 77), (500, 77), (9_999, 77), (3, 5_000)}
    assert all(one.over for one in ends.ranks)
    assert ends.sent[END] == 4


@pytest.mark.parametrize("seed", range(20))
def test_an_exchange_is_over_when_all_have_closed_and_nothing_is_on_its_way(seed: int) -> None:
    """`Ends` refuses a letter that comes to a rank for which all is over."""
    draw = random.Random(seed)
    ranks = draw.choice([2, 3, 9, 10, 80])
    ends = Ends(ranks, draw)
    running = [*range(ranks)]
    while running:
        rank = draw.choice(running)
        peers = {peer for peer in draw.sample(range(ranks), min(ranks, 3)) if peer != rank}
        deed = draw.random()
        if deed < 0.5:
            ends.send(rank, [(peer, Head(ROWS)) for peer in peers])
        elif deed < 0.8:
            ends.ask(rank, peers)
        else:
            running.remove(rank)
            ends.close(rank)
        ends.carry(draw.randrange(4))
        assert not running or not any(one.over for one in ends.ranks)
    ends.carry()
    assert all(one.over for one in ends.ranks)
