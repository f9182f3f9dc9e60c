"""Small promises of docs/compression.md that no other test is about."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from store_kit import smooth

import solar
from solar.cli import main


def test_advice_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = smooth(40, 32, 32)
    before = path.read_bytes()
    assert main(["compress", "--advise", str(path), "--quiet"]) == 0
    assert "lossless" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir() if one.name != "cache"] == ["a.h5"]


def test_relative_names_are_kept_and_said_where_they_lead_elsewhere(tmp_path: Path) -> None:
    path, there = tmp_path / "a.h5", tmp_path / "there"
    there.mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["y"] = smooth(4, 8, 8)
    with h5py.File(path, "w") as file:
        file["x"] = smooth(40, 32, 32)
        file["y"] = h5py.ExternalLink("other.h5", "/y")
    assert not solar.compress(path, tmp_path / "b.h5", "abs=1e-3").lost
    lost = solar.compress(path, there / "b.h5", "abs=1e-3").lost
    assert ["other.h5" in one for one in lost] == [True]
    with h5py.File(there / "b.h5") as file:
        assert file.get("y", getlink=True).filename == "other.h5"


def test_several_bounds_hold_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    with h5py.File(a, "w") as file:
        file["counts"] = np.random.default_rng(0).poisson(3, (40, 40, 40)).astype("u2")
        for name in ("phase", "mask", "rest"):
            file[name] = smooth(40, 40, 40)
    line = ["compress", a, b, "--rel", "1e-4", "--field", "counts:lossless,phase:abs=1e-3,coder=pack,mask:keep"]
    assert main([*line, "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["datasets"]}
    assert {name: one["kind"] for name, one in found.items()} == {
        "/counts": "lossless",
        "/phase": "abs",
        "/rest": "rel",
    }
    assert found["/phase"]["coder"] == "pack"
    assert main(["verify", a, b]) == 0
