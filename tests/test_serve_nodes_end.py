"""How services of several nodes end: each says so, once, and none goes before all have."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from serve_kit import alone, job, scan, soon
from serve_nodes_kit import Services
from test_serve_together import shared

from solar import H5Dataset
from solar.errors import ReadError
from solar.service.cluster import Cluster, Said
from solar.service.nodes import Nodes
from solar.service.shared_data import SharedData

_ = scan  # a fixture


class Peers:
    """What a Nodes is made of, where MPI is not there."""

    ranks = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def check(self) -> None:
        """Nobody is seen to be gone."""


class Post:
    """Letters between nodes of this process: MPI, as far as it matters here."""

    def __init__(self, rank: int, boxes: dict[tuple[int, int], deque[bytes]], left: set[int]) -> None:
        self._rank, self._boxes, self._left = rank, boxes, left

    def ready(self) -> bool:
        return True

    def send(self, rank: int, letter: bytes) -> None:
        assert rank not in self._left, "MPI waits for one that has left it"
        self._boxes[self._rank, rank].append(letter)

    def poll(self, rank: int) -> bytes | None:
        box = self._boxes[rank, self._rank]
        return box.popleft() if box else None

    def needed(self, rank: int) -> bool:
        return False


class Pair:
    """Two Nodes, and what they hear from each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boxes, self.left = {pair: deque[bytes]() for pair in ((0, 1), (1, 0))}, set[int]()
        monkeypatch.setattr("solar.service.nodes.posted", lambda by, rank, group: Post(rank, self.boxes, self.left))
        monkeypatch.setattr("solar.service.nodes.numbered_mail", lambda check: None)
        self.nodes = [Nodes(Peers(rank)) for rank in range(2)]  # type: ignore[arg-type]
        self.told = [threading.Event() for _ in range(2)]  # to end
        for one, event in zip(self.nodes, self.told, strict=True):
            one.start(lambda values, arrays: None, event.set)

    def end(self, rank: int) -> threading.Thread:
        """Has one end, and leave MPI when it has."""

        def close() -> None:
            self.nodes[rank].close()
            self.left.add(rank)

        thread = threading.Thread(target=close)
        thread.start()
        return thread


def test_who_ends_first_stays_until_the_other_has_told_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what the other still tells, and its own end, wait for MPI: for ever."""
    pair = Pair(monkeypatch)
    for one in pair.nodes:
        one.stop_all()
    assert all(event.wait(60) for event in pair.told)
    first = pair.end(1)
    first.join(0.3)  # in which it would go, if to be told to end were enough
    pair.nodes[0].tell_open(["some data"])  # a job has gone while this one closes
    assert soon(lambda: pair.nodes[1]._open[0] == ["some data"])
    assert first.is_alive() and pair.left == set()
    second = pair.end(0)
    for one in (first, second):
        one.join(60)
    assert pair.left == {0, 1} and all(one._messages.all_end() for one in pair.nodes)
    pair.nodes[0].tell_open([])  # a job that goes later: nobody is there to hear it
    assert not pair.boxes[0, 1]


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.service.nodes.SILENT", 0.1)
    monkeypatch.setattr("solar.service.nodes.SAYS_SO", 3600.0)
    pair = Pair(monkeypatch)
    pair.nodes[1].tell({"is": "stop"})  # its last word: it hangs while it ends
    assert pair.told[0].wait(60)
    one = pair.end(0)
    one.join(30)  # and not a minute
    assert pair.left == {0} and not pair.nodes[0]._messages.all_end()
    pair.nodes[1]._messages._over.set()


# --- a data set that all read together ----


class Held:
    """Letters that a node tells, for the test to hand on."""

    ranks = 3

    def __init__(self, rank: int) -> None:
        self.rank, self.told = rank, list[dict[str, Any]]()

    def tell(self, letter: dict[str, Any], arrays: Any = ()) -> None:
        self.told.append(letter)

    def bye(self, one: Cluster, why: str) -> None:
        self.told.append({"is": "bye", "why": why})

    def begin(self, one: Cluster) -> None: ...

    def next_number(self) -> int:
        return 1

    def mail(self, number: int) -> Any:
        raise AssertionError("nothing travels here")


class Three:
    """Nodes that all ask for one thing, to be had by all or by none."""

    def __init__(self, data: SharedData) -> None:
        self.wires = [Held(rank) for rank in range(3)]
        self.nodes = [Cluster(wire, data, 1) for wire in self.wires]
        self.found: dict[int, Any] = {}
        self._threads = dict[int, threading.Thread]()

    def ask(self, *ranks: int) -> None:
        """Has them ask, and comes back when they have told so."""
        for rank in ranks:
            self._threads[rank] = threading.Thread(target=self._ask, args=(rank,))
            self._threads[rank].start()
            assert soon(lambda wire=self.wires[rank]: wire.told)

    def _ask(self, rank: int) -> None:
        try:
            self.found[rank] = [said.value for said in self.nodes[rank].all(rank, or_none=True)]
        except ReadError as error:
            self.found[rank] = str(error)

    def hand_on(self) -> None:
        """All letters, from each node in its order, and what is said of them; until nobody says more."""
        while any(wire.told for wire in self.wires):
            for wire in self.wires:
                for letter in [wire.told.pop(0) for _ in wire.told[:1]]:
                    for other in [one for one in self.nodes if one.rank != wire.rank]:
                        if letter["is"] == "bye":
                            other.over(letter["why"], [wire.rank])
                        else:
                            other.came(wire.rank, letter["round"], Said(letter["value"], ()))

    def all_found(self) -> dict[int, Any]:
        for one in self._threads.values():
            one.join(60)
            assert not one.is_alive()
        return self.found


@pytest.fixture
def three(scan: Path) -> Three:
    return Three(shared(H5Dataset(scan, "x")))


def test_what_all_have_asked_for_all_have_though_one_ends(three: Three) -> None:
    """They would make an Exchange of samples, and wait for its end on the one that had none."""
    three.ask(0, 1, 2)
    three.nodes[1].end("it was told to")
    three.hand_on()
    assert three.all_found() == {rank: [0, 1, 2] for rank in range(3)}
    for one in three.nodes:
        with pytest.raises(ReadError, match="it was told to"):
            one.all("more")  # and that is all


def test_what_one_has_not_asked_for_before_it_ends_nobody_has(three: Three) -> None:
    three.ask(0, 2)
    three.nodes[1].end("it was told to")
    three.hand_on()
    assert three.all_found() == {rank: "it was told to" for rank in (0, 2)}
    assert [wire.told for wire in three.wires] == [[], [], []]


def test_a_node_that_ends_between_asking_for_a_run_and_its_begin_keeps_nobody_waiting(
    scan: Path, tmp_path: Path
) -> None:
    """As a Slurm job that is cancelled while its trainings begin: the other had a Run, and waited for its end."""
    before = (
        "import os, signal\n"
        "from solar.service.cluster import Cluster\n"
        "asked = Cluster.all\n"
        "def ends(self, value, arrays=(), **how):\n"
        "    found = asked(self, value, arrays, **how)\n"
        "    if value is None and not arrays and rank == '1':\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        with self.changed:\n"
        "            assert self.changed.wait_for(lambda: self._over, 60)\n"
        "    return found\n"
        "Cluster.all = ends\n"
    )
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with Services(scan, where=tmp_path / "s", before=before) as services:
        job(data, 0, 8, services.socket(0), found)
        assert services.process.wait(60) == 0, services.said()
    assert found[0][0] == alone(data, 0, 8)
    assert "not closed" not in services.said() and "do not answer" not in services.said()
