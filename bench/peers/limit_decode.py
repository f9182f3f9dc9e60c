"""The limit of decoding: solar's decoders in as many threads as cores, over chunks that are in memory already.

Each chunk goes through `solar._native.decode`, a call from Python that returns new bytes; per call that costs a few
microseconds, so with fast filters on small chunks the true limit is a little higher. A chunk is decoded once for each
batch that touches it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench.peers.torch_h5py import prepare
from bench.scene import FIELD, Scene

__all__ = ["prepare"]

LABEL = "limit: decoders alone"


def lacking(scene: Scene) -> str:
    return "not for these chunks" if not scene.filters or scene.chunk == "auto" else ""


def settings(scene: Scene) -> list[dict[str, int]]:
    return [{"threads": os.cpu_count() or 1}]


class Stored:
    """The chunks of the file as they are stored, and how to decode them."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        with h5py.File(scene.paths(folder)[0]) as file:
            data = file[FIELD]
            created = data.id.get_create_plist()
            self.filters = [filter_of(created, number) for number in range(created.get_nfilters())]
            self.shape = data.chunks
            origins = [(first,) + (0,) * len(scene.shape) for first in range(0, scene.samples, data.chunks[0])]
            self.chunks = [data.id.read_direct_chunk(origin) for origin in origins]
        self.itemsize = np.dtype(scene.dtype).itemsize
        self.nbytes = int(np.prod(self.shape)) * self.itemsize

    def decode(self, chunk: int) -> bytes:
        from solar import _native

        mask, stored = self.chunks[chunk]
        return _native.decode(self.filters, self.itemsize, self.nbytes, mask, stored)

    def decode_some(self, chunks: NDArray[np.int64]) -> None:
        for chunk in chunks.tolist():
            self.decode(chunk)


def filter_of(created: Any, number: int) -> tuple[int, int, list[int]]:
    code, flags, values, _ = created.get_filter(number)
    return code, flags, list(values)


def batches(scene: Scene, folder: Path, order: NDArray[np.int64], setting: dict[str, int]) -> Iterator[Any]:
    stored = Stored(scene, folder)
    deep = stored.shape[0]
    for indices in order.tolist():
        rows = [np.frombuffer(stored.decode(i // deep), scene.dtype).reshape(stored.shape)[i % deep] for i in indices]
        yield np.stack(rows)


def rate(
    scene: Scene, folder: Path, order: NDArray[np.int64], setting: dict[str, int], seconds: float
) -> tuple[int, float]:
    stored, threads = Stored(scene, folder), setting["threads"]
    needed = [np.unique(indices // stored.shape[0]) for indices in order]
    samples, group = 0, 16
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        for first in range(0, len(order), group):
            chunks = np.concatenate(needed[first : first + group])
            list(pool.map(stored.decode_some, np.array_split(chunks, threads)))
            samples += order[first : first + group].size
            if time.perf_counter() - start >= seconds:
                break
        return samples, time.perf_counter() - start
