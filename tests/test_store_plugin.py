"""Compressed files through the plug-in: h5py reads what our decoder does, and `verify` looks whether it still does."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import same, settle
from store_kit import all_of_hdf5, smooth

import solar.filters
from solar import read
from solar.io.codec.codec import Codec
from solar.io.codec.filters import MOST_VALUES, has_room
from solar.io.codec.marks import marks_of
from solar.io.codec.preparation import trained
from solar.io.codec.store import compress
from solar.io.codec.verify import Verified, verify

CODECS = ["rel=1e-4", "abs=0.02,coder=pack", "lossless"]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    all_of_hdf5(tmp_path / "a.h5")
    return tmp_path / "a.h5"


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("codec", CODECS)
def test_h5py_reads_a_compressed_file_as_our_decoder_does(codec: str, original: Path, tmp_path: Path) -> None:
    stored = compress(original, tmp_path / "b.h5", codec, chunk_samples=7)  # 40 samples: the last chunk is not full
    settle(tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        for part, _ in stored.parts:
            assert same(file[part.name][()], read(tmp_path / "b.h5", part.name)), part.name
        assert len(stored.parts) >= 4


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("codec", CODECS)
def test_the_filter_says_type_and_shape_of_the_chunks(codec: str, original: Path, tmp_path: Path) -> None:
    stored = compress(original, tmp_path / "b.h5", codec)
    with h5py.File(tmp_path / "b.h5") as file:
        for part, _ in stored.parts:
            marks = [] if codec == "lossless" else list(marks_of(file[part.name]).values)
            number, _, values, _ = file[part.name].id.get_create_plist().get_filter(0)
            asked = values[2 + -(-values[1] // 4) :]
            assert (number, values[0], asked[0]) == (solar.filters.FILTER, 1, 2 if marks else 1)
            assert asked[1] == {"f4": 1, "f8": 2, "u2": 6}[part.dtype.str[1:]]
            assert struct.unpack("<d", struct.pack("<II", *asked[4:6])) == (part.codec.bound,)
            bits = [int.from_bytes(mark.tobytes().ljust(8, b"\0"), "little") for mark in marks]
            told = [half for number in bits for half in (number & 0xFFFFFFFF, number >> 32)]
            marked = (len(marks), *told, 0) if marks else ()  # and no limits
            assert asked[6:] == (len(part.chunk), *file[part.name].chunks, *marked)


def without_plugin(code: str, *arguments: object) -> None:
    """Runs a program in which nobody told libhdf5 of the plug-in yet."""
    variables = {name: value for name, value in os.environ.items() if name != "HDF5_PLUGIN_PATH"}
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True, env=variables)


@pytest.mark.slow
def test_the_file_is_the_same_whether_or_not_the_plug_in_was_imported_before(original: Path, tmp_path: Path) -> None:
    compress(original, tmp_path / "b.h5", "rel=1e-4")
    code = "import sys; from solar.io.codec.store import compress; compress(sys.argv[1], sys.argv[2], 'rel=1e-4')"
    without_plugin(code, original, tmp_path / "c.h5")
    assert (tmp_path / "b.h5").read_bytes() == (tmp_path / "c.h5").read_bytes()


def test_tables_leave_room_for_type_and_shape() -> None:
    rng = np.random.default_rng(0)
    numbers = [rng.integers(-128, 128, (1, 1, 64, 64)) * rng.random((1, 1, 64, 64)) ** 6 for _ in range(30)]
    wild = [rng.standard_cauchy((1, 1, 64, 64)) * 10.0**scale for scale in range(-3, 5)]
    for dtype, bound, arrays in (("i4", 0.0, numbers), ("f4", 1e-3, wild)):
        samples, codec = [array.astype(dtype) for array in arrays], Codec("abs", bound)
        assert not has_room(codec.trained(samples), 4)
        assert len(solar.filters.filter_values(trained(codec, samples), np.dtype(dtype), (1, 1, 64, 64))) <= MOST_VALUES


def test_verify_reads_a_compressed_file_through_libhdf5_too(original: Path, tmp_path: Path) -> None:
    compress(original, tmp_path / "b.h5", "rel=1e-3")
    found = verify(original, tmp_path / "b.h5")
    assert isinstance(found, Verified)
    assert found.holds
    assert found.by == ("solar", "libhdf5")


def test_what_the_page_shows_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "compression.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 4
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["x"] = smooth(20, 40, 40)
        file["/entry/data/counts"] = np.random.default_rng(0).poisson(3, (20, 40, 40)).astype("u2")
    run = [sys.executable, "-W", "error", "-c", "\n".join(shown)]
    ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"scan.h5", "small.h5", "new.h5", "named.h5"}


LYING = """
import sys, h5py
with h5py.File(sys.argv[1]) as here, h5py.File(sys.argv[2], "w") as there:
    old = here["x"].id
    values = old.get_create_plist().get_filter(0)[2]
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk(here["x"].chunks)
    plan.set_filter(333, h5py.h5z.FLAG_OPTIONAL, (*values[:-1], values[-1] + 1))  # the last length of a chunk
    new = h5py.h5d.create(there.id, b"x", old.get_type(), old.get_space(), plan)
    there["x"].attrs["solar_bound"] = here["x"].attrs["solar_bound"]
    for i in range(old.get_num_chunks()):
        at = old.get_chunk_info(i).chunk_offset
        new.write_direct_chunk(at, old.read_direct_chunk(at)[1])
"""


def test_what_only_our_decoder_can_read_is_found(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = smooth(20, 40, 40)
    compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=1e-3")
    without_plugin(LYING, tmp_path / "b.h5", tmp_path / "c.h5")
    found = verify(tmp_path / "a.h5", tmp_path / "c.h5")
    assert isinstance(found, Verified)
    assert not found.holds
    assert found.fields[0].holds
    assert found.differences[0].startswith("/x: our decoder reads it, and libhdf5 does not: ")
