"""The recipes of containers: their bases are pinned, nothing runs as root, and `solar demo` is their health check."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "docker").glob("*Dockerfile"))
PINNED = re.compile(r"[a-z0-9/]+:\d+\.\d[\w.-]*$")


def last(word: str, text: str) -> str:
    return re.findall(rf"^{word} (.+)$", text, re.MULTILINE)[-1]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_base_is_pinned_and_the_image_runs_as_a_user(recipe: Path) -> None:
    text = recipe.read_text()
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", text, re.MULTILINE)
    names = {name for _, name in stages}
    assert [base for base, _ in stages if base not in names and not PINNED.match(base)] == []
    assert re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", last("USER", text))
    assert '"solar", "demo"' in last("HEALTHCHECK", text)


@pytest.mark.parametrize("recipe", [*RECIPES, ROOT / "docker" / "solar.def"], ids=lambda path: path.name)
def test_a_recipe_installs_all_that_solar_needs_by_the_versions_it_is_tested_with(recipe: Path) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    text = recipe.read_text()
    installed = " ".join(re.findall(r"pip install (?:\\\n|[^&\n])+", text))
    assert [one for one in needed if re.split(r"[<>=]", one)[0] not in installed] == []
    assert "constraints.txt" in installed
