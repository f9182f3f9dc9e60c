"""solar.DataLoader over solar.H5Dataset, nothing set but what the user of PyTorch's loader sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers import missing
from bench.scene import FIELD, Scene

LABEL = "solar.DataLoader"
ORDER = "given"


def lacking(scene: Scene) -> str:
    return missing("solar")


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{}]


def prepare(scene: Scene, folder: Path) -> None:
    pass


def dataset(scene: Scene, folder: Path) -> Any:
    from solar import H5Dataset

    paths = [str(path) for path in scene.paths(folder)]
    return H5Dataset(paths, FIELD, samples="files" if scene.files > 1 else "rows")


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    from solar import DataLoader

    return iter(DataLoader(dataset(scene, folder), batch_size=scene.batch, sampler=order.ravel().tolist()))
