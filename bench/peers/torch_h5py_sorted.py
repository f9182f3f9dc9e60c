"""torch.utils.data.DataLoader over h5py with `__getitems__`: a batch is one sorted selection, put back in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset

from bench import torch_side
from bench.peers.torch_h5py import prepare
from bench.scene import FIELD, Scene

__all__ = ["prepare"]

LABEL = "torch + h5py, sorted __getitems__"
ORDER = "given"
settings = torch_side.worker_settings


def lacking(scene: Scene) -> str:
    return "one selection cannot span files" if scene.files > 1 else ""


class Batches(Dataset[torch.Tensor]):
    def __init__(self, scene: Scene, folder: Path) -> None:
        self.samples, self.path = scene.samples, scene.paths(folder)[0]
        self.data: h5py.Dataset | None = None

    def __len__(self) -> int:
        return self.samples

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        if self.data is None:
            self.data = h5py.File(self.path)[FIELD]
        order = np.argsort(indices)
        batch = np.empty((len(indices), *self.data.shape[1:]), self.data.dtype)
        batch[order] = self.data[np.asarray(indices)[order]]
        return torch.from_numpy(batch)


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    return torch_side.batches(Batches(scene, folder), order, setting["workers"], torch_side.as_is)
