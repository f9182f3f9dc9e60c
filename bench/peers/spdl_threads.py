"""SPDL's pipeline: threads that pread the samples of a batch from contiguous HDF5 data, the GIL released by each read.

SPDL brings no reader for arrays; this is the fastest stage that Python's standard library gives it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers import not_contiguous
from bench.peers.limit_pread import offset_of
from bench.scene import Scene

LABEL = "SPDL threads (os.preadv)"
NEEDS = "spdl"
lacking = not_contiguous


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{"threads": threads} for threads in (1, 2, 4)]


def batches(scene: Scene, folder: Path, order: Any, setting: dict[str, int]) -> Iterator[torch.Tensor]:
    from spdl.pipeline import PipelineBuilder

    path = scene.paths(folder)[0]
    first, nbytes = offset_of(path), scene.sample_nbytes
    file = os.open(path, os.O_RDONLY)

    def read(indices: list[int]) -> torch.Tensor:
        batch = np.empty((len(indices), *scene.shape), scene.dtype)
        rows = memoryview(batch).cast("B")
        for place, index in enumerate(indices):
            os.preadv(file, [rows[place * nbytes : (place + 1) * nbytes]], first + index * nbytes)
        return torch.from_numpy(batch)

    threads = setting["threads"]
    builder = PipelineBuilder().add_source(row.tolist() for row in order)
    pipeline = builder.pipe(read, concurrency=threads, output_order="input").add_sink(4).build(num_threads=threads)
    try:
        with pipeline.auto_stop():
            yield from pipeline
    finally:
        os.close(file)
