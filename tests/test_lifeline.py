"""Ranks that are connected, so that each learns of the end of any other."""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from solar.io.channels import lifeline
from solar.io.channels.lifeline import Lifeline, own_addresses

SOON = 20.0


def until(test: Callable[[], object]) -> None:
    end = time.monotonic() + SOON
    while not test():
        assert time.monotonic() < end
        time.sleep(0.01)


def tree(ranks: int, branches: int, monkeypatch: pytest.MonkeyPatch) -> list[Lifeline]:
    """Ranks of this process, connected as at a meeting to which they came in their order."""
    monkeypatch.setattr(lifeline, "BRANCHES", branches)
    lines = [Lifeline(rank, ranks, "here") for rank in range(ranks)]
    for rank, line in enumerate(lines[1:], 1):
        above = lines[0].above(rank, line.address())
        assert above is not None and above["rank"] == (rank - 1) // branches
        assert lines[0].above(rank, line.address()) is None  # once is enough
        line.join(above)
        until(lambda line=line: line._links)  # type: ignore[misc]
    until(lambda: sum(link.rank >= 0 for line in lines for link in line._links.values()) == 2 * (ranks - 1))
    return lines


def test_what_one_notes_all_learn_by_a_tree_in_which_nobody_has_many_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tree(13, 3, monkeypatch)
    assert [len(line._links) for line in lines] == [3, 4, 4, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    lines[12].note([7])
    until(lambda: all(line.gone() == [7] for line in lines if line.rank != 7))
    assert lines[7].gone() == []  # it lives
    lines[1].note([9, 5, 7, 99, -1])  # what is no rank is not passed on, nor what is known
    until(lambda: all(line.gone() == [7, 9, 5] for line in lines if line.rank not in (5, 7, 9)))


def test_of_ranks_that_end_together_a_rank_tells_in_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each end were told by itself, a job of N ranks would send N² messages when it ends."""
    monkeypatch.setattr(lifeline, "GATHERING", 1.0)
    sent: list[int] = []
    sendall = socket.socket.sendall

    def counted(self: socket.socket, letter: bytes) -> None:
        if threading.current_thread().name == "solar-lifeline":
            sent.append(len(letter))
        sendall(self, letter)

    line, ranks = Lifeline(0, 40, "here"), 30
    ends = [socket.create_connection(("127.0.0.1", line.address()["port"]), SOON) for _ in range(ranks)]
    for rank, one in enumerate(ends, 1):
        one.sendall(lifeline.GREETING.pack(lifeline.proof(b"below", line._token), rank))
        assert len(one.recv(lifeline.GREETING.size)) == lifeline.GREETING.size
    until(lambda: sum(link.rank >= 0 for link in line._links.values()) == ranks)
    monkeypatch.setattr(socket.socket, "sendall", counted)
    for one in ends[1:]:
        one.close()
    heard = b""
    while len(heard) < 4 * (ranks - 1):
        heard += ends[0].recv(4096)
    assert sorted(rank for (rank,) in lifeline.NEWS.iter_unpack(heard)) == [*range(2, ranks + 1)]
    to_those_that_live = 4 * (ranks - 1)
    assert sum(sent) >= to_those_that_live
    assert len(sent) <= 2 * ranks, sent  # each closed one may be told of the first; 435 and more one by one
    ends[0].close()


CHILD = """
import json, os, sys, time
from solar.io.channels.lifeline import Lifeline
line = Lifeline(int(sys.argv[1]), 3, "here")
print(json.dumps(line.address()), flush=True)
line.join(json.loads(sys.stdin.readline()))
if sys.argv[2] == "forks" and os.fork() == 0:
    time.sleep(600)  # its copy of the connection must not hide that its parent has ended
print("forked", flush=True)
while not line.gone():
    time.sleep(0.01)
print(line.gone(), flush=True)
"""


def test_the_end_of_a_process_is_known_at_once_even_if_one_forked_from_it_lives() -> None:
    import json

    line = Lifeline(0, 3, "here")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(rank), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )
        for rank, how in ((1, "forks"), (2, "waits"))
    ]  # fmt: skip
    try:
        for rank, child in enumerate(children, 1):
            assert child.stdout is not None and child.stdin is not None
            above = line.above(rank, json.loads(child.stdout.readline()))
            child.stdin.write(json.dumps(above) + "\n")
            child.stdin.flush()
            assert child.stdout.readline() == "forked\n"
        until(lambda: sorted(link.rank for link in line._links.values()) == [1, 2])
        os.kill(children[0].pid, signal.SIGKILL)
        until(lambda: line.gone() == [1])
        assert children[1].stdout is not None and children[1].stdout.readline() == "[1]\n"
        until(lambda: line.gone() == [1, 2])  # which has ended by itself
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def test_strangers_learn_nothing_and_are_few(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(lifeline, "STRANGERS", 4)
    line = Lifeline(0, 4, "here")
    port = line.address()["port"]
    strangers = [socket.create_connection(("127.0.0.1", port), SOON) for _ in range(4)]
    until(lambda: len(line._links) == 4)
    with socket.create_connection(("127.0.0.1", port), SOON) as one:
        assert one.recv(1) == b""  # one too many
    strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: somebody who is curious\r\n\r\n")
    assert strangers[0].recv(1) == b""
    for wrong in (0, 4, 99):  # itself; no rank
        with socket.create_connection(("127.0.0.1", port), SOON) as one:
            one.sendall(lifeline.GREETING.pack(lifeline.proof(b"below", line._token), wrong))
            assert one.recv(1) == b""
    assert line.gone() == []
    for one in strangers:
        one.close()
    other = Lifeline(1, 4, "there")
    other.join({**line.address(), "at": ["127.0.0.1"], "rank": 0, "token": "00" * 32})
    until(lambda: any("rank 1 of 4 has no connection to rank 0" in text for text in caplog.messages))
    assert caplog.records[-1].levelno == logging.WARNING
    with socket.create_connection(("127.0.0.1", port), SOON) as one:
        one.sendall(lifeline.GREETING.pack(lifeline.proof(b"below", line._token), 2))
        assert len(one.recv(lifeline.GREETING.size)) == lifeline.GREETING.size
        one.sendall(struct.pack("<III", 3, 77, 0))  # a rank, no rank, and that one itself
        until(lambda: line.gone() == [3])
    until(lambda: line.gone() == [3, 2])


def test_an_address_is_one_that_others_reach() -> None:
    for address in own_addresses():
        socket.getaddrinfo(address, 1, flags=socket.AI_NUMERICHOST)
        assert not address.startswith(("127.", "::1"))
