"""A request has one meaning: what `solar plan` counts is what a loader's stats, its run and its report count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from buffer_kit import DISK, LAYOUTS, MANY, dataset_of, least_of, run_of
from kit import settle

from solar import DataLoader, H5Dataset, PlanSampler
from solar.loader.metrics import prometheus_text

EPOCHS = 3


def loader_of(data: Any, buffer: Any, batch: int = 7) -> DataLoader[Any]:
    sampler = PlanSampler(data, 1, 0, seed=3)
    return DataLoader(data, batch, sampler=sampler, buffer=buffer, storage=DISK, epochs=EPOCHS)


def told(loader: DataLoader[Any]) -> dict[str, Any]:
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for _ in loader:
            pass
    return loader.stats()


@pytest.mark.parametrize("layout", [*LAYOUTS, *MANY])
@pytest.mark.parametrize("share", [0.0, 0.3, 2.0])
def test_a_plan_that_is_carried_out_takes_its_requests(layout: str, share: float, tmp_path: Path) -> None:
    data = dataset_of(tmp_path, layout)
    least = least_of(lambda buffer: loader_of(data, buffer))
    with loader_of(data, least + int(share * 96 * 60)) as loader:
        stats, run, planned = told(loader), run_of(loader).counts(), loader._buffered.planned
        assert (stats["requests"], stats["bytes"]) == (planned.requests, planned.bytes)
        assert stats["requests"] == run["requests"]
        assert f"solar_requests_total {stats['requests']}\n" in prometheus_text(loader)
        if stats["requests"]:
            assert f"read in {stats['requests']:,} request" in loader.report()


@pytest.mark.parametrize("chunks", [None, (1, 1 << 18), (4, 1 << 18)])
@pytest.mark.parametrize("buffer", [48 << 20, 200 << 20])
def test_a_long_request_is_one_request_in_many_calls(chunks: Any, buffer: int, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((64, 1 << 18), "f4"), chunks=chunks)
    settle(tmp_path / "x.h5")
    with loader_of(H5Dataset(tmp_path / "x.h5", "x"), buffer, 2) as loader:
        stats, planned = told(loader), loader._buffered.planned
    assert (stats["requests"], stats["bytes"]) == (planned.requests, planned.bytes)
    assert stats["calls"] >= stats["requests"]
    if chunks is None or buffer > 64 << 20:  # it is read in the order of the file, some MiB at a time
        assert stats["calls"] > stats["requests"]


def test_without_a_buffer_neighbours_are_one_request(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((64, 1 << 19), "f4")  # 2 MiB each
    settle(tmp_path / "x.h5")
    data = H5Dataset(tmp_path / "x.h5", "x", page_cache=False)
    with DataLoader(data, 16, buffer=0, ahead=1) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert stats["requests"] == 4  # one for each batch
    assert stats["calls"] >= 4
