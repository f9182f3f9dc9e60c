"""What bench.buffer reads: photon counts as bench.scene makes them, each sample with its number in its first value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench.scene import Scene, digest, photon_counts, sample_of

FIELD = "x"
SHAPE = (128, 128)
NBYTES = 128 * 128 * 4
BLOCK = 512  # samples that are written at a time: as many as h5py's automatic chunks span


def make(path: Path, samples: int, **options: Any) -> None:
    """Writes so many samples of 64 KB; then digests.npy beside the file, of what h5py reads back."""
    patterns = photon_counts(Scene("buffer", "", samples, SHAPE, "f4"))
    with h5py.File(path, "w") as file:
        data = file.create_dataset(FIELD, (samples, *SHAPE), "f4", **options)
        for first in range(0, samples, BLOCK):
            block = np.stack([sample_of(patterns, i) for i in range(first, min(first + BLOCK, samples))])
            block[:, 0, 0] = np.arange(first, first + len(block))  # exact below 2^24
            data[first : first + len(block)] = block
    digests = np.concatenate([digests_of(block) for block in _blocks(path)])
    if len(np.unique(digests)) != samples:
        raise ValueError(f"{path}: samples are not all different")
    np.save(path.with_name("digests.npy"), digests)


def _blocks(path: Path) -> Iterator[NDArray[Any]]:
    with h5py.File(path) as file:
        for first in range(0, len(file[FIELD]), BLOCK):
            yield file[FIELD][first : first + BLOCK]


def digests_of(batch: Any) -> NDArray[np.uint64]:
    """What names the content of each sample."""
    return np.array([digest(sample) for sample in np.asarray(batch)])


class Check:
    """Sees that batches are the reference's samples: by their numbers, which costs nothing, or by all their bytes."""

    def __init__(self, folder: Path) -> None:
        self.digests = np.load(folder / "digests.npy")
        self.numbered = self.digested = 0

    def numbers(self, batch: Any, samples: NDArray[np.int64]) -> None:
        if tuple(batch.shape) != (len(samples), *SHAPE) or not np.array_equal(np.asarray(batch[:, 0, 0]), samples):
            raise ValueError(f"a batch of {tuple(batch.shape)} is not of samples {samples[:4]}...")
        self.numbered += len(samples)

    def bytes(self, batch: Any, samples: NDArray[np.int64]) -> None:
        if not np.array_equal(digests_of(batch), self.digests[samples]):
            raise ValueError(f"returned other samples than the reference: not {samples[:4]}...")
        self.digested += len(samples)
