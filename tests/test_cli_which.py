"""`--axis`, `--beside`, `--where`: plans are what the loader's run reads; digests and rehearsals are of its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from ragged_kit import matrix, sparse
from test_cli_kinds import TERMS, answered, check_run
from windows_kit import written

from solar import CSR, Field, H5Dataset, Windows
from solar.cli import main

GZIP = {"compression": "gzip"}


def stack(path: Path, stored: str, shape: tuple[int, ...] = (24, 20, 90)) -> None:
    values = np.random.default_rng(0).integers(0, 9, shape).astype("f4")
    with h5py.File(path, "w") as file:
        more = GZIP | {"chunks": (6, 10, *shape[2:-1], 9)} if stored == "gzip" else {}
        file.create_dataset("u", data=values, **more)
        file["y"] = np.arange(shape[-1])


@pytest.mark.parametrize("memory", [150_000, 400_000])
@pytest.mark.parametrize("stored", ["contiguous", "gzip"])
def test_the_plan_of_slices_is_the_runs(
    stored: str, memory: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.io.hdf5.box_blocks.BLOCK_NBYTES", 2_000)
    stack(tmp_path / "a.h5", stored)
    answer = answered(capsys, tmp_path / "a.h5", "y", "--axis", "u=-1", "--memory", memory)
    data = H5Dataset(str(tmp_path / "a.h5"), {"y": "y", "u": Field("u", axis=-1)})
    assert len(data) == 90
    check_run(answer, data, memory)


def test_the_plan_of_windows_along_another_axis_is_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.io.hdf5.box_blocks.BLOCK_NBYTES", 2_000)
    stack(tmp_path / "a.h5", "gzip", (12, 20, 5, 9))
    asked = ["--axis", "u=0,1", "--window", "u=0:4", "--every", 2, "--memory", 400_000]
    answer = answered(capsys, tmp_path / "a.h5", *asked)
    data = H5Dataset(str(tmp_path / "a.h5"), {"y": Field("u", axis=(0, 1), steps=range(4))}, samples=Windows(2))
    assert len(data) == 12 * 9
    check_run(answer, data, 400_000)


@pytest.mark.parametrize("memory", [20_000, 40_000])
def test_the_plan_of_a_joined_field_is_the_runs(
    memory: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, rng = np.arange(300), np.random.default_rng(1)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["id"], file["y"] = keys, rng.random((300, 7))
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file["id"], file["label"] = np.roll(np.arange(400), 37), rng.random((400, 3))
    text = f"{tmp_path / 'labels.h5'}:label"
    asked = ["y", "--beside", text, "--by", "id"]
    data = H5Dataset(str(tmp_path / "a.h5"), {"y": "y", text: Field("label", file=tmp_path / "labels.h5", by="id")})
    check_run(answered(capsys, tmp_path / "a.h5", *asked, "--memory", memory), data, memory)
    assert main(["rehearse", str(tmp_path / "a.h5"), *asked, "--batch-size", "8", "--json"]) == 0
    rehearsed = json.loads(capsys.readouterr().out)
    assert (rehearsed["samples"], rehearsed["nbytes"]) == (300, 7 * 8 + 3 * 8)


@pytest.mark.parametrize("memory", [20_000, 60_000])
def test_the_plan_of_what_a_mask_leaves_is_the_runs(
    memory: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a.h5", 900, {}, good=np.arange(900) % 3 > 0)
    answer = answered(capsys, tmp_path / "a.h5", "u", "y", "--where", "good", "--memory", memory)
    check_run(answer, H5Dataset(str(tmp_path / "a.h5"), {"u": "u", "y": "y"}, where="good"), memory)
    asked = ["y", "--window", "u=0:4", "--every", 4, "--where", "good", "--memory", memory]
    answer = answered(capsys, tmp_path / "a.h5", *asked)
    fields = {"y": "y", "u": Field("u", steps=range(4))}
    check_run(answer, H5Dataset(str(tmp_path / "a.h5"), fields, samples=Windows(4), where="good"), memory)


def test_the_plan_of_a_matrix_that_a_mask_leaves_some_of_is_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix(tmp_path / "a.h5", sparse(500, 60), "gzip")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["good"] = np.arange(500) % 4 != 1
    answer = answered(capsys, tmp_path / "a.h5", "y", "--csr", "X", "--where", "good", "--memory", 60_000)
    data = H5Dataset(str(tmp_path / "a.h5"), {"y": "y", "X": CSR("X")}, where="good")
    assert len(data) == 375
    check_run(answer, data, 60_000)


def test_jobs_share_what_a_mask_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a.h5", 900, {}, good=np.arange(900) % 3 > 0)
    answer = answered(capsys, tmp_path / "a.h5", "u", "--where", "good", "--memory", 60_000, "--jobs", 3)
    assert sorted(answer["policies"]) == ["alone", "solar"]
    assert answer["samples"] == 600
    assert answer["policies"]["solar"]["bytes"] < answer["policies"]["alone"]["bytes"]


ASKED: list[tuple[list[str], dict[str, Any]]] = [
    (["y", "--axis", "u=2"], {"fields": {"y": "y", "u": Field("u", axis=2)}}),
    (["y", "--where", "good"], {"fields": {"y": "y"}, "where": "good"}),
]


@pytest.mark.parametrize(("asked", "made"), ASKED, ids=["slices", "a mask"])
def test_digests_and_rehearsals_are_of_these_samples(
    asked: list[str], made: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack(tmp_path / "a.h5", "contiguous")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["good"] = np.arange(90) % 2
    path, data = str(tmp_path / "a.h5"), H5Dataset(str(tmp_path / "a.h5"), **made)
    found = []
    for buffer in ("0", "2MiB"):
        assert main(["digest", path, *asked, "--batch-size", "4", "--buffer", buffer, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["epochs"])
    assert found[0] == found[1]
    assert found[0][0]["samples"] == len(data)
    assert main(["rehearse", path, *asked, "--batch-size", "4", "--buffer", "2MiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == len(data)


def test_people_are_told_of_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a.h5", 60, {}, good=np.arange(60) < 45)
    assert main(["plan", str(tmp_path / "a.h5"), "u", "--where", "good", "--memory", "1MiB", *TERMS]) == 0
    said = capsys.readouterr().out
    assert "45 samples of u" in said
    assert "one by one" in said


WRONG = [
    (["--by", "id"], "--by names keys by which rows of another file are found"),
    (["--beside", "b.h5:y", "--axis", "u=2"], "fields of other files are rows"),
    (["--axis", "u=2", "--crop", "2,2"], "a sample is either of them"),
    (["--axis", "u=2", "--ragged", "u", "--ends", "y"], "--axis beside --ragged"),
    (["--axis", "u=7"], "axis"),
    (["--axis", "u=2", "--window", "u=0,2"], "steps along an axis are one after another"),
    (["--axis", "u=2", "--where", "y"], "where= chooses rows, and samples are boxes"),
    (["y", "--where", "y", "--weights", "y"], "samples that --where leaves are planned shuffled"),
    (["--where", "nothing"], "nothing"),
]


@pytest.mark.parametrize(("asked", "said"), WRONG, ids=lambda one: " ".join(one) if isinstance(one, list) else "")
def test_what_makes_no_sense_is_said(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack(tmp_path / "a.h5", "contiguous")
    assert main(["plan", str(tmp_path / "a.h5"), *asked, "--memory", "1MiB"]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [("--axis", "u"), ("--axis", "u=x"), ("--beside", "y"), ("--beside", ":y")])
def test_arguments_that_are_none_are_said(
    wrong: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path / "a.h5"), *wrong])
    assert f"argument {wrong[0]}" in capsys.readouterr().err
