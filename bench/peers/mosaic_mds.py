"""MosaicML streaming over local MDS shards (64 MB), shuffled in its own way (py1e)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench import torch_side
from bench.scene import Scene, blocks

LABEL = "MosaicML streaming (MDS)"
NEEDS = "mosaicml-streaming"
ORDER = "own"
settings = torch_side.worker_settings


def streaming() -> Any:
    """The package. It imports torchvision for its image data sets, and a torchvision built for another torch stops at
    missing operators that nothing here calls: declare them."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import streaming

    return streaming


def prepare(scene: Scene, folder: Path) -> None:
    kind = f"ndarray:{torch_name(scene)}:{','.join(map(str, scene.shape))}"
    with streaming().MDSWriter(out=str(folder / "mds"), columns={"x": kind}, size_limit=2**26) as writer:
        for block in blocks(scene, folder):
            for row in block:
                writer.write({"x": row})


def torch_name(scene: Scene) -> str:
    return {"f4": "float32", "i2": "int16"}[scene.dtype]


def rows_only(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(sample["x"].copy()) for sample in samples])


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[torch.Tensor]:
    package = streaming()
    package.base.util.clean_stale_shared_memory()
    data = package.StreamingDataset(
        local=str(folder / "mds"), shuffle=True, batch_size=scene.batch, shuffle_seed=int(order[0, 0])
    )
    loader = DataLoader(
        data, batch_size=scene.batch, num_workers=setting["workers"], collate_fn=rows_only, drop_last=True
    )
    for _ in range(0, order.size, scene.samples):
        yield from loader
