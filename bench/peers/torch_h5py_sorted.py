"""torch.utils.data.DataLoader over h5py with `__getitems__`: a batch is one sorted selection, put back in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import torch_side
from bench.peers.torch_h5py import prepare
from bench.scene import Scene

__all__ = ["prepare"]

LABEL = "torch + h5py, sorted __getitems__"
settings = torch_side.worker_settings


def lacking(scene: Scene) -> str:
    return "one selection cannot span files" if scene.files > 1 else ""


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    items = torch_side.Sorted(scene.paths(folder)[0], scene.samples)
    return torch_side.batches(items, order, setting["workers"], torch_side.as_is)
