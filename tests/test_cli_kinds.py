"""`solar plan --window` and `--crop`: what it says is what the loader's run reads; and what it does not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crops_kit
import numpy as np
import pytest
from buffer_kit import DISK, LAYOUTS, run_of
from windows_kit import written

from solar import Crops, DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.cli import main

TERMS = ["--latency", "1ms", "--bandwidth", "100MB/s", "--iops", "500", "--batch-size", "8", "--epochs", "3"]


def answered(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["plan", *map(str, arguments), *TERMS, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def check_run(answer: dict[str, Any], data: H5Dataset, memory: int) -> None:
    """Three epochs of a loader read what the plan says."""
    assert sorted(answer["policies"]) == ["one_by_one", "solar"]
    assert answer["samples"] == len(data)
    sampler = PlanSampler(data, 1, 0, seed=0)
    with DataLoader(data, 8, sampler=sampler, buffer=memory, epochs=3, storage=DISK) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert sum(len(batch["y"]) for batch in loader) == len(data)
        counts = run_of(loader).counts()
    for name in ("reads", "requests", "bytes"):
        planned = answer["first_epoch"][name] + 2 * answer["policies"]["solar"][name]
        assert counts[name] == pytest.approx(planned, abs=2)


@pytest.mark.parametrize("memory", [20_000, 40_000, 400_000])
@pytest.mark.parametrize("layout", ["contiguous", "chunks of four samples"])
def test_the_plan_of_windows_is_the_runs(
    layout: str, memory: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.h5"
    written(path, 400, LAYOUTS[layout], ends=range(40, 401, 40))
    asked = ["--window", "u=-3:1", "--window", "u=1:5:2", "--every", 2, "--ends", "ends", "--memory", memory]
    answer = answered(capsys, path, "y", *asked)
    fields = {"y": "y", "past": Field("u", steps=range(-3, 1)), "next": Field("u", steps=range(1, 5, 2))}
    data = H5Dataset(str(path), fields, samples=Windows(2, ends="ends"))
    assert len(data) == 10 * 17
    check_run(answer, data, memory)


def test_people_are_told_of_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a.h5", 60, {}, lengths=[20, 40])
    asked = ["--window", "u=0,2,4", "--lengths", "lengths", "--pad", "edge", "--memory", "1MiB"]
    assert main(["plan", str(tmp_path / "a.h5"), *asked, *TERMS]) == 0
    said = capsys.readouterr().out
    assert "60 windows of u, 180 B each" in said
    assert "one by one" in said


@pytest.mark.parametrize("wrong", ["u", "u=", "u=1:x", "u=3:1", "u=1:2:0", "=0:4", "u=0:99999999"])
def test_a_window_that_is_none_is_said(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path / "a.h5"), "--window", wrong])
    assert "argument --window" in capsys.readouterr().err


def test_a_digest_of_windows_is_the_same_for_any_ranks_and_buffer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a.h5", 90, LAYOUTS["chunks of four samples"], ids=np.arange(90) // 30)
    asked = ["u", "y", "--window", "u=-3:1,2", "--ids", "ids", "--every", "3", "--drop-last"]
    found = []
    for more in (["--batch-size", "4", "--buffer", "0"], ["--batch-size", "4", "--buffer", "1MiB"],
                 ["--batch-size", "2", "--ranks", "2"]):  # fmt: skip
        assert main(["digest", str(tmp_path / "a.h5"), *asked, *more, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["epochs"])
    assert found[0] == found[1] == found[2]
    assert found[0][0]["samples"] == 24  # of 3 * 9


def test_windows_are_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a.h5", 60, {})
    asked = ["--window", "u=0:8", "--every", "4", "--batch-size", "4", "--epochs", "2", "--buffer", "1MiB"]
    assert main(["rehearse", str(tmp_path / "a.h5"), *asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["samples"], answer["nbytes"]) == (14, 8 * 60)


@pytest.mark.parametrize("memory", [150_000, 300_000, 2_000_000])
@pytest.mark.parametrize("stored", ["contiguous", "gzip"])
def test_the_plan_of_boxes_is_the_runs(
    stored: str, memory: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.io.hdf5.box_blocks.BLOCK_NBYTES", 2_000)
    path = tmp_path / "a.h5"
    label = np.zeros((24, 20, 22), "u1")
    crops_kit.written(path, (2, 24, 20, 22), stored, (1, 6, 7, 8), label=label)
    asked = ["--crop", "9,8,7", "--at", "random", "--per", 80, "--memory", memory]
    answer = answered(capsys, path, "u", "label", *asked)
    data = H5Dataset(str(path), {"u": "u", "y": "label"}, samples=Crops((9, 8, 7), at="random", per=80))
    assert len(data) == 80
    check_run(answer, data, memory)


def test_people_are_told_of_boxes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crops_kit.written(tmp_path / "a.h5", (6, 5, 4), "gzip", (2, 3, 4), label=np.zeros((6, 5, 4), "u1"))
    path, box = str(tmp_path / "a.h5"), ["--crop", "3,2,2", "--overlap", "1"]
    assert main(["plan", path, "u", "label", *box, "--memory", "1MiB", *TERMS]) == 0
    said = capsys.readouterr().out
    assert "36 boxes of u, label, 60 B each" in said
    assert "one by one" in said
    assert main(["rehearse", path, "u", *box, "--batch-size", "4", "--buffer", "1MiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 36
    found = []
    for buffer in ("0", "1MiB"):
        asked = ["u", "label", "--crop", "3,2,2", "--at", "random", "--per", "9", "--batch-size", "4", "--epochs", "2"]
        assert main(["digest", path, *asked, "--buffer", buffer, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["epochs"])
    assert found[0] == found[1]


WRONG = [
    (["--at", "random"], "--at is of boxes: give their --crop SHAPE, too"),
    (["--crop", "2,2", "--window", "u=0:2"], "--crop beside windows"),
    (["--crop", "2,2", "--per", "3"], "--crop: per=3"),
    (["--crop", "2,2", "--weights", "u"], "boxes are planned shuffled: leave out --weights"),
    (["--crop", "2,2", "--weights", "u"], "leave out --weights"),
    (["--crop", "2,9"], "are larger than its volume"),
]


@pytest.mark.parametrize(("asked", "said"), WRONG, ids=lambda one: " ".join(one) if isinstance(one, list) else "")
def test_boxes_that_make_no_sense_are_said(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crops_kit.written(tmp_path / "a.h5", (6, 5, 4), "contiguous")
    assert main(["plan", str(tmp_path / "a.h5"), "u", *asked, "--memory", "1MiB"]) != 0
    assert said in capsys.readouterr().err
    for wrong in ("0,2", "2x2", ""):
        with pytest.raises(SystemExit):
            main(["plan", str(tmp_path / "a.h5"), "u", "--crop", wrong])
        assert "argument --crop" in capsys.readouterr().err
