"""The pages: what they quote is in the source, what they list is complete, their Python compiles and runs."""

from __future__ import annotations

import ast
import errno
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch.utils.data
from kit import settle

from solar import DataLoader, Field, H5Dataset, PlanSampler, SolarError

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^\n]+) -->\n\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
HOLE = "\0"  # where a message has a value
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')

NAMED = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the mark before it: "runs", "file: NAME", or none."""
    return [(found["mark"] or "", found["code"]) for found in BLOCK.finditer(page.read_text())]


def tables(page: Path) -> Iterator[tuple[list[str], list[list[str]]]]:
    """The head and the rows of each table."""
    for text in re.findall(r"(?:^\|.*\|\n)+", page.read_text(), re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
        yield head, rows


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("folder", ["", "docs", "bench", "examples", "io", "native", "solar"])
def test_lines_of_prose_are_short(folder: str) -> None:
    pages = (ROOT / folder).rglob("*.md") if folder else ROOT.glob("*.md")
    for page in pages:
        text, fenced = page.read_text(), False
        made = re.sub(
            r"^<!-- (\w+) -->$.*?^<!-- end of \1 -->$", "", text, flags=re.MULTILINE | re.DOTALL
        )  # of records
        for line in made.splitlines():
            fenced ^= line.lstrip().startswith("```")
            prose = not fenced and not line.startswith(("|", "    "))
            assert not prose or len(line) <= 120 or " " not in line.strip(), f"{page}: {len(line)} characters: {line}"


# --- error texts ----


@cache
def messages() -> list[str]:
    """Every text of our Python source, values left out; and those of each native file, one after another."""
    found = []
    for path in [*(ROOT / "solar").rglob("*.py"), *(ROOT / "io").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    for path in [*(ROOT / "native" / "src").rglob("*.cpp"), *(ROOT / "native" / "bind").rglob("*.cpp")]:
        found.append(HOLE.join(LITERAL.findall(path.read_text())))
    return found


def texts_of_the_faq() -> list[str]:
    rows = [row for head, rows in tables(ROOT / "docs" / "faq.md") if head[0] == "message" for row in rows]
    assert all(len(quoted(row[0])) == 1 and row[1] and row[2] for row in rows), "one message, its cause, its remedy"
    return [quoted(row[0])[0] for row in rows]


def occurs(text: str, source: str) -> bool:
    """Whether the quoted text is in the source; an ellipsis stands for values, and for what is left out."""
    parts = [part.strip() for part in text.split("…") if part.strip()]
    if not all(part in source for part in parts):
        return False  # soon told; the search below takes long
    return re.search(".{0,200}?".join(map(re.escape, parts)), source, re.DOTALL) is not None


def test_a_quotation_is_compared_word_for_word() -> None:
    source = f"{HOLE}: the file changed after {HOLE} was inspected"
    assert occurs("…: the file changed after … was inspected", source)
    assert occurs("the file changed", source)
    assert not occurs("the file changes", source)
    assert not occurs("was inspected … the file changed", source)


def texts_of_failures() -> list[str]:
    rows = [row for head, rows in tables(ROOT / "docs" / "failures.md") if head[0] == "error" for row in rows]
    assert all(len(quoted(row[0])) == 1 and row[1] and row[2] for row in rows), "one error, its cause, its remedy"
    named = [quoted(row[0])[0].partition(": ") for row in rows]
    assert {kind for kind, *_ in named} <= {*(kind.__name__ for kind in every(SolarError)), "MemoryError"}
    told = [*map(os.strerror, (errno.EIO, errno.EMFILE, errno.ENOENT)), r" \(tried \d+ times\)", r"\d+"]
    return [*dict.fromkeys(re.sub("|".join(told), "…", text).strip(": …") for *_, text in named)]


def every(kind: type) -> Iterator[type]:
    yield kind
    for one in kind.__subclasses__():
        yield from every(one)


@pytest.mark.parametrize(("told", "least"), [(texts_of_the_faq, 30), (texts_of_failures, 10)])
def test_every_message_of_a_page_is_one_of_the_source(told: Callable[[], list[str]], least: int) -> None:
    source, texts = messages(), told()
    assert len(texts) > least
    assert len(set(texts)) == len(texts)
    assert all(len(text.replace("…", "").strip()) >= 12 for text in texts), "too short to be told from others"
    missing = [text for text in texts if not any(occurs(text, one) for one in source)]
    assert not missing


# --- arguments ----


def arguments(of: Any) -> set[str]:
    return set(inspect.signature(of).parameters)


def test_migrating_has_a_row_for_every_argument_of_both_loaders() -> None:
    rows = [row for head, rows in tables(ROOT / "docs" / "migrating.md") if head[0] == "argument" for row in rows]
    assert all(len(row) == 3 and all(row) for row in rows)
    listed = [quoted(row[0])[0] for row in rows]
    assert sorted(listed) == sorted(arguments(DataLoader) | arguments(torch.utils.data.DataLoader))


@pytest.mark.parametrize("of", [H5Dataset, PlanSampler, Field], ids=lambda of: of.__name__)
def test_every_argument_is_explained(of: Any) -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in ("guide.md", "migrating.md"))
    words = set(re.findall(r"`(\w+)`", text)) | set(re.findall(r"\b(\w+)=", text))
    assert arguments(of) <= words | {"name"}  # of a Field: shown in every example


# --- Python and links ----


@NAMED
def test_python_in_a_page_compiles(page: Path) -> None:
    for _, code in blocks(page):
        compile(code, str(page), "exec")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the files that the pages speak of."""
    rng = np.random.default_rng(3)
    for folder in ("runs", "cosmo", "era5", "cases", "strain", "masked"):
        (tmp_path / folder).mkdir()
    counts, phase = rng.integers(0, 50, (100, 12, 12)).astype("u2"), rng.random((100, 4, 4)).astype("f4")
    scan = {"counts": counts, "truth/phase": phase, "label": np.arange(100)}
    scan |= {"entry/data/counts": counts, "entry/truth/phase": phase}
    whole = {"full": phase}
    episodes = {"u": phase[:15], "episode_ends": [7, 13, 15]}
    events = {"hits": phase[:10], "ends": [3, 5, 5, 10], "energy": phase[:4]}
    cells = {"X/data": [1.0, 2, 3, 4], "X/indices": [0, 2, 1, 2], "X/indptr": [0, 2, 2, 4]}
    molecules = {f"molecules/m{i}/coords": phase[i, : 2 + i % 3, :3] for i in range(12)}
    molecules |= {f"molecules/m{i}/energy": float(i) for i in range(12)}
    cells |= {"obs/cell_type/codes": np.array([0, 1, 0], "i1")}
    volume = {"image": rng.random((40, 48, 56)).astype("f4"), "label": rng.integers(0, 3, (40, 48, 56))}
    case = rng.random((20, 24, 28)).astype("f4")
    flow = rng.random((2, 9, 4, 4)).astype("f4")
    demo = {"obs/eye": counts[:8], "next_obs/eye": counts[1:9], "actions": phase[:8], "dones": np.arange(8) == 7}
    atoms = {"positions": phase[:9, 0, :3], "numbers": np.arange(9), "n_atoms": [2, 3, 0, 4], "energy": phase[:4, 0, 0]}
    row = np.dtype([("energy", "f8"), ("particle", [("charge", "i1")])])
    for name, datasets in {
        **{f"masked/{n}": {"x": phase[:9, :3], "mask": phase[n, :3] > 0.5, "label": n * 1.5} for n in (1, 2)},
        "conformers": {
            f"mol/{name}/{part}": values
            for name, (n, atoms) in {"CH4": (5, 5), "N2": (1, 2), "O3": (9, 3)}.items()
            for part, values in {
                "positions": rng.random((n, atoms, 3)),
                "energy": rng.random(n),
                "numbers": np.arange(atoms),
            }.items()
        },
        "table": {"df/table": np.array([(0.5, (1,)), (1.5, (-1,))], row)},
        "episodes": episodes,
        "era5/2019": {"t2m": phase[:20]},
        "era5/2020": {"t2m": phase[20:50]},
        "flow": {"t0_fields/vorticity": flow, "t0_fields/dye": flow * 2},
        "pusht": {
            "pixels": counts[:60],
            "action": phase[:60, 0, :2],
            "ep_len": [20, 10, 30],
            "ep_offset": [0, 20, 30],
        },
        "demos": {f"data/demo_{number}/{part}": values for number in range(2) for part, values in demo.items()},
        "cases/001": {"image": case, "label": case > 0.5},
        "cases/002": {"image": case[:17], "label": case[:17] > 0.5},
        "strain/H1-0": {"strain/Strain": phase[:80].ravel()},
        "strain/H1-1": {"strain/Strain": phase[80:].ravel().repeat(2)},
        "tomo": {"exchange/data": volume["image"]},
        "events": events,
        "molecules": molecules,
        "atoms": atoms,
        "cells": cells,
        "stack": {"stack": volume["image"]},
        "trajectories": {"u": flow},
        "volume": volume,
        "scan": scan,
        "runs/1": scan,
        "runs/2": scan,
        "cosmo/a": whole,
        "cosmo/b": whole,
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for dataset, values in datasets.items():
                file[dataset] = values
        settle(tmp_path / f"{name}.h5")
    for n in (1, 2):
        with h5py.File(tmp_path / f"masked/{n}.h5", "r+") as file:
            file.create_group("detector").attrs["gain"] = n * 0.5
        settle(tmp_path / f"masked/{n}.h5")
    with h5py.File(tmp_path / "demos.h5", "r+") as file:
        for one in file["data"].values():
            one.attrs["num_samples"] = 8
    settle(tmp_path / "demos.h5")
    with h5py.File(tmp_path / "cells.h5", "r+") as file:
        file["X"].attrs.update({"encoding-type": "csr_matrix", "shape": [3, 3]})
    suffixes = {"cells": "h5ad", "era5/2019": "nc", "era5/2020": "nc", "flow": "hdf5", "demos": "hdf5"}
    suffixes |= {"strain/H1-0": "hdf5", "strain/H1-1": "hdf5"}
    for name, suffix in suffixes.items():
        settle((tmp_path / f"{name}.h5").rename(tmp_path / f"{name}.{suffix}"))
    return tmp_path


BEFORE = "def train_step(x, y):\n    assert len(x) == len(y)\n"


@pytest.mark.slow(but=["README.md"])
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guide.md",
        "docs/migrating.md",
        "docs/faq.md",
        "docs/quickstart.md",
        "docs/tuning.md",
        "docs/samples.md",
        "docs/communities.md",
        "docs/arrays.md",
        "docs/orders.md",
    ],
)
def test_what_is_marked_in_a_page_runs(page: str, files: Path) -> None:
    script = [BEFORE]
    for mark, code in blocks(ROOT / page):
        if mark.startswith("file: "):
            (files / mark.removeprefix("file: ")).write_text(code)
        elif mark == "runs":
            script.append(code)
        else:
            assert not mark, f"{page}: what does <!-- {mark} --> mean?"
    assert len(script) > 1, "nothing in this page is marked"
    indented = "\n".join(script).replace("\n", "\n    ")
    (files / "page.py").write_text(f'if __name__ == "__main__":\n    {indented}\n')
    run = [sys.executable, "-W", "error", "page.py"]
    ended = subprocess.run(run, cwd=files, env=dict(os.environ), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


@NAMED
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        if heading:
            heads = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
            assert heading in slugs, target


# Files that a page speaks of, and that are not of this project: made by a command, or a reader's own.
ELSEWHERE = {"build/coverage.md", "tests/test_x.py", "mymodel.py", "packages/py_solar/package.py"}
FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|cpp|hpp|cu|mjs|sh|md|toml|yml))`")
SHELVES = [path for path in sorted(ROOT.iterdir()) if path.is_dir() and path.name[0] != "." and path.name != "build"]


@cache
def project_files() -> list[str]:
    found = [path for shelf in SHELVES for path in shelf.rglob("*") if path.is_file()]
    return ["/" + str(path.relative_to(ROOT)) for path in [*found, *ROOT.glob("*.*")]]


def known(name: str, page: Path) -> bool:
    """Whether there is such a file: of this name from the top, or the end of it; for a folder's page, below that."""
    if (ROOT / name).exists() or (page.parent / name).exists():
        return True
    below = "/" if page.name != "README.md" else f"/{page.parent.relative_to(ROOT)}/"
    return any(path.endswith(f"/{name}") and path.startswith(below) for path in project_files())


PAGES_OF_FOLDERS = [page for shelf in SHELVES for page in sorted(shelf.rglob("README.md"))]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in [*PAGES, *PAGES_OF_FOLDERS]
        if page.name != "CHANGELOG.md" and page.parent.name != "decisions"  # which speak of what was
    ],
)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    assert [name for name in FILE.findall(page.read_text()) if name not in ELSEWHERE and not known(name, page)] == []


def test_a_file_that_is_not_there_is_seen() -> None:
    page = ROOT / "io" / "README.md"
    assert known("reader.py", page) and known("reading/reader.py", page) and known("native/README.md", page)
    assert not known("loader.py", page) and not known("reading/loader.py", page)


def test_the_names_in_the_table_of_places_exist() -> None:
    """`name` in `file`: what the architecture page sends a newcomer to is there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    found = re.findall(r"`([A-Za-z_.]+)`(?: and `([A-Za-z_.]+)`)? (?:in|of) `([a-z_/0-9]+\.(?:py|hpp|cpp))`", text)
    assert len(found) >= 8
    for *names, file in found:
        places = [place for place in (ROOT / file, ROOT / "solar" / file) if place.exists()]
        assert places, f"{file} is not there"
        for name in filter(None, names):
            assert re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", places[0].read_text()), f"{name} in {file}"
