"""torch.utils.data.DataLoader over h5py, one item at a time, the file opened lazily in each worker: the usual way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import torch
from torch.utils.data import Dataset

from bench import torch_side
from bench.scene import FIELD, Scene, hdf5_filters

LABEL = "torch + h5py, per item"
ORDER = "given"
settings = torch_side.worker_settings


def lacking(scene: Scene) -> str:
    return ""


def prepare(scene: Scene, folder: Path) -> None:
    if "plugin" in scene.filters:
        hdf5_filters(scene)  # registers the filter with libhdf5


class Items(Dataset[torch.Tensor]):
    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene, self.paths = scene, scene.paths(folder)
        self.data: h5py.Dataset | None = None

    def __len__(self) -> int:
        return self.scene.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.scene.files > 1:
            with h5py.File(self.paths[index]) as file:
                return torch.from_numpy(file[FIELD][()])
        if self.data is None:
            self.data = h5py.File(self.paths[0])[FIELD]
        return torch.from_numpy(self.data[index])


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    return torch_side.batches(Items(scene, folder), order, setting["workers"])
