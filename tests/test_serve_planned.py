"""What `solar plan --jobs` says of samples of every kind bounds what a service reads for so many trainings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from crops_kit import written as volumes
from kit import settle
from ragged_kit import matrix, sparse
from ragged_kit import written as ragged
from serve_kit import PATIENT, epochs_of, serving

from solar import CSR, Crops, DataLoader, H5Dataset, PlanSampler, Ragged
from solar.cli import main
from solar.values import Storage

JOBS, BATCH, SHARE = 2, 4, 0.5
FLASH = Storage(latency=1e-5, bandwidth=1e9, iops=1e6)  # what is read is what is wanted: nothing is read along


def rows(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(0).integers(0, 99, (1000, 4096)).astype("u2")


def unequal(path: Path) -> None:
    ragged(path, np.random.default_rng(0).integers(1, 60, 600).tolist(), "gzip", row=(128,))


def cells(path: Path) -> None:
    matrix(path, sparse(2000, 3000), "contiguous")


def boxes(path: Path) -> None:
    volumes(path, (120, 96, 96), "gzip", (8, 8, 8))


def groups(path: Path) -> None:
    draw = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(400):
            file[f"m{number:03}/hits"] = draw.random((int(draw.integers(20, 200)), 16))


# (how it is written, how it is opened, and told to the command)
KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any], list[str]]] = {
    "rows": (rows, lambda path: H5Dataset(path, "x"), ["x"]),
    "ragged": (unequal, lambda path: H5Dataset(path, Ragged("v", ends="ends")), ["--ragged", "v", "--ends", "ends"]),
    "sparse": (cells, lambda path: H5Dataset(path, CSR("X")), ["--csr", "X"]),
    "boxes": (
        boxes,
        lambda path: H5Dataset(path, "u", samples=Crops((8, 8, 8), overlap=2)),
        ["u", "--crop", "8,8,8", "--overlap", "2"],
    ),
    "groups": (groups, lambda path: H5Dataset(path, "hits", samples="groups"), ["hits", "--groups"]),
}


DECODED = {"rows": 8 << 20, "ragged": 9 << 20, "sparse": 8 << 20, "boxes": 4 << 20, "groups": 6 << 20}


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_reads_about_what_the_plan_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan has no memory for steps on their way, and knows all epochs from the first step on: hence what is left.

    Of these small data it is 1.1 times the plan's bytes for rows and ragged rows, 1.3 to 1.6 for sparse rows, .6 for
    boxes, .7 for groups.
    """
    monkeypatch.setattr("solar.io.machine.profile.stored_or_guessed", lambda _: (FLASH, "flash"))
    write, opened, told = KINDS[kind]
    path = tmp_path / "data.h5"
    write(path)
    settle(path)
    memory = int(SHARE * DECODED[kind])
    terms = ["--memory", str(memory), "--jobs", str(JOBS), "--epochs", "2", "--batch-size", str(BATCH), "--json"]
    assert main(["plan", str(path), *told, *terms]) == 0
    answer = json.loads(capsys.readouterr().out)
    planned = answer["first_epoch"]["bytes"] + answer["policies"]["solar"]["bytes"]
    begun = threading.Barrier(JOBS)

    def train(seed: int) -> None:
        data = opened(path)
        with DataLoader(data, BATCH, sampler=PlanSampler(data, seed=seed), service=str(service.path), buffer=0) as one:
            begun.wait(20)
            epochs_of(one)

    with serving(path, where=tmp_path, slack=PATIENT, memory=memory) as service:
        jobs = [threading.Thread(target=train, args=(seed,)) for seed in range(JOBS)]
        for one in jobs:
            one.start()
        for one in jobs:
            one.join(60)
            assert not one.is_alive()
        read = service.status()["read_bytes"]
    assert 0.5 < read / planned < 2
