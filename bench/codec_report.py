"""What `python -m bench.codec --record` found, as tables.

python -m bench.codec_report [--into FILE.md]
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench import records, report
from bench.codec_fields import mean

RECORDED = Path(__file__).parent / "results" / "codec.jsonl"
MARKS = ("<!-- codec -->", "<!-- end of codec -->")
VERY_SMOOTH = {"smooth64", "femm_f64"}  # where interpolation over a whole field cannot be beaten by tiles
SZ3 = ("SZ3 interp", "SZ3 Lorenzo")


@dataclass(frozen=True)
class Row:
    """What one codec did with one set."""

    set: str
    bound: float  # of the range; 0: lossless
    codec: str
    ratio: float
    decode_gbs: float
    encode_mbs: float
    beyond: int


@dataclass(frozen=True)
class Scaling:
    """How many times faster two are than one: of the loader's reader threads, and of the decoder's processes."""

    set: str
    codec: str
    batch: int  # samples of 1 MiB
    two_threads: float
    two_decoders: float  # which share nothing but the machine


Cases = dict[tuple[str, float], dict[str, Row]]


def summaries(rows: list[Row], scaling: list[Scaling]) -> str:
    """All but the cases one by one."""
    tables = (against_sz3(by_case(rows)), encoding(rows), threads(scaling))
    return "\n\n".join("\n".join(lines) for lines in tables if len(lines) > 2)


def by_case(rows: list[Row]) -> Cases:
    cases: Cases = {}
    for row in rows:
        cases.setdefault((row.set, row.bound), {})[row.codec] = row
    return cases


def better(found: dict[str, Row]) -> Row | None:
    """The smaller of SZ3's two ways."""
    return max((found[name] for name in SZ3 if name in found), key=lambda row: row.ratio, default=None)


def against_sz3(cases: Cases) -> list[str]:
    """Solar's paths against the smaller of SZ3's two, by geometric means over sets and bounds."""
    lines = ["| codec | against the better SZ3, geometric means of | ratio | decoding |", "|---|---|--:|--:|"]
    paths = sorted({name for found in cases.values() for name in found if name.split()[0] in {"pack", "dense"}})
    for where in ("all sets but the very smooth", "very smooth sets", "all sets"):
        for codec in paths:
            pairs = [
                (found[codec], theirs)
                for (name, _), found in cases.items()
                if codec in found and (theirs := better(found)) is not None and _is_of(name, where)
            ]
            if pairs:
                ratio = mean(ours.ratio / theirs.ratio for ours, theirs in pairs)
                speed = mean(ours.decode_gbs / theirs.decode_gbs for ours, theirs in pairs)
                lines.append(f"| {codec} | {where}, {len(pairs)} cases | {ratio:.2f} | {speed:.1f} |")
    return lines


def _is_of(name: str, where: str) -> bool:
    return where == "all sets" or (name in VERY_SMOOTH) is (where == "very smooth sets")


def encoding(rows: list[Row]) -> list[str]:
    """Of each coder: the geometric mean over sets and bounds, and the slowest."""
    lines = ["| coder | encoding, MB/s, geometric mean | the slowest |", "|---|--:|---|"]
    for coder in ("pack", "dense"):
        rates = {(row.set, row.bound): row.encode_mbs for row in rows if row.codec.split()[0] == coder}
        if rates:
            slowest = min(rates, key=lambda case: rates[case])
            name = f"{slowest[0]}, {slowest[1]:g}"
            lines.append(f"| {coder} | {mean(rates.values()):.0f} | {rates[slowest]:.0f} ({name}) |")
    return lines


def threads(scaling: list[Scaling]) -> list[str]:
    lines = [
        "| coder | batch | two reader threads of the loader against one | two processes, each with the decoder alone |",
        "|---|--:|--:|--:|",
    ]
    rows = (f"| {one.codec} | {one.batch} MiB | {one.two_threads:.2f} | {one.two_decoders:.2f} |" for one in scaling)
    return [*lines, *rows]


def each(cases: Cases, lossless: bool) -> list[str]:
    """A line for each set and bound, a column for each codec: its ratio, and GB/s of decoding."""
    chosen = {case: found for case, found in cases.items() if (case[1] == 0) is lossless}
    codecs = [name for name in dict.fromkeys(name for found in chosen.values() for name in found) if "avx2" not in name]
    lines = [f"| set | bound | {' | '.join(codecs)} |", f"|---|--:|{'--:|' * len(codecs)}"]
    for (name, bound), found in chosen.items():
        lines.append(f"| {name} | {bound:g} | {' | '.join(_cell(found.get(codec)) for codec in codecs)} |")
    return lines


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    far = f", {row.beyond:,} beyond" if row.beyond else ""
    return f"{row.ratio:.3g} : 1, {row.decode_gbs:.2g}{far}"


def last_run(found: list[dict[str, Any]]) -> tuple[list[Row], list[Scaling], dict[str, Any]]:
    """Rows of the last run, which were written together at its end, and its last record."""
    every = [one for one in found if "made" in one]
    end = _time(every[-1])
    last = [one for one in every if end - _time(one) < timedelta(minutes=1)]
    rows = [_as(Row, one) for one in last if "ratio" in one]
    return rows, [_as(Scaling, one) for one in last if "two_decoders" in one], every[-1]


def _time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["made"])


def _as(kind: type[Any], record: dict[str, Any]) -> Any:
    return kind(**{one.name: record[one.name] for one in fields(kind)})


def markdown() -> str:
    rows, scaling, newest = last_run(records.read(RECORDED))
    cases = by_case(rows)
    tables = [
        report.where(newest),
        summaries(rows, scaling),
        "Each set with each bound: the ratio, and GB/s of decoding on one core.",
        "\n".join(each(cases, False)),
        "Lossless, of whole numbers:",
        "\n".join(each(cases, True)),
    ]
    return "\n\n".join(tables)


def main() -> None:
    report.tell("bench.codec_report", __doc__, markdown, MARKS)


if __name__ == "__main__":
    main()
