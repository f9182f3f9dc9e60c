"""A small test file with one dataset for each layout and filter that h5py and zstandard can write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard
from numpy.typing import NDArray

SAMPLES = 50  # no multiple of any chunk
SHAPE = (12, 9)
ZSTD = 32015
BATCHED = ("contiguous", "gzip, shuffle, fletcher32", "big-endian")  # their batches are compared with PyTorch's


def write(path: str | Path, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Writes the file; gives what h5py reads back, by the name of each dataset.

    >>> import tempfile
    >>> found = write(tempfile.mkdtemp() + "/each.h5")
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
    """The arguments of `create_dataset`, by the dataset's name."""
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
