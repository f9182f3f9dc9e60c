"""What is said of versions is the same wherever it is said: the lowest that pip accepts are those that are tested."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import solar

ROOT = Path(__file__).parent.parent
WORKFLOW = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOWEST = {name: low for name, low in (one.split(">=") for one in PROJECT["dependencies"])}


def test_the_version_has_one_source() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert version("solar") == solar.__version__
    assert f"\nversion: {solar.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    released = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[:2] == ["Unreleased", solar.__version__]


def pinned(text: str) -> dict[str, str]:
    """The versions in `name==1.2.*`, by name."""
    return dict(re.findall(r"(\w+)==([\d.]+)\.\*", text))


def test_the_lowest_versions_that_pip_accepts_are_those_of_the_oldest_row() -> None:
    rows = re.findall(r'python: "([\d.]+)", pins: "(.*)"', WORKFLOW)
    oldest = [pinned(pins) for python, pins in rows if f">={python}" == PROJECT["requires-python"] and pins]
    assert oldest == [LOWEST]
    assert [f"{name} {low}" for name, low in LOWEST.items() if f"{name} {low}" not in PAGE] == []
    makefile = re.findall(r"tools/compat (.*)", (ROOT / "Makefile").read_text())
    assert [pins for line in makefile if (pins := pinned(line)).items() - LOWEST.items()] == []


def test_every_python_with_a_wheel_has_a_row_of_its_own_and_is_named_on_the_page() -> None:
    wheels = [f"3.{minor}" for minor in re.findall(r"\bcp3(\d+)\b", WORKFLOW)]
    rows = set(re.findall(r'python: "([\d.]+)", pins: ""', WORKFLOW))
    assert wheels
    assert rows == set(wheels)
    assert [python for python in wheels if f"\n| {python}." not in PAGE] == []
    assert f">={wheels[0]}" == PROJECT["requires-python"]
