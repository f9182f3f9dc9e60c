"""Volumes with balls and tubes in them, which are equally bright: only their shape tells them apart.

Each volume is a row of `image` (noisy) and of `label` (0: nothing, 1: ball, 2: tube), in chunks of half its edge.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from examples.common import Array, smooth_noise

BALLS, TUBES = 12, 6
NOISE, CLOUDS = 0.3, 0.2  # deviations, of each voxel and of a smooth field; objects are brighter by 1


def make_volume(rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """The image and the labels (size, size, size)."""
    grid = np.moveaxis(np.indices((size,) * 3, "f4"), 0, -1)
    labels = np.zeros((size,) * 3, "u1")
    for _ in range(TUBES):
        along = rng.standard_normal(3)
        from_line = grid - rng.uniform(0, size, 3)
        along /= np.linalg.norm(along)
        square = (from_line**2).sum(axis=-1) - (from_line @ along) ** 2
        labels[square < rng.uniform(0.035, 0.05) ** 2 * size**2] = 2
    for _ in range(BALLS):
        square = ((grid - rng.uniform(0, size, 3)) ** 2).sum(axis=-1)
        labels[square < rng.uniform(0.08, 0.13) ** 2 * size**2] = 1
    image = (
        (labels > 0) + CLOUDS * smooth_noise(rng, labels.shape, size / 8) + NOISE * rng.standard_normal(labels.shape)
    )
    return image.astype("f4"), labels


def write(path: Path, samples: int, *, size: int, seed: int, compression: str | None) -> None:
    """Writes so many volumes one by one. The same arguments give the same ones."""
    shape, chunk = (samples, *(size,) * 3), (1, *(-(-size // 2),) * 3)
    with h5py.File(path, "w") as file:
        images, labels = (
            file.create_dataset(name, shape, dtype, chunks=chunk, compression=compression)
            for name, dtype in (("image", "f4"), ("label", "u1"))
        )
        for sample in range(samples):
            images[sample], labels[sample] = make_volume(np.random.default_rng([seed, sample]), size)
