"""The arrays that bench/codec.py compresses: measured and simulated ones of others, and generated ones from a seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Samples = list[NDArray[np.generic]]  # of one set: alike in type and shape, one HDF5 chunk each
SHARED = Path(os.environ.get("SOLAR_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"
BOUNDS = (1e-2, 1e-3, 1e-4)  # of each sample's range
FILL = 1e19  # larger ones are marks, not values


def gaussian_field(shape: tuple[int, ...], slope: float, cut: float, seed: int) -> NDArray[np.float32]:
    """A periodic field whose power falls as k**slope, and exponentially beyond `cut` of the largest wave number."""
    rng = np.random.default_rng(seed)
    waves = np.fft.rfftn(rng.standard_normal(shape))
    axes = [np.fft.fftfreq(n) for n in shape[:-1]] + [np.fft.rfftfreq(shape[-1])]
    k = np.sqrt(sum(axis**2 for axis in np.meshgrid(*axes, indexing="ij", sparse=True)))
    k.flat[0] = 1.0
    waves *= k ** (slope / 2) * np.exp(-((k / (0.5 * cut)) ** 2))
    waves.flat[0] = 0.0
    field = np.fft.irfftn(waves, shape)
    return (field / field.std()).astype(np.float32)


def turbulence(n: int, cut: float, seed: int) -> Samples:
    return [gaussian_field((n, n, n), -11 / 3, cut, seed + i) for i in range(3)]


def masked(n: int, seed: int) -> Samples:
    """Sharp fronts, and a region without values, as oceans have land."""
    field, land = gaussian_field((n, n, n), -11 / 3, 0.5, seed), gaussian_field((1, n, n), -4.0, 0.3, seed + 1)
    field = np.tanh(4 * field) + np.float32(0.05) * field
    return [np.where(land > 0.3, np.float32(0), field).astype(np.float32)]


def galaxies(n: int, seed: int) -> Samples:
    """Counts of particles, one a voxel on average: Poisson numbers of a log-normal density."""
    rng = np.random.default_rng(seed)
    density = np.exp(1.2 * gaussian_field((n, n, n), -2.2, 0.8, seed).astype(np.float64))
    return [rng.poisson(density / density.mean()).astype(np.int16)]


def diffraction(frames: int, n: int, seed: int) -> Samples:
    """Speckled far fields with Poisson noise, as float32 counts."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:n, :n] - n / 2
    probe = np.exp(-((x**2 + y**2) / (2 * (n / 12) ** 2)))
    made = []
    for i in range(frames):
        phase = gaussian_field((n, n), -3.0, 0.6, seed + i)
        wave = np.fft.fftshift(np.fft.fft2(probe * np.exp(1j * phase)))
        power = np.abs(wave) ** 2
        made.append(rng.poisson(power / power.sum() * 2e5).astype(np.float32))
    return made


def floats(samples: Samples) -> Samples:
    return [sample.astype(np.float32) for sample in samples]


def generated() -> Iterator[tuple[str, Callable[[], Samples]]]:
    yield "turb64", lambda: turbulence(64, 0.35, 1)
    yield "rough64", lambda: turbulence(64, 50.0, 11)
    yield "smooth64", lambda: turbulence(64, 0.08, 21)
    yield "masked128", lambda: masked(128, 31)
    yield "ptycho_sim", lambda: diffraction(64, 128, 41)
    yield "ptycho_sim_sqrt", lambda: [np.sqrt(sample) for sample in diffraction(64, 128, 41)]
    yield "cosmo_counts", lambda: galaxies(128, 51)


def stored(folder: str, name: str) -> NDArray[np.generic]:
    for path in sorted((SHARED / folder).iterdir()):
        if path.suffix not in {".h5", ".cxi", ".nc", ".nxs"}:
            continue
        with h5py.File(path) as file:
            if name in file:
                return np.asarray(file[name][()])
    raise FileNotFoundError(f"{SHARED / folder} holds no HDF5 file with {name}")


def measured() -> Iterator[tuple[str, Callable[[], Samples]]]:
    if not SHARED.is_dir():
        return
    frames = "entry_1/instrument_1/detector_1/data"
    yield "ptycho_real", lambda: floats(list(stored("ptycho-petra3", frames)))
    yield "ptycho_sqrt", lambda: [np.sqrt(frame) for frame in floats(list(stored("ptycho-petra3", frames)))]
    yield "ptycho_counts", lambda: list(stored("ptycho-petra3", frames).astype(np.int32))
    yield "tooth", lambda: [np.ascontiguousarray(stored("tomo-tooth", "exchange/data")[:, i]) for i in range(2)]
    yield "femm_f64", lambda: [stored("field-femm", f"data/1/meshes/B/{axis}") for axis in "xyz"]
    yield "climate", lambda: [stored("climate-ukesm1", "noy")]
    yield "neutron_counts", lambda: [stored("neutron-chopper", "entry/data/data")]


def all_sets() -> dict[str, Callable[[], Samples]]:
    return dict([*measured(), *generated()])


def span(sample: NDArray[Any]) -> float:
    """The range of its values."""
    values = sample[np.abs(sample) < FILL] if sample.dtype.kind == "f" else sample
    return float(values.max()) - float(values.min())
