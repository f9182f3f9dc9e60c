"""Records as one page of HTML that needs nothing else, with its charts as PNGs beside it.

    python -m bench.page [RECORDS.jsonl ...] [--out build/report]

Without names: what is committed in bench/results, and over it what this machine has measured in build/bench; loss
curves of examples/ from build/examples. `make report` does this.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import charts, pictures

ROOT = Path(__file__).parent.parent
STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #22262b; --faint: #d9dde2; --soft: #5a626c }
@media (prefers-color-scheme: dark) { :root { --ground: #16191d; --ink: #d6dbe1; --faint: #353b43; --soft: #98a2ae } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--ground); color: var(--ink) }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid var(--faint) }
h3 { font-size: 1rem; margin: 1.5rem 0 .3rem } img, svg { max-width: 100%; height: auto }
p, figcaption, summary { max-width: 52rem } .soft, figcaption { color: var(--soft); font-size: .9rem }
figure { margin: .5rem 0 1.5rem } table { border-collapse: collapse; font-size: .85rem; margin: .5rem 0 }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); vertical-align: top }
th:first-child, td:first-child, td.text { text-align: left } nav a { margin-right: 1rem } a { color: inherit }
.wide { overflow-x: auto }
"""
Record = dict[str, Any]
Chart = tuple[Any, float, float]


# --- records ----


def read(paths: Iterable[Path]) -> list[Record]:
    """The records of JSON lines, each with where it is from."""
    found: list[Record] = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip():
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError(f"{path}, line {number}: a record is a JSON object, not {line[:40]!r}")
                found.append(record | {"from": str(path)})
    return found


def newest(records: Iterable[Record], scene: Callable[[Record], str]) -> dict[str, list[Record]]:
    """By scene, what the last file that has it says of each loader: those of two runs are not comparable."""
    groups: dict[str, dict[str, Record]] = {}
    for record in records:
        group = groups.setdefault(scene(record), {})
        if any(one["from"] != record["from"] for one in group.values()):
            group.clear()
        group[record["peer"]] = {"label": record["peer"], **record}
    return {name: [*group.values()] for name, group in groups.items()}


def measured(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Those that say how fast a loader was, by scene."""
    of_speed = (
        record
        for record in records
        if "peer" in record and isinstance(record.get("median"), int | float) and not charts.shares_of(record)
    )
    return newest(of_speed, charts.title_of)


def curves(folder: Path) -> dict[str, list[tuple[str, Record]]]:
    """Loss curves that the examples wrote, by example."""
    found: dict[str, list[tuple[str, Record]]] = {}
    for path in sorted(folder.glob("*-*.json")):
        curve = json.loads(path.read_text())
        if curve.get("steps") and curve.get("held_out"):
            name = path.stem.rpartition("-")[0]
            found.setdefault(name, []).append((f"{curve['loader']}'s loader", curve))
    return found


# --- the page ----


class Page:
    """Sections of HTML, and the PNGs that go beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts, self.heads = folder, list[str](), list[tuple[str, str]]()

    def head(self, name: str, title: str, text: str = "") -> None:
        self.heads.append((name, title))
        self.parts.append(f'<h2 id="{name}">{html.escape(title)}</h2>\n<p>{html.escape(text)}</p>')

    def chart(self, name: str, made: Chart, alt: str, caption: str = "") -> None:
        """Draws for both themes; the light one is the one that others may want to use."""
        light, dark = (charts.png(made[0], theme, *made[1:]) for theme in (charts.LIGHT, charts.DARK))
        (self.folder / f"{name}.png").write_bytes(light)
        (self.folder / f"{name}-dark.png").write_bytes(dark)
        width = round(made[1] * charts.DPI)
        said = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        self.parts.append(
            f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_uri(dark)}">'
            f'<img src="{_uri(light)}" width="{width}" alt="{html.escape(alt)}"></picture>{said}</figure>'
        )

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], summary: str) -> None:
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
        self.parts.append(
            f"<details><summary>{html.escape(summary)}</summary><div class=wide><table><thead><tr>{cells}</tr>"
            f"</thead>\n<tbody>{body}</tbody></table></div></details>"
        )

    def html(self, facts: str) -> str:
        links = "".join(f'<a href="#{name}">{html.escape(title)}</a>' for name, title in self.heads)
        return (
            '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>solar: what was measured</title>\n'
            f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n'
            f"<h1>solar: what was measured</h1>\n<ul class=soft>{facts}</ul>\n<nav>{links}</nav>\n"
            + "\n".join(self.parts)
            + "\n</html>\n"
        )


def _uri(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def made(records: list[Record], losses: dict[str, list[tuple[str, Record]]], folder: Path) -> str:
    """The page; PNGs are written into the folder."""
    page = Page(folder)
    groups = measured(records)
    compared = [group for group in groups.values() if len(group) > 1]
    if compared:
        compared.sort(key=lambda group: (bool(group[0].get("fraction")), "cold" in charts.title_of(group[0])))
        text = "Shuffled batches. The mark is what plain reads, or the decoders alone, can do."
        page.head("overview", "In short", text)
        both = [group for group in compared if any(one["peer"] in charts.TORCH for one in group)] or compared
        page.chart("overview", charts.overview(both), "solar and PyTorch with h5py in every scene that has both")
        page.head("loaders", "Every loader", "By scene; each in its own process, at its best setting, in turns.")
        for number, group in enumerate(compared):
            _scene(page, f"scene-{number:02}", group)
    _utilisation(page, records)
    for number, record in enumerate([one for one in records if one.get("bench") == "timeline"][-1:]):
        page.head(f"epoch-{number}", "One epoch as it passed", _about(record))
        page.chart(f"epoch-{number}", charts.timeline(record), "waits, reads and decoding over one epoch")
    _plans(page)
    if losses:
        page.head("losses", "Loss curves", "Examples of examples/, trained through solar's loader and PyTorch's.")
        for name, runs in losses.items():
            page.parts.append(f"<h3>{html.escape(name)}</h3>")
            page.chart(f"losses-{name}", charts.losses(runs), f"loss of {name} over its steps", _alike(runs))
    _skipped(page, records)
    return page.html(machines(records))


def _scene(page: Page, name: str, group: list[Record]) -> None:
    page.parts.append(f"<h3>{html.escape(charts.title_of(group[0]))}</h3>")
    page.chart(name, charts.peers(group), f"throughput and memory of each loader: {charts.title_of(group[0])}")
    rows = []
    for one in sorted(group, key=lambda record: -record["median"]):
        rounds = one.get("samples_per_second") or [one["median"]]
        nbytes, peak = one.get("sample_nbytes"), one.get("peak_rss")
        rows.append((
            one["label"], charts.rate(one["median"]), f"{charts.rate(min(rounds))} – {charts.rate(max(rounds))}",
            charts.rate(one["median"] * nbytes / 1e6) if nbytes else "–", f"{peak / 1e6:,.0f}" if peak else "–",
            ", ".join(f"{key} {value}" for key, value in (one.get("setting") or {}).items()) or "default",
        ))  # fmt: skip
    page.table(("loader", "samples/s", "least – most", "MB/s", "peak MB", "best setting"), rows, "the numbers")


def _utilisation(page: Page, records: Iterable[Record]) -> None:
    of_use = (one for one in records if "peer" in one and charts.shares_of(one))
    found = newest(of_use, lambda one: f"{one.get('bench')} {charts.title_of(one)}")
    if shown := [one for group in found.values() for one in group]:
        text = "The share of the time that an emulated accelerator computed, as MLPerf Storage defines it."
        page.head("utilisation", "Accelerator utilisation", text)
        page.chart("utilisation", charts.utilisation(shown), "utilisation of an emulated accelerator by loader")


def _about(record: Record) -> str:
    step = f"{1000 * record['compute_seconds']:g} ms"
    batches = len(record["loaders"][0]["began"])
    return f"{record['samples']:,} {record['title']}: {batches} batches of {record['batch']}, steps of {step}."


def _plans(page: Page) -> None:
    text = "By the planner: the reads of a shuffle, and what memory gains on a parallel file system of disks."
    page.head("plans", "Plans", text)
    for name, draw in pictures.PICTURES.items():
        (page.folder / f"plan-{name}.svg").write_text(draw())
        page.parts.append(f"<figure>{draw()}</figure>")


def _skipped(page: Page, records: Iterable[Record]) -> None:
    rows = [
        (one.get("scene", ""), one.get("peer", ""), str(one.get("skipped") or one.get("failed")))
        for one in records
        if one.get("failed") or one.get("skipped")
    ]
    if rows:
        page.head("skipped", "Not counted", "Who did not run, or did not return the reference's samples, and why.")
        page.table(("scene", "loader", "because"), rows, f"{len(rows)} records")


def _alike(runs: Sequence[tuple[str, Record]]) -> str:
    if len(runs) < 2:
        return ""
    same = all(curve["steps"] == runs[0][1]["steps"] for _, curve in runs)
    return "The losses of all steps are the same to the bit." if same else "The losses differ."


def machines(records: Iterable[Record]) -> str:
    """On what and with what it was measured, as a list."""
    found: dict[str, list[str]] = {}
    for one in records:
        if facts := one.get("machine"):
            versions = one.get("versions", {})
            named = [f"{name} {versions[name]}" for name in ("solar", "torch", "h5py", "numpy") if name in versions]
            system = f"{facts['file_system']}, Linux {facts['kernel']}, Python {facts['python']}"
            on = f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {system}; {', '.join(named)}"
            name = Path(one["from"]).name
            if name not in found.setdefault(on, []):
                found[on].append(name)
    return "".join(
        f"<li>{html.escape(on)} <i>({html.escape(', '.join(names))})</i></li>" for on, names in found.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--losses", type=Path, default=ROOT / "build" / "examples", help="where loss curves are")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "report")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    kept, new = ROOT / "bench" / "results", ROOT / "build" / "bench"
    records = read(asked.records or [*sorted(kept.glob("*.jsonl")), *sorted(new.glob("*.jsonl"))])
    page = made(records, curves(asked.losses), asked.out)
    (asked.out / "report.html").write_text(page)
    print(f"{asked.out / 'report.html'}: {len(page) / 1e6:.1f} MB, from {len(records)} records")


if __name__ == "__main__":
    main()
