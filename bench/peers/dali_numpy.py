"""NVIDIA DALI on the CPU: readers.numpy over one .npy file per sample, listed in the given order of one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.scene import Scene, blocks

LABEL = "DALI, CPU (one .npy per sample)"


def lacking(scene: Scene) -> str:
    try:
        import nvidia.dali  # noqa: F401  its distribution is named after the CUDA version
    except ImportError as error:
        return f"nvidia-dali is not installed ({error})"
    return ""


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{"threads": threads} for threads in (1, 2, 4)]


def prepare(scene: Scene, folder: Path) -> None:
    (folder / "npy").mkdir()
    index = 0
    for block in blocks(scene, folder):
        for row in block:
            np.save(folder / "npy" / f"{index}.npy", row)
            index += 1


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def

    epoch = order[: scene.samples // scene.batch].ravel()  # the reader starts again at its end

    @pipeline_def(batch_size=scene.batch, num_threads=setting["threads"], device_id=None, prefetch_queue_depth=2)
    def reading() -> Any:
        return fn.readers.numpy(file_root=str(folder / "npy"), files=[f"{i}.npy" for i in epoch], name="files")

    pipeline = reading()
    pipeline.build()
    for _ in order:
        (batch,) = pipeline.run()
        yield np.asarray(batch.as_tensor())
