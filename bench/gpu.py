"""All that is to be shown on a GPU, in one command: `make gpu`, or where all is installed

    python -m bench.gpu [--steps tests loaders decode training] [--quick] [--record]

Runs the tests that need a GPU, then bench/device.py, bench.device_decode and bench.device_training, each in a process
of its own with a limit of time, so that one that hangs costs only itself. Records go to build/bench/gpu.jsonl; --record
takes bench/results/gpu.jsonl, and writes the table of docs/gpu.md from it. A step that was recorded within an hour is
not run again: after a break, give the same command. `--device cpu` runs all of it on the host, and shows only that it
runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bench import machine, records

ROOT = Path(__file__).parent.parent
RECORDED, PAGE = ROOT / "bench" / "results" / "gpu.jsonl", ROOT / "docs" / "gpu.md"
MARKS = ("<!-- results -->", "<!-- end of results -->")
LIMIT = 560  # seconds for a step
PYTEST = {"passed": "passed", "failed": "failures", "error": "errors", "skipped": "skipped"}  # its words: ours
Record = dict[str, Any]


def commands(device: str, quick: bool, rows: Path) -> dict[str, list[str]]:
    """What each step runs."""
    small = device == "cpu"
    few = ["--samples", "192", "--seconds", "0.1"] if small else ["--samples", "2048", "--seconds", "1"]
    little = ["--share", "0.01", "--seconds", "0.2"] if small else ["--share", "0.2", "--seconds", "1"]
    cores = os.cpu_count() or 1
    workers = ["--workers", *(["0"] if small else [str(n) for n in (2, 4, 8, 16) if n <= max(2, cores)])]
    tests = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_device*.py"))
    return {
        "tests": ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *(tests[:1] if small else tests)],
        "loaders": ["bench/device.py", "--device", device, *workers, *(few if quick or small else [])],
        "decode": ["-m", "bench.device_decode", "--device", device, "--json", str(rows)]
        + (["--share", "0.05", "--passes", "3"] if quick or small else []),
        "training": ["-m", "bench.device_training", "--device", device, *workers, *(little if quick or small else [])]
        + (["--scenes", "PtychoNN", "--batch", "2", "--rounds", "1"] if small else []),
    }


def run(step: str, command: list[str], rows: Path) -> list[Record]:
    """The records of a step, and one of how it ended."""
    begin = time.perf_counter()
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as said:
        failed = ""
        try:
            code = subprocess.run(
                [sys.executable, *command], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, timeout=LIMIT,
                env=environment,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code, failed = -1, f"no end in {LIMIT} s"
        said.seek(0)
        lines = said.read().splitlines()
    sys.stdout.write("".join(f"    {line}\n" for line in lines[-200:]))
    found = [json.loads(line) for line in lines if line.startswith("{")]
    if rows.exists():
        found += [json.loads(line) for line in rows.read_text().splitlines()]
        rows.unlink()
    if code and not failed:
        failed = (lines or [""])[-1][:300] or f"status {code}"
    ended: Record = {"ended": True, "seconds": round(time.perf_counter() - begin, 1)}
    if step == "tests":
        ended |= counted(lines)
    return [*found, ended | ({"failed": failed} if failed else {})]


def counted(lines: list[str]) -> dict[str, int]:
    """How many tests passed, failed and were skipped, by pytest's last line."""
    last = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed|skipped)", line)), "")
    found = {
        what.rstrip("s"): int(number) for number, what in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)
    }
    return {PYTEST[what]: number for what, number in found.items()}


def place(device: str) -> Record:
    """Where it is measured."""
    facts: Record = {"device": "no GPU", "torch": torch.__version__, "cpu": machine.cpu_name(), "cores": os.cpu_count()}
    if device != "cpu":
        facts |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts


# --- the table ----


def markdown(found: Iterable[Record]) -> str:
    """The claims of this page, and what was measured of them; of records of the same, the last one counts."""
    whole = [one for one in found if "failed" not in one or one["step"] == "tests"]
    by = {(one["step"], one.get("what"), one.get("coder"), one.get("predictor"), one.get("out")): one for one in whole}
    rows = [
        ("tests on a GPU", "all pass", _tests(by.get(("tests", None, None, None, None)))),
        ("host to device, of the pinned copy's rate", "≥ 95 %", _share(_of(by, "loaders", "solar"))),
        ("a step waits, PtychoNN", "≤ 2 %", _waits(by, "PtychoNN")),
        ("a step waits, CosmoFlow", "≤ 2 %", _waits(by, "CosmoFlow")),
        ("`pack` decoded, float32", "≥ 200 GB/s", _decoded(by, "pack")),
        ("`dense` decoded, float32", "≥ 80 GB/s", _decoded(by, "dense")),
    ]
    devices = sorted({f"{one['device']}, torch {one['torch']}, {one['made'][:10]}" for one in by.values()})
    body = [f"| {what} | {asked} | {measured} |" for what, asked, measured in rows]
    return "\n".join([*devices, "", "| claim | asked | measured |", "|---|---|---|", *body])


def _of(by: dict[Any, Record], step: str, what: str) -> Record | None:
    return by.get((step, what, None, None, None))


def _tests(ended: Record | None) -> str:
    if ended is None:
        return "not measured"
    return ", ".join(f"{ended[what]} {what}" for what in PYTEST.values() if what in ended)


def _share(one: Record | None) -> str:
    if one is None:
        return "not measured"
    return f"{one['of_the_copy']:.0%} ({one['gigabytes_a_second']:.1f} GB/s)"


def _waits(by: dict[Any, Record], scene: str) -> str:
    trained = [one for one in by.values() if one["step"] == "training" and one.get("scene") == scene]
    ours = [one for one in trained if one["loader"] == "solar"]
    theirs = sorted((one for one in trained if one["loader"].startswith("torch")), key=lambda one: one["waited"])
    if not ours:
        return "not measured"
    beside = f"; {theirs[0]['waited']:.1%} with {theirs[0]['loader']}" if theirs else ""
    return f"{ours[0]['waited']:.1%} of {1e3 * ours[0]['step_seconds']:.1f} ms{beside}"


def _decoded(by: dict[Any, Record], coder: str) -> str:
    decoded = [one for one in by.values() if one.get("coder") == coder and one.get("out") == "float32"]
    copied = _copied(by)
    if not decoded:
        return "not measured"
    rates = [one["gigabytes_a_second"] for one in decoded]
    return f"{min(rates):,.0f} to {max(rates):,.0f} GB/s{copied}"


def _copied(by: dict[Any, Record]) -> str:
    found = [one for one in by.values() if one.get("what") == "copy on the device"]
    return f" (a copy on the device: {found[0]['gigabytes_a_second']:,.0f})" if found else ""


def write_page(page: Path, table: str) -> None:
    """Puts the table between the marks of a page."""
    text = page.read_text()
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    if not rest or not text.count(MARKS[1]):
        raise SystemExit(f"{page}: there is no place for the table between {MARKS[0]} and {MARKS[1]}")
    page.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")


def main(argv: list[str] | None = None) -> int:
    """Runs the steps; 1 if one of them failed."""
    steps = list(commands("cpu", True, Path()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", choices=steps, default=steps)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="fewer data and passes, for a look")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "gpu.jsonl")
    parser.add_argument("--record", action="store_true", help="adds to bench/results/gpu.jsonl, and writes the page")
    asked = parser.parse_args(argv)
    if asked.device != "cpu" and not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device here (--device cpu only shows that it runs)", file=sys.stderr)
        return 2
    if asked.record and (asked.device == "cpu" or asked.quick):
        parser.error("--record is for a GPU and whole runs")
    out, facts, status = RECORDED if asked.record else asked.out, place(asked.device), 0
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        for step, command in commands(asked.device, asked.quick, rows).items():
            same = {"step": step, "ended": True, "quick": asked.quick, "device": facts["device"]}
            if step not in asked.steps or records.found(out, **same):
                continue
            print(f"{step}: {' '.join(command)}", flush=True)
            for record in run(step, command, rows):
                status |= int("failed" in record)
                records.append(out, {"bench": "gpu", "step": step, "quick": asked.quick, **facts, **record})
    table = markdown(records.read(out))
    print(f"\n{table}")
    if asked.record:
        write_page(PAGE, table)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
