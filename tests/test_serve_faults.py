"""What goes wrong with a service, and what it refuses: jobs have their batches all the same."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_kit import FIELDS, HELLO, SAMPLES, Process, alone, check, job, piece_of, scan, serving, soon, together

from solar import DataLoader, H5Dataset, PlanSampler
from solar.cli import main
from solar.errors import PlanError
from solar.io.channels import frames, service_sockets
from solar.service.service import Service

_ = scan  # a fixture


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("after", [0.02, 0.1, 0.3])
def test_the_service_is_killed_and_jobs_go_on(after: float, scan: Path, tmp_path: Path) -> None:
    data = [H5Dataset(scan, FIELDS) for _ in range(2)]
    with Process(scan, tmp_path) as service:
        timer = threading.Timer(after, service.process.kill)
        timer.start()
        found = together(data, str(service.socket), pause=0.002)
        timer.join()
    check(data, found)


def test_the_service_is_stopped_and_jobs_go_on(scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.service.served_run.COME_WITHIN", 0.3)
    monkeypatch.setattr("solar.service.connection.ANSWER_WITHIN", 0.5)
    data = [H5Dataset(scan, FIELDS) for _ in range(2)]
    with Process(scan, tmp_path) as service:
        timer = threading.Timer(0.1, service.process.send_signal, [signal.SIGSTOP])
        timer.start()
        found = together(data, str(service.socket), pause=0.002)
        timer.join()
    check(data, found)


@pytest.mark.slow
def test_a_job_that_is_stopped_is_left_behind_and_comes_back(scan: Path, tmp_path: Path) -> None:
    program = f"""
import sys, time, hashlib
sys.path.insert(0, {str(Path(__file__).parent)!r})
from serve_kit import job
from solar import H5Dataset
found = {{}}
job(H5Dataset({str(scan)!r}, {FIELDS!r}), 1, 11, sys.argv[1], found, .002)
print(found[1][0])
"""
    data = H5Dataset(scan, FIELDS)
    with serving(scan, where=tmp_path) as service:
        child = subprocess.Popen([sys.executable, "-c", program, str(service.path)], stdout=subprocess.PIPE, text=True)
        try:
            assert soon(lambda: any(one["batches"] > 3 for one in service.status()["jobs"]))
            child.send_signal(signal.SIGSTOP)
            found: dict[int, Any] = {}
            job(data, 0, 8, str(service.path), found)
            assert any("held back others" in one["why"] for one in service.status()["jobs"])
            child.send_signal(signal.SIGCONT)
            said, _ = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
    assert found[0][0] == alone(data, 0, 8)
    assert said.split()[-1] == alone(data, 1, 11)


def test_a_job_that_dies_is_forgotten(scan: Path, tmp_path: Path) -> None:
    program = f"""
import os, sys
from solar import DataLoader, H5Dataset
loader = DataLoader(H5Dataset({str(scan)!r}, "x"), 8, service=sys.argv[1], buffer=0)
next(iter(loader))
os.kill(os.getpid(), 9)
"""
    with serving(scan, where=tmp_path) as service:
        done = subprocess.run([sys.executable, "-c", program, str(service.path)], check=False)
        assert done.returncode == -9
        assert soon(lambda: service.status()["jobs"] == [] and service.status()["connections"] == 0)


# --- what is refused ----


def asked(service: Service, *messages: dict[str, Any], descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
    with service_sockets.connect(service.path, 5) as peer:
        for message in messages:
            frames.send(peer, message, descriptors if message is messages[-1] else ())
            came = frames.receive(peer, frames.OF_SERVICE)
            assert came is not None
    return came[0]


def test_another_version_is_refused_in_words(scan: Path, tmp_path: Path) -> None:
    with serving(scan, where=tmp_path) as service:
        answer = asked(service, {**HELLO, "speaks": [1, 0]})
    assert answer["is"] == "refused" and "speaks version 3, and the job (solar 0) version 1" in answer["why"]


def test_a_service_with_as_many_jobs_as_it_takes_says_who_is_there_and_ends(scan: Path, tmp_path: Path) -> None:
    """One more job is refused; who only asks is none."""
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with (
        serving(scan, where=tmp_path, jobs=1) as service,
        DataLoader(data, 8, sampler=PlanSampler(data, seed=1), service=str(service.path), buffer=0) as first,
    ):
        batches = iter(first)
        next(batches)
        assert soon(lambda: len(service.status()["jobs"]) == 1)
        job(data, 0, 8, str(service.path), found)
        assert found[0] == (alone(data, 0, 8), None)
        assert asked(service, HELLO, {"is": "status"})["told"]["jobs"][0]["batches"] > 0
        assert asked(service, HELLO, {"is": "stop"})["is"] == "stopping"
        assert soon(lambda: not service.path.exists())


def test_a_status_has_as_many_jobs_as_a_frame_has_room_for(
    scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(scan, where=tmp_path) as service:
        found = service.status()
        job = {"name": "a training (process 123456)", "batches": 7, "told": 9, "seconds": 1 / 3, "rate": 1 / 3}
        jobs = [{**job, "held": 1 / 3, "waits": False, "why": ""} for _ in range(3000)]
        service.status = lambda: {**found, "jobs": [*jobs]}  # type: ignore[method-assign]
        told = asked(service, HELLO, {"is": "status"})["told"]
        assert len(told["jobs"]) > 200 and len(told["jobs"]) + told["more_jobs"] == len(jobs)
        assert main(["serve", "--status", "--socket", str(service.path)]) == 0
    assert f"and {told['more_jobs']:,} jobs more" in capsys.readouterr().out


def test_a_file_that_is_not_served_is_refused(scan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    other.write_bytes(scan.read_bytes())
    data = H5Dataset(other, "x")
    with serving(scan, where=tmp_path) as service:
        piece = {
            "files": [str(other)],
            "name": "/x",
            "per_file": False,
            "held": ["rows"],
            "digest": "",
            "dataset": 0,
            "field": 0,
        }
        made = frames.hand([{**piece, "arrays": -1}], [])
        try:
            answer = asked(service, HELLO, {"is": "data"}, descriptors=(made,))
        finally:
            os.close(made)
        assert answer["is"] == "refused" and "does not serve that file" in answer["why"]
        found: dict[int, Any] = {}
        job(data, 0, 8, str(service.path), found)
    assert found[0][0] == alone(data, 0, 8)


def test_batches_that_have_no_room_are_refused_and_read_alone(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with serving(scan, where=tmp_path, memory=1 << 20) as service:
        found: dict[int, Any] = {}
        job(data, 0, 256, str(service.path), found)
    assert found[0][0] == alone(data, 0, 256) and found[0][1]["served"] == 0 < found[0][1]["alone"]


def test_without_a_service_a_loader_reads_alone_or_says_that_none_is_named(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with pytest.raises(PlanError, match="no service answers there"):
        next(iter(DataLoader(data, 8, service=str(tmp_path / "none.sock"))))


def test_auto_finds_the_service_of_its_files(scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("SOLAR_SERVICE", "auto")
    data, found = H5Dataset(scan, FIELDS), dict[int, Any]()
    job(data, 0, 8, None, found)
    assert found[0] == (alone(data, 0, 8), None)  # there is none
    service = Service([str(scan)], 2 << 20, service_sockets.socket_of([str(scan)]))
    thread = threading.Thread(target=service.run)
    thread.start()
    job(data, 0, 8, None, found)
    service.stop()
    thread.join(60)
    assert found[0][1]["served"] > 200  # of 300: a busy machine reads some alone while it joins


def test_only_one_service_listens_at_a_socket(scan: Path, tmp_path: Path) -> None:
    with serving(scan, where=tmp_path) as service, pytest.raises(PlanError, match="a service is there"):
        Service([str(scan)], 2 << 20, service.path)


def test_a_folder_that_others_may_enter_is_refused(scan: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PlanError, match="others may enter this folder"):
        Service([str(scan)], 2 << 20, tmp_path / "s.sock")


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


GARBAGE = {
    "nothing": b"",
    "half a length": b"\x01",
    "a long frame": struct.pack("<I", 1 << 31),
    "an empty frame": struct.pack("<I", 0),
    "no JSON": framed(b"{{{{"),
    "no object": framed(b"[1, 2]"),
    "deep": framed(b'{"is":' + b"[" * 9000 + b"]" * 9000 + b"}"),
    "twice": framed(b'{"is": "hello", "is": "hello"}'),
    "no number": framed(b'{"is": "hello", "pid": NaN}'),
    "large number": framed(json.dumps({**HELLO, "pid": 1 << 70}).encode()),
    "another type": framed(json.dumps({**HELLO, "pid": "1"}).encode()),
    "another key": framed(json.dumps({**HELLO, "more": 1}).encode()),
    "no message": framed(b'{"is": "pickle"}'),
    "status before hello": framed(b'{"is": "status"}'),
    "no such job": framed(json.dumps(HELLO).encode()) + framed(b'{"is": "leave", "job": 3}'),
    "no such data": framed(json.dumps(HELLO).encode()) + framed(b'{"is": "join", "data": 7, "batch": 1}'),
}


def test_garbage_ends_that_connection_and_no_other(scan: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    random = [draw.integers(0, 256, draw.integers(1, 300), np.uint8).tobytes() for _ in range(100)]
    random += [framed(bytes(one)) for one in random[:50]]
    with serving(scan, where=tmp_path) as service, service_sockets.connect(service.path, 5) as stays:
        frames.send(stays, HELLO)
        assert frames.receive(stays, frames.OF_SERVICE) is not None
        for body in [*GARBAGE.values(), *random]:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(10)
                peer.connect(str(service.path))
                with suppress(BrokenPipeError, ConnectionResetError):
                    peer.sendall(body)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(1 << 16):
                        pass
        frames.send(stays, {"is": "status"})
        came = frames.receive(stays, frames.OF_SERVICE)
        assert came is not None and came[0]["told"]["connections"] == 1


@pytest.mark.parametrize("wrong", ["no memory", "not sealed", "short", "other types", "descending", "too large"])
def test_an_order_that_is_none_ends_the_connection(wrong: str, scan: Path, tmp_path: Path) -> None:
    rows, starts = np.arange(8, dtype=np.int32), np.array([0, 4, 8])
    if wrong == "descending":
        starts = np.array([0, 8, 4])
    if wrong == "too large":
        rows = rows + SAMPLES
    made = frames.hand(None, [starts, rows] if wrong == "other types" else [rows, starts])
    if wrong == "no memory":
        os.close(made)
        made = os.open("/dev/null", os.O_RDONLY)
    if wrong in ("not sealed", "short"):
        body = os.pread(made, 1 << 20, 0)
        os.close(made)
        made = os.memfd_create("open", os.MFD_ALLOW_SEALING)
        os.write(made, body if wrong == "not sealed" else body[: len(body) // 2])
        if wrong == "short":
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, frames.SEALS)
    told = frames.hand([piece_of(scan)], [])
    with serving(scan, where=tmp_path) as service, service_sockets.connect(service.path, 5) as peer:
        for message, own in ((HELLO, ()), ({"is": "data"}, (told,)), ({"is": "join", "data": 0, "batch": 4}, (made,))):
            frames.send(peer, message, own)
            came = frames.receive(peer, frames.OF_SERVICE)
        assert came is not None and came[0]["is"] == "fault", came
        assert frames.receive(peer, frames.OF_SERVICE) is None
        assert service.status()["jobs"] == []
    os.close(made)
    os.close(told)
