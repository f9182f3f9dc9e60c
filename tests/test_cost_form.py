"""The form of docs/cost.md answers what `solar plan` does. Its script runs in Node, with a document of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from solar.cli import main

ROOT = Path(__file__).parents[1]
SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400}
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node to run its script in: Debian's nodejs")


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many read in each rank as when the page's table was made."""
    monkeypatch.setenv("SOLAR_THREADS", "2")


def answered(*asked: dict[str, int]) -> list[dict[str, Any]]:
    """What the page says to each of these, which change what was chosen before."""
    command = [str(NODE), str(ROOT / "tests" / "cost_form.mjs"), str(ROOT / "docs"), json.dumps(asked)]
    return list(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def number(text: str) -> float:
    """Of seconds or requests, as the page writes them."""
    value, _, unit = text.replace(",", "").partition(" ")
    return float(value) * SECONDS[unit] if unit else float(value)


CHOSEN = [
    {"samples": 50_000, "epochs": 10},  # as many as the table was filled for
    {"storage": 3, "size": 1, "share": 3, "chunk": 1, "ranks": 2},
    {"storage": 1, "size": 0, "share": 1, "chunk": 2, "ranks": 0},
    {"storage": 2, "size": 4, "share": 4, "chunk": 0, "ranks": 1},
]


def test_the_command_that_it_gives_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for said in answered(*CHOSEN):
        [command] = said["command"]
        assert main([*command.removeprefix("solar ").split(), "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)["policies"]
        assert [*said["table"]] == ["torch", "lru", "pinned", "solar"]
        for policy, (_, seconds, epochs, requests) in said["table"].items():
            of = planned[policy]
            assert number(seconds) == pytest.approx(of["seconds"], rel=0.01), (command, policy)
            assert number(epochs) == pytest.approx(10 * of["seconds"], rel=0.01), (command, policy)
            assert number(requests) == pytest.approx(of["requests"], rel=0.01, abs=0.5), (command, policy)


def test_of_more_samples_times_are_near_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    [said] = answered({"samples": 200_000, "epochs": 1})
    assert main([*said["command"][0].removeprefix("solar ").split(), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["policies"]
    for policy, row in said["table"].items():
        assert number(row[1]) == pytest.approx(planned[policy]["seconds"], rel=0.1), policy


def test_what_has_no_room_and_what_is_no_number_is_said() -> None:
    first = {"samples": 50_000, "size": 0, "share": 0, "chunk": 2, "ranks": 2}
    tight, none = answered(first, {"samples": 0})
    assert tight["table"] == {} and "no room for the batches" in tight["said"][1]
    [command] = tight["command"]
    assert main(command.removeprefix("solar ").split()) == 1  # the command agrees
    assert none["command"] == [] and re.search("numbers from 1", none["said"][0])
