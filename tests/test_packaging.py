"""What is said of versions is the same wherever it is said, and commands that are promised are there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import solar
from solar.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKE = re.compile(r"^ *make ([a-z -]+?)(?: +(?:#|2>|\|\|).*)?$", re.MULTILINE)
BUILD = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
LOWEST = {name: low for name, low in (one.split(">=") for one in PROJECT["dependencies"])}


def test_the_version_has_one_source() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert version("solar") == solar.__version__
    places = tool("set-version").versions()
    assert places == dict.fromkeys(["solar/__init__.py", "CITATION.cff", "conda/recipe.yaml", "spack/package.py"],
                                   solar.__version__)  # fmt: skip


def test_the_changelog_has_this_version_and_at_most_the_next_one_above_it() -> None:
    """The next one stands there from when it is cut until tools/set-version."""
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased" and sections.index(solar.__version__) in (1, 2)
    numbers = [[*map(int, one.split("."))] for one in sections[1:]]
    assert numbers == sorted(numbers, reverse=True)


def test_one_command_sets_the_version_everywhere_and_only_to_one_that_the_changelog_has(tmp_path: Path) -> None:
    module = tool("set-version")
    for name in [*module.PLACES, "CHANGELOG.md"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    with pytest.raises(SystemExit, match='has no section "## 9'):
        module.put("9.8.7", tmp_path)
    with pytest.raises(SystemExit, match="give three numbers"):
        module.put("9.8", tmp_path)
    assert module.versions(tmp_path) == module.versions()
    (tmp_path / "CHANGELOG.md").write_text("## 9.8.7\n")
    module.put("9.8.7", tmp_path)
    assert set(module.versions(tmp_path).values()) == {"9.8.7"}
    for name in module.PLACES:
        before, after = ((folder / name).read_text().splitlines() for folder in (ROOT, tmp_path))
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_the_release_notes_are_the_changelogs_section_of_this_version() -> None:
    notes = tool("release-notes").notes(f"v{solar.__version__}")
    assert f"## {solar.__version__}" not in notes and "\n- " in notes
    with pytest.raises(SystemExit, match="tag another commit"):
        tool("release-notes").notes("v9.8.7")


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


def test_what_a_workflow_runs_of_this_project_is_there_and_can_be_run() -> None:
    text = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    named = set(re.findall(r"(?<![\w/.-])(?:tools/[\w-]+|\.ci/run)", text))
    assert {"tools/docs-by-version", "tools/release-notes", ".ci/run"} <= named
    assert [name for name in named if not os.access(ROOT / name, os.X_OK)] == []
    targets = set(re.findall(r"\bmake ([a-z-]+)", text)) - {"test"}
    subprocess.run(["make", "--dry-run", *sorted(targets)], cwd=ROOT, check=True, capture_output=True)


def tool(name: str) -> Any:
    """A file of tools/ as a module."""
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


@pytest.fixture
def recipes() -> Any:
    """tools/recipes as a module."""
    pytest.importorskip("yaml", reason="the extra `docs` is not installed")
    return tool("recipes")


def test_the_page_of_recipes_says_what_to_install_for_each_in_words_that_can_be_run() -> None:
    found = tool("fresh-recipes").commands()
    scripts = {path.stem for path in (ROOT / "examples" / "recipes").glob("*.py")} - {"side_by_side", "__init__"}
    assert set(found) == scripts
    for lines in found.values():
        assert lines and all(line.startswith("pip install ") and "torch" not in line.split() for line in lines)


def test_every_package_of_a_recipe_is_asked_for_as_pip_has_it_where_conda_is_not_at_hand() -> None:
    pytest.importorskip("rattler_build", reason="py-rattler-build is not installed")
    module = tool("conda-here")
    assert set(module.asked_for()) >= {"torch", "numpy", "h5py", "zstandard", "nanobind", "cmake"}
    assert module.conda_name("torch") == "pytorch" and module.normal("Typing_Extensions") == "typing-extensions"


def of_pip(name: str) -> str:
    """The name of a conda or Spack package at pip."""
    short = name.removeprefix("py-")
    return {"pytorch": "torch"}.get(short, short)


def test_the_conda_recipe_asks_for_what_pip_does(recipes: Any) -> None:
    needs, _, tests = recipes.conda()
    asked = dict(one.split(" >=") for one in needs["run"])
    assert asked.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert {of_pip(name): low for name, low in asked.items()} == LOWEST
    host = {one.replace(" ", "") for one in needs["host"]} - {"pip"}
    assert host == {*BUILD, "python" + PROJECT["requires-python"]}
    assert "python -m solar.selftest" in tests


def test_the_spack_package_asks_for_what_pip_does_and_tests_itself(recipes: Any) -> None:
    needs, tests = recipes.spack()
    run = dict(spec.rstrip(":").split("@") for spec, when in needs if "run" in when and "mpi4py" not in spec)
    assert run.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert {of_pip(name): low for name, low in run.items()} == LOWEST
    build = {spec.removeprefix("py-") for spec, when in needs if when == "build" and spec.startswith("py-")}
    assert {f"{name}>={low},<{int(last) + 1}" for name, low, last in map(parted, build)} == BUILD
    assert "python -m solar.selftest" in tests


def parted(spec: str) -> list[str]:
    """Of a@1.1:1 the name and both ends."""
    name, _, ends = spec.partition("@")
    return [name, *ends.split(":")]


@pytest.mark.parametrize("way", ["conda", "spack"])
def test_what_a_package_does_to_test_itself_can_be_run_here(way: str, recipes: Any, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    commands = [line for line in getattr(recipes, way)()[-1] if "selftest" not in line]  # that is test_cli_selftest's
    assert len(commands) >= 2
    for line in commands:
        subprocess.run(line, shell=True, cwd=tmp_path, env=os.environ | {"PATH": path}, check=True, capture_output=True)


def test_an_image_keeps_what_torch_runs_and_nothing_that_only_tests_or_compiles(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    kept = ["torch/__init__.py", "torch/bin/torch_shm_manager", "torch/lib/libtorch.so", "torch/testing/__init__.py"]
    kept += ["numpy/testing/__init__.py", "sympy/core/core.py", "h5py/_hl/files.py", "networkx/__init__.py"]
    gone = ["torch/bin/test_api", "torch/bin/protoc", "torch/include/ATen/ATen.h", "torch/test/test_x"]
    gone += ["h5py/tests/test_file.py", "numpy/_core/tests/data/x.csv", "sympy/core/tests/test_x.py"]
    gone += ["networkx/algorithms/tests/test_x.py", "torch/lib/libtorchbind_test.so", "torch/share/cmake/x.cmake"]
    gone += ["numpy/_core/include/numpy/ndarraytypes.h", "numpy/_core/lib/libnpymath.a", "torch/__init__.pyi"]
    for name in [*kept, *gone]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("x")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")  # it has no pip
    said = subprocess.run([ROOT / "docker" / "slim", tmp_path], check=True, capture_output=True, text=True).stdout
    assert said.startswith(f"{tmp_path}: ")
    assert sorted(str(one.relative_to(site)) for one in site.rglob("*") if one.is_file()) == sorted(kept)


@pytest.mark.parametrize("installed", [True, False])
def test_a_clones_source_folder_stands_aside_for_the_solar_that_is_installed(installed: bool, tmp_path: Path) -> None:
    """`python -m ...` in a clone finds the folder there first."""
    for folder in ("clone", "site"):
        (tmp_path / folder / "solar").mkdir(parents=True)
        for name in ("__init__.py", "errors.py", "old_names.py"):
            shutil.copy(ROOT / "solar" / name, tmp_path / folder / "solar" / name)
    (tmp_path / "site" / "solar" / "_native.py").touch()
    for folder, text in (
        ("site", "DataLoader = 'the one that is installed'\n"),
        ("clone", "from solar import _native\n"),
    ):
        (tmp_path / folder / "solar" / "loader").mkdir()
        (tmp_path / folder / "solar" / "loader" / "loader.py").write_text(text)
    path = [str(tmp_path / "clone"), *([str(tmp_path / "site")] if installed else [])]
    code = f"import sys; sys.path[:0] = {path}; import solar; print(solar.DataLoader)"
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    if installed:
        assert (run.returncode, run.stdout) == (0, "the one that is installed\n"), run.stderr
    else:
        assert run.returncode == 1 and "This is solar's source folder, without its native part" in run.stderr
