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
settings = torch_side.worker_settings


def prepare(scene: Scene, folder: Path) -> None:
    if "plugin" in scene.filters:
        hdf5_filters(scene)  # registers the filter with libhdf5


class Files(Dataset[torch.Tensor]):
    """A sample is a file, opened for it."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with h5py.File(self.paths[index]) as file:
            return torch.from_numpy(file[FIELD][()])


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    paths = scene.paths(folder)
    items = Files(paths) if scene.files > 1 else torch_side.Items(paths[0], scene.samples)
    return torch_side.batches(items, order, setting["workers"])
