"""torch.utils.data.DataLoader over numpy.memmap with `__getitems__`, on the contiguous data of the HDF5 file itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset

from bench import torch_side
from bench.peers import not_contiguous
from bench.scene import FIELD, Scene

LABEL = "torch + numpy.memmap"
settings, lacking = torch_side.worker_settings, not_contiguous


class Mapped(Dataset[torch.Tensor]):
    def __init__(self, scene: Scene, folder: Path) -> None:
        with h5py.File(scene.paths(folder)[0]) as file:
            offset = file[FIELD].id.get_offset()
        self.rows = np.memmap(scene.paths(folder)[0], scene.dtype, "r", offset, (scene.samples, *scene.shape))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.rows[indices]))


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    return torch_side.batches(Mapped(scene, folder), order, setting["workers"], torch_side.as_is)
