"""solar.DataLoader over solar.H5Dataset, set as PyTorch's users set theirs; cold also with page_cache=False."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.scene import FIELD, Scene

LABEL = "solar.DataLoader"


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{}, {"page_cache": 0}] if scene.cache == "cold" else [{}]


def dataset(scene: Scene, folder: Path, setting: dict[str, int]) -> Any:
    from solar import H5Dataset

    paths = [str(path) for path in scene.paths(folder)]
    page_cache = None if "page_cache" not in setting else bool(setting["page_cache"])
    return H5Dataset(paths, FIELD, samples="files" if scene.files > 1 else "rows", page_cache=page_cache)


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Any:
    from solar import DataLoader

    return iter(DataLoader(dataset(scene, folder, setting), batch_size=scene.batch, sampler=order.ravel().tolist()))
