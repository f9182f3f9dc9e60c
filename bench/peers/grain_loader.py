"""Grain's MapDataset over rows of the contiguous HDF5 data (numpy.memmap), batched by Grain, read by its threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import not_contiguous
from bench.peers.limit_pread import offset_of
from bench.scene import Scene

LABEL = "Grain threads (numpy.memmap)"
NEEDS = "grain"
lacking = not_contiguous


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{"threads": threads} for threads in (0, 2, 16)]


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[Any]:
    import grain

    path = scene.paths(folder)[0]
    rows = np.memmap(path, scene.dtype, "r", offset_of(path), (scene.samples, *scene.shape))
    threads = setting["threads"]
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads * 8)
    data = grain.MapDataset.source(order.ravel()).map(lambda index: np.asarray(rows[index]))
    return iter(data.batch(scene.batch).to_iter_dataset(options))
