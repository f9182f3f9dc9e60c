"""How the processes of a node find each other: who is let in, who is not, and what ends the waiting."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import open_files
from test_node import names_of

from solar.errors import PlanError, ReadError
from solar.io.channels.node_memory import join

Told = list[Any]  # by a thread: what it got, or its error


def begun(*args: Any, **named: Any) -> tuple[threading.Thread, Told]:
    """A rank of this node, as a thread: what is shared belongs to open files, not to the process."""
    told: Told = []

    def come() -> None:
        try:
            told.append(join(*args, **named))
        except (PlanError, ReadError) as error:
            told.append(error)

    thread = threading.Thread(target=come)
    thread.start()
    return thread, told


def doors() -> set[str]:
    """The names of the doors that this process has open, among those that anybody may see."""
    own = {one.rpartition(":")[2].strip("[]") for one in open_files() if "socket:" in one}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return {name for *_, number, name in lines if name.startswith("@solar-") and number in own}


def nodes() -> int:
    """How many ranks have memory in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:solar-node")


def until(there: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (found := there()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_stranger_at_the_door_gets_nothing_and_keeps_nobody_out() -> None:
    door, names, before = secrets.token_hex(16), names_of(2), doors()
    leader, led = begun(door, 0, names, 64)
    (address,) = until(lambda: doors() - before)
    hello = struct.pack("<32sQQ32s", b"not the proof".ljust(32), 1, 64, bytes(32))
    for said in (b"", b"hello", hello, hello + b"and more"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger, contextlib.suppress(ConnectionError):
            stranger.connect("\0" + address[1:])
            if said:
                stranger.send(said)
                stranger.settimeout(30)
                assert socket.recv_fds(stranger, 4096, 1)[:2] == (b"", [])
    node = join(door, 1, names, 64)
    leader.join()
    assert [one.joined(0.0) for one in (*led, node)] == [True, True]


def test_one_of_two_ranks_with_the_same_place_is_refused() -> None:
    door, names = secrets.token_hex(16), names_of(3)
    ranks = [begun(door, place, names, 64, seconds) for place, seconds in ((1, 60), (1, 60), (0, 2))]
    for thread, _ in ranks:
        thread.join()
    *same, leader = [str(told[0]) for _, told in ranks]
    late = "rank 5 of 6 did not come within 2 s"
    assert late in leader
    assert sorted(late in text for text in same) == [False, True]
    assert sum("there is a rank 4 of 6 already: each process needs a rank of its own" in text for text in same) == 1


@pytest.mark.parametrize(("other", "text"), [
    ({"nbytes": 128}, "rank 3 of 4 shares 128 bytes of memory and rank 2 of 4 64: give all the same buffer"),
    ({"names": ["rank 0 of 2", "rank 1 of 2"]}, "place 1 of the node is in another list of ranks than that of rank 2"),
])  # fmt: skip
def test_who_has_other_memory_or_other_mates_is_told_so_and_so_is_the_leader(other: Any, text: str) -> None:
    same = {"door": secrets.token_hex(16), "names": names_of(2), "nbytes": 64}
    leader, led = begun(place=0, **same)
    with pytest.raises(PlanError, match=text):
        join(place=1, **{**same, **other})
    leader.join()
    assert isinstance(led[0], PlanError)
    assert text in str(led[0])


def test_ctrl_c_ends_the_waiting_of_the_leader_and_of_those_who_have_come() -> None:
    door, names = secrets.token_hex(16), names_of(3)
    gc.collect()
    before = nodes()
    comer, came = begun(door, 1, names, 64)

    def interrupt() -> None:
        until(lambda: nodes() == before + 2)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        join(door, 0, names, 64)
    watcher.join()
    comer.join()
    assert str(came[0]) == "rank 3 of 6: KeyboardInterrupt"


def test_ctrl_c_ends_the_waiting_for_a_leader() -> None:
    watcher = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        join(secrets.token_hex(16), 1, names_of(2), 64)
    watcher.join()


@pytest.mark.parametrize("place", [0, 1])
def test_whoever_waits_looks_whether_the_others_live(place: int) -> None:
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise ReadError("rank 3 of 4 is gone")

    with pytest.raises(ReadError, match=r"rank 3 of 4 is gone"):
        join(secrets.token_hex(16), place, names_of(2), 64, check=check)
