"""A service's waits for who has connected, for a lock and for other nodes: docs/promises/waits.md lists all of them."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from serve_kit import HELLO, scan, serving
from test_serve_together import nodes_of

from solar.errors import PlanError, ReadError
from solar.io.channels import frames, service_sockets
from solar.service import cluster

_ = scan  # a fixture


def test_half_a_frame_ends_its_connection_after_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_PATIENCE", 0.1)
    here, there = socket.socketpair()
    with here, there:
        here.sendall(struct.pack("<I", 100) + b'{"is"')
        with pytest.raises(frames.Fault, match="a frame that takes too long"):
            frames.receive(there, frames.OF_JOBS)
        assert there.gettimeout() is None, "what it waits for a message is as it was"


def test_a_frame_that_is_there_counts_for_one_who_stood_still_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.0])  # then, when its head has come, much time has passed
    monkeypatch.setattr(frames, "time", SimpleNamespace(monotonic=lambda: next(times, 100.0)))
    here, there = socket.socketpair()
    with here, there:
        frames.send(here, HELLO)
        assert frames.receive(there, frames.OF_JOBS) == (HELLO, [])
        here.sendall(struct.pack("<I", 100) + b'{"is"')
        with pytest.raises(frames.Fault, match="a frame that takes too long"):
            frames.receive(there, frames.OF_JOBS)


def test_who_says_nothing_and_is_no_member_is_closed(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.service.service.IDLE_CALLER", 0.1)
    with serving(scan, where=tmp_path) as service, service_sockets.connect(service.path, 20) as peer:
        frames.send(peer, HELLO)
        assert frames.receive(peer, frames.OF_SERVICE) is not None
        assert peer.recv(1) == b""


def test_a_lock_that_is_held_without_a_socket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_sockets, "ENDS_WITHIN", 0.1)
    tmp_path.chmod(0o700)
    held = os.open(tmp_path / "s.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(PlanError, match=r"a service that neither listens nor ends holds .*s\.lock"):
        service_sockets.listen(tmp_path / "s.sock")
    os.close(held)


def test_a_round_that_one_node_does_not_join_is_said_and_ends(
    scan: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "SAID_AFTER", 0.1)
    monkeypatch.setattr(cluster, "RANKS_PATIENCE", 0.3)
    nodes, said = nodes_of(scan, [[1], [2]]), list[str]()

    def waits() -> None:
        with pytest.raises(ReadError) as error:
            nodes[0][0].cluster.all("anything")
        said.append(str(error.value))

    with caplog.at_level(logging.INFO, "solar"):
        thread = threading.Thread(target=waits)
        thread.start()
        thread.join(60)
    assert said == ["rank 0 waited 0.3 s for what rank 1 says"]
    assert caplog.messages == ["rank 0 of 2 services waits for what rank 1 says"]
