"""What bench.buffer reads: photon counts as bench.scene makes them, each sample with its number in its first value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench.scene import Scene, digest, photon_counts, sample_of

FIELD = "x"
SHAPE = (128, 128)
NBYTES = 128 * 128 * 4
BLOCK_NBYTES = 512 * NBYTES  # that are written at a time: of 64 KB as many samples as h5py's automatic chunks span


def make(path: Path, samples: int, shape: tuple[int, ...] = SHAPE, **options: Any) -> None:
    """Writes so many samples; then digests.npy beside the file, of what h5py reads back.

    Of the options, `chunks` may be the samples of a chunk, and `bound` is that of our codec; else they are h5py's.
    """
    if isinstance(options.get("chunks"), int) and options["chunks"] is not True:
        options["chunks"] = (options["chunks"], *shape)
    if "bound" in options:
        from solar import filters  # only where it is asked for: it tells libhdf5 of our filter

        options |= filters.Bounded(abs=options.pop("bound"))
    patterns = photon_counts(Scene("buffer", "", samples, shape, "f4"))
    step = max(1, BLOCK_NBYTES // patterns[0].nbytes)
    with h5py.File(path, "w") as file:
        data = file.create_dataset(FIELD, (samples, *shape), "f4", **options)
        for first in range(0, samples, step):
            block = np.stack([sample_of(patterns, i) for i in range(first, min(first + step, samples))])
            block.reshape(len(block), -1)[:, 0] = np.arange(first, first + len(block))  # exact below 2^24
            data[first : first + len(block)] = block
    digests = np.concatenate([digests_of(block) for block in _blocks(path, step)])
    if len(np.unique(digests)) != samples:
        raise ValueError(f"{path}: samples are not all different")
    np.save(path.with_name("digests.npy"), digests)


def _blocks(path: Path, step: int) -> Iterator[NDArray[Any]]:
    with h5py.File(path) as file:
        for first in range(0, len(file[FIELD]), step):
            yield file[FIELD][first : first + step]


def digests_of(batch: Any) -> NDArray[np.uint64]:
    """What names the content of each sample."""
    return np.array([digest(sample) for sample in np.asarray(batch)])


class Check:
    """Sees that batches are the reference's samples: by their numbers, which costs nothing, or by all their bytes."""

    def __init__(self, folder: Path, shape: Sequence[int] = SHAPE) -> None:
        self.shape = tuple(shape)
        self.digests = np.load(folder / "digests.npy")
        self.numbered = self.digested = 0

    def numbers(self, batch: Any, samples: NDArray[np.int64]) -> None:
        first = np.rint(np.asarray(batch).reshape(len(batch), -1)[:, 0])  # our codec may be off by less than a half
        if tuple(batch.shape) != (len(samples), *self.shape) or not np.array_equal(first, samples):
            raise ValueError(f"a batch of {tuple(batch.shape)} is not of samples {samples[:4]}...")
        self.numbered += len(samples)

    def bytes(self, batch: Any, samples: NDArray[np.int64]) -> None:
        if not np.array_equal(digests_of(batch), self.digests[samples]):
            raise ValueError(f"returned other samples than the reference: not {samples[:4]}...")
        self.digested += len(samples)
