"""The tables of what bench/decoders.py has recorded last: python -m bench.decoders_report [--into FILE.md]"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench import records, report
from bench.codec_fields import mean

RECORDED = Path(__file__).parent / "results" / "decoders.jsonl"
MARKS = ("<!-- decoders -->", "<!-- end of decoders -->")


@dataclass(frozen=True)
class Row:
    """GB/s of decoded bytes of each: by medians, and by the best round."""

    decoder: str
    data: str
    itemsize: int
    block: int
    how: str
    nbytes: int
    stored: int
    rounds: int
    gbs: dict[str, float]
    best_gbs: dict[str, float]

    @property
    def ratio(self) -> float:
        """Ours over the fastest library's."""
        return _over_best(self.gbs)

    @property
    def best_ratio(self) -> float:
        return _over_best(self.best_gbs)


def _over_best(rates: dict[str, float]) -> float:
    return rates["solar"] / max(rate for name, rate in rates.items() if name != "solar")


def group(row: Row) -> str:
    if row.decoder == "unshuffle":
        return f"byte unshuffle, items of {row.itemsize}"
    if row.decoder == "bitunshuffle":
        return "bit unshuffle"
    if row.decoder == "blosc":
        return " ".join(row.how.split()[:2])
    return {"lz4": "lz4 block", "inflate": "inflate (zlib)"}.get(row.decoder, row.decoder)


def summaries(rows: list[Row]) -> str:
    """A line for each decoder: ours over the fastest library, geometric mean, least and most, and the slowest case."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(group(row), []).append(row)
    lines = ["| decoder | cases | ours ÷ the fastest library | least | most | below .95 | the least is |",
             "|---|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for name, found in groups.items():
        ratios = [row.ratio for row in found]
        least = min(found, key=lambda row: row.ratio)
        where = f"{least.data}, {least.block >> 10} KiB {' '.join(least.how.split()[1:] or [least.how])}".strip()
        below = sum(ratio < 0.95 for ratio in ratios)
        spread = f"{min(ratios):.2f} | {max(ratios):.2f}"
        lines.append(f"| {name} | {len(found)} | {mean(ratios):.2f} | {spread} | {below} | {where} |")
    return "\n".join(lines)


def last_run(found: list[dict[str, Any]]) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the last run, which were written together at its end, and its last record."""
    times = [datetime.fromisoformat(one["made"]) for one in found]
    names = {one.name for one in fields(Row)}
    last = [one for one, time in zip(found, times, strict=True) if times[-1] - time < timedelta(minutes=1)]
    return [Row(**{name: one[name] for name in names}) for one in last], found[-1]


def markdown() -> str:
    rows, newest = last_run(records.read(RECORDED))
    return f"{report.where(newest)}\n\n{summaries(rows)}"


def main() -> None:
    report.tell("bench.decoders_report", __doc__, markdown, MARKS)


if __name__ == "__main__":
    main()
