"""A service reads what `solar plan --jobs` says, of samples of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from crops_kit import written as volumes
from kit import settle
from ragged_kit import matrix, sparse
from ragged_kit import written as ragged
from serve_kit import PATIENT, in_step, serving, side_by_side

from solar import CSR, Crops, DataLoader, H5Dataset, PlanSampler, Ragged
from solar.cli import main
from solar.values import Storage

JOBS, BATCH, EPOCHS = 2, 4, 2
FLASH = Storage(latency=1e-5, bandwidth=1e9, iops=1e6)  # what is read is what is wanted: nothing is read along


def rows(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(0).integers(0, 99, (1000, 4096)).astype("u2")


def small(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(0).integers(0, 99, (4000, 64)).astype("u2")


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
    "small rows": (small, lambda path: H5Dataset(path, "x"), ["x"]),
    "ragged": (unequal, lambda path: H5Dataset(path, Ragged("v", ends="ends")), ["--ragged", "v", "--ends", "ends"]),
    "sparse": (cells, lambda path: H5Dataset(path, CSR("X")), ["--csr", "X"]),
    "boxes": (
        boxes,
        lambda path: H5Dataset(path, "u", samples=Crops((8, 8, 8), overlap=2)),
        ["u", "--crop", "8,8,8", "--overlap", "2"],
    ),
    "groups": (groups, lambda path: H5Dataset(path, "hits", samples="groups"), ["hits", "--groups"]),
}


STORAGES = {"flash": FLASH, "disk": Storage(latency=8e-3, bandwidth=150e6, iops=120)}
MEMORY = {
    "rows": 4 << 20,
    "small rows": 256 << 10,
    "ragged": 9 << 19,
    "sparse": 4 << 20,
    "boxes": 4 << 20,
    "groups": 6 << 20,
}


@pytest.mark.slow(every=12)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_service_reads_what_the_plan_says(
    kind: str, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("solar.io.system.profile.stored_or_guessed", lambda _: (STORAGES[storage], storage))
    write, opened, told = KINDS[kind]
    path = tmp_path / "data.h5"
    write(path)
    settle(path)
    terms = ["--memory", str(MEMORY[kind]), "--jobs", str(JOBS), "--epochs", str(EPOCHS), "--batch-size", str(BATCH)]
    assert main(["plan", str(path), *told, *terms, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    first, later = answer["first_epoch"], answer["policies"]["solar"]
    planned = {name: first[name] + (EPOCHS - 1) * later[name] for name in ("bytes", "requests")}
    data = [opened(path) for _ in range(JOBS)]
    in_step(monkeypatch, JOBS, EPOCHS * -(-len(data[0]) // BATCH))
    with serving(path, where=tmp_path, slack=PATIENT, memory=MEMORY[kind]) as service, ExitStack() as stack:
        at: Any = str(service.path)
        loaders = [
            stack.enter_context(DataLoader(one, BATCH, sampler=PlanSampler(one, seed=seed), service=at, epochs=EPOCHS))
            for seed, one in enumerate(data)
        ]
        side_by_side(loaders, EPOCHS)
        assert all(one._buffered.running.counts()["alone"] == 1 for one in loaders)  # its first batch, while it joins
        status = service.status()
    assert status["read_bytes"] <= 1.1 * planned["bytes"]
    assert status["requests"] <= 1.1 * planned["requests"]
