"""The command on URLs: what it says of them is what it says of the file here."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from far_kit import Asked, Web, served
from kit import settle
from stage_kit import KINDS, written

import solar
from solar import PlanError
from solar.cli import bench, main
from solar.io.system.local_copy import local_copy

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    written(tmp_path / "one.h5", "gzip")
    with served(tmp_path) as one:
        yield one


def test_inspect_says_the_same(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    path, url = str(web.folder / "one.h5"), web.url("one.h5")
    assert main(["inspect", path]) == main(["inspect", url]) == 0
    said = capsys.readouterr().out.splitlines()
    here, there = said[: len(said) // 2], said[len(said) // 2 :]
    kept = [[one for one in lines if "float32" in one] for lines in (here, there)]
    assert kept[0] == kept[1] != []


def test_digests_are_the_same(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (str(web.folder / "one.h5"), web.url("one.h5")):
        assert main(["digest", path, "x", "--batch-size", "7", "--buffer", "800KiB"]) == 0
    said = capsys.readouterr().out.split()
    digests = [one for one in said if len(one) >= 32]
    assert digests
    assert digests[: len(digests) // 2] == digests[len(digests) // 2 :]


def test_plan_names_the_storage(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", web.url("one.h5"), "x", "--memory", "1MiB", "--batch-size", "7"]) == 0
    said = capsys.readouterr().out
    assert "guessed storage of 30 ms" in said
    assert "page cache" not in said


def test_probe_measures_it(web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(web.folder / "cache"))
    with h5py.File(web.folder / "large.h5", "w") as file:
        file["x"] = np.zeros((40, 1 << 20), "u1")
    settle(web.folder / "large.h5")
    assert main(["probe", web.url("large.h5"), "--seconds", "1", "--anyway"]) == 0
    capsys.readouterr()
    assert main(["plan", web.url("one.h5"), "x", "--memory", "1MiB", "--batch-size", "7"]) == 0
    assert "guessed" not in capsys.readouterr().out


@pytest.mark.slow
def test_bench_compares_with_h5py_over_requests_of_its_own(
    web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "TRYING", 0.1)
    monkeypatch.setattr(bench, "LONGEST_ROUNDS", 0.1)
    given = [
        "bench",
        web.url("one.h5"),
        "x",
        "--batch-size",
        "16",
        "--seconds",
        ".1",
        "--workers",
        "0",
        "--json",
    ]
    assert main(given) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["compared"] > 0  # batches of both, value by value
    assert said["cached"] is False
    assert said["readers"][1]["median"] > 0


# --- what works on a copy ----


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".copy" in path.name)


def test_compress_writes_what_it_writes_of_the_file(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [tmp_path / "here.h5", tmp_path / "there.h5"]
    for source, target in zip([str(web.folder / "one.h5"), web.url("one.h5")], out, strict=True):
        assert main(["compress", source, str(target), "--abs", "0.5"]) == 0
        assert main(["verify", source, str(target), "--no-store"]) == 0
    assert web.url("one.h5") in capsys.readouterr().out
    with h5py.File(out[0]) as here, h5py.File(out[1]) as there:
        for name in ("x", "y"):
            assert here[name].id.get_storage_size() == there[name].id.get_storage_size()
            np.testing.assert_array_equal(solar.read(out[0], name), solar.read(out[1], name))
    assert left(tmp_path) == []


def test_a_command_that_was_ended_finds_its_copy(web: Web, tmp_path: Path) -> None:
    url, out = web.url("one.h5"), tmp_path / "out.h5"
    with pytest.raises(KeyboardInterrupt), local_copy(url, out, lambda *_: None) as path:
        assert path.read_bytes() == (web.folder / "one.h5").read_bytes()
        raise KeyboardInterrupt
    assert left(tmp_path) == [path.name]
    begun = len(web.data())
    assert main(["compress", url, str(out), "--lossless", "--quiet"]) == 0
    assert len(web.data()) == begun
    assert left(tmp_path) == []


def test_a_copy_of_another_object_is_not_taken(web: Web, tmp_path: Path) -> None:
    url, out = web.url("one.h5"), tmp_path / "out.h5"
    with pytest.raises(KeyboardInterrupt), local_copy(url, out, lambda *_: None):
        raise KeyboardInterrupt
    written(web.folder / "other.h5", "gzip", seed=1).tobytes()
    (web.folder / "other.h5").replace(web.folder / "one.h5")
    time.sleep(2.1)  # what was looked at a moment ago is not asked for again
    with local_copy(url, out, lambda *_: None) as path:
        assert path.read_bytes() == (web.folder / "one.h5").read_bytes()
        assert left(tmp_path) == [path.name]
    assert left(tmp_path) == []


def test_what_is_in_the_way_is_told_before_anything_is_fetched(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.h5").write_text("mine")
    assert main(["compress", web.url("one.h5"), str(tmp_path / "out.h5"), "--lossless"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert web.sent == []
    assert main(["verify", str(web.folder / "one.h5"), web.url("one.h5")]) == 1
    assert "OUT is a file here" in capsys.readouterr().err


def test_a_virtual_dataset_is_not_copied_without_its_sources(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be compressed as fill values."""
    KINDS["virtual"](web.folder)
    assert main(["compress", web.url("virtual.h5"), str(tmp_path / "out.h5"), "--lossless"]) == 1
    assert "the values of /x lie in other files, which would not come along" in capsys.readouterr().err


def test_errors_name_the_url_and_leave_nothing(web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", web.url("one.h5"), str(tmp_path / "out.h5"), "--field", "nothing:lossless"]) == 1
    assert "/one.h5: there is no dataset /nothing" in (said := capsys.readouterr().err)
    assert ".copy" not in said

    def refuses(asked: Asked, before: int) -> bool:
        if asked.command == "GET" and asked.range(1 << 40)[0] > 0:
            asked.status(404)
            return True
        return False

    with h5py.File(web.folder / "large.h5", "w") as file:
        file["x"] = np.random.default_rng(0).random((40, 1 << 16))
    settle(web.folder / "large.h5")
    web.fault = refuses
    assert main(["compress", web.url("large.h5"), str(tmp_path / "out.h5"), "--lossless"]) == 1
    assert "/large.h5: reading" in capsys.readouterr().err
    assert left(tmp_path) == []


def test_there_must_be_room_for_a_copy(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(PlanError, match=r"a copy of .* is needed in .*, and 1,000 B are free"):
        local_copy(web.url("one.h5"), tmp_path / "out.h5", lambda *_: None).__enter__()


def test_tune_reads_a_copy(web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys.modules["far_model"] = model = ModuleType("far_model")
    model.build = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(37 * 41, 1))  # type: ignore[attr-defined]
    model.loss = lambda net, batch: net(batch["x"]).square().mean()  # type: ignore[attr-defined]
    given = ["tune", web.url("one.h5"), "--model", "far_model:build", "--loss", "far_model:loss", "--input", "x"]
    assert main([*given, "--steps", "0", "--batches", "4", "--batch-size", "8", "--rel", "1e-3", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert f"solar compress {web.url('one.h5')} one-small.h5 --field" in said
