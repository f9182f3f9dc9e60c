"""`solar inspect` of thousands of groups, of files that are not alike; and its line of Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from solar import H5Dataset, LayoutError
from solar.cli import main
from solar.cli.tree import LINES
from solar.io.hdf5 import layouts

Shown = Callable[..., list[str]]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """The lines that `solar inspect` prints, after a look at its exit code."""

    def inspect(*arguments: str, code: int = 0) -> list[str]:
        assert main(["inspect", *arguments]) == code
        return capsys.readouterr().out.splitlines()

    return inspect


def run(line: str) -> Any:
    """What a printed line of Python gives."""
    return eval(compile(line, "printed", "eval"), {"H5Dataset": H5Dataset})


def python_of(lines: list[str]) -> Any:
    (line,) = (line for line in lines if line.startswith("in Python: "))
    return run(line.removeprefix("in Python: "))


# --- many groups ----


@pytest.mark.slow
def test_groups_alike_share_a_line(tmp_path: Path, shown: Shown) -> None:
    path = str(tmp_path / "groups.h5")
    with h5py.File(path, "w") as file:
        for i in range(1200):
            file[f"g{i:04}/x"] = np.zeros((16 + i % 5, 4), "f4")
            file[f"g{i:04}/in/y"] = np.zeros(3)
        file["other/x"] = np.zeros((16, 4), "f4")
        file["other/z"] = np.zeros(3)
    lines = shown(path)
    assert len(lines) < 20
    assert any("g0000/ … g1199/  1,200 groups alike" in line for line in lines)
    assert any(re.search(r"x  16–20 × 4  float32  +\S+ \w+  direct  contiguous · 1,200 alike", line) for line in lines)
    assert any("other/" in line for line in lines)
    everything = shown(path, "--all")
    assert not any("…" in line for line in everything)
    assert sum("/" in line for line in everything) >= 2401
    assert len(json.loads("\n".join(shown(path, "--json")))["datasets"]) == 2402
    assert len(python_of(lines)) > 0


def test_datasets_of_one_series_share_a_line_and_others_do_not(tmp_path: Path, shown: Shown) -> None:
    path = str(tmp_path / "series.h5")
    names = ["temperature", "pressure", "humidity", "wind", "rain", "snow", "sun", "cloud", "fog", "ice", "dew", "heat"]
    with h5py.File(path, "w") as file:
        for i in range(12):
            file[f"frame{i}"] = np.zeros((5, 2))
            file[f"sensors/{names[i]}"] = np.zeros(5)
    text = "\n".join(shown(path))
    assert "frame0 … frame9" in text and "12 alike" in text and "frame5" not in text
    assert all(name in text for name in names)


def test_a_tree_of_things_unlike_is_cut_and_says_so(tmp_path: Path, shown: Shown) -> None:
    path = str(tmp_path / "unlike.h5")
    with h5py.File(path, "w") as file:
        for i in range(LINES + 50):
            file[f"x{i}"] = np.zeros((2, i + 1))
    lines = shown(path)
    assert "… and 50 lines more: --all shows them" in lines
    assert sum("direct" in line for line in lines) == LINES
    assert sum("direct" in line for line in shown(path, "--all")) == LINES + 50


# --- the line of Python ----


@pytest.mark.parametrize("fields", [1, 6, 7, 40])
def test_the_line_of_python_runs_however_many_fields_there_are(tmp_path: Path, shown: Shown, fields: int) -> None:
    path = str(tmp_path / "fields.h5")
    with h5py.File(path, "w") as file:
        for i in range(fields):
            file[f"{'abcdefg'[i % 7]}/field {i}"] = np.full((4, 2), i)
    lines = shown(path)
    data = python_of(lines)
    assert len(data) == 4 and len(data[0]) == min(fields, 6)
    assert (f"# and {fields - 6} field" in "\n".join(lines)) == (fields > 6)


@pytest.mark.parametrize(
    "name", ['quo"te', "back\\slash", "a × b … c", "tab\tand\nline", "\u200bunseen", "caf\udcff", "été"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_line_of_python_runs_whatever_the_names_are(
    tmp_path: Path, shown: Shown, name: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "it's a file.h5")
    with h5py.File(path, "w") as file:
        file[name.encode("utf-8", "surrogateescape")] = np.arange(3)
    monkeypatch.setattr("solar.cli.words.encoding", lambda: encoding)
    (line,) = (line for line in shown(path) if line.startswith("in Python: "))
    line.encode(encoding)
    assert run(line.removeprefix("in Python: "))[1] == {name: 1}


# --- files that are not alike ----


def folder_of_kinds(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(9):
        with h5py.File(folder / f"{'abc'[i % 3]}{i}.h5", "w") as file:
            file["x"] = np.zeros((3 + i, 2), "f4" if i % 3 else "f8")
            if i % 3 == 2:
                file["extra/y"] = np.zeros(4)
    (folder / "text.h5").write_text("no HDF5")
    return folder


def test_files_unlike_are_listed_by_kind_and_what_differs_is_said_once(tmp_path: Path, shown: Shown) -> None:
    folder = folder_of_kinds(tmp_path)
    lines = shown(str(folder), code=1)
    text = "\n".join(lines)
    assert text.startswith(f"10 files, the first is {folder}/a0.h5")
    assert "4 kinds of files" in lines[0]
    assert " ".join(text.split()).count("do not make one data set") == 1
    for first in ("a0", "b1", "c2"):
        assert any(line.startswith(f"3 files, the first is {folder}/{first}.h5") for line in lines)
    assert "Cannot be read: is no HDF5 file: it looks like" in " ".join(text.split())
    assert "extra/" in text and text.count("Cannot be read") == 1
    told = json.loads("\n".join(shown(str(folder), "--json", code=1)))
    assert [(kind["files"], Path(kind["first"]).name) for kind in told["kinds"]] == [
        (3, "a0.h5"),
        (3, "b1.h5"),
        (3, "c2.h5"),
        (1, "text.h5"),
    ]


def test_what_unlike_files_have_in_common_can_be_read(tmp_path: Path, shown: Shown) -> None:
    for i in range(4):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x"] = np.zeros((3, 2 + i // 2))
            file["y"] = np.full(3, i)
    lines = shown(str(tmp_path))
    assert "1 dataset can be read from all files together:" in lines
    assert len(python_of(lines)) == 12


def test_alike_files_are_one_data_set_named_by_the_first(tmp_path: Path, shown: Shown) -> None:
    for i in range(3):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x"] = np.zeros((3 + i, 2))
    lines = shown(str(tmp_path))
    assert lines[0].startswith(f"3 files, the first is {tmp_path}/0.h5")
    assert len(python_of(lines)) == 12


def test_the_exit_code_is_1_where_nothing_can_be_read(tmp_path: Path, shown: Shown) -> None:
    with h5py.File(tmp_path / "null.h5", "w") as file:
        file["x"] = h5py.Empty("f4")
    shown(str(tmp_path / "null.h5"), code=1)
    with h5py.File(tmp_path / "lost.h5", "w") as file:
        file["x"] = h5py.ExternalLink("gone.h5", "x")
    shown(str(tmp_path / "lost.h5"), code=1)
    h5py.File(tmp_path / "empty.h5", "w").close()
    shown(str(tmp_path / "empty.h5"))
    for name in ("one", "two"):
        (tmp_path / f"{name}.nc").write_text(name)
    shown(str(tmp_path / "*.nc"), code=1)


def test_of_a_file_of_millions_only_the_first_are_looked_at_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(40):
            file[f"g/m{number:02}/x"], file[f"g/m{number:02}/y"] = np.zeros(3), number
        file["z"], file["link"] = np.zeros(4), h5py.SoftLink("/z")
    monkeypatch.setattr(layouts, "MOST_SURVEYED", 20)
    assert main(["inspect", "--json", str(tmp_path / "a.h5")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["datasets"]] == [f"/g/m{n:02}/{x}" for n in range(10) for x in "xy"]
    assert found["problems"] == ["/g/m10/x and what comes behind it are not looked at: 20 datasets come before"]
    for samples in ("groups", "/g/*"):
        assert len(H5Dataset(tmp_path / "a.h5", {"y": "y"}, samples=samples)) == 40
    with pytest.raises(LayoutError, match="there is no w"):
        H5Dataset(tmp_path / "a.h5", "g/m39/w")
    monkeypatch.setattr(layouts, "MOST_SURVEYED", 82)
    assert main(["inspect", "--json", str(tmp_path / "a.h5")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["datasets"]) == 82 and found["problems"] == []
