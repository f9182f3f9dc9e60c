"""What is said of versions is the same wherever it is said, and commands that are promised are there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import solar
from solar.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKE = re.compile(r"^ *make ([a-z -]+?)(?: +(?:#|2>|\|\|).*)?$", re.MULTILINE)
LOWEST = {name: low for name, low in (one.split(">=") for one in PROJECT["dependencies"])}


def test_the_version_has_one_source() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert version("solar") == solar.__version__
    assert f"\nversion: {solar.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    released = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[:2] == ["Unreleased", solar.__version__]


def test_the_lowest_versions_that_pip_accepts_are_on_the_page_of_what_was_tested() -> None:
    assert [f"{name} {low}" for name, low in LOWEST.items() if f"{name} {low}" not in PAGE] == []


def test_every_command_of_the_readme_and_of_ci_can_be_made() -> None:
    readme, ci = (set(MAKE.findall((ROOT / name).read_text())) for name in ("README.md", ".ci/run"))
    assert readme == {"demo", "test"}, "README promises two commands"
    targets = {name for line in readme | ci for name in line.split()}
    assert readme <= {name for line in ci for name in line.split()}, "both run in CI"
    subprocess.run(["make", "--dry-run", *sorted(targets)], cwd=ROOT, check=True, capture_output=True)


def test_what_users_are_asked_to_read_or_run_is_there() -> None:
    pages = [*(ROOT / ".github").rglob("*.md"), *(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    text = "".join(page.read_text() for page in pages)
    links = re.findall(r"/blob/main/([\w./-]+)", text)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []
    for command in re.findall(r"`solar (\w+)", text):
        assert command in COMMANDS
