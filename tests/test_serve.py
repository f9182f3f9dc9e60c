"""Several loaders through one service: each has the batches it would have alone, whatever happens to the service."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from solar import DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.errors import PlanError
from solar.io.serve import doors, frames, handed
from solar.planner.pass_uses import SampleUses, in_lockstep, once_a_step, shared_steps
from solar.serve.service import Service

SAMPLES = 1200
FIELDS = {"x": "x", "y": "y"}


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "scan.h5"
    draw = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file["x"] = draw.integers(0, 1000, (SAMPLES, 16, 16)).astype("f4")
        file["y"] = np.arange(SAMPLES)
        file.create_dataset("z", data=draw.integers(0, 9, (SAMPLES, 64)).astype(">i2"), chunks=(16, 64), compression=1)
    return path


@contextmanager
def serving(path: Path, where: Path, memory: int = 2 << 20, **more: Any) -> Iterator[Service]:
    where.chmod(0o700)
    service = Service([str(path)], memory, where / "s.sock", **more)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(20)
        assert not thread.is_alive()


def soon(there: Callable[[], bool]) -> bool:
    """Whether it comes true. A service tells nobody when it has noticed that somebody went: it is asked."""
    end = time.monotonic() + 60
    while not there() and time.monotonic() < end:
        time.sleep(0.01)  # between two questions
    return there()


def epochs_of(loader: DataLoader[Any], epochs: int = 2, pause: float = 0) -> str:
    """A number for all batches."""
    sha = hashlib.sha256()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            for values in batch.values() if isinstance(batch, dict) else [batch]:
                sha.update(values.numpy().tobytes())
            time.sleep(pause)  # what a training does with a batch: the service is to be met amid an epoch
    return sha.hexdigest()


def job(data: Any, seed: int, batch: int, service: Any, found: dict[int, Any], pause: float = 0) -> None:
    with DataLoader(data, batch, sampler=PlanSampler(data, seed=seed), service=service, buffer=0) as loader:
        digest = epochs_of(loader, pause=pause)
        run = loader._buffered.running
        found[seed] = digest, None if run is None else run.counts()


def alone(data: Any, seed: int, batch: int) -> str:
    with DataLoader(data, batch, sampler=PlanSampler(data, seed=seed), buffer=0) as loader:
        return epochs_of(loader)


def together(data: list[Any], service: str, pause: float = 0) -> dict[int, Any]:
    found: dict[int, Any] = {}
    jobs = [
        threading.Thread(target=job, args=(one, seed, 8 + 3 * seed, service, found, pause))
        for seed, one in enumerate(data)
    ]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join(60)
        assert not one.is_alive()
    return found


def check(data: list[Any], found: dict[int, Any]) -> None:
    for seed, one in enumerate(data):
        assert found[seed][0] == alone(one, seed, 8 + 3 * seed)


KINDS = {
    "plain": lambda path: H5Dataset(path, FIELDS),
    "gzip, other byte order": lambda path: H5Dataset(path, "z"),
    "both": lambda path: H5Dataset(path, {"x": "x", "z": "z"}),
    "windows": lambda path: H5Dataset(path, Field("x", steps=range(4)), samples=Windows()),
    "subset": lambda path: Subset(H5Dataset(path, FIELDS), list(range(5, SAMPLES, 3))),
    "two": lambda path: ConcatDataset([H5Dataset(path, FIELDS), H5Dataset(path, FIELDS)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_have_the_batches_that_they_would_have_alone(kind: str, scan: Path, tmp_path: Path) -> None:
    data = [KINDS[kind](scan) for _ in range(3)]
    with serving(scan, tmp_path, memory=4 << 20) as service:
        found = together(data, str(service.path))
        assert service.status()["jobs"] == []
    check(data, found)
    assert all(counts["alone"] == 0 and counts["served"] > 0 for _, counts in found.values())


def test_several_jobs_of_one_order_read_no_more_than_one(scan: Path, tmp_path: Path) -> None:
    data, read = H5Dataset(scan, "x"), []
    for jobs in (1, 4):
        where = tmp_path / str(jobs)
        where.mkdir()
        # Memory for half of the samples, and orders that are the same.
        with serving(scan, where, memory=SAMPLES * 512) as service:
            begun, found = threading.Barrier(jobs), []

            def one(service: Service = service, begun: Any = begun, found: list[Any] = found) -> None:
                order = PlanSampler(data, seed=1)
                with DataLoader(data, 12, sampler=order, service=str(service.path)) as loader:
                    begun.wait(20)
                    found.append(epochs_of(loader))

            threads = [threading.Thread(target=one) for _ in range(jobs)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(found) == jobs and len(set(found)) == 1
            read.append(service.status()["read_bytes"])
    assert read[1] < 3 * read[0]  # they do not begin in the same instant, and each that comes changes the plan


def test_a_job_leaves_amid_an_epoch_and_another_comes(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with serving(scan, tmp_path) as service:
        found: dict[int, Any] = {}
        stays = threading.Thread(target=job, args=(data, 0, 8, str(service.path), found, 0.002))
        stays.start()
        for seed in (5, 6, 7):
            with DataLoader(data, 16, sampler=PlanSampler(data, seed=seed), service=str(service.path)) as loader:
                for number, _ in enumerate(loader):
                    if number == 9:
                        break
        stays.join(60)
    assert found[0][0] == alone(data, 0, 8)
    assert found[0][1]["alone"] == 0


def test_it_resumes_amid_an_epoch(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)

    def loader(service: Any) -> DataLoader[Any]:
        return DataLoader(data, 16, sampler=PlanSampler(data, seed=4), service=service, buffer=0)

    with serving(scan, tmp_path) as service, loader(str(service.path)) as first:
        for number, _ in enumerate(first):
            if number == 20:
                break
        state = first.state_dict()
        assert "service" not in json.dumps(state)
        rest = []
        for of in (str(service.path), None):
            with loader(of) as second:
                second.load_state_dict(state)
                rest.append([batch["x"].clone() for batch in second])
    assert len(rest[0]) == len(rest[1]) == SAMPLES // 16 - 21
    assert all(torch.equal(one, other) for one, other in zip(*rest, strict=True))


def test_a_report_says_who_read(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with serving(scan, tmp_path) as service, DataLoader(data, 16, service=str(service.path), epochs=1) as loader:
        batches = [batch["y"].clone() for batch in loader]
        assert f"A service read {len(batches)} batches for this training." in loader.report()


def test_plain_shuffle_draws_as_torch_does(scan: Path, tmp_path: Path) -> None:
    data, seen = H5Dataset(scan, FIELDS), []
    with serving(scan, tmp_path) as service:
        for of in (str(service.path), None):
            torch.manual_seed(7)
            with DataLoader(data, 32, shuffle=True, service=of, buffer=0) as loader:
                seen.append([int(one) for _ in range(2) for batch in loader for one in batch["y"]])
    assert seen[0] == seen[1]


def damaged(scan: Path, folder: Path) -> Path:
    """A copy in which samples 480 to 495 of z cannot be decoded."""
    path = folder / "damaged.h5"
    path.write_bytes(scan.read_bytes())
    with h5py.File(path) as file:
        chunk = file["z"].id.get_chunk_info(30)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + 4)
        raw.write(b"\xff" * 16)
    return path


def test_a_damaged_chunk_is_each_jobs_own_error(scan: Path, tmp_path: Path) -> None:
    path = damaged(scan, tmp_path)
    data = H5Dataset(path, "z")
    with serving(path, tmp_path) as service:
        for of in (str(service.path), None):
            with DataLoader(data, 8, service=of, buffer=0) as loader:
                batches = iter(loader)
                for _ in range(60):
                    next(batches)
                with pytest.raises(Exception, match=r"damaged\.h5.*sample 480"):
                    next(batches)


def test_what_cannot_be_read_is_skipped_as_it_is_alone(scan: Path, tmp_path: Path) -> None:
    path = damaged(scan, tmp_path)
    data, seen = H5Dataset(path, "z"), []
    with serving(path, tmp_path) as service:
        for of in (str(service.path), None):
            order = PlanSampler(data, seed=2)
            with DataLoader(data, 8, sampler=order, service=of, buffer=0, on_error="skip", epochs=1) as loader:
                seen.append([batch.clone() for batch in loader])
                assert loader.stats()["skipped"] == 16
    assert len(seen[0]) == len(seen[1])
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


# --- what goes wrong ----


class Process:
    """A service in a process of its own."""

    def __init__(self, path: Path, where: Path, *more: str) -> None:
        where.chmod(0o700)
        self.socket = where / "p.sock"
        command = [sys.executable, "-m", "solar", "serve", str(path), "--memory", "2MiB", "--socket", str(self.socket)]
        self.process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "serving 1 file with" in self.process.stdout.readline()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


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
    monkeypatch.setattr("solar.torch.buffer.served_run.COME_WITHIN", 0.3)
    monkeypatch.setattr("solar.torch.buffer.door.ANSWER_WITHIN", 0.5)
    data = [H5Dataset(scan, FIELDS) for _ in range(2)]
    with Process(scan, tmp_path) as service:
        timer = threading.Timer(0.1, service.process.send_signal, [signal.SIGSTOP])
        timer.start()
        found = together(data, str(service.socket), pause=0.002)
        timer.join()
    check(data, found)


def test_a_job_that_is_stopped_is_left_behind_and_comes_back(scan: Path, tmp_path: Path) -> None:
    program = f"""
import sys, time, hashlib
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_serve import job
from solar import H5Dataset
found = {{}}
job(H5Dataset({str(scan)!r}, {FIELDS!r}), 1, 11, sys.argv[1], found, .002)
print(found[1][0])
"""
    data = H5Dataset(scan, FIELDS)
    with serving(scan, tmp_path) as service:
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
    with serving(scan, tmp_path) as service:
        done = subprocess.run([sys.executable, "-c", program, str(service.path)], check=False)
        assert done.returncode == -9
        assert soon(lambda: service.status()["jobs"] == [] and service.status()["connections"] == 0)


def test_cycles_leave_nothing_behind(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, "y")
    with serving(scan, tmp_path) as service:

        def cycle() -> None:
            with DataLoader(data, 8, service=str(service.path)) as loader:
                next(iter(loader))

        def left() -> tuple[int, int]:
            assert soon(lambda: service.status()["connections"] == 0)
            return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

        for _ in range(3):
            cycle()
        before = left()
        for _ in range(40):
            cycle()

        def gone() -> bool:
            now = left()
            # What was announced to the last ones stays until the next step: three descriptors for each.
            return now[0] <= before[0] + 12 and now[1] <= before[1]

        assert soon(gone)


# --- what is refused ----


def asked(service: Service, *messages: dict[str, Any], descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
    with doors.connect(service.path, 5) as peer:
        for message in messages:
            frames.send(peer, message, descriptors if message is messages[-1] else ())
            came = frames.receive(peer, frames.OF_SERVICE)
            assert came is not None
    return came[0]


HELLO = {"is": "hello", "speaks": [1, 0], "solar": "0", "pid": 1, "name": "test"}


def test_another_version_is_refused_in_words(scan: Path, tmp_path: Path) -> None:
    with serving(scan, tmp_path) as service:
        answer = asked(service, {**HELLO, "speaks": [2, 0]})
    assert answer["is"] == "refused" and "speaks version 1, and the job (solar 0) version 2" in answer["why"]


def test_a_file_that_is_not_served_is_refused(scan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    other.write_bytes(scan.read_bytes())
    data = H5Dataset(other, "x")
    with serving(scan, tmp_path) as service:
        piece = {"files": [str(other)], "name": "/x", "per_file": False, "digest": "", "dataset": 0, "field": 0}
        made = handed.hand([{**piece, "arrays": -1}], [])
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
    with serving(scan, tmp_path, memory=1 << 20) as service:
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
    service = Service([str(scan)], 2 << 20, doors.socket_of([str(scan)]))
    thread = threading.Thread(target=service.run)
    thread.start()
    job(data, 0, 8, None, found)
    service.stop()
    thread.join(20)
    assert found[0][1]["served"] >= 300


def test_only_one_service_listens_at_a_socket(scan: Path, tmp_path: Path) -> None:
    with serving(scan, tmp_path) as service, pytest.raises(PlanError, match="a service is there"):
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
    with serving(scan, tmp_path) as service, doors.connect(service.path, 5) as stays:
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
    made = handed.hand(None, [starts, rows] if wrong == "other types" else [rows, starts])
    if wrong == "no memory":
        os.close(made)
        made = os.open("/dev/null", os.O_RDONLY)
    if wrong in ("not sealed", "short"):
        body = os.pread(made, 1 << 20, 0)
        os.close(made)
        made = os.memfd_create("open", os.MFD_ALLOW_SEALING)
        os.write(made, body if wrong == "not sealed" else body[: len(body) // 2])
        if wrong == "short":
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, handed.SEALS)
    layout = H5Dataset(scan, "y").layouts
    piece = {"files": [os.path.realpath(scan)], "name": layout.name, "per_file": False, "digest": layout.digest}
    told = handed.hand([{**piece, "dataset": 0, "field": 0, "arrays": -1}], [])
    with serving(scan, tmp_path) as service, doors.connect(service.path, 5) as peer:
        for message, own in ((HELLO, ()), ({"is": "data"}, (told,)), ({"is": "join", "data": 0, "batch": 4}, (made,))):
            frames.send(peer, message, own)
            came = frames.receive(peer, frames.OF_SERVICE)
        assert came is not None and came[0]["is"] == "fault", came
        assert frames.receive(peer, frames.OF_SERVICE) is None
        assert service.status()["jobs"] == []
    os.close(made)
    os.close(told)


# --- the command ----


def test_the_command_serves_says_and_ends(scan: Path, tmp_path: Path) -> None:
    with Process(scan, tmp_path) as service:
        found: dict[int, Any] = {}
        job(H5Dataset(scan, FIELDS), 0, 8, str(service.socket), found)
        solar = [sys.executable, "-m", "solar", "serve", "--socket", str(service.socket)]
        told = json.loads(subprocess.run([*solar, "--status", "--json"], capture_output=True, check=True).stdout)
        assert told[0]["read_bytes"] > 0 and told[0]["handed_bytes"] >= 2 * SAMPLES * (1024 + 8)
        said = subprocess.run([*solar, "--status"], capture_output=True, check=True, text=True).stdout
        assert "1 file, 2 MiB" in said and "handed on" in said
        subprocess.run([*solar, "--stop"], check=True, capture_output=True)
        assert service.process.wait(20) == 0
        gone = subprocess.run([*solar, "--status"], capture_output=True, check=False, text=True)
        assert gone.returncode == 1 and "no service answers there" in gone.stderr
    assert not service.socket.exists()


def test_it_ends_when_nobody_has_been_there(scan: Path, tmp_path: Path) -> None:
    with Process(scan, tmp_path, "--idle", "0.2") as service:
        assert service.process.wait(20) == 0


# --- what several use in a step ----


@pytest.mark.parametrize("several", [False, True])
def test_places_of_shared_steps_are_those_of_their_samples(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.planner.pass_uses.AT_ONCE", 50)
    draw, jobs = np.random.default_rng(0), []
    for number in range(4):
        count = int(draw.integers(5, 80))
        cuts = np.sort(draw.integers(0, count, 5 + number))
        starts = np.concatenate(([0], cuts, [count])).astype(np.int64)
        rows = draw.integers(0, 20, count).astype(np.int32)
        jobs.append(SampleUses(draw.integers(0, 3, count) if several else None, rows, starts))
    uses, places = shared_steps(jobs)
    assert once_a_step(in_lockstep(jobs)).same(uses)
    for one, own in zip(jobs, places, strict=True):
        step = np.repeat(np.arange(len(one.starts) - 1), one.sizes)
        at = uses.starts[step] + own
        assert np.all(at < uses.starts[step + 1]) and np.array_equal(uses.rows[at], one.rows)
        assert uses.which is None or one.which is None or np.array_equal(uses.which[at], one.which)
