"""Every command, given paths and numbers that make no sense: one line that says what is wrong, and soon."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from solar.cli import main

COMMANDS = {
    "bench": ["bench", "FILE"],
    "compress": ["compress", "FILE", "OUT", "--field", "x:lossless"],
    "digest": ["digest", "FILE"],
    "inspect": ["inspect", "FILE"],
    "plan": ["plan", "FILE", "--memory", "1M"],
    "probe": ["probe", "FILE", "--seconds", "0.1"],
    "rehearse": ["rehearse", "FILE"],
    "stage": ["stage", "FILE", "--stage", "OUT"],
    "verify": ["verify", "FILE", "OK"],
}
ODD = ["pipe.h5", "folder.h5", "empty.h5", "junk.h5", "cut.h5", "loop.h5", "gone.h5", "missing.h5", "*.nope"]
ODD += ["a" * 300, "/dev/null", "", "http://", "s3://"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that are none, and one that is."""
    folder = tmp_path_factory.mktemp("odd")
    os.mkfifo(folder / "pipe.h5")
    (folder / "folder.h5").mkdir()
    (folder / "empty.h5").touch()
    (folder / "junk.h5").write_bytes(bytes(range(256)) * 12)
    (folder / "loop.h5").symlink_to("loop.h5")
    (folder / "gone.h5").symlink_to("nowhere.h5")
    with h5py.File(folder / "ok.h5", "w") as file:
        file["x"] = np.arange(400.0).reshape(100, 4)
    (folder / "cut.h5").write_bytes((folder / "ok.h5").read_bytes()[:1500])
    return folder


@pytest.mark.parametrize("name", ODD, ids=lambda name: name[:12])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_is_one_line(
    command: str, name: str, odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if (command, name) == ("probe", "folder.h5"):  # a folder is what it takes
        return
    monkeypatch.chdir(odd)
    paths = {"FILE": name, "OK": "ok.h5", "OUT": str(tmp_path / "out.h5")}
    try:
        code = main([paths.get(one, one) for one in COMMANDS[command]])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else -1
    shown, said = capsys.readouterr()
    assert code in (1, 2), shown
    lines = said.splitlines()
    assert len([line for line in lines if line.startswith("solar")]) == 1
    assert "Traceback" not in said
    assert not (tmp_path / "out.h5").is_file()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["bench", "ok.h5", "--batch-size", "8", "--workers", "99999999999999999999"], "more than 1,024 processes"),
        (["bench", "ok.h5", "--batch-size", "8", "--workers", "-1"], "cannot be below 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_soon(
    arguments: list[str], why: str, odd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(odd)
    assert main(arguments) == 1
    assert why in capsys.readouterr().err
