"""Simulated ptychography: far-field diffraction patterns of random specimens, with the amplitude and phase behind them.

A scan is a fresh specimen, which a defocused X-ray probe visits at random places; a detector counts photons. Each
sample has `counts` and `truth` (amplitude and phase of the patch). Diffraction cannot tell a constant phase, so the
mean phase under the probe is taken off the truth.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from examples.common import Array, create, smooth_noise

SCAN = 64  # samples of one specimen
PHOTONS = 3e5  # that the probe brings to a pattern


def make_probe(size: int) -> Array:
    """The complex wave on the specimen: a Gaussian beam so far out of focus that its pattern is a blurred shadow."""
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    r2 = (x**2 + y**2) / size**2
    return np.exp(-r2 / (2 * 0.24**2) + 1j * np.pi * size * r2)  # this curvature: the shadow is as large as the patch


def make_specimen(rng: np.random.Generator, edge: int, size: int) -> Array:
    """A complex transmission: domains with sharp borders, and smooth variation of thickness."""
    domains = np.tanh(4 * smooth_noise(rng, (edge, edge), size / 5))
    thickness = smooth_noise(rng, (edge, edge), size / 3)
    amplitude = np.clip(0.75 + 0.15 * domains + 0.05 * thickness, 0.2, 1)
    return amplitude * np.exp(1j * (0.7 * domains + 0.3 * thickness))


def diffract(patches: Array, probe: Array) -> Array:
    """The expected photons of each pixel, zero frequency in the middle."""
    waves = np.fft.fftshift(np.fft.fft2(patches * probe, norm="ortho"), axes=(1, 2))
    return np.abs(waves) ** 2 * (PHOTONS / np.sum(np.abs(probe) ** 2))


def split(patches: Array, probe: Array) -> Array:
    """Amplitude and phase of each patch, the mean phase under the probe being 0."""
    light = np.abs(probe) ** 2
    phase = np.angle(patches)
    phase -= (phase * light).sum(axis=(1, 2), keepdims=True) / light.sum()
    return np.stack([np.abs(patches), phase], axis=1)


def write(path: Path, samples: int, *, size: int, seed: int, compression: str | None) -> None:
    """Writes the samples, one scan in memory at a time. The same arguments give the same samples."""
    probe = make_probe(size)
    with h5py.File(path, "w") as file:
        counts = create(file, "counts", (samples, size, size), "i4", compression)
        truth = create(file, "truth", (samples, 2, size, size), "f4", compression)
        file["light"] = (np.abs(probe) ** 2).astype("f4")
        for scan, first in enumerate(range(0, samples, SCAN)):
            rng = np.random.default_rng([seed, scan])
            some = min(SCAN, samples - first)
            specimen = make_specimen(rng, 4 * size, size)
            corners = rng.integers(0, 3 * size, (some, 2))
            patches = np.stack([specimen[r : r + size, c : c + size] for r, c in corners])
            counts[first : first + some] = rng.poisson(diffract(patches, probe))
            truth[first : first + some] = split(patches, probe)
