"""With memory for nearly all of the data an epoch takes in proportion to what is missing, and never more with more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle

from solar import Crops, DataLoader, Field, H5Dataset, PlanError, PlanSampler, Windows
from solar.planning import costs
from solar.planning.sweep import total
from solar.values import Storage

SHARES = [*(round(0.05 * step, 2) for step in range(1, 19)), 0.92, 0.95, 0.98, 1, 1.02, 1.05, 1.08, 1.1, 1.15, 1.2]
EPOCHS = 6
DISK = Storage(1e-4, 1e9, 20_000, decode=4e8)
Made = tuple[Callable[[], Any], int, int]  # the dataset, the bytes of all of it, and the samples of a batch


def made_of(kind: str, folder: Path) -> Made:
    rng, gzip = np.random.default_rng(1), {"compression": "gzip", "compression_opts": 1}
    shape, dtype, chunks = {
        "rows": ((1024, 32, 64), "f4", (16, 32, 64)),
        "clips": ((1024, 32, 32, 3), "u1", (16, 32, 32, 3)),
        "crops": ((96, 96, 96), "f4", (16, 16, 16)),
    }[kind]
    path = folder / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("u", data=rng.integers(0, 32, shape).astype(dtype), chunks=chunks, **gzip)
    settle(path)
    datasets = {
        "rows": lambda: H5Dataset(path, "u"),
        "clips": lambda: H5Dataset(path, Field("u", steps=range(8)), samples=Windows()),
        "crops": lambda: H5Dataset(path, "u", samples=Crops((24, 24, 24), at="random", per=256)),
    }
    return datasets[kind], int(np.prod(shape)) * np.dtype(dtype).itemsize, 4


def loader_of(made: Made, share: float) -> Any:
    dataset = made[0]()
    sampler = PlanSampler(dataset, 1, 0, seed=1)
    return DataLoader(dataset, made[2], sampler=sampler, buffer=int(share * made[1]), epochs=EPOCHS, storage=DISK)


def planned(made: Made, share: float) -> Any:
    """The plan of a loader whose first batch has come, and its budget; None: memory has no room for batches."""
    with loader_of(made, share) as loader:
        batches = iter(loader)
        try:
            next(batches)
        except PlanError:
            return None
        run = loader._buffered.planned_run
        [plan] = run.window.plans
        return plan, run.budget


@pytest.mark.parametrize("kind", ["rows", "clips", "crops"])
def test_more_memory_never_costs_more(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.io.reading.trial.may_be_packed", lambda _: False)  # one form, so that counts compare
    made = made_of(kind, tmp_path)
    before = None
    for share in SHARES:
        found = planned(made, share)
        if found is None:
            assert before is None
            assert share < 0.25
            continue
        plan, budget = found
        later = total(plan.counts[1 : EPOCHS - 2])
        seconds = costs.reading_seconds(later, plan.region.units, DISK)
        assert plan.pages * plan.page <= budget.parts <= budget.nbytes == int(share * made[1])
        if before is not None and plan.kept == before[3]:
            assert later.bytes <= 1.15 * before[0], share  # where decoding decides, requests may have wider holes
            assert later.decoded <= 1.02 * before[1], share
        if before is not None:
            assert seconds <= 1.02 * before[2], share
        before = later.bytes, later.decoded, seconds, plan.kept
    assert before is not None
    assert before[:3] == (0, 0, 0)  # all of it stays


@pytest.mark.parametrize("kind", ["rows", "clips", "crops"])
def test_near_all_of_it_memory_is_for_samples(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.io.reading.trial.may_be_packed", lambda _: False)
    made = made_of(kind, tmp_path)
    room, uses = 0, 0
    for share in (1.5, 1.1, 1.05, 1.0, 0.95, 0.9):
        found = planned(made, share)
        assert found is not None
        plan, budget = found
        everything = plan.region.held_nbytes(plan.region.items, whole=False)
        if share == 1.5:  # what batches and threads take at least
            smallest = planned(made, 1.0)[1]
            room = min(budget.nbytes - budget.parts, smallest.nbytes - smallest.parts)
            uses = len(plan.uses(1)[0])
            continue
        missing = max(0, everything - budget.parts)
        if budget.nbytes >= everything + room:
            assert missing == 0, share
        later = total(plan.counts[1:4])
        if missing == 0:
            assert (later.reads, later.bytes) == (0, 0)
        # A use of what is missing reads it, with two or three samples that come out of its chunk beside it at most.
        assert later.decoded / 3 <= 3 * uses * missing / everything + 2 * plan.region.units.per_unit


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("share", [0.9, 0.98, 1.02, 1.1])
@pytest.mark.parametrize("kind", ["rows", "clips", "crops"])
def test_batches_are_those_without_a_buffer_and_counts_the_plans(kind: str, share: float, tmp_path: Path) -> None:
    made = made_of(kind, tmp_path)
    with loader_of(made, share) as loader:
        plain = made[0]()
        sampler = PlanSampler(plain, 1, 0, seed=1)
        for epoch in range(2):
            loader.set_epoch(epoch)
            sampler.set_epoch(epoch)
            without = DataLoader(plain, made[2], sampler=sampler, buffer=0)
            for ours, theirs in zip(loader, without, strict=True):
                assert torch.equal(ours, theirs)
        ran, plan = loader._buffered.running.counts(), loader._buffered.planned
        assert (ran["reads"], ran["bytes"]) <= (plan.reads, plan.bytes)
        assert ran["peak_bytes"] <= loader._buffered.planned_run.budget.parts
