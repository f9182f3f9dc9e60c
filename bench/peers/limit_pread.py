"""The limit of reading: plain C threads that pread the samples into one batch that is used again (bench/pread.c).

Warm, with as many threads as cores. Cold, with the number of requests in flight (1 to 32 threads) and the way (buffered
or O_DIRECT) that gave most: what `fio` would find for random reads of this size. A sample that lies in many chunks is
read piece by piece.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench import pread
from bench.scene import FIELD, Scene

LABEL = "limit: pread, C threads"
ORDER = "given"
CALL_NBYTES = 2**29  # starting threads must not count


def lacking(scene: Scene) -> str:
    if scene.sources:
        return "the samples lie in other files"
    return "the chunks are filtered" if scene.filters else pread.lacking()


def settings(scene: Scene) -> list[dict[str, int]]:
    if scene.cache == "warm":
        return [{"threads": os.cpu_count() or 1, "direct": 0}]
    return [{"threads": n, "direct": way} for way, n in itertools.product((0, 1), (1, 2, 4, 8, 16, 32))]


def prepare(scene: Scene, folder: Path) -> None:
    pread.build()


def pieces(scene: Scene, folder: Path) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Where the pieces of each sample lie [sample, piece], and the shape of a piece."""
    paths = scene.paths(folder)
    if scene.files > 1:
        return np.array([[offset_of(path)] for path in paths], np.int64), scene.shape
    if scene.chunk is None:
        return offset_of(paths[0]) + np.arange(scene.samples)[:, None] * scene.sample_nbytes, scene.shape
    with h5py.File(paths[0]) as file:
        data = file[FIELD]
        deep, *edges = data.chunks
        chunks: list[Any] = []
        data.id.chunk_iter(chunks.append)
        piece_nbytes = int(np.prod(edges)) * data.dtype.itemsize
    # Chunks in C order of their place; then [chunk along axis 0, piece of the sample].
    chunks.sort(key=lambda chunk: chunk.chunk_offset)
    first = np.array([chunk.byte_offset for chunk in chunks]).reshape(-(-scene.samples // deep), -1)
    rows = np.arange(scene.samples)
    return first[rows // deep] + rows[:, None] % deep * piece_nbytes, tuple(edges)


def offset_of(path: Path) -> int:
    with h5py.File(path) as file:
        return file[FIELD].id.get_offset()


def batches(scene: Scene, folder: Path, order: NDArray[np.int64], setting: dict[str, int]) -> Iterator[Any]:
    where, piece = pieces(scene, folder)
    nbytes = scene.sample_nbytes // where.shape[1]
    out = np.empty((scene.batch, scene.sample_nbytes), np.uint8)
    for indices in order:
        pread.read_samples(
            scene.paths(folder), where, nbytes, indices, out, setting["threads"], bool(setting["direct"])
        )
        yield assembled(out.view(scene.dtype), scene, piece)


def assembled(batch: NDArray[Any], scene: Scene, piece: tuple[int, ...]) -> NDArray[Any]:
    """Pieces side by side, in C order of their place, to samples."""
    if piece == scene.shape:
        return batch.reshape(-1, *scene.shape)
    grid = [extent // edge for extent, edge in zip(scene.shape, piece, strict=True)]
    rank = len(grid)
    axes = [axis for pair in zip(range(1, rank + 1), range(rank + 1, 2 * rank + 1), strict=True) for axis in pair]
    return batch.reshape(-1, *grid, *piece).transpose(0, *axes).reshape(-1, *scene.shape)


def rate(
    scene: Scene, folder: Path, order: NDArray[np.int64], setting: dict[str, int], seconds: float
) -> tuple[int, float]:
    """Samples and seconds: whole calls of many batches until `seconds` are over."""
    where, _ = pieces(scene, folder)
    nbytes = scene.sample_nbytes // where.shape[1]
    out = np.ones((scene.batch, scene.sample_nbytes), np.uint8)
    samples, start = 0, time.perf_counter()
    step = max(1, CALL_NBYTES // out.nbytes)
    for first in range(0, len(order), step):
        some = order[first : first + step]
        pread.read_samples(scene.paths(folder), where, nbytes, some, out, setting["threads"], bool(setting["direct"]))
        samples += some.size
        if time.perf_counter() - start >= seconds:
            break
    return samples, time.perf_counter() - start
