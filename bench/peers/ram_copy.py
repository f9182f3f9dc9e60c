"""All of the data copied to memory by h5py in the order of the file, then indexed there: where they fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.torch_h5py import prepare
from bench.scene import Scene, blocks

__all__ = ["prepare"]

LABEL = "copied to RAM first"


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, Any]) -> Iterator[Any]:
    import torch

    rows = np.empty((scene.samples, *scene.shape), scene.dtype)
    at = 0
    for block in blocks(scene, folder):
        rows[at : at + len(block)] = block
        at += len(block)
    held = torch.from_numpy(rows)
    for indices in order:
        yield held[torch.from_numpy(indices)]
