"""What `python -m bench.matrix --record` found, as tables.

python -m bench.matrix_report [--into FILE.md]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import buffer_report, dlio, records, report, utilisation

RESULTS = Path(__file__).parent / "results"
MARKS = ("<!-- matrix -->", "<!-- end of matrix -->")
Record = dict[str, Any]


def markdown() -> str:
    """All tables, each with a heading; of records of the same, the last one counts."""
    rates = newest(records.read(RESULTS / "matrix.jsonl"), ("scene", "peer"))
    # Records of before the matrix had none of its time marks, and stand in the page already.
    buffered = [one for one in records.read(RESULTS / "buffer.jsonl") if "made" in one]
    used = records.read(RESULTS / "utilisation.jsonl")
    parts = [
        ("Rates", f"{report.machine_text(rates)}\n\n{report.ratios(rates)}\n\n{of_rates(rates)}" if rates else ""),
        ("With a buffer, on the slowed file system", buffer_report.markdown(buffered)),
        ("Accelerator utilisation", utilisation.markdown(used) if used else ""),
        ("DLIO", of_dlio(newest(records.read(RESULTS / "dlio.jsonl"), ("scene", "peer")))),
    ]
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts if text)


def newest(found: list[Record], keys: tuple[str, ...]) -> list[Record]:
    """Of records in which these are the same, the last one that did not fail."""
    return [*{tuple(one[key] for key in keys): one for one in found if "failed" not in one}.values()]


def of_rates(found: list[Record]) -> str:
    """Every peer of every scene: its rounds, and its memory beside them."""
    rows = ["| scene | reader | samples/s | min–max | MB/s | peak MB | setting |", "|---|---|--:|--:|--:|--:|---|"]
    for one in (one for one in found if "median" in one):
        rounds, megabytes = one["samples_per_second"], one["median"] * one["sample_nbytes"] / 1e6
        cells = [
            one["title"],
            one["label"],
            report.rate(one["median"]),
            f"{report.rate(min(rounds))}–{report.rate(max(rounds))}",
            report.rate(megabytes),
            f"{one['peak_rss'] / 1e6:,.0f}",
            report.setting(one) or "default",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def of_dlio(found: list[Record]) -> str:
    """Utilisation as DLIO counts it: the mean of the epochs after the first."""
    if not found:
        return ""
    rows = ["| storage | loader | AU | epochs | readers |", "|---|---|--:|--:|--:|"]
    for one in found:
        reached = one["utilisation"]
        mean = f"{sum(reached) / len(reached):.1%}"
        rows.append(f"| {one['scene']} | {one['peer']} | {mean} | {len(reached)} | {one['setting']['read_threads']} |")
    about = f"Samples of {dlio.NBYTES / 1e6:.1f} MB, one a step, {dlio.COMPUTE * 1e3:g} ms of computing each."
    return "\n".join([about, "", *rows])


def main() -> None:
    report.tell("bench.matrix_report", __doc__, markdown, MARKS)


if __name__ == "__main__":
    main()
