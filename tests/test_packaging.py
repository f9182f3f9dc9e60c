"""What is said of versions is the same wherever it is said: the lowest that pip accepts are those that are tested."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import solar
from solar.cli import COMMANDS

ROOT = Path(__file__).parent.parent
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
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


def test_hooks_have_the_versions_that_make_lint_has() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    named = set(re.findall(r"\[((?:ruff|codespell|clang-format)==\S+)\]", hooks))
    assert len(named) == 3
    assert named <= set(CONSTRAINTS.splitlines())


def test_what_ci_calls_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {name for line in targets for name in line.split()}
    workflows = [*(ROOT / ".github" / "workflows").glob("*.yml")]
    assert len(workflows) == 2
    for text in ((ROOT / ".ci" / "run").read_text(), *(path.read_text() for path in workflows)):
        called = {
            name
            for line in re.findall(r"^\s*(?:- run: )?make ([a-z -]+)$", text, re.MULTILINE)
            for name in line.split()
        }
        assert called <= made
        assert [one for one in re.findall(r"\btools/([a-z-]+)", text) if not (ROOT / "tools" / one).is_file()] == []
    assert ".ci/run" in WORKFLOW


def test_what_users_are_asked_to_read_or_run_is_there() -> None:
    pages = [*(ROOT / ".github").rglob("*.md"), *(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    text = "".join(page.read_text() for page in pages)
    links = re.findall(r"/blob/main/([\w./-]+)", text)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []
    for command in re.findall(r"`solar (\w+)", text):
        assert command in COMMANDS
