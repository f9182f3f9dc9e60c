"""The commands that pages quote run, and print what the pages say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from solar.cli import main

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).parent.parent
PAGES = ("quickstart", "communities", "faq", "tuning")
# What a command takes beside what the page says, so that it is over soon; and what it prints then.
MORE = {"probe": ["--size", "32MiB", "--seconds", "0.1", "--anyway"]}
SAYS = {
    "demo": "identical",
    "inspect": "in Python: H5Dataset(",
    "plan": "scans",
    "probe": "bandwidth",
    "rehearse": "step",
}


def quoted(page: str) -> list[str]:
    """The commands that stand in lines of their own, or between backquotes with a file that there is."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    own = re.findall(r"^    (solar [a-z].*?)(?:  +#.*)?$", text, re.M)
    inline = re.findall(r"`(solar [a-z]+ [^`]*\.h5[^`]*)`", text)
    return [*own, *inline]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages name."""
    rng = np.random.default_rng(0)
    for name in ("scan.h5", "quick.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["counts"] = rng.poisson(3, (1000, 32, 32)).astype("u2")
            file["phase"] = rng.random((1000, 8, 8)).astype("f4")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pages_quote_the_commands_that_are_tried() -> None:
    found = {command.split()[1] for page in PAGES for command in quoted(page)}
    assert found == set(SAYS)


@pytest.mark.parametrize(
    ("page", "command"),
    [
        pytest.param(page, one, marks=[pytest.mark.slow] if one == "solar demo" else [])
        for page in PAGES
        for one in quoted(page)
    ],
)
def test_a_command_of_a_page_runs(page: str, command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, name, *given = shlex.split(command)
    given = [str(folder / "data") if one == "/data" else one for one in given]
    assert main([name, *given, *MORE.get(name, [])]) == 0
    assert SAYS[name] in capsys.readouterr().out


def test_inspect_says_where_bytes_lie_who_reads_them_and_what_that_costs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "scan.h5"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"counts +1000 × 32 × 32 +uint16 +2 MiB +direct +contiguous", shown)
    assert "One read of 2 KiB per sample." in shown


def scans(capsys: pytest.CaptureFixture[str], share: float, *given: str) -> dict[str, Any]:
    made = ["--samples", "20000", "--sample-bytes", "4096", "--memory", str(int(20000 * 4096 * share))]
    assert main(["plan", *made, "--batch-size", "16", "--json", *given]) == 0
    return {name: one["scans"] for name, one in json.loads(capsys.readouterr().out)["policies"].items()}


def test_half_of_the_data_in_memory_makes_an_epoch_a_scan_and_a_quarter_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert scans(capsys, 0.5)["solar"] < 1.3
    assert 1.5 < scans(capsys, 0.25)["solar"] < 2.4
    assert scans(capsys, 1.1)["solar"] == 0


def test_torch_takes_dozens_of_scans_where_requests_are_few_and_one_where_they_are_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert scans(capsys, 0.25)["torch"] > 24
    assert scans(capsys, 0.25, "--iops", "10M", "--latency", "1us")["torch"] < 1.5


def test_inspect_names_what_a_slow_file_costs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File("slow.h5", "w") as file:
        values = np.zeros((1000, 32, 32), "f4")
        file.create_dataset("x", data=values, chunks=(100, 32, 32), compression="gzip")
    assert main(["inspect", "slow.h5"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "100 samples share a chunk: reading one decodes" in shown and "larger batches help" in shown
