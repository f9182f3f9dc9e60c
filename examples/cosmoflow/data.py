"""Simulated universes: particle counts in a cube at four redshifts, from a Gaussian random field.

The field has the power spectrum of cold dark matter (the fit of Bardeen, Bond, Kaiser and Szalay 1986) down to
SMOOTH, it grows as in a flat universe with a cosmological constant (Carroll, Press and Turner 1992), its exponential is
the density, and the particles are Poisson's. So h shows only in the shape of the spectrum, through omega_m h. Each
sample has `counts` (size, size, size, 4), as the CosmoFlow data set has them, and `parameters`: omega_m, sigma_8, n_s
and h, each from -1 to 1 over 30 % to either side of its mean.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from examples.common import Array, create

MEANS = np.array([0.309, 0.816, 0.967, 0.677])  # omega_m, sigma_8, n_s, h
SPREAD = 0.3
VOXEL = 2.0  # Mpc/h
SMOOTH = 2.0  # Mpc/h; below it no field is Gaussian
PARTICLES = 8  # of a voxel, on average
REDSHIFTS = (0.0, 0.5, 1.5, 3.0)


def spectrum(k: Array, omega_m: float, n_s: float, h: float) -> Array:
    """The power spectrum at wave numbers k > 0 in h/Mpc, not normalised."""
    q = k / (omega_m * h)
    transfer = np.log1p(2.34 * q) / (2.34 * q)
    transfer *= (1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4) ** -0.25
    return k**n_s * transfer**2


def variance(radius: float, omega_m: float, n_s: float, h: float) -> float:
    """The variance of the field in balls of a radius in Mpc/h, for the spectrum as it comes."""
    k, step = np.geomspace(1e-4, 20, 2000), np.log(20 / 1e-4) / 1999
    x = k * radius
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    return float(np.sum(spectrum(k, omega_m, n_s, h) * window**2 * k**3) * step / (2 * np.pi**2))


def growth(redshift: float, omega_m: float) -> float:
    """How strong structure was at a redshift, today being 1."""

    def unscaled(a: float) -> float:
        expansion = omega_m / a**3 + 1 - omega_m
        matter, vacuum = omega_m / a**3 / expansion, (1 - omega_m) / expansion
        return 2.5 * a * matter / (matter ** (4 / 7) - vacuum + (1 + matter / 2) * (1 + vacuum / 70))

    return unscaled(1 / (1 + redshift)) / unscaled(1.0)


def make_universe(rng: np.random.Generator, size: int, parameters: Array) -> Array:
    """Particle counts (size, size, size, 4) of a universe with these parameters."""
    omega_m, sigma_8, n_s, h = parameters
    axis = 2 * np.pi * np.fft.fftfreq(size, VOXEL)
    k = np.sqrt(axis[:, None, None] ** 2 + axis[:, None] ** 2 + axis[: size // 2 + 1] ** 2)
    k[0, 0, 0] = 1
    power = spectrum(k, omega_m, n_s, h) * sigma_8**2 / variance(8.0, omega_m, n_s, h) / VOXEL**3
    power *= np.exp(-((k * SMOOTH) ** 2))
    power[0, 0, 0] = 0
    waves = np.fft.rfftn(rng.standard_normal((size,) * 3, dtype=np.float32)) * np.sqrt(power)
    field = np.fft.irfftn(waves, (size,) * 3, axes=(0, 1, 2)).astype("f4")
    counts = np.empty((*field.shape, len(REDSHIFTS)), "i2")
    for step, redshift in enumerate(REDSHIFTS):
        density = np.exp(np.float32(growth(redshift, omega_m)) * field)
        counts[..., step] = np.minimum(rng.poisson(density * (PARTICLES / density.mean())), np.iinfo("i2").max)
    return counts


def write(path: Path, samples: int, *, size: int, seed: int, compression: str | None) -> None:
    """Writes the samples one by one. The same arguments give the same samples."""
    with h5py.File(path, "w") as file:
        counts = create(file, "counts", (samples, size, size, size, len(REDSHIFTS)), "i2", compression)
        targets = create(file, "parameters", (samples, len(MEANS)), "f4", compression)
        for sample in range(samples):
            rng = np.random.default_rng([seed, sample])
            targets[sample] = target = rng.uniform(-1, 1, len(MEANS))
            counts[sample] = make_universe(rng, size, MEANS * (1 + SPREAD * target))
