"""`solar stage`: a file's data on a local disk beforehand, and away again; and what `solar plan` says of a stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stage_kit import LAYOUTS, as_a_new_process, epoch, own, stage_files, taken, written

from solar import H5Dataset
from solar.cli import main
from solar.cli import stage as command
from solar.io.reading import stage


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder of a local disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_staged_beforehand_is_not_read_from_afar(
    layout: str, tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "STEP_NBYTES", 100_000)
    values, path = written(tmp_path / "a.h5", layout), str(tmp_path / "a.h5")
    assert main(["stage", path, "--to", str(disk)]) == 0
    assert "of it read from afar now" in capsys.readouterr().out
    assert epoch(H5Dataset(path, {"x": "x", "y": "y"}, stage=disk), values)["far"] == 0
    assert main(["stage", path, "--to", str(disk)]) == 0  # again: all is there
    assert "0 B of it read from afar now" in capsys.readouterr().out


def test_a_folder_is_emptied_of_one_file_or_of_all(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / f"{name}.h5") for name in "abc"]
    for path in paths:
        written(Path(path))
        assert main(["stage", path, "x", "--to", str(disk), "--quiet"]) == 0
    (disk / "mine.txt").write_text("of somebody else's")
    assert main(["stage", paths[1], "--to", str(disk), "--drop"]) == 0
    assert "1 stage file removed" in capsys.readouterr().out
    assert len(stage_files(disk)) == 2
    assert main(["stage", "--to", str(disk), "--drop"]) == 0
    assert stage_files(disk) == []
    assert taken(disk) == 0
    assert (disk / "mine.txt").exists()
    assert own(disk).exists()


def test_a_process_that_has_it_open_goes_on_when_it_is_dropped(tmp_path: Path, disk: Path) -> None:
    values, path = written(tmp_path / "a.h5"), str(tmp_path / "a.h5")
    data = H5Dataset(path, {"x": "x"}, stage=disk)
    epoch(data, values)
    epoch(data, values)
    assert main(["stage", "--to", str(disk), "--drop"]) == 0
    epoch(data, values)
    other = H5Dataset(path, {"x": "x"}, stage=disk)  # in the same process: what was checked is not believed of it
    assert epoch(other, values)["far"] > 0
    assert epoch(other, values)["far"] == 0


def test_a_part_is_said_and_is_no_success(tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a.h5")
    as_a_new_process()
    assert main(["stage", str(tmp_path / "a.h5"), "--to", str(disk), "--size", "100k"]) == 1
    assert "has room for" in capsys.readouterr().err
    assert taken(disk) <= 100 << 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which FILE"),
        (["FILE", "--size", "0"], "takes some bytes"),
        (["FILE", "--to", "/nowhere"], "no such folder"),
    ],
)
def test_mistakes_are_errors_in_a_line(
    words: list[str], said: str, tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a.h5")
    given = [str(tmp_path / "a.h5") if word == "FILE" else word for word in words]
    assert main(["stage", "--to", str(disk), *given]) == 1
    assert said in capsys.readouterr().err


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["plan", "--samples", "10k", "--sample-bytes", "64k", "--latency", "1ms", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("memory", ["0", "100MiB"])
def test_a_plan_says_what_is_read_from_afar(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    size = 10_000 << 16
    for share in (0.25, 1.0, 2.0):
        words = ["--memory", memory, "--epochs", "4", "--stage", str(int(size * share))]
        told = json.loads(planned(capsys, *words, "--json"))
        afar, epochs = told["stage"], told["policies"]["solar"]
        assert afar["first_epoch"] == (told["first_epoch"] or epochs)["bytes"]
        assert afar["later_epochs"] == pytest.approx(epochs["bytes"] * max(0.0, 1 - share))
        assert afar["all"] == pytest.approx(afar["first_epoch"] + 3 * afar["later_epochs"])
    assert "each later one 0 B" in planned(capsys, *words)
    assert json.loads(planned(capsys, "--memory", memory, "--json"))["stage"] is None


def test_the_plan_of_a_stage_is_what_an_epoch_reads(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, path = written(tmp_path / "a.h5"), str(tmp_path / "a.h5")
    words = ["plan", path, "x", "--memory", "0", "--batch-size", "7", "--stage", "10MB", "--json"]
    assert main(words) == 0
    afar = json.loads(capsys.readouterr().out)["stage"]
    data = H5Dataset(path, {"x": "x"}, stage=disk, stage_size="10MB")
    first, second = epoch(data, values), epoch(data, values)
    edges = 2 * stage.STAGE_BLOCK * len(values)  # blocks are read whole
    assert afar["first_epoch"] <= first["far"] <= afar["first_epoch"] + edges
    assert second["far"] == afar["later_epochs"] == 0
