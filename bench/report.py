"""JSON lines to tables and a plot.

python -m bench.report results.jsonl [--plot FILE.svg] [--into FILE.md]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
MARKS = ("<!-- results -->", "<!-- end of results -->")
LIMITS = ("limit_pread", "limit_decode")
TORCH = ("torch_h5py", "torch_h5py_sorted")


def line(record: Record) -> str:
    """One record for people."""
    if reason := record.get("skipped"):
        return f"{record['peer']:20} -  {reason}"
    if reason := record.get("failed"):
        return f"{record['peer']:20} failed: {reason}"
    return f"{record['peer']:20} {rate(record['median']):>8} samples/s   {setting(record)}"


def rate(samples_per_second: float) -> str:
    """At least three figures: 12.3, 456, 7,890."""
    return f"{samples_per_second:,.0f}" if samples_per_second >= 100 else f"{samples_per_second:.3g}"


def setting(record: Record) -> str:
    return ", ".join(f"{name} {value}" for name, value in record["setting"].items())


def by_scene(records: Iterable[Record]) -> dict[str, dict[str, Record]]:
    scenes: dict[str, dict[str, Record]] = {}
    for record in records:
        scenes.setdefault(record["scene"], {})[record["peer"]] = record
    return scenes


def counted(found: dict[str, Record]) -> dict[str, Record]:
    return {name: record for name, record in found.items() if "median" in record}


def best_of(found: dict[str, Record], names: Iterable[str]) -> Record | None:
    return max((found[name] for name in names if name in found), key=lambda record: record["median"], default=None)


def markdown(records: list[Record]) -> str:
    parts = [machine_text(records), ratios(records), *peer_tables(records), skipped(records)]
    return "\n\n".join(part for part in parts if part)


def machine_text(records: list[Record]) -> str:
    measured = next((record for record in records if "machine" in record), None)
    if not measured:
        return ""
    cold = {record["cache_how"] for record in records if record.get("cache") == "cold"}
    return (
        f"{where(measured)} "
        f"Medians of {len(measured['samples_per_second'])} rounds of {measured['seconds_per_round']:g} s in turns; "
        f"load average before the run {measured.get('load_before', 0):.1f}."
        + (f" Cold: {', '.join(sorted(cold))} before each round." if cold else "")
    )


def where(record: Record) -> str:
    """The machine that something was measured on, and what with."""
    facts = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['file_system']}, "
        f"Linux {facts['kernel']}, Python {facts['python']}; {versions}."
    )


def ratios(records: list[Record]) -> str:
    """Solar beside the limit and beside PyTorch with h5py."""
    rows = [
        "| scene | batch | limit | solar | of limit | torch + h5py, items | × | torch + h5py, sorted | × |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for found in map(counted, by_scene(records).values()):
        solar, limit = found.get("solar_loader"), best_of(found, LIMITS)
        any_record = next(iter(found.values()), None)
        if any_record is None:
            continue
        cells = [any_record["title"], str(any_record["batch"]), *shown(limit), *shown(solar), share(solar, limit)]
        for name in TORCH:
            cells += [*shown(found.get(name)), times(solar, found.get(name))]
        rows.append("| " + " | ".join(cells) + " |")
    return "Samples per second.\n\n" + "\n".join(rows)


def shown(record: Record | None) -> list[str]:
    return [rate(record["median"]) if record else "–"]


def share(record: Record | None, limit: Record | None) -> str:
    return f"{record['median'] / limit['median']:.2f}" if record and limit else "–"


def times(record: Record | None, other: Record | None) -> str:
    return f"{record['median'] / other['median']:.1f}" if record and other else "–"


def peer_tables(records: list[Record]) -> Iterable[str]:
    """All peers of each scene that more than the usual ones ran in, or that was cold."""
    for found in map(counted, by_scene(records).values()):
        first = next(iter(found.values()), None)
        if first is None or (len(found) <= 7 and first["cache"] == "warm"):
            continue
        rows = [f"{first['title']}: every peer.", "", "| peer | samples/s | MB/s | peak MB | order | best setting |"]
        rows.append("|---|--:|--:|--:|---|---|")
        for record in sorted(found.values(), key=lambda record: -record["median"]):
            cells = [
                record["label"], rate(record["median"]), rate(record["median"] * record["sample_nbytes"] / 1e6),
                f"{record['peak_rss'] / 1e6:,.0f}", record["order"], setting(record) or "default",
            ]  # fmt: skip
            rows.append("| " + " | ".join(cells) + " |")
        yield "\n".join(rows)


def skipped(records: list[Record]) -> str:
    """Peers that were not counted anywhere, and why."""
    ran = {record["peer"] for record in records if "median" in record}
    reasons = {record["peer"]: record.get("skipped") or record.get("failed") for record in records}
    lines = [f"- {name}: {reason}" for name, reason in reasons.items() if name not in ran]
    failed = [f"- {r['peer']} in {r['scene']}: {r['failed']}" for r in records if "failed" in r and r["peer"] in ran]
    return "Not counted:\n\n" + "\n".join(lines + failed) if lines + failed else ""


def plot(records: list[Record], path: Path) -> None:
    """Samples per second of PyTorch with h5py, of solar, and the limit, for each scene."""
    import matplotlib  # an extra: only the plot needs it

    matplotlib.use("svg")
    from matplotlib import pyplot

    scenes = [
        found for found in map(counted, by_scene(records).values()) if {"solar_loader", "torch_h5py"} <= set(found)
    ]
    titles = [found["solar_loader"]["title"] for found in scenes]
    figure, axes = pyplot.subplots(figsize=(8, 0.55 * len(scenes) + 1.2), layout="constrained")
    for shift, (name, label, colour) in enumerate(
        (("torch_h5py", "PyTorch + h5py, best of 0–4 workers", "#9aa5b1"), ("solar_loader", "solar", "#e07a1f"))
    ):
        places = [place + 0.36 * shift for place in range(len(scenes))]
        axes.barh(places, [found[name]["median"] for found in scenes], 0.34, label=label, color=colour)
    for place, found in enumerate(scenes):
        if limit := best_of(found, LIMITS):
            axes.plot([limit["median"]] * 2, [place - 0.2, place + 0.56], color="black", lw=1.5,
                      label="limit: pread, or the decoders alone" if place == 0 else None)  # fmt: skip
    axes.set_yticks([place + 0.18 for place in range(len(scenes))], titles)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("samples per second")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def put_into(document: Path, text: str, marks: tuple[str, str] = MARKS) -> None:
    """Replaces what stands between the two marks."""
    before, _, rest = document.read_text().partition(marks[0])
    _, mark, after = rest.partition(marks[1])
    if not mark:
        raise ValueError(f"{document} has no {marks[0]} and {marks[1]}")
    document.write_text(f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{after}")


def tell(module: str, about: str, markdown: Callable[[], str], marks: tuple[str, str]) -> None:
    """The command of a module whose tables stand between marks: prints them, and puts them --into a document."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.splitlines()[0])
    parser.add_argument("--into", type=Path, help=f"a document with the marks {' and '.join(marks)}")
    asked = parser.parse_args()
    print(text := markdown())
    if asked.into:
        put_into(asked.into, text, marks)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--into", type=Path, help="a document with the marks of the results")
    asked = parser.parse_args()
    records = [json.loads(text) for text in asked.results.read_text().splitlines()]
    print(markdown(records))
    if asked.into:
        put_into(asked.into, markdown(records))
    if asked.plot:
        plot(records, asked.plot)


if __name__ == "__main__":
    main()
