"""Each promise in docs/promises names tests, and those are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "promises").glob("*.md"))


@cache
def names_of(path: Path) -> frozenset[str]:
    if path.suffix == ".cpp":
        return frozenset(re.findall(r'TEST_CASE(?:_TEMPLATE)?\("([^"]+)"', path.read_text()))
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def rows_of(page: Path) -> list[tuple[str, str]]:
    """The first and the last cell of each row of a page's tables, without the heads."""
    lines = page.read_text().splitlines()
    ruled = {place for place, line in enumerate(lines) if line.startswith("|") and set(line) <= set("| -:")}
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for place, line in enumerate(lines)
        if line.startswith("|") and place not in ruled and place + 1 not in ruled
    ]
    return [(row[0], row[-1]) for row in rows]


def test_the_pages_that_promise_most_have_their_tables() -> None:
    assert {"security", "failures", "remote", "compression", "serving"} <= {page.stem for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_promise_names_tests_that_are_there(page: Path) -> None:
    missing = []
    rows = rows_of(page)
    assert len(rows) > 3
    for promise, tests in rows:
        named = re.findall(r"`((?:native/)?tests/[\w/.]+)(?:::([^`\[]+))?", tests)
        missing += [promise] if not named else []
        for file, test in named:
            path = ROOT / file
            if not path.is_file() or (test and test.strip() not in names_of(path)):
                missing.append(f"{promise}: {file}::{test}")
    assert missing == []
