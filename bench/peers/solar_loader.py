"""solar.DataLoader over solar.H5Dataset with its defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.scene import FIELD, Scene

LABEL = "solar.DataLoader"


def loader(scene: Scene, folder: Path, page_cache: bool | None = None, **given: Any) -> Any:
    from solar import DataLoader, H5Dataset

    paths = [str(path) for path in scene.paths(folder)]
    data = H5Dataset(paths, FIELD, samples="files" if scene.files > 1 else "rows", page_cache=page_cache)
    return DataLoader(data, batch_size=scene.batch, **given)


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, Any]) -> Iterator[Any]:
    return iter(loader(scene, folder, sampler=order.ravel().tolist(), **setting))


def epochs(scene: Scene, folder: Path, setting: dict[str, Any]) -> Iterator[Any]:
    made = loader(scene, folder, shuffle=True, **setting)
    while True:
        yield made
