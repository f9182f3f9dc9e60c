"""`solar inspect` names the kinds of samples that it sees in a file, and prints lines of Python that read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from solar import CSR, Crops, Field, H5Dataset, Ragged, Windows
from solar.cli import main, shapes
from solar.integrations import worldmodel

Told = Callable[[str | Path], list[dict[str, str]]]
NAMES: dict[str, Any] = {one.__name__: one for one in (CSR, Crops, Field, H5Dataset, Ragged, Windows)}
NAMES["worldmodel"] = worldmodel


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """What `solar inspect` says of a file, after a look that people are shown the same lines."""

    def inspect(path: str | Path) -> list[dict[str, str]]:
        assert main(["inspect", "--json", str(path)]) == 0
        found: list[dict[str, str]] = json.loads(capsys.readouterr().out)["shapes"]
        assert main(["inspect", str(path), "--all"]) == 0
        shown = capsys.readouterr().out
        assert all(one["python"] in shown and one["words"] in shown for one in found)
        return found

    return inspect


def run(line: str) -> Any:
    return eval(compile(line, "printed", "eval"), dict(NAMES))


def only(found: list[dict[str, str]], kind: str) -> Any:
    (line,) = (one["python"] for one in found if one["kind"] == kind)
    return run(line)


ENDS = np.array([2, 2, 9, 12])
TELLING = {
    "ends": ENDS,
    "indptr": np.array([0, *ENDS]),
    "row_lengths": np.diff(ENDS, prepend=0),
    "event_id": np.repeat([7, 3, 9], [2, 7, 3]),
}


@pytest.mark.parametrize("name", TELLING)
def test_what_tells_parts_gives_ragged_samples_and_windows(tmp_path: Path, told: Told, name: str) -> None:
    path = tmp_path / "parts.h5"
    with h5py.File(path, "w") as file:
        file[f"run/{name}"], file["run/hits"] = TELLING[name], np.arange(24.0).reshape(12, 2)
        file["run/energy"] = np.arange(3.0 if name == "event_id" else 4.0)
        file["other"], file["else/energy"] = np.zeros(17), np.zeros(len(file["run/energy"]))
    found = told(path)
    assert {one["kind"] for one in found} == {"ragged", "windows"}
    assert not any("else" in one["python"] for one in found)
    data, clips = only(found, "ragged"), only(found, "windows")
    ends = [0, *(ENDS[ENDS != 0].tolist() if name != "event_id" else [2, 9, 12])]
    assert [len(sample["hits"]) for sample in data] == np.diff(ends).tolist()
    assert [sample["energy"] for sample in data] == list(range(len(data)))
    assert clips[0]["hits"].tolist() == np.arange(24.0).reshape(12, 2)[2:9].tolist() and len(clips) == 1


NONE, BEFORE, EMPTY = "", "if its first 0 stands before them", "if its first 0 is the end of an empty part"


@pytest.mark.parametrize(
    ("name", "beside", "expected"),
    [
        ("ends", {"energy": 4}, {"ends": NONE}),  # both speak for an empty first part
        ("offsets", {"energy": 4, "elsewhere/x": 3}, {"ends": NONE}),  # what lies nearest counts
        ("offsets", {"elsewhere/x": 3}, {"indptr": NONE}),
        ("offsets", {"energy": 3}, {"indptr": NONE}),
        ("hit_ptr", {}, {"indptr": NONE}),
        ("ends", {"offsets": 5}, {"ends": NONE}),
        ("ends", {"energy": 3}, {"indptr": BEFORE, "ends": EMPTY}),  # the name says the one, what lies beside the other
        ("offsets", {}, {"indptr": BEFORE, "ends": EMPTY}),
        ("offsets", {"energy": 4, "other": 3}, {"indptr": BEFORE, "ends": EMPTY}),
    ],
)
def test_a_first_part_may_be_empty(
    tmp_path: Path, told: Told, name: str, beside: dict[str, int], expected: dict[str, str]
) -> None:
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file[f"run/{name}"], file["run/hits"] = [0, 2, 5, 9], np.arange(9.0)
        for other, rows in beside.items():
            file[f"run/{other}"] = np.arange(rows) * 9 // (rows - 1)
    found = told(tmp_path / "empty.h5")
    ragged = [one for one in found if one["kind"] == "ragged" and f'="/run/{name}"' in one["python"]]
    assert len(ragged) == len(expected)
    for one, (word, doubt) in zip(ragged, expected.items(), strict=True):
        lengths = [2, 3, 4] if word == "indptr" else [0, 2, 3, 4]
        assert [len(sample["hits"]) for sample in run(one["python"])] == lengths
        assert one["words"] == f"the {len(lengths)} parts that /run/{name} tells{doubt and f' {doubt}'}, each a sample"
    assert sum(f'="/run/{name}"' in one["python"] for one in found if one["kind"] == "windows") == 1


def test_numbers_that_tell_nothing_are_not_taken_for_parts(tmp_path: Path, told: Told) -> None:
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"], file["labels"] = np.zeros((12, 3)), np.arange(12) % 4
        file["few"] = [3, 1, 8]  # adds up to 12, and is called nothing that says so
        file["down"] = [14, 12]
        file["times"] = np.arange(12)
    assert told(tmp_path / "plain.h5") == []


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", ""])
def test_a_matrix_is_one_field_and_its_parts_are_none(
    tmp_path: Path, told: Told, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cells.h5ad"
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/raw")
        group["data"], group["indices"], group["indptr"] = [1.0, 2.0, 3.0], [0, 2, 1], [0, 2, 3]
        group.attrs["shape"] = [2, 3]
        if kind:
            group.attrs["encoding-type"] = kind
    found = told(path)
    assert [one["kind"] for one in found] == ["csr"]
    if kind == "csr_matrix":
        assert found[0]["words"] == "a sparse matrix of 2 rows and 3 columns"
        assert run(found[0]["python"])[0].values.tolist() == [1, 2]
    else:
        assert not found[0]["python"] and ("tocsr()" if kind else "csr_matrix") in found[0]["words"]
    main(["inspect", str(path)])
    assert "in Python" not in capsys.readouterr().out


def test_arrays_of_variable_length_are_ragged(tmp_path: Path, told: Told) -> None:
    with h5py.File(tmp_path / "vl.h5", "w") as file:
        file.create_dataset("g/vl", (2,), h5py.vlen_dtype(np.dtype("f4")))[:] = [np.ones(2, "f4"), np.ones(3, "f4")]
        file.create_dataset("text", (2,), h5py.string_dtype())
    (one,) = told(tmp_path / "vl.h5")
    assert [len(sample["vl"]) for sample in run(one["python"])] == [2, 3]


def test_volumes_of_few_rows_are_cut(tmp_path: Path, told: Told) -> None:
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["image"], file["mask"] = np.zeros((40, 48, 56), "u1"), np.zeros((40, 48, 56), "u1")
        file["scans"] = np.zeros((5, 16, 20, 24), "u1")
        file["pictures"] = np.zeros((500, 20, 20), "u1")
    lines = [one["python"] for one in told(tmp_path / "scan.h5")]
    assert len(lines) == 2
    both, rows = map(run, lines)
    assert both[0]["image"].shape == both[0]["mask"].shape == (20, 24, 28) and len(both) == 8
    assert rows[0]["scans"].shape == (8, 10, 12) and len(rows) == 40


def test_keys_are_named_with_the_line_that_joins_another_file(tmp_path: Path, told: Told) -> None:
    with h5py.File(tmp_path / "scans.h5", "w") as file:
        file["x"], file["scan_id"] = np.arange(8.0).reshape(4, 2), [40, 41, 42, 43]
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file["label"], file["scan_id"] = [0.3, 0.1, 0.0, 0.2], [43, 41, 40, 42]
    (one,) = told(tmp_path / "scans.h5")
    data = run(one["python"].replace("OTHER.h5", str(tmp_path / "labels.h5")))
    assert [sample["label"] for sample in data] == [0.0, 0.1, 0.2, 0.3]


def test_sources_that_a_virtual_dataset_lacks_are_named(tmp_path: Path, told: Told) -> None:
    layout = h5py.VirtualLayout((6, 2), "f8")
    for number in range(3):
        source = tmp_path / f"part{number}.h5"
        layout[2 * number : 2 * number + 2] = h5py.VirtualSource(source, "x", (2, 2))
        if number == 1:
            with h5py.File(source, "w") as file:
                file["x"] = np.ones((2, 2))
    with h5py.File(tmp_path / "view.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    (one,) = told(tmp_path / "view.h5")
    assert one["kind"] == "missing" and "part0.h5" in one["words"] and one["words"].endswith("x, and 1 more")


def test_groups_alike_are_samples(tmp_path: Path, told: Told) -> None:
    with h5py.File(tmp_path / "molecules.h5", "w") as file:
        for i in range(20):
            file[f"train/m{i:02}/coords"], file[f"train/m{i:02}/energy"] = np.full((2 + i % 3, 3), i), float(i)
            file[f"other/{i}/x{i}"] = i
    (one,) = told(tmp_path / "molecules.h5")
    data = run(one["python"])
    assert len(data) == 20 and data[19]["energy"] == 19 and data[19]["coords"].shape == (3, 3)


@pytest.mark.slow
def test_looking_reads_no_more_of_thousands_of_datasets_than_of_a_few(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "many.h5", "w") as file:
        for i in range(600):
            file[f"g{i:03}/ends"], file[f"g{i:03}/x{i}"] = [2, 5], np.zeros(5)
            file[f"g{i:03}/id"] = np.arange(5)
    looked = []
    inspect = shapes.inspect
    monkeypatch.setattr(shapes, "inspect", lambda file, name: looked.append(name) or inspect(file, name))
    assert told(tmp_path / "many.h5")
    assert len(looked) <= 2 * 3 * shapes.GLANCES


@pytest.mark.parametrize("odd", [False, True])
def test_files_of_robots_get_the_line_of_their_library(odd: bool, tmp_path: Path, told: Told) -> None:
    with h5py.File(tmp_path / "pusht.h5", "w") as file:
        file["pixels"], file["action"] = np.zeros((30, 8, 8, 3), "u1"), np.arange(60.0).reshape(30, 2)
        file["ep_len"], file["ep_offset"] = np.array([9, 0, 21]), np.array([0, 9, 9])
        if odd:  # which clips cannot load
            file["task"], file["fps"] = np.array([b"push"] * 30), np.float64(10)
    clips = only(told(tmp_path / "pusht.h5"), "robots")
    assert len(clips) == 6 and clips[0]["action"].tolist() == np.arange(60.0).reshape(30, 2)[9:25].tolist()
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number, length in enumerate([4, 7]):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = length
            demo["actions"], demo["obs/eye"] = np.zeros((length, 7)), np.arange(length)
            demo["obs/text"], demo["obs/once"] = np.array([b"a"] * length), np.zeros(3)
            if not odd:
                demo["rewards"], demo["dones"], demo["next_obs/eye"] = (
                    np.zeros(length),
                    np.zeros(length),
                    np.ones(length),
                )
    sequences = only(told(tmp_path / "demos.hdf5"), "robots")
    assert len(sequences) == 11 and sequences[4]["obs"]["eye"].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 6, 6]
    assert ("rewards" in sequences[0], "next_obs" in sequences[0]) == (not odd, not odd)


def test_files_that_resemble_those_of_robots_get_no_such_line(tmp_path: Path, told: Told) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["ep_len"], file["ep_offset"] = np.zeros(30), np.array([9, 21]), np.array([9, 30])
        file["data/demo_0/actions"], file["data/demo_0/obs/x"] = np.zeros((4, 7)), np.zeros(4)
    assert "robots" not in {one["kind"] for one in told(tmp_path / "a.h5")}
