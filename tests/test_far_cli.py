"""The command on URLs: what it says of them is what it says of the file here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from far_kit import Web, served
from kit import settle
from stage_kit import written

from solar.cli import main

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
    assert main(["probe", web.url("large.h5"), "--seconds", "1"]) == 0
    capsys.readouterr()
    assert main(["plan", web.url("one.h5"), "x", "--memory", "1MiB", "--batch-size", "7"]) == 0
    assert "guessed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "given",
    [["verify", "{}"], ["bench", "{}", "x", "--batch-size", "4"], ["compress", "{}", "none.h5", "--lossless"]],
    ids=lambda given: given[0],
)
def test_what_reads_no_urls_says_so(
    given: list[str], web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([one.format(web.url("one.h5")) for one in given]) == 1
    assert "no URLs" in capsys.readouterr().err
