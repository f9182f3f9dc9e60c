"""The site: all pages are in it, all public names in its reference with examples that run. Pictures, and the report."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solar
from solar.io import sample_file as specimen

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NAMES = sorted(name for name in solar.__all__ if name != "__version__")
CALLED = [name for name in NAMES if not name.endswith("Error")]


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "api.md").read_text()
    marked = re.findall(r"^### (\w+)\n\n.+\n\n<!-- reference: solar\.(\w+) -->$", page, re.MULTILINE)
    assert all(heading == name for heading, name in marked)
    errors = re.findall(r"^\| `(\w+Error)` \|", page, re.MULTILINE)
    assert sorted({name for name, _ in marked} | {*errors, "SolarError"}) == NAMES


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- ([\w./]+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.name for path in DOCS.glob("*.md")]
    assert sorted(set(pages) - set(listed)) == []
    assert len(set(listed)) == len(listed)


def documented(name: str) -> Iterator[tuple[str, Any]]:
    """A public object, and what of it the reference shows."""
    of = getattr(solar, name)
    yield name, of
    if isinstance(of, type):
        for member, value in vars(of).items():
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                yield f"{name}.{member}", value


@pytest.mark.parametrize("name", NAMES)
def test_what_the_reference_shows_has_a_docstring(name: str) -> None:
    assert [shown for shown, value in documented(name) if not inspect.getdoc(value)] == []


@pytest.mark.parametrize("name", CALLED)
def test_a_public_name_has_an_example_and_it_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    of = getattr(solar, name)
    module = sys.modules[of.__module__]
    found = doctest.DocTestFinder(recurse=False).find(of, name, module=module)
    assert sum(len(one.examples) for one in found) > 0
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for one in found:
        runner.run(one)
    assert runner.summarize().failed == 0, capsys.readouterr().out


# --- pictures and the report ----


def test_the_pictures_of_plans_are_those_that_the_planner_draws(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "bench.pictures", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    for made in sorted(tmp_path.iterdir()):
        assert made.read_text() == (DOCS / "pictures" / made.name).read_text(), "run `python -m bench.pictures`"
    assert {made.name for made in tmp_path.iterdir()} == {path.name for path in (DOCS / "pictures").glob("*.svg")}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.usefixtures("bench")
def test_a_drawn_sample_is_read_before_it_is_used_and_memory_keeps_its_limit() -> None:
    from bench.pictures import stays

    found = stays(samples=200, batch=10, share=0.25, epochs=2, seed=3)
    assert len(found.sample) >= 200
    assert (found.read <= found.used).all()
    held = [int(((found.read <= step) & (step <= found.used)).sum()) for step in range(40)]
    assert max(held) <= 50


RECORDS = [
    {"scene": "a", "title": "a <scene>", "peer": "solar_loader", "label": "solar", "median": 900.0,
     "samples_per_second": [800.0, 900.0, 950.0], "peak_rss": 2e8, "setting": {}, "sample_nbytes": 65536},
    {"scene": "a", "title": "a <scene>", "peer": "torch_h5py", "label": "torch + h5py", "median": 123.0,
     "samples_per_second": [123.0], "peak_rss": 1e8, "setting": {"workers": 2}, "sample_nbytes": 65536},
    {"scene": "a", "title": "a <scene>", "peer": "other", "failed": "it gave <other> samples"},
    {"scene": "b", "title": "lonely", "peer": "solar_loader", "label": "solar", "median": 1.0},
    {"bench": "utilisation", "title": "unet", "peer": "solar_loader", "label": "solar", "utilisation": [0.97, 0.9]},
]  # fmt: skip


@pytest.mark.usefixtures("bench")
def test_records_are_grouped_by_scene_and_those_of_two_runs_are_not_put_beside_each_other(tmp_path: Path) -> None:
    import json

    from bench import page

    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text("\n".join(map(json.dumps, RECORDS)))
    new.write_text(json.dumps(RECORDS[0] | {"median": 1234.0}))
    groups = page.measured(page.read([new, old]))
    assert len(groups["a <scene>"]) == 2
    assert groups["a <scene>"][0]["median"] == 900.0
    groups = page.measured(page.read([old, new]))
    assert {title: [one["median"] for one in group] for title, group in groups.items()} == {
        "a <scene>": [1234.0],
        "lonely": [1.0],
    }


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.usefixtures("bench")
def test_the_report_is_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    from bench import page

    curve = {"loader": "solar", "steps": [1.0, 0.5, 0.4, 0.3], "held_out": [0.6, 0.35], "level": 0.4}
    runs = [("solar's loader", curve), ("torch's loader", curve | {"loader": "torch"})]
    epoch = {"label": "solar", "began": [0.0, 1.0], "waited": [0.5, 0.1], "seconds": 2.0}
    epoch |= {"bytes": [10, 20], "bytes_decoded": [40, 80]}
    timeline = {"bench": "timeline", "title": "patterns", "samples": 8, "batch": 4, "compute_seconds": 0.5}
    written = page.made(
        [one | {"from": "x.jsonl"} for one in [*RECORDS, timeline | {"loaders": [epoch]}]], {"net": runs}, tmp_path
    )
    for text in (
        "a &lt;scene&gt;",
        "it gave &lt;other&gt; samples",
        "the same to the bit",
        "torch + h5py",
        "800 – 950",
    ):
        assert text in written
    assert "lonely" not in written, "a scene with nobody to compare"
    assert re.findall(r'(?:src|href|srcset)="(?!data:|#)', written) == []
    drawn = sorted(path.stem for path in tmp_path.glob("*.png") if not path.stem.endswith("-dark"))
    assert drawn == ["epoch-0", "losses-net", "overview", "scene-00", "utilisation"]


@pytest.mark.usefixtures("bench")
def test_a_time_line_counts_every_batch_of_both_loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psutil")
    from bench import machine, timeline

    monkeypatch.setattr(machine, "drop_cache", lambda folder: "not dropped")  # other tests' files are in it, too
    record = timeline.measure(tmp_path, samples=200, compute=0.0)
    for one in record["loaders"]:
        assert len(one["began"]) == len(one["waited"]) == 3  # of 64; the fourth is not full
        assert one["seconds"] >= sum(one["waited"])
    solar_side = record["loaders"][1]
    assert solar_side["bytes_decoded"][-1] == 3 * 64 * 4 * specimen.SIZE**2
    assert np.all(np.diff(solar_side["bytes"]) > 0)


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="the extra `docs` is not installed")
def test_the_site_is_built_and_every_link_in_it_leads_somewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ended = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    reference = (tmp_path / "site" / "api.html").read_text()
    assert [name for name in CALLED if f'id="solar.{name}"' not in reference] == []
    for page in ("decisions/0011-the-run", "decisions/0015-ranks-together"):  # whose lists follow text at once
        items = re.findall("^- ", (DOCS / f"{page}.md").read_text(), re.MULTILINE)
        article = (tmp_path / "site" / f"{page}.html").read_text().partition("<article")[2].partition("</article")[0]
        assert article.count("<li>") == len(items)
