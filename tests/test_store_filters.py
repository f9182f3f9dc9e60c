"""Compressed by hdf5plugin's filters: verified, resumed, by ranks, and refused where a filter cannot do it."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import same
from mpi_kit import under_mpi
from store_kit import ended, journals, many_samples, smooth
from test_store_ranks import PROGRAM

from solar import read
from solar.cli import main
from solar.errors import CodecError, PlanError
from solar.io.codec.codec import FILTER_CHOICES, OUR_FILTER, Codec, parse
from solar.io.codec.filters import NAMED
from solar.io.codec.store import compress
from solar.io.codec.verify import Checked, Verified, verify

pytest.importorskip("hdf5plugin")

LOSSLESS = [name for name in NAMED if name != "zfp"]
NUMBERS = {"blosc2": [32026], "bitshuffle-lz4": [32008], "bitshuffle-zstd": [32008], "zstd": [2, 32015]}
LATE = 2  # the sample with a NaN: among the chunks that are written, not among those that are tried


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    field = smooth(100, 64, 64)
    noise = np.random.default_rng(0).integers(0, 1 << 32, (64, 64), np.uint32).view("f4")
    field[3] = np.where(np.isfinite(noise), noise, 1)  # nothing makes it smaller
    counts = np.random.default_rng(1).poisson(3, (100, 30, 50))
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["field"] = field
        file.create_dataset("counts", data=counts.astype(">u2"), chunks=(7, 9, 50))
        file["counts"].attrs["unit"] = "photons"
        file["label"] = np.arange(100)
    return tmp_path / "a.h5"


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("name", LOSSLESS)
def test_every_bit_comes_back_through_filters_of_others(name: str, scan: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.h5"
    stored = compress(scan, out, f"lossless,filter={name}")
    assert [part.name for part, _ in stored.parts] == ["/counts", "/field"]
    found = verify(scan, out)
    assert isinstance(found, Verified)
    assert (found.holds, found.by) == (True, ("solar", "libhdf5"))
    with h5py.File(out) as file:
        for part, nbytes in stored.parts:
            dataset = file[part.name]
            plan = dataset.id.get_create_plist()
            assert [plan.get_filter(i)[0] for i in range(plan.get_nfilters())] == NUMBERS[name]
            assert nbytes == dataset.id.get_storage_size() < part.nbytes
            assert json.loads(dataset.attrs["solar_bound"])["filter"] == name
            assert same(read(out, part.name), read(scan, part.name).astype(part.dtype))
        assert file["counts"].attrs["unit"] == "photons"
        assert file["field"].id.get_chunk_info_by_coord((3, 0, 0)).filter_mask == 2 ** len(NUMBERS[name]) - 1


def test_zfp_keeps_bounds_and_is_verified(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = smooth(40, 32, 40)
        file["y"] = smooth(40, 32, 40, dtype="f8")
        file["counts"] = np.random.default_rng(1).poisson(3, (40, 30, 50)).astype("u2")
    stored = compress(tmp_path / "a.h5", tmp_path / "b.h5", "rel=1e-4,filter=zfp")
    assert [part.name for part, _ in stored.parts] == ["/x", "/y"]
    assert stored.left[0].reason.startswith("zfp keeps its bound for float32 and float64")
    found = verify(tmp_path / "a.h5", tmp_path / "b.h5")
    assert isinstance(found, Verified)
    assert found.holds
    assert found.by == ("libhdf5",)  # solar has no decoder of its own for it
    assert all(0 < field.largest <= field.bound for field in found.fields)
    checked = verify(tmp_path / "b.h5")
    assert isinstance(checked, Checked)
    assert checked.holds


def test_what_zfp_cannot_keep_is_refused_with_its_place(tmp_path: Path) -> None:
    values = smooth(100, 64, 64)
    values[LATE, 3, 5] = np.nan
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        file["y"] = smooth(100, 64, 64)
        file["flat"] = np.ones((100, 32, 40), "f4")
    for codec, said in (
        (
            {"x": "abs=0.1,filter=zfp"},
            rf"a\.h5: /x, from \[{LATE}, 0, 0\]: zfp takes no NaN and no infinity",
        ),
        ({"y": "abs=1e-9,filter=zfp"}, r"a\.h5: /y: zfp does not keep 1e-09 for [\d,]+ of 4,096 values"),
        ({"flat": "rel=0.1,filter=zfp"}, r"a\.h5: /flat: zfp needs a bound above 0, and its values are all the same"),
    ):
        with pytest.raises(CodecError, match=said):
            compress(tmp_path / "a.h5", tmp_path / "b.h5", codec)
        assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


@pytest.mark.slow
def test_a_killed_run_with_another_filter_goes_on(tmp_path: Path) -> None:
    many_samples(tmp_path / "a.h5", 300)
    out, task = tmp_path / "b.h5", 256 * 64 * 64 * 4
    compress(tmp_path / "a.h5", tmp_path / "whole.h5", "lossless,filter=bitshuffle-lz4")
    line = ("compress", tmp_path / "a.h5", out, "--lossless", "--filter", "bitshuffle-lz4", "--threads", "2")
    for damage in ("none", "bytes"):
        assert ended(signal.SIGKILL, task, *line)[0] == -signal.SIGKILL
        (journal,) = journals(tmp_path)
        if damage == "bytes":
            file = journal.with_suffix(".h5")
            data = bytearray(file.read_bytes())
            data[file.stat().st_size // 4] ^= 1
            file.write_bytes(data)
        with pytest.raises(PlanError, match="with other settings"):
            compress(tmp_path / "a.h5", out, "lossless,filter=zstd")
        again = compress(tmp_path / "a.h5", out, "lossless,filter=bitshuffle-lz4").again
        assert again == (task if damage == "none" else 0)
        assert out.read_bytes() == (tmp_path / "whole.h5").read_bytes()
        assert not [*tmp_path.glob(".*")]
        out.unlink()


@pytest.mark.slow
def test_ranks_write_the_same_bytes_with_another_filter(tmp_path: Path) -> None:
    many_samples(tmp_path / "a.h5", 300)
    compress(tmp_path / "a.h5", tmp_path / "whole.h5", "abs=0.01,filter=zfp")
    said = under_mpi(2, PROGRAM, tmp_path / "a.h5", tmp_path / "b.h5", "", 0, "--filter", "zfp")
    assert [one["code"] for one in said] == [0, 0]
    assert (tmp_path / "b.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert not [*tmp_path.glob(".*")]


def test_the_command_has_the_filters_that_named_has() -> None:
    assert set(FILTER_CHOICES) == {OUR_FILTER, *NAMED}
    assert parse("lossless,filter=zstd") == Codec("lossless", filter="zstd")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--abs 1 --filter zstd", "zstd keeps every bit: say lossless, or take zfp or solar for a bound"),
        ("--lossless --filter zfp", "zfp needs a bound above 0: say abs=NUMBER or rel=NUMBER"),
        ("--lossless --filter zstd --coder pack", "coder= and predictor= are those of solar's own filter"),
        ("--field x:lossless,filter=zst", "there is no filter 'zst', only solar, .*; did you mean zstd"),
        ("--field x:abs=1,filter=blosc2", "x:abs=1,filter=blosc2: blosc2 keeps every bit"),
    ],
)
def test_bounds_and_filters_that_do_not_go_together_are_refused(
    arguments: str, said: str, scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compress", str(scan), str(tmp_path / "b.h5"), *arguments.split()]) != 0
    shown = capsys.readouterr().err
    assert re.search(said, shown), shown
    assert not (tmp_path / "b.h5").exists()


def test_filters_of_single_datasets_stand_beside_another_for_all(scan: Path, tmp_path: Path) -> None:
    line = ["compress", str(scan), str(tmp_path / "b.h5"), "--abs", "1e-2", "--coder", "pack", "--json"]
    assert main([*line, "--field", "counts:lossless,filter=zstd"]) == 0
    found = verify(scan, tmp_path / "b.h5")
    assert isinstance(found, Verified)
    assert found.holds
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["counts"].id.get_create_plist().get_filter(1)[0] == 32015
        assert json.loads(file["field"].attrs["solar_bound"])["coder"] == "pack"


def test_without_hdf5plugin_the_message_says_what_to_install(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    said = r"blosc2 is written by hdf5plugin, which is not here: pip install 'solar\[filters\]'"
    with pytest.raises(PlanError, match=said):
        compress(scan, tmp_path / "b.h5", "lossless,filter=blosc2")
