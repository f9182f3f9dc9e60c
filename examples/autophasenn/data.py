"""Simulated Bragg coherent diffraction: the 3-D pattern around a Bragg peak of random faceted, strained crystals.

A crystal is what random planes leave of a ball; its lattice is displaced by a smooth random field, which the wave
takes on as a phase. It fills at most half of each edge, so that the pattern is sampled finely enough. Each sample has
`counts`, and `truth`: amplitude and phase of the crystal, for the picture only, since training needs none.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from examples.common import Array, create, smooth_noise

PHOTONS = 1e7  # in a pattern


def make_crystal(rng: np.random.Generator, size: int) -> Array:
    """The complex density (size / 2)^3 of a crystal: facets from 10 to 20 planes, and a phase of a radian or so."""
    edge = size // 2
    place = np.stack(np.meshgrid(*[np.arange(edge) - (edge - 1) / 2] * 3, indexing="ij"))
    depth = np.full((edge,) * 3, np.inf)  # how far inside the nearest facet, in voxels
    for normal in rng.standard_normal((rng.integers(10, 21), 3)):
        facet = edge * rng.uniform(0.22, 0.45)
        depth = np.minimum(depth, facet - np.tensordot(normal / np.linalg.norm(normal), place, 1))
    depth = np.minimum(depth, 0.47 * edge - np.sqrt((place**2).sum(axis=0)))
    density = 1 / (1 + np.exp(-4 * np.clip(depth, -9, 9)))
    phase = rng.uniform(0.2, 1) * smooth_noise(rng, (edge,) * 3, edge / 3)
    inside = density > 0.5
    phase -= phase[inside].mean()
    return density * np.exp(1j * phase)


def diffract(crystal: Array) -> Array:
    """The expected photons of each voxel of reciprocal space, the Bragg peak in the middle."""
    edge = crystal.shape[0]
    wave = np.fft.fftshift(np.fft.fftn(crystal, (2 * edge,) * 3, axes=(0, 1, 2)))
    light = np.abs(wave) ** 2
    return light * (PHOTONS / light.sum())


def write(path: Path, samples: int, *, size: int, seed: int, compression: str | None) -> None:
    """Writes the samples one by one. The same arguments give the same samples."""
    edge = size // 2
    with h5py.File(path, "w") as file:
        counts = create(file, "counts", (samples, size, size, size), "i4", compression)
        truth = create(file, "truth", (samples, 2, edge, edge, edge), "f4", compression)
        for sample in range(samples):
            rng = np.random.default_rng([seed, sample])
            crystal = make_crystal(rng, size)
            counts[sample] = rng.poisson(diffract(crystal))
            truth[sample] = np.abs(crystal), np.angle(crystal)
