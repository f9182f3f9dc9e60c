"""Trainings that are killed or stopped at any moment and go on from their last state hand out what torch would.

SOLAR_JOBS=230 tries more of them, SOLAR_JOBS_FROM=1000 others.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader as TorchLoader  # noqa: E402
from torch.utils.data import RandomSampler, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from solar import DataLoader, H5Dataset, PlanSampler  # noqa: E402

JOBS = int(os.environ.get("SOLAR_JOBS", "8"))
FROM = int(os.environ.get("SOLAR_JOBS_FROM", "0"))
EPOCHS, SAMPLES, KILLS, PATIENCE = 3, 211, 6, 120.0
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "gzip": {"chunks": (8, 16), "compression": "gzip"},
    "one a chunk": {"chunks": (1, 16), "shuffle": True, "compression": "lzf"},
}


def written(folder: Path) -> None:
    values = np.arange(SAMPLES)[:, None] * np.ones(16, "i8")
    for name, options in LAYOUTS.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=values, **options)


def kept(batch: Any) -> Any:
    return batch


def loader_of(number: int, folder: Path, torchs: bool) -> Any:
    """A loader drawn at random by the job's number, or torch's of the same samples."""
    draw = random.Random(number)
    name, kind = draw.choice(list(LAYOUTS)), draw.choice(["shuffle", "replacement", "ranks", "plan"])
    options: dict[str, Any] = {"batch_size": draw.randint(3, 17), "drop_last": draw.random() < 0.3}
    own: dict[str, Any] = {"buffer": draw.choice([0, 0, "128KiB"]), "ahead": draw.choice([1, 4])}
    transform = None
    if draw.random() < 0.5:  # in this thread; else batches are made without Python
        transform = kept
    elif draw.random() < 0.5:
        own["num_workers"] = draw.randint(1, 2)
    options["generator"] = torch.Generator().manual_seed(number)
    data: Any = (
        TensorDataset(torch.arange(SAMPLES))
        if torchs
        else H5Dataset(str(folder / f"{name}.h5"), {"x": "x"}, transform=transform)
    )
    if kind == "shuffle":
        options["shuffle"] = True
    elif kind == "replacement":
        options["sampler"] = RandomSampler(data, replacement=True, generator=options["generator"])
    elif kind == "ranks":
        options["sampler"] = DistributedSampler(data, num_replicas=2, rank=1, seed=number)
    else:
        options["sampler"] = PlanSampler(data, seed=number)
    return TorchLoader(data, **options) if torchs else DataLoader(data, **options, **own)


def expected(number: int, folder: Path) -> list[list[int]]:
    loader, found = loader_of(number, folder, torchs=True), []
    for epoch in range(EPOCHS):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        found += [batch.tolist() for (batch,) in loader]
    return found


def train(number: int, folder: Path, checkpoint: Path) -> None:
    """Goes through all epochs, and writes down after each batch what it had and its state, as one file."""
    with loader_of(number, folder, torchs=False) as loader:
        first, had = 0, []
        if checkpoint.exists():
            first, had, state = pickle.loads(checkpoint.read_bytes())
            if state is None:  # it was killed after its last batch
                return
            loader.load_state_dict(state)
        for epoch in range(first, EPOCHS):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                had.append(batch["x"][:, 0].tolist())
                written_at_once(checkpoint, (epoch, had, loader.state_dict()))
        written_at_once(checkpoint, (EPOCHS, had, None))


def written_at_once(path: Path, value: object) -> None:
    path.with_suffix(".new").write_bytes(pickle.dumps(value))
    path.with_suffix(".new").replace(path)


def begun(number: int, folder: Path, checkpoint: Path) -> int:
    """Forks a training: this process has no loader, and so nothing that a fork would miss."""
    if child := os.fork():
        return child
    status = 1
    try:
        train(number, folder, checkpoint)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def status_of(child: int, seconds: float) -> int | None:
    """How it ended; None if it has not within so many seconds."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def ended(number: int, folder: Path, checkpoint: Path) -> int:
    """Runs a training that is killed several times, until it has ended by itself; how often it went on from a state."""
    draw, resumed = random.Random(-number), 0
    for kill in range(KILLS + 1):
        child = begun(number, folder, checkpoint)
        if kill < KILLS:
            status = status_of(child, draw.uniform(0, 0.15))
            if status is None and draw.random() < 0.5:
                os.kill(child, signal.SIGSTOP)
                status = status_of(child, 0.05)
                if status is None:
                    os.kill(child, signal.SIGCONT)
                    status = status_of(child, draw.uniform(0, 0.03))
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                resumed += checkpoint.exists()
                continue
        else:
            status = status_of(child, PATIENCE)
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        assert status == 0, f"job {number} ended with {status}"
        return resumed
    raise AssertionError("unreachable")


@pytest.mark.slow
def test_trainings_that_are_killed_at_any_moment_have_every_batch_that_torch_has(tmp_path: Path) -> None:
    written(tmp_path)
    resumed = 0
    for number in range(FROM, FROM + JOBS):
        checkpoint = tmp_path / f"{number}.state"
        resumed += ended(number, tmp_path, checkpoint)
        _, had, _ = pickle.loads(checkpoint.read_bytes())
        assert had == expected(number, tmp_path), f"job {number}"
    print(f"{JOBS} jobs, {resumed} times from a state")
