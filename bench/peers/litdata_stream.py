"""LitData over its own chunks (64 MB), shuffled in its own way: chunks, and samples within a few chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import torch

from bench import torch_side
from bench.scene import FIELD, Scene

LABEL = "LitData (own format)"
NEEDS = "litdata"
ORDER = "own"
settings = torch_side.worker_settings


def row(place: tuple[str, int]) -> torch.Tensor:
    path, index = place
    with h5py.File(path) as file:
        return torch.from_numpy(file[FIELD][index])


def prepare(scene: Scene, folder: Path) -> None:
    import litdata

    path = str(scene.paths(folder)[0])
    places = [(path, index) for index in range(scene.samples)]
    target = str(folder / "litdata")
    litdata.optimize(row, places, target, chunk_bytes="64MB", num_workers=1, verbose=False, start_method="fork")


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[torch.Tensor]:
    import litdata

    data = litdata.StreamingDataset(str(folder / "litdata"), shuffle=True, drop_last=True, seed=int(order[0, 0]))
    loader = litdata.StreamingDataLoader(data, batch_size=scene.batch, num_workers=setting["workers"], drop_last=True)
    for _ in range(0, order.size, scene.samples):
        yield from loader
