"""A small file for trials: diffraction patterns of a random specimen, stored contiguous and compressed."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

SIZE = 64  # pixels along each side of a pattern
MADE_AT_ONCE = 256  # patterns that are made together
STORED = {"contiguous": "counts", "one sample a chunk, gzip": "counts_gzip"}  # in words, and the dataset's name


def write(path: str | Path, samples: int, seed: int = 0) -> None:
    """Writes `samples` patterns as photon counts, both contiguous and in compressed chunks of one.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/specimen.h5"
    >>> write(path, 8)
    >>> with h5py.File(path) as file:
    ...     file["counts"].shape, bool((file["counts"][:] == file["counts_gzip"][:]).all())
    ((8, 64, 64), True)
    """
    rng = np.random.default_rng(seed)
    edge = 512
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((edge, edge))) * _low(edge, 9)).real
    specimen = np.exp(1j * np.pi * field / np.ptp(field))
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    beam = np.exp(-(x**2 + y**2) / (2 * (SIZE / 6) ** 2))
    with h5py.File(path, "w") as file:
        shape = (samples, SIZE, SIZE)
        plain = file.create_dataset("counts", shape, "f4")
        packed = file.create_dataset(
            "counts_gzip", shape, "f4", chunks=(1, SIZE, SIZE), compression="gzip", compression_opts=1, shuffle=True
        )
        for first in range(0, samples, MADE_AT_ONCE):
            corners = rng.integers(0, edge - SIZE, (min(MADE_AT_ONCE, samples - first), 2))
            waves = np.stack([specimen[a : a + SIZE, b : b + SIZE] for a, b in corners]) * beam
            seen = np.abs(np.fft.fftshift(np.fft.fft2(waves), axes=(1, 2))) ** 2
            photons = rng.poisson(1e5 * seen / seen.sum(axis=(1, 2), keepdims=True)).astype("f4")
            plain[first : first + len(photons)] = packed[first : first + len(photons)] = photons


def _low(edge: int, width: float) -> NDArray[np.float64]:
    """A low-pass filter: it keeps what is wider than `width` pixels."""
    frequency = np.fft.fftfreq(edge)
    passed: NDArray[np.float64] = np.exp(-((np.hypot(frequency[:, None], frequency) * width) ** 2) * 8)
    return passed
