"""What doors refuse that other tests do not bring to them: each says what was asked, what was found, and what to do."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle

import solar
from solar import H5Dataset
from solar.errors import CodecError, LayoutError, PlanError, ReadError
from solar.filters import filter_values, named
from solar.io.codec.codec import Codec, parse
from solar.io.codec.store import compress
from solar.io.codec.verify import verify
from solar.io.hdf5.metadata import pack_layouts, unpacked
from solar.io.reading.reader import Rows
from solar.io.system.probe import probe
from solar.io.system.quantities import parse_size, size_of
from solar.training.bound_search import made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Numbers of several kinds, large enough to be taken for samples."""
    waves = np.sin(np.arange(64 * 32 * 32, dtype="f4") / 50).reshape(64, 32, 32)
    with h5py.File(tmp_path / "a.h5", "w") as made_here:
        made_here["waves"] = waves
        made_here["counts"] = (waves * 1000).astype("i4")
        made_here["single"] = 3.5
        made_here.create_dataset("sparse", (64, 64, 64), "f4", chunks=(1, 64, 64))[3] = 1
        odd = h5py.h5t.IEEE_F32LE.copy()
        odd.set_ebias(128)
        space = h5py.h5s.create_simple((64, 1000))
        h5py.h5d.create(made_here.id, b"odd", odd, space)
        made_here["row"] = np.arange(5000)
        made_here["kind"] = np.dtype("i4")
    settle(tmp_path / "a.h5")
    return tmp_path / "a.h5"


# --- files ----


def test_one_part_of_a_file_family_is_refused_with_the_tool_that_joins_it(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part%d.h5", "w", driver="family", memb_size=1 << 20, libver="latest") as whole:
        whole["x"] = np.arange(5000)
    with pytest.raises(LayoutError, match=r"part0\.h5.*family: join it with `h5repart`"):
        solar.inspect(tmp_path / "part0.h5", "x", cache=None)


def test_an_open_file_is_not_taken_for_a_list_of_paths(file: Path) -> None:
    with (
        h5py.File(file) as opened,
        pytest.raises(TypeError, match=r"give the path of the file, not the open File: .*a\.h5"),
    ):
        solar.inspect(opened, "waves")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a path must be str or os\.PathLike\[str\], not bytes"):
        solar.inspect([b"a.h5"], "waves")  # type: ignore[list-item]


def test_values_are_not_read_into_memory_that_is_read_only_nor_a_scalar_by_rows(file: Path) -> None:
    rows = Rows(solar.inspect(file, "waves"))
    out = np.empty((2, 32, 32), "f4")
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        rows.start(np.array([0, 1]), out)
    with pytest.raises(IndexError, match="single is a scalar: it has no axis to index"):
        solar.read(file, "single", 0)


def test_a_bus_error_that_is_not_ours_ends_the_process_as_it_would_without_us(tmp_path: Path, file: Path) -> None:
    program = """
import faulthandler, mmap, os, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if sys.argv[3] == "handled":
    faulthandler.enable()  # before us: its handler must still be told
import solar
solar.read(sys.argv[1], "waves", [0, 5])
with open(sys.argv[2], "w+b") as file:
    file.truncate(100_000)
    view = mmap.mmap(file.fileno(), 0)
    file.truncate(0)
    view[50_000]
"""
    for how in ("handled", "plain"):
        command = [sys.executable, "-c", program, str(file), str(tmp_path / "short"), how]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == -signal.SIGBUS
        assert ("Fatal Python error: Bus error" in ended.stderr) == (how == "handled")


# --- what is written in words ----


@pytest.mark.parametrize(("text", "reason"), [("1e300", "too large"), ("1.5", "not a whole number"), ("x", "is not a")])
def test_a_size_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        parse_size(text)
    with pytest.raises(PlanError, match=reason):
        size_of(text, 100)


def test_a_codec_that_contradicts_itself_is_refused_with_what_to_say_instead() -> None:
    with pytest.raises(ValueError, match=r"lossless has no bound, and 0\.5 was given: say abs=0\.5 instead"):
        Codec("lossless", 0.5)
    for text in ("lossless=1", "abs"):
        with pytest.raises(ValueError, match="write abs=NUMBER, rel=NUMBER, lossless or stored"):
            parse(text)
    with pytest.raises(TypeError, match=r"chunks of zstd are made by libhdf5: solar\.filters\.named"):
        parse("lossless,filter=zstd").encode(np.zeros(10, "f4"))
    with pytest.raises(CodecError, match="arrays of >f4 cannot be encoded, only little-endian"):
        filter_values(parse("abs=1"), np.dtype(">f4"))
    with pytest.raises(TypeError, match="zstd keeps every bit; abs= is for zfp"):
        named("zstd", abs=0.1)


def test_a_storage_is_not_measured_by_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"nothing\.bin: cannot be measured: No such file"):
        probe(str(tmp_path / "nothing.bin"))


def test_weights_that_are_not_of_the_model_are_refused_with_what_is_in_them(tmp_path: Path) -> None:
    import torch

    def build() -> torch.nn.Module:
        return torch.nn.Linear(2, 2)

    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(PlanError, match=r"--weights .*text\.pt: .*; save model\.state_dict\(\) with torch\.save"):
        made(build, "m:build", str(tmp_path / "text.pt"), 0)
    torch.save({"strange": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(PlanError, match=r"is no state_dict of this model: .*; it has strange"):
        made(build, "m:build", str(tmp_path / "other.pt"), 0)


# --- compressed files ----


def test_what_cannot_be_compressed_is_named_with_its_reason(file: Path, tmp_path: Path) -> None:
    for name, reason in {"single": "it is a single value", "odd": "its numbers are of an unusual form"}.items():
        with pytest.raises(LayoutError, match=f"/{name} cannot be compressed: {reason}; leave it out of the fields"):
            compress(file, tmp_path / "b.h5", {name: "abs=1"})
    with pytest.raises(LayoutError, match=r"there is no dataset /wave to be compressed; did you mean /?waves\?"):
        compress(file, tmp_path / "b.h5", {"wave": "abs=1"})
    assert not (tmp_path / "b.h5").exists()
    left = {one.name: one.reason for one in compress(file, tmp_path / "b.h5", "abs=0.01").left}
    assert left["/sparse"] == "most of it was never written"
    again = {one.name: one.reason for one in compress(tmp_path / "b.h5", tmp_path / "c.h5", "abs=0.01").left}
    assert again["/waves"] == "solar compressed it already"


def test_a_bound_that_nobody_can_read_is_refused_not_guessed(file: Path, tmp_path: Path) -> None:
    compress(file, tmp_path / "b.h5", "abs=0.01")
    for nonsense in ("{", "[]", json.dumps({"bound": "?", "kind": "abs"})):
        with h5py.File(tmp_path / "b.h5", "r+") as made_here:
            made_here["waves"].attrs["solar_bound"] = nonsense
        with pytest.raises(LayoutError, match=r"b\.h5: /waves: its attribute solar_bound makes no sense"):
            verify(file, tmp_path / "b.h5")


def test_each_way_in_which_a_compressed_file_differs_from_its_original_is_named(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.h5"
    compress(file, target, "abs=0.01")
    changed = tmp_path / "changed.h5"
    shutil.copy(file, changed)
    with h5py.File(changed, "r+") as original:
        for name, values in {"waves": original["waves"][:50], "counts": original["counts"][()].astype("i8")}.items():
            del original[name]
            original[name] = values
        del original["kind"]
        original["kind"] = np.dtype("i8")
    found: Any = verify(changed, target)
    assert not found.holds
    text = "\n".join(found.differences)
    assert "/waves: of shape (64, 32, 32)" in text
    assert "/waves: the original has no such dataset, or one of another shape" in text
    assert "/counts: of type int32, not int64" in text
    assert "/counts: its values were not compared: those of the original are of another type" in text
    assert "/kind: another type" in text


# --- what ranks tell each other ----


def test_layouts_come_out_of_what_is_sent_as_they_went_in(file: Path) -> None:
    layouts = [solar.inspect(file, name) for name in ("waves", "counts", "sparse")]
    for sent, come in zip(layouts, unpacked(pack_layouts(layouts)), strict=True):
        assert come.digest == sent.digest
        assert come.dtype == sent.dtype
        assert (come.chunk_offset == sent.chunk_offset).all()


# --- the loader ----


def test_a_transform_must_be_callable(file: Path) -> None:
    with pytest.raises(TypeError, match="transform must be callable with a sample, not int"):
        H5Dataset(file, "waves", transform=3)  # type: ignore[arg-type]
