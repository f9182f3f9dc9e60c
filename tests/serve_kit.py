"""What tests of a service share: a file, a service here or in a process of its own, and jobs that take part."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from ragged_kit import plainly

from solar import DataLoader, H5Dataset, PlanSampler
from solar.io.channels import frames
from solar.service.scheduler import Scheduler
from solar.service.service import Service
from solar.service.window import WindowShare

SAMPLES = 1200
FIELDS = {"x": "x", "y": "y"}
PATIENT = 1000.0  # slack where jobs are threads of one process: on a busy machine one may rest for long


HELLO = {"is": "hello", "speaks": [3, 0], "solar": "0", "pid": 1, "name": "test"}


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "scan.h5"
    draw = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file["x"] = draw.integers(0, 1000, (SAMPLES, 16, 16)).astype("f4")
        file["y"] = np.arange(SAMPLES)
        file.create_dataset("z", data=draw.integers(0, 9, (SAMPLES, 64)).astype(">i2"), chunks=(16, 64), compression=1)
    return path


def memory_of(body: bytes, nbytes: int) -> int:
    """Sealed memory that begins with these bytes, and of which the rest was never written."""
    made = os.memfd_create("told", os.MFD_ALLOW_SEALING)
    os.write(made, body)
    os.ftruncate(made, nbytes)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, frames.SEALS)
    return made


@contextmanager
def serving(*paths: Path | str, where: Path, memory: int = 2 << 20, **more: Any) -> Iterator[Service]:
    where.chmod(0o700)
    service = Service([*map(str, paths)], memory, where / "s.sock", **more)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(60)
        assert not thread.is_alive()


def piece_of(path: Path) -> dict[str, Any]:
    """A dataset as a job tells a service of it."""
    layout = H5Dataset(path, "y").layouts
    return {
        "files": [os.path.realpath(path)],
        "name": layout.name,
        "per_file": False,
        "held": ["rows"],
        "digest": layout.digest,
        "dataset": 0,
        "field": 0,
        "arrays": -1,
    }


def soon(there: Callable[[], bool]) -> bool:
    """Whether it comes true. A service tells nobody when it has noticed that somebody went: it is asked."""
    end = time.monotonic() + 60
    while not (came := there()) and time.monotonic() < end:
        time.sleep(0.01)  # between two questions
    return came


def in_step(monkeypatch: pytest.MonkeyPatch, jobs: int, batches: int) -> None:
    """What a service reads depends on no clock from here on: it plans when so many jobs have told so many batches.

    All of them seem equally fast, and nobody is left behind.
    """
    here = Scheduler._here

    def all_there(hall: Scheduler) -> list[WindowShare]:
        there = len(hall.members) == jobs and all(one.order.known == batches for one in hall.members)
        return here(hall) if there or hall.queue.run is not None else []

    monkeypatch.setattr(Scheduler, "_here", all_there)
    monkeypatch.setattr("solar.service.pace.clock", lambda: 0.0)


def side_by_side(loaders: list[DataLoader[Any]], epochs: int) -> list[str]:
    """A number for all batches of each, of which one is taken in turn."""
    found = [hashlib.sha256() for _ in loaders]
    for epoch in range(epochs):
        for one in loaders:
            one.set_epoch(epoch)
        for batches in zip(*loaders, strict=True):
            for sha, batch in zip(found, batches, strict=True):
                _add(sha, batch)
    return [one.hexdigest() for one in found]


def epochs_of(loader: DataLoader[Any], epochs: int = 2, pause: float = 0) -> str:
    """A number for all batches."""
    sha = hashlib.sha256()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            _add(sha, batch)
            time.sleep(pause)  # what a training does with a batch: the service is to be met amid an epoch
    return sha.hexdigest()


def _add(sha: Any, batch: Any) -> None:
    for values in _values(plainly(batch)):
        sha.update(values.numpy().tobytes() if isinstance(values, torch.Tensor) else repr(values).encode())


def _values(batch: Any) -> Iterator[Any]:
    if isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _values(part)
    else:
        yield batch


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


class Process:
    """A service in a process of its own."""

    def __init__(self, path: Path, where: Path, *more: str, mode: int = 0o700, before: str = "pass") -> None:
        where.chmod(mode)
        self.socket = where / "p.sock"
        program = f"{before}\nimport sys\nfrom solar.cli import main\nsys.exit(main())"
        terms = ["serve", str(path), "--memory", "2MiB", "--socket", str(self.socket)]
        command = [sys.executable, "-c", program, *terms]
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
