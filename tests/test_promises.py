"""Each promise in docs/promises names tests, and those are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "promises").glob("*.md"))


@cache
def tests_of(path: Path) -> frozenset[str]:
    if path.suffix == ".cpp":
        return frozenset(re.findall(r'TEST_CASE(?:_TEMPLATE)?\("([^"]+)"', path.read_text()))
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def rows_of(page: Path) -> list[tuple[str, str]]:
    """The promises of a page and what stands beside each."""
    rows = [line.strip().strip("|").rsplit(" | ", 1) for line in page.read_text().splitlines() if line.startswith("| ")]
    return [(row[0], row[-1]) for row in rows if not set(row[0]) <= set("- |:")]


def test_the_pages_that_promise_most_have_their_tables() -> None:
    assert {"security", "failures", "remote", "compression", "serving"} <= {page.stem for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_promise_names_tests_that_are_there(page: Path) -> None:
    missing = []
    rows = rows_of(page)
    assert len(rows) > 3
    for promise, tests in rows[1:]:  # the first is the table's head
        named = re.findall(r"`((?:native/)?tests/[\w/.]+)(?:::([^`\[]+))?", tests)
        missing += [promise] if not named else []
        for file, test in named:
            path = ROOT / file
            if not path.is_file() or (test and test.strip() not in tests_of(path)):
                missing.append(f"{promise}: {file}::{test}")
    assert missing == []
