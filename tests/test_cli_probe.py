"""`solar probe`: what it prints and stores, and that `solar plan` finds it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import mkstemp

import pytest

from solar.cli import main
from solar.cli import probe as command
from solar.errors import PlanError
from solar.io.system import profile
from solar.io.system.probe import LEAST, beside_stores
from solar.io.system.profile import Rate
from solar.values import Storage


@pytest.fixture
def large(tmp_path: Path) -> str:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(LEAST))
    return str(path)


def test_the_keys_of_the_answer_are_fixed(large: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", large, "--seconds", "0.05", "--json", "--anyway"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [*answer] == [
        *("version", "path", "made", "how", "latency", "bandwidth", "iops", "depth", "gap", "load", "cores", "rounds"),
        *("disagreement", "profile", "rates"),
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
    command = ["probe", str(folder), "--size", "32MiB", "--seconds", "50ms", "--output", str(kept), "--anyway"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "writing a temporary file of 33,554,432 bytes" in shown
    assert " 1 in flight: " in shown
    assert all(f"\n{word} " in shown for word in ("latency", "requests", "bandwidth", "measured", "with a load of"))
    assert f"stored in {kept}" in shown
    assert not [*folder.iterdir()]
    plan = ["plan", "--samples", "100", "--sample-bytes", "1k", "--memory", "1m", "--profile", str(kept), "--json"]
    assert main(plan) == 0
    storage = json.loads(capsys.readouterr().out)["storage"]
    assert storage["iops"] == profile.load(kept).iops
    assert storage["from"] == f"profile {kept}"


@pytest.mark.parametrize("inside", ["scan.zarr", "scan.zarr/x", "scan.zarr/x/c/0"])
def test_nothing_is_written_into_a_zarr_store(
    inside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scan.zarr/x/c/0").mkdir(parents=True)
    for mark in ("zarr.json", "x/zarr.json"):
        (tmp_path / "scan.zarr" / mark).write_text("{}")
    written = []
    monkeypatch.setattr(
        "solar.io.system.probe.tempfile.mkstemp", lambda **how: written.append(how["dir"]) or mkstemp(**how)
    )
    asked = ["probe", str(tmp_path / inside), "--size", "32MiB", "--seconds", "50ms", "--anyway"]
    assert main([*asked, "--output", str(tmp_path / "kept.json")]) == 0
    assert written == [str(tmp_path)] and f"bytes in {tmp_path}\n" in capsys.readouterr().out
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kept.json", "scan.zarr"]
    monkeypatch.setattr(Path, "stat", lambda path: os.stat_result([0, 0, path.name == "scan.zarr", *[0] * 7]))
    with pytest.raises(PlanError, match=r"nothing is written into a Zarr store.*give a large file of the store"):
        beside_stores(str(tmp_path / "scan.zarr"))


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


# --- rounds that disagree ----


def measured(*bandwidths: float, load: float | None = 0.5) -> profile.Profile:
    """A profile of rounds with these bandwidths."""
    rounds = tuple(Storage(1e-3, bandwidth, 500, 8) for bandwidth in bandwidths)
    rates = Rate(4096, 1, 100, 100, 1.0), Rate(8 << 20, 1, 10, 10, 1.0)
    return profile.Profile("/data", "2026-01-01T00:00:00+00:00", "as told", rates, rounds[0], rounds, load, 2)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[[profile.Profile], None]:
    """Has `solar probe` measure this."""
    return lambda made: monkeypatch.setattr(command, "probe", lambda *_: made)


def test_rounds_that_disagree_are_told_and_not_stored(
    tmp_path: Path, found: Callable[[profile.Profile], None], capsys: pytest.CaptureFixture[str]
) -> None:
    found(measured(1e9, 38e6, 9e8, load=11.25))
    asking, kept = ["probe", "/data", "--output", str(tmp_path / "kept.json")], tmp_path / "kept.json"
    assert main(asking) == 1
    shown, said = capsys.readouterr()
    assert "bandwidth  1 GB/s in large ones" in shown and "stored" not in shown
    assert "with a load of 11.2 on 2 cores before: the machine was busy" in shown
    assert said.count("\n") == 1 and not kept.exists()
    for words in ("no profile is stored: 3 rounds", "bandwidth differs 26.3 times (38 MB/s to 1 GB/s)", "11.2 on 2"):
        assert words in said
    assert "Run it again" in said and "--seconds" in said and "--anyway" in said
    assert main([*asking, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["profile"] is None and "26.3 times" in answer["disagreement"]
    assert not kept.exists()
    assert main([*asking, "--anyway"]) == 0
    shown = capsys.readouterr().out
    assert "3 rounds disagree, and it is stored all the same: bandwidth differs" in shown
    assert profile.load(kept).bandwidth == 1e9


def test_an_older_profile_stays_where_rounds_disagree(
    tmp_path: Path, found: Callable[[profile.Profile], None], capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    found(measured(1e9, 1.1e9, 9e8, load=None))
    assert main(["probe", "/data", "--output", str(kept)]) == 0
    assert "with a load" not in capsys.readouterr().out
    before = kept.read_bytes()
    found(measured(1e9, 1e3))
    assert main(["probe", "/data", "--output", str(kept)]) == 1
    assert kept.read_bytes() == before
