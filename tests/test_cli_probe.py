"""`solar probe`: what it prints and stores, and that `solar plan` finds it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from solar.cli import main
from solar.io.machine import profile
from solar.io.machine.probe import LEAST


@pytest.fixture
def large(tmp_path: Path) -> str:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(LEAST))
    return str(path)


def test_the_keys_of_the_answer_are_fixed(large: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", large, "--seconds", "0.05", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [*answer] == [
        *("version", "path", "made", "how", "latency", "bandwidth", "iops", "depth", "gap", "profile", "rates")
    ]
    assert all([*rate] == ["nbytes", "depth", "requests", "bypassed", "seconds"] for rate in answer["rates"])
    assert answer["path"] == large
    stored = Path(answer["profile"])
    assert stored == profile.default_path(large)
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    storage = profile.load(stored)
    assert (storage.latency, storage.bandwidth, storage.iops, storage.depth, storage.gap) == tuple(
        answer[name] for name in ("latency", "bandwidth", "iops", "depth", "gap")
    )


def test_people_are_told_what_goes_on_and_where_the_profile_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, kept = tmp_path / "folder", tmp_path / "kept.json"
    folder.mkdir()
    command = ["probe", str(folder), "--size", "32MiB", "--seconds", "50ms", "--output", str(kept)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "writing a temporary file of 33,554,432 bytes" in shown
    assert " 1 in flight: " in shown
    assert all(f"\n{word} " in shown for word in ("latency", "requests", "bandwidth", "measured"))
    assert f"stored in {kept}" in shown
    assert not [*folder.iterdir()]
    plan = ["plan", "--samples", "100", "--sample-bytes", "1k", "--memory", "1m", "--profile", str(kept), "--json"]
    assert main(plan) == 0
    storage = json.loads(capsys.readouterr().out)["storage"]
    assert storage["iops"] == profile.load(kept).iops
    assert storage["from"] == f"profile {kept}"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--seconds", "0"], "argument --seconds: '0'"),
        (["--seconds", "2h"], "argument --seconds: '2h'"),
        (["--size", "many"], "argument --size: 'many'"),
    ],
)
def test_an_error_names_the_option(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["probe", ".", *arguments])
    assert why in capsys.readouterr().err


def test_what_cannot_be_measured_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, why in ((tmp_path / "none", "No such file"), ("/dev/zero", "neither a plain file nor a folder")):
        assert main(["probe", str(path)]) == 1
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
