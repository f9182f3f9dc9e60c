"""FFCV over its own format (NDArrayField), in FFCV's own random order, the file kept in the page cache (os_cache)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.scene import Scene, blocks

LABEL = "FFCV (own format)"
NEEDS = "ffcv"
ORDER = "own"


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{"workers": workers} for workers in sorted({1, os.cpu_count() or 1})]


class Rows:
    """What FFCV's writer takes: indexable, each item a tuple of fields."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.rows = np.concatenate(list(blocks(scene, folder)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any]:
        return (self.rows[index],)


def prepare(scene: Scene, folder: Path) -> None:
    from ffcv.fields import NDArrayField
    from ffcv.writer import DatasetWriter

    fields = {"x": NDArrayField(np.dtype(scene.dtype), scene.shape)}
    page = max(8 * 2**20, 2 * 2 ** (scene.sample_nbytes - 1).bit_length())  # a power of two that holds a sample
    DatasetWriter(str(folder / "data.beton"), fields, page_size=page, num_workers=1).from_indexed_dataset(
        Rows(scene, folder)
    )


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[Any]:
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    loader = Loader(
        str(folder / "data.beton"),
        batch_size=scene.batch,
        num_workers=setting["workers"],
        os_cache=True,
        order=OrderOption.RANDOM,
        seed=int(order[0, 0]),
        pipelines={"x": [NDArrayDecoder(), ToTensor()]},
    )
    for _ in range(0, order.size, scene.samples):
        for (batch,) in loader:
            yield batch
