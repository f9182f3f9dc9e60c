"""The site: all pages are in it, all public names in its reference with examples that run. Pictures, and the report."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solar
from solar.io import example_files as specimen

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NAMES = sorted(name for name in solar.__all__ if name != "__version__")
CALLED = [name for name in NAMES if not name.endswith("Error")]


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "api.md").read_text()
    marked = re.findall(r"^### (\w+)\n\n(?:.+\n)+\n<!-- reference: solar\.(\w+) -->$", page, re.MULTILINE)
    assert all(heading == name for heading, name in marked)
    errors = re.findall(r"^\| `(\w+Error)` \|", page, re.MULTILINE)
    assert sorted({name for name, _ in marked} | {*errors, "SolarError"}) == NAMES


def test_the_report_has_all_that_is_recorded() -> None:
    """Of whatever form the records of a bench are: `make report` is a step of CI."""
    report = pytest.importorskip("bench.report")
    files = sorted(report.RESULTS.glob("*.jsonl"))
    page = report.page(files)
    assert all(f"## {path.stem}" in page for path in files) and "no table of these" not in page


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


def test_pictures_are_those_that_are_drawn_of_plans_and_of_what_is_recorded(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "bench.pictures", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    drawn = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.svg")}
    shown = {path.relative_to(DOCS): path.read_text() for path in DOCS.rglob("*.svg")}
    assert drawn == shown, "run `python -m bench.pictures`"
    assert all(ElementTree.fromstring(picture).tag.endswith("svg") for picture in drawn.values()), "well formed"
    for name in ("faster", "how", "plan", "report-before", "report-after"):
        light, dark = (drawn[Path(f"pictures/{name}{theme}.svg")] for theme in ("", "-dark"))
        assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark) and light != dark


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


@pytest.mark.usefixtures("bench")
def test_what_moves_makes_the_requests_that_the_plan_counts() -> None:
    from bench import passing
    from solar.planning.torch_shuffles import distributed

    swept = passing.in_sweeps(1024, 16, 0.25, 2)
    found, made = passing.loads(distributed(1024), 16, 0.25, 2)
    counted = [made.start_counts, *made.counts]
    assert int(swept.request[-1]) + 1 == sum(one.requests for one in counted) < 30
    assert len(swept.sample) == len(found) == sum(one.reads for one in counted)
    assert len(swept.batches) == 2 * 1024 // 16
    assert (np.diff(swept.batches) >= 0).all() and (swept.seconds <= swept.used).all()
    singly = passing.one_by_one(1024, 16, 2)
    assert len(set(singly.request.tolist())) == len(singly.sample) == 2 * 1024
    assert singly.batches[-1] == pytest.approx(passing.DISK.seconds(2048, 2048 * passing.SAMPLE))


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("place", [0, 77, 318, 526, 688, 899])
def test_a_cell_of_the_form_is_what_solar_plan_says_today(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of 900: the first and the last, and some of each storage."""
    from bench import costs

    monkeypatch.setenv("SOLAR_THREADS", costs.THREADS)

    assert costs.table()["cells"][place] == costs.cell(list(costs.cases())[place]), "run `python -m bench.costs`"


@pytest.mark.usefixtures("bench")
def test_the_table_of_the_form_is_small_whole_and_of_these_choices() -> None:
    from bench import costs

    found = costs.table()
    assert costs.FILE.stat().st_size < 200_000
    assert len(found["cells"]) == len(list(costs.cases()))
    assert costs.filled(found["cells"]) == costs.FILE.read_text()
    sound = [one for one in found["cells"] if one is not None]
    assert len(sound) == 820
    assert max(one[3] / min(one[:3]) for one in sound) < 1.46, "docs/cost.md says how much faster the ideal is at most"


def linked(page: Path) -> set[Path]:
    """The pages that a page's own text leads to; a folder stands for its README, that of decisions for all of them."""
    found = set()
    for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text()):
        if "://" not in target:
            there = (page.parent / target).resolve()
            if there.name == "decisions":
                found |= set(there.glob("[0-9]*.md"))
            found.add(there / "README.md" if there.is_dir() else there)
    return found


def test_every_page_is_within_two_clicks_of_the_landing_page() -> None:
    """By what pages say, not by the list of all pages beside them. The page of all decisions counts as a click, too."""
    first = linked(DOCS / "index.md")
    second = {page for one in first if one.suffix == ".md" and "decisions" not in one.parts for page in linked(one)}
    places = ast.literal_eval(next(
        ast.unparse(node.value) for node in ast.parse((ROOT / "tools" / "site.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OUTSIDE"
    ))  # fmt: skip
    pages = {*DOCS.rglob("*.md"), *(ROOT / one for one in places)} - {DOCS / "index.md"}
    assert len(pages) > 60
    assert sorted(str(page.relative_to(ROOT)) for page in pages - first - second) == []


class Fetched(HTMLParser):
    """What a page has the browser fetch without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        asked = found.get("rel") or ""
        if tag == "link" and any(one in asked.split() for one in ("stylesheet", "preconnect", "preload", "icon")):
            self.targets.append(found.get("href") or "")
        self.targets += [found[key] or "" for key in ("src", "srcset") if key in found]


RECORDS = [
    {"scene": "a", "title": "a scene", "peer": "solar_loader", "label": "solar", "median": 900.0, "batch": 64,
     "rates": [800.0, 1000.0], "steady": 1100.0, "start": 1.5, "peak_rss": 2e8, "setting": {}, "epochs": 5},
    {"scene": "a", "title": "a scene", "peer": "torch_h5py", "label": "torch + h5py", "median": 123.0, "batch": 64,
     "rates": [123.0], "steady": 220.0, "start": 1.2, "peak_rss": 1e8, "setting": {"workers": 2}, "epochs": 5},
    {"scene": "a", "title": "a scene", "peer": "other", "failed": "it gave other samples"},
]  # fmt: skip
FACTS = {"cpu": "a cpu", "cores": 2, "memory_gib": 4, "file_system": "ext4", "kernel": "6.1", "python": "3.11"}
COMMON = {"cache": "warm", "order": "given", "machine": FACTS, "versions": {"torch": "2.1"}}


@pytest.mark.usefixtures("bench")
def test_tables_in_pages_are_those_of_the_records() -> None:
    from bench import report

    for (page, mark), text in report.of_docs().items():
        assert f"<!-- {mark} -->\n\n{text}\n\n<!-- end of {mark} -->" in (DOCS / page).read_text(), (
            "run `python -m bench.report --docs`"
        )


@pytest.mark.usefixtures("bench")
def test_a_table_stands_in_the_place_of_the_one_before(tmp_path: Path) -> None:
    from bench import report

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x -->\nold\n<!-- end of x -->\nafter\n")
    for _ in range(2):
        report.put_into(page, "x", "new")
        assert page.read_text() == "before\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nafter\n"
    with pytest.raises(ValueError, match="there is no place for the table"):
        report.put_into(page, "y", "new")


@pytest.mark.usefixtures("bench")
def test_the_report_has_a_section_for_each_file_and_never_puts_two_runs_beside_each_other(tmp_path: Path) -> None:
    from bench import report

    old, new, curves = tmp_path / "old.jsonl", tmp_path / "new.jsonl", []
    old.write_text("\n".join(json.dumps(one | COMMON) for one in RECORDS))
    new.write_text("\n".join(json.dumps(one | COMMON) for one in [RECORDS[0], RECORDS[0] | {"median": 1234.0}]))
    epoch = {"label": "solar", "began": [0.0, 1.0], "waited": [0.5, 0.1], "seconds": 2.0}
    epoch |= {"bytes": [10, 2e7], "bytes_decoded": [40, 8e7]}
    timeline = {"bench": "timeline", "title": "patterns", "samples": 8, "batch": 4, "compute_seconds": 0.5}
    others = [timeline | {"loaders": [epoch]}, {"bench": "unheard of", "what": "x", "rate": 12.345}]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, others)))
    for loader, last in (("solar", 0.3), ("torch", 0.3), ("odd", 0.2)):
        curves.append(tmp_path / f"net-{loader}.json")
        curves[-1].write_text(json.dumps({"loader": loader, "steps": [1.0, last], "held_out": [0.6, 0.35]}))
    page = report.page([old, new, tmp_path / "other.jsonl", tmp_path / "none.jsonl"], curves)
    first, second, third, losses = page.split("\n## ")[1:]
    assert "| a scene | torch + h5py | 220 | 1,100 | 5.0 | 123 | 900 | 7.3 |" in first
    assert "- other: it gave other samples" in first
    assert "a cpu, 2 cores" in first
    assert "| a scene | – | – | 1,100 | – | – | 1,234 | – |" in second
    assert "900" not in second
    assert "8 patterns: 2 batches of 4, steps of 500 ms." in third
    assert "| solar | 2.00 | 30% | 500 | 20 | 80 |" in third
    assert "| unheard of | x | 12.3 |" in third
    assert [line[-6:] for line in losses.splitlines()[-3:]] == [" yes |", " yes |", "| no |"]


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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("the extra `docs` is not installed")
    site = tmp_path_factory.mktemp("built") / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    ended = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return site


@pytest.mark.slow
def test_the_site_is_built_and_every_link_in_it_leads_somewhere(built: Path) -> None:
    reference = (built / "api.html").read_text()
    assert [name for name in CALLED if f'id="solar.{name}"' not in reference] == []
    for page in ("decisions/0011-the-run", "decisions/0015-ranks-together"):  # whose lists follow text at once
        items = re.findall("^- ", (DOCS / f"{page}.md").read_text(), re.MULTILINE)
        article = (built / f"{page}.html").read_text().partition("<article")[2].partition("</article")[0]
        assert article.count("<li>") == len(items)
    for path in built.rglob("*.html"):
        page = Fetched()
        page.feed(path.read_text())
        assert [target for target in page.targets if "//" in target] == [], f"{path}: fetched from elsewhere"
        pictures = [target for target in page.targets if target.startswith("pictures/")]
        assert [target for target in pictures if not (path.parent / target).is_file()] == [], path


@pytest.mark.slow
def test_the_site_says_of_which_version_it_is_and_has_the_notebook_as_a_page(built: Path) -> None:
    assert f"These pages are of solar {solar.__version__}." in (built / "gallery.html").read_text()
    page = (built / "first-steps.html").read_text()
    notebook = "examples/first_steps.ipynb"
    assert "32 batches; the same in both: True" in page and f'href="files/{notebook}"' in page
    assert (built / "files" / notebook).read_bytes() == (ROOT / notebook).read_bytes()
    assert re.findall(r'src="(pictures/first-steps-\d+\.png)"', page)
    assert 'href="quickstart.html"' in page.partition("<article")[2], "links of the notebook lead to pages"


SEARCHED = {  # what people type, and a page that must be among the first five
    "resume": "quickstart.html",
    "s3": "remote.html",
    "memory": "guide.html",
    "NCCL": "ranks.html",
    "slurm": "ranks.html",
    "state_dict": "guide.html",
    "zarr": "zarr.html",
    "lossless": "compression.html",
    "AnnData": "communities.html",
    "num_workers": "migrating.html",
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_search_of_the_site_finds_the_page_that_explains_it(built: Path) -> None:
    """By the script that a browser runs, over the index that it fetches."""
    command = ["node", str(ROOT / "tests" / "search_site.mjs"), str(built), json.dumps([*SEARCHED, "qwertzuiop"])]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found = json.loads(ended.stdout)
    assert found.pop("qwertzuiop") == []
    assert {query: pages[:5] for query, pages in found.items() if SEARCHED[query] not in pages[:5]} == {}


# --- versions ----


def docs_by_version(site: Path, pages: Path, version: str) -> list[str]:
    command = [sys.executable, str(ROOT / "tools" / "docs-by-version"), str(site), str(pages), version]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_the_pages_of_a_version_stand_beside_those_of_others_and_the_newest_is_led_to(tmp_path: Path) -> None:
    site, pages = tmp_path / "site", tmp_path / "pages"
    site.mkdir()
    pages.mkdir()
    for version, newest in (("0.9.0", "0.9.0"), ("0.10.0", "0.10.0"), ("0.9.1", "0.10.0"), ("0.10.0", "0.10.0")):
        (site / "index.html").write_text(f"of {version}")
        there = docs_by_version(site, pages, version)
        assert there[0] == newest and (pages / version / "index.html").read_text() == f"of {version}"
        assert f'url={newest}/index.html"' in (pages / "index.html").read_text()
    listed = json.loads((pages / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in listed] == [
        ("0.10.0", ["latest"]),
        ("0.9.1", []),
        ("0.9.0", []),
    ]
    for wrong, said in ((["0.9"], "give three numbers"), (["../x"], "give three numbers")):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            docs_by_version(site, pages, *wrong)
        assert said in caught.value.stderr
