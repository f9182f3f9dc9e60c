"""Arguments that cannot have an effect are not ignored in silence, and no warning speaks of what does not happen."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from torch.utils.data import DistributedSampler

from solar import DataLoader, H5Dataset
from solar.values import Storage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4096).reshape(512, 8), chunks=(8, 8), compression="gzip")
    settle(tmp_path / "x.h5")
    return tmp_path / "x.h5"


@pytest.mark.parametrize("generator", [3, "3", np.random.default_rng(3)])
def test_a_generator_that_is_none_is_refused_for_every_dataset(generator: Any, path: Path) -> None:
    for dataset in (H5Dataset(path, "x"), range(8)):
        for options in ({}, {"shuffle": True}):
            with pytest.raises(TypeError, match=r"generator=.*: it is a torch\.Generator, such as .*, or None"):
                DataLoader(dataset, generator=generator, **options)
    with pytest.raises(TypeError, match="ahead='3': it is a number of batches, or None"):
        DataLoader(range(8), ahead="3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("ahead", 3), ("buffer", "1MiB"), ("buffer", 0.25), ("epochs", 3), ("storage", Storage(1e-3, 1e9)),
     ("exchange", "read"), ("service", "auto")],
)  # fmt: skip
def test_what_only_the_native_engine_heeds_warns_beside_another_dataset(name: str, value: Any, path: Path) -> None:
    with pytest.warns(UserWarning, match=f"{name}=.* has no effect: .* range is not an H5Dataset") as caught:
        loader = DataLoader(range(8), **{name: value})
    assert caught[0].filename == __file__
    assert len(list(loader)) == 8
    with pytest.warns(UserWarning, match="ahead=3, buffer='1MiB' have no effect"):
        DataLoader(range(8), ahead=3, buffer="1MiB")
    with warnings.catch_warnings(action="error"):
        if name != "service":
            DataLoader(H5Dataset(path, "x"), **{name: value})
        DataLoader(range(8), buffer=0, exchange="off", ahead=None)


def kept(sample: Any) -> Any:
    return sample


def test_of_more_processes_than_cores_is_warned_where_there_are_any(path: Path) -> None:
    words = "This DataLoader will create 1000 worker processes"
    with warnings.catch_warnings(action="error"):
        DataLoader(H5Dataset(path, "x"), num_workers=1000)
        DataLoader(H5Dataset(path, "x", transform=kept, thread_safe=True), num_workers=1000)
    with pytest.warns(UserWarning, match=words):
        DataLoader(H5Dataset(path, "x", transform=kept), num_workers=1000, multiprocessing_context="fork")
    with pytest.warns(UserWarning, match=words):
        DataLoader(range(8), num_workers=1000)


def test_a_loader_knows_whether_the_epochs_to_come_are_known(path: Path) -> None:
    data = H5Dataset(path, "x")
    for options, known in (
        ({"shuffle": True}, False),
        ({"shuffle": True, "generator": torch.Generator().manual_seed(1)}, True),
        ({"sampler": DistributedSampler(data, 2, 0)}, True),
        ({"sampler": [3, 2, 1] * 50}, False),
    ):
        with DataLoader(data, 4, buffer="1MiB", **options) as loader:  # type: ignore[arg-type]
            next(iter(loader))
            assert loader._buffered.foreseen == known
