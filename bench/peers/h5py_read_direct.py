"""h5py alone, no loader: `read_direct` of each sample into one reused batch. What HDF5's library itself can give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.peers.torch_h5py import prepare
from bench.scene import FIELD, Scene

__all__ = ["prepare"]

LABEL = "h5py read_direct, no loader"


def lacking(scene: Scene) -> str:
    return "opens no file per sample" if scene.files > 1 else ""


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[Any]:
    batch = np.empty((scene.batch, *scene.shape), scene.dtype)
    with h5py.File(scene.paths(folder)[0]) as file:
        data = file[FIELD]
        for indices in order.tolist():
            for place, index in enumerate(indices):
                data.read_direct(batch, np.s_[index], np.s_[place])
            yield batch
