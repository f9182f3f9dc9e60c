"""h5torch over its own HDF5 file (the data as the `central` object), in PyTorch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bench import torch_side
from bench.scene import Scene, blocks

LABEL = "h5torch (own file)"
NEEDS = "h5torch"
settings = torch_side.worker_settings


def prepare(scene: Scene, folder: Path) -> None:
    import h5torch

    with h5torch.File(str(folder / "h5torch.h5"), "w") as file:
        file.register(np.concatenate(list(blocks(scene, folder))), "central")


class Items(Dataset[torch.Tensor]):
    """h5torch.Dataset, opened in each worker: HDF5's handles do not survive a fork."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.samples, self.path = scene.samples, str(folder / "h5torch.h5")
        self.data: Any = None

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.data is None:
            import h5torch

            self.data = h5torch.Dataset(self.path)
        return torch.from_numpy(self.data[index]["central"])


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    return torch_side.batches(Items(scene, folder), order, setting["workers"])
