"""examples/first_steps.ipynb runs from top to bottom, and what is committed of its output is what it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "examples" / "first_steps.ipynb"
TOOL = ROOT / "tools" / "notebook"
AMOUNT = re.compile(r"\d[\d,.:]*(?: (?:s|ms|µs|[KMG]i?B(?:/s)?))?")


def execute(book: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Warnings are errors, temporary folders are below that of `out`, and the threads are those that plans tell."""
    environment = os.environ | {"TMPDIR": str(out.parent), "SOLAR_THREADS": "2"}
    command = [sys.executable, "-W", "error", str(TOOL), str(book), str(out)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def cells(book: Path) -> list[dict[str, Any]]:
    return list(json.loads(book.read_text())["cells"])


def code(book: Path) -> list[dict[str, Any]]:
    return [cell for cell in cells(book) if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    return "".join(line for one in cell["outputs"] if one["output_type"] == "stream" for line in one["text"])


def kinds(cell: dict[str, Any]) -> list[str]:
    return [one["output_type"] for one in cell["outputs"]]


def varies(cell: dict[str, Any]) -> bool:
    return "varies" in cell["metadata"].get("tags", ())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The code cells after a run of all."""
    out = tmp_path_factory.mktemp("notebook") / "out.ipynb"
    ended = execute(BOOK, out)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    return code(out)


def test_what_does_not_vary_is_shown_as_it_is_committed(shown: list[dict[str, Any]]) -> None:
    committed = code(BOOK)
    assert sum(map(varies, committed)) == 4  # the times of a training, its report, a picture, a rate
    for was, now in zip(committed, shown, strict=True):
        if not varies(was):
            assert was == now, "run tools/notebook examples/first_steps.ipynb"


def test_of_what_varies_the_words_are_those_that_are_committed(shown: list[dict[str, Any]]) -> None:
    for was, now in zip(code(BOOK), shown, strict=True):
        assert was["source"] == now["source"] and kinds(was) == kinds(now)
        assert AMOUNT.sub("#", printed(was)) == AMOUNT.sub("#", printed(now))


def test_the_loss_falls_and_the_report_and_the_picture_are_there(shown: list[dict[str, Any]]) -> None:
    losses = [float(one) for cell in shown for one in re.findall(r"loss ([\d.]+)", printed(cell))]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True) and losses[-1] < 0.1
    report, picture = (
        one["data"] for cell in shown for one in cell["outputs"] if one["output_type"] == "execute_result"
    )
    assert "3 epochs: 96 batches, 6,144 samples, 12 MiB of data." in "".join(report["text/html"])
    assert set(picture) & {"image/png", "text/html"}


def test_a_reader_is_told_one_thing_at_a_time_and_nothing_of_the_machine_that_ran_it() -> None:
    book = cells(BOOK)
    assert 10 <= len(code(BOOK)) <= 14
    assert [one["cell_type"] for one in book] == [*["markdown", "code"] * len(code(BOOK)), "markdown"]
    text = json.dumps([one.get("outputs") for one in book if one["cell_type"] == "code"])
    assert re.findall(r"/(?:tmp|home|root|work|usr)\b", text) == []
    assert "False" not in text
    for cell in book:
        for link in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
            assert (BOOK.parent / link).is_file(), link


def test_a_cell_that_fails_fails_the_run_with_its_number_and_writes_nothing(tmp_path: Path) -> None:
    book = {"cells": [{"cell_type": "code", "source": [line], "outputs": []} for line in ("x = 3", "assert x == 4")]}
    source, out = tmp_path / "wrong.ipynb", tmp_path / "out.ipynb"
    source.write_text(json.dumps(book))
    ended = execute(source, out)
    assert ended.returncode == 1 and 'File "cell 2", line 1' in ended.stderr and "AssertionError" in ended.stderr
    assert not out.exists()
