"""WebDataset over tar files of .npy: shuffled shards read in sequence, and a shuffle buffer of 1,000 samples."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import torch_side
from bench.scene import Scene, blocks

LABEL = "WebDataset (tar of .npy)"
NEEDS = "webdataset"
ORDER = "own"
BUFFER_NBYTES = 2**26  # 1,000 samples of 64 KB
settings = torch_side.worker_settings


def prepare(scene: Scene, folder: Path) -> None:
    import webdataset

    (folder / "tar").mkdir()
    per_shard = max(1, scene.samples // 8)  # at least as many shards as workers
    with webdataset.ShardWriter(str(folder / "tar" / "%04d.tar"), maxcount=per_shard, verbose=0) as writer:
        rows = (row for block in blocks(scene, folder) for row in block)
        for index, row in enumerate(rows):
            writer.write({"__key__": f"{index:08d}", "npy": row})


def decoded(sample: dict[str, Any]) -> torch.Tensor:
    return torch.from_numpy(np.load(io.BytesIO(sample["npy"])))


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[torch.Tensor]:
    import webdataset

    shards = sorted(str(path) for path in (folder / "tar").glob("*.tar"))
    depth = max(scene.batch, BUFFER_NBYTES // scene.sample_nbytes)
    data = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), seed=int(order[0, 0]))
        .shuffle(depth, initial=depth)
        .map(decoded)
        .batched(scene.batch, collation_fn=torch.stack, partial=False)
    )
    for _ in range(0, order.size, scene.samples):
        yield from webdataset.WebLoader(data, batch_size=None, num_workers=setting["workers"])
