"""tensorstore over zarr v3: one sample per inner chunk, 512 to a shard, no compression; two batches read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.scene import Scene, blocks

LABEL = "tensorstore (zarr3, sharded)"
NEEDS = "tensorstore"
AHEAD = 2


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{"cache_mib": mib} for mib in (0, 64)]  # it keeps shard indices there, and chunks


def spec(scene: Scene, folder: Path) -> dict[str, Any]:
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    inner = {"chunk_shape": [1, *scene.shape], "codecs": [little]}
    outer = [min(512, scene.samples), *scene.shape]
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(folder / "zarr")},
        "metadata": {
            "shape": [scene.samples, *scene.shape],
            "data_type": np.dtype(scene.dtype).name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
            "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        },
    }


def prepare(scene: Scene, folder: Path) -> None:
    import tensorstore

    store = tensorstore.open(spec(scene, folder), create=True).result()
    first = 0
    for block in blocks(scene, folder):
        store[first : first + len(block)] = block
        first += len(block)


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[Any]:
    import tensorstore

    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": setting["cache_mib"] * 2**20}})
    store = tensorstore.open(spec(scene, folder), context=context, read=True, recheck_cached_data=False).result()
    pending: deque[Any] = deque()
    for indices in order:
        pending.append(store[indices].read())
        if len(pending) > AHEAD:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
