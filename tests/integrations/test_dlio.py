"""DLIO, the benchmark of MLPerf Storage, reads its HDF5 workloads through solar."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from solar import LayoutError

PROGRAM = Path(__file__).with_name("dlio_program.py")
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")

pytestmark = pytest.mark.skipif(importlib.util.find_spec("dlio_benchmark") is None, reason="DLIO is not installed")


def records(told: dict[str, Any], part: str) -> np.ndarray[Any, Any]:
    """All samples of the workload, in the order of its files."""
    files = sorted(Path(told["folder"], "data", part).glob("*.hdf5"))
    return np.concatenate([h5py.File(file)["records"][()] for file in files])


def expected(told: dict[str, Any], part: str, epoch: int, rank: int, ranks: int, batch: int) -> list[Any]:
    """The batches that torch's DistributedSampler gives for the workload's seed."""
    samples = records(told, part)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(17 + epoch)).tolist()
    mine = order[: len(order) // ranks * ranks][rank::ranks]
    return [samples[mine[i : i + batch]].tolist() for i in range(0, len(mine) // batch * batch, batch)]


def check(told: dict[str, Any], rank: int, ranks: int) -> None:
    parts = [("train", 1, 4), ("valid", 1, 2), ("train", 2, 4), ("valid", 2, 2)]
    for (part, epoch, batch), (said, *batches) in zip(parts, told["epochs"], strict=True):
        assert said == part
        assert batches == expected(told, part, epoch, rank, ranks, batch)


def test_a_workload_trains_and_evaluates_on_the_samples_of_its_files(program: Callable[..., dict[str, Any]]) -> None:
    check(program(PROGRAM)["rank0"], 0, 1)


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")
def test_the_ranks_of_mpi_share_the_samples(program: Callable[..., dict[str, Any]]) -> None:
    told = program(PROGRAM, by=[MPIEXEC, "-n", "2"])
    if "rank1" not in told:
        pytest.skip(f"{MPIEXEC} is not of the MPI that mpi4py was built for")
    for rank in range(2):
        check(told[f"rank{rank}"], rank, 2)


def test_the_experts_loader_of_the_bench_gives_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bench/dlio_plain.py: the peer that solar's plug-in is measured beside, by bench.accelerators."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(PROGRAM.parents[2])])
    plain = importlib.import_module("bench.dlio_plain")
    monkeypatch.setattr(plain.resource, "setrlimit", lambda *_: None)
    rng, samples = np.random.default_rng(3), []
    for number in range(10):
        with h5py.File(tmp_path / f"{number}.hdf5", "w") as file:
            file["records"] = rng.integers(0, 255, (1, 3, 3), "u1")
            samples.append(file["records"][()])
    files = [tmp_path / f"{number}.hdf5" for number in range(10)]
    asked = SimpleNamespace(file_list_train=files, read_threads=0, comm_size=2, my_rank=1, seed=17, prefetch_size=2)
    loader = object.__new__(plain.PlainLoader)
    loader._args, loader.batch_size, loader.epoch_number = asked, 2, 0
    loader.read()
    for epoch in range(2):
        order = torch.randperm(10, generator=torch.Generator().manual_seed(17 + epoch)).tolist()[1::2]
        found = [batch["records"].numpy() for batch in loader.next()]
        assert len(found) == 2
        np.testing.assert_array_equal(np.concatenate(found), np.stack([samples[one] for one in order[:4]]))


def test_files_that_are_not_hdf5_are_refused(program: Callable[..., dict[str, Any]]) -> None:
    told = program(PROGRAM, "npz")
    assert "dataset.format: hdf5" in told["refused"]["message"]
    assert told["refused"]["type"] == LayoutError.__name__
