"""Small HDF5 files for trials: diffraction patterns of a random specimen, and a dataset for each layout and filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard
from numpy.typing import NDArray

# A small file for trials: diffraction patterns of a random specimen, stored contiguous and compressed.


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


# A small test file with one dataset for each layout and filter that h5py and zstandard can write.


SAMPLES = 50  # no multiple of any chunk
SHAPE = (12, 9)
ZSTD = 32015
BATCHED = ("contiguous", "gzip, shuffle, fletcher32", "big-endian")  # their batches are compared with PyTorch's


def write_one_of_each(path: str | Path, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Writes the file; gives what h5py reads back, by the name of each dataset.

    >>> import tempfile
    >>> found = write_one_of_each(tempfile.mkdtemp() + "/each.h5")
    >>> len(found) > 10, {len(values) for values in found.values()}
    (True, {50})
    """
    counts = np.random.default_rng(seed).integers(0, 1000, (SAMPLES, *SHAPE)).astype("i4")
    path = Path(path).resolve()
    with h5py.File(path, "w") as file:
        for name, (values, options) in _kinds(counts).items():
            file.create_dataset(name, data=values, **options)
        _compact(file, counts[:, 0, 0].astype("i2"))
        _zstd(file, counts)
        virtual = h5py.VirtualLayout(counts.shape, counts.dtype)
        virtual[:] = h5py.VirtualSource(str(path), "chunks of several samples", counts.shape)
        file.create_virtual_dataset("virtual", virtual)
    with h5py.File(path, "r") as file:
        # h5py may lack the zstd filter: then compare with the values that were written.
        return {name: counts if name == "zstd" else data[()] for name, data in file.items()}


def _kinds(counts: NDArray[Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Returns the arguments of `create_dataset`, by the dataset's name."""
    each = (1, *SHAPE)
    return {
        "contiguous": (counts.astype("f4"), {}),
        "big-endian": (counts.astype(">f8"), {}),
        "chunks of several samples": (counts, {"chunks": (7, 5, 4)}),
        "growing": (counts, {"chunks": each, "maxshape": (None, *SHAPE)}),
        "gzip": (counts, {"chunks": each, "compression": "gzip"}),
        "gzip, shuffle, fletcher32": (
            counts.astype("u2"),
            {"chunks": (4, *SHAPE), "compression": "gzip", "shuffle": True, "fletcher32": True},
        ),
        "lzf": (counts, {"chunks": each, "compression": "lzf", "shuffle": True}),
        "scale-offset": (counts, {"chunks": each, "scaleoffset": 0}),
        "text": ([f"sample {i}" for i in range(SAMPLES)], {"dtype": h5py.string_dtype()}),
    }


def _compact(file: Any, values: NDArray[Any]) -> None:
    """A dataset whose values lie in its header."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(values.shape)
    h5py.Dataset(h5py.h5d.create(file.id, b"compact", h5py.h5t.py_create(values.dtype), space, dcpl=made))[...] = values


def _zstd(file: Any, values: NDArray[Any]) -> None:
    """A dataset of zstd frames, one per sample. libhdf5 can store these chunks without having the filter."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((1, *SHAPE))
    made.set_filter(ZSTD, h5py.h5z.FLAG_OPTIONAL, (3,))
    space = h5py.h5s.create_simple(values.shape)
    data = h5py.h5d.create(file.id, b"zstd", h5py.h5t.py_create(values.dtype), space, dcpl=made)
    for sample, one in enumerate(values):
        data.write_direct_chunk((sample, 0, 0), zstandard.compress(one.tobytes()))
