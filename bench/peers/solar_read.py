"""solar.H5Dataset.read_batch, one call after another: the reader without the loader's reading ahead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.solar_loader import dataset, settings
from bench.scene import Scene

__all__ = ["settings"]

LABEL = "solar read_batch, no loader"


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[Any]:
    data = dataset(scene, folder, setting)
    for indices in order:
        yield data.read_batch(indices)
