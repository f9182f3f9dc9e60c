"""`zstd` and `bitshuffle-zstd` are written without hdf5plugin, and read by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import same
from store_kit import smooth

from solar import _native, read
from solar.io.codec import filters
from solar.io.codec.store import compress

hdf5plugin = pytest.importorskip("hdf5plugin", reason="reads what was written without it")

# In another process, where hdf5plugin cannot be imported and libhdf5 has no such filter.
ALONE = """
import os, sys
sys.modules["hdf5plugin"] = None
os.environ.pop("HDF5_PLUGIN_PATH", None)
import h5py
from solar.cli import main
assert not h5py.h5z.filter_avail(32008) and not h5py.h5z.filter_avail(32015)
raise SystemExit(main(["compress", *sys.argv[1:3], "--lossless", "--filter", sys.argv[3]]))
"""
DTYPES = ["u1", "<i2", "<u4", "<f4", "<f8"]


def written(plan: Any) -> list[tuple[int, tuple[int, ...]]]:
    filters = [plan.get_filter(i) for i in range(plan.get_nfilters())]
    return [(number, tuple(values)) for number, _, values, _ in filters]


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["field"] = smooth(40, 50, 61)
        for dtype in DTYPES:
            file[dtype] = np.random.default_rng(1).poisson(3, (20, 53, 107)).astype(dtype)
    return tmp_path / "a.h5"


@pytest.mark.slow
@pytest.mark.parametrize("name", filters.NAMES)
def test_files_written_without_hdf5plugin_are_the_same_and_are_read_by_it(
    name: str, scan: Path, tmp_path: Path
) -> None:
    alone, beside = tmp_path / "alone.h5", tmp_path / "beside.h5"
    subprocess.run([sys.executable, "-c", ALONE, str(scan), str(alone), name], check=True)
    compress(scan, beside, f"lossless,filter={name}")
    with h5py.File(alone) as file, h5py.File(beside) as other, h5py.File(scan) as original:
        for path in ("field", *DTYPES):
            dataset, twin = file[path], other[path]
            assert dataset.id.get_storage_size() < dataset.nbytes
            assert same(dataset[()], original[path][()])  # by libhdf5 and hdf5plugin's filters
            assert same(read(alone, path), original[path][()])
            said, usual = written(dataset.id.get_create_plist()), written(twin.id.get_create_plist())
            assert [number for number, _ in said] == [number for number, _ in usual]
            # What the filter itself says in front is its version, two numbers, which nobody reads; the rest is alike.
            assert [values[2:] for _, values in said] == [values[2:] for _, values in usual]
            for i in range(dataset.id.get_num_chunks()):
                at = dataset.id.get_chunk_info(i).chunk_offset
                assert dataset.id.read_direct_chunk(at) == twin.id.read_direct_chunk(at)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 7, 8, 15, 127, 128, 1000, 2047, 2048, 8192, 20_011])
def test_chunks_of_any_length_are_read_by_hdf5plugin(dtype: str, count: int, tmp_path: Path) -> None:
    values = np.random.default_rng(count).poisson(1, count).astype(dtype)
    for name, options in (("zstd", hdf5plugin.Zstd()), ("bitshuffle-zstd", hdf5plugin.Bitshuffle(cname="zstd"))):
        before = values.copy()
        stored = filters.chunk(name, values)
        assert same(values, before)
        with h5py.File(tmp_path / f"{name}.h5", "w", rdcc_nbytes=0) as file:
            dataset = file.create_dataset(
                "x", values.shape, dtype, chunks=values.shape, shuffle=name == "zstd", **options
            )
            dataset.id.write_direct_chunk((0,), stored)
            assert same(dataset[()], values)
        pipeline = [(number, 0, list(said)) for number, said in filters.filters(name, values.itemsize, False)]
        pipeline[0] = (pipeline[0][0], 0, pipeline[0][2] or [values.itemsize])  # which libhdf5 says of a shuffle
        assert _native.decode(pipeline, values.itemsize, values.nbytes, 0, stored) == values.tobytes()
