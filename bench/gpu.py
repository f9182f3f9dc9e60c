"""All that is to be shown on a GPU, in one command: `make gpu`, or where all is installed

    python -m bench.gpu [--steps tests loaders decode training] [--quick] [--record]

Runs the tests that need a GPU, then bench.device, bench.device_decode and bench.device_training, each in a process
of its own with a limit of time, so that one that hangs costs only itself. Records go to build/bench/gpu.jsonl; --record
takes bench/results/gpu.jsonl, and writes the table of docs/measured.md from it. A step that was recorded within an hour
is not run again: after a break, give the same command. `--device cpu` runs all of it on the host, and shows only that
it runs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench import machine, parts, records, report, tables
from bench.records import ROOT

LIMIT = 560  # seconds for a step
PYTEST = {"passed": "passed", "failed": "failures", "error": "errors", "skipped": "skipped"}  # its words: ours
Record = dict[str, Any]


def commands(device: str, quick: bool, rows: Path) -> dict[str, list[str]]:
    """What each step runs."""
    small = device == "cpu"
    few = ["--samples", "192", "--seconds", "0.1"] if small else ["--samples", "1024", "--seconds", "0.3"]
    little = ["--share", "0.01", "--seconds", "0.2"] if small else ["--share", "0.2", "--seconds", "0.3"]
    cores = os.cpu_count() or 1
    workers = ["--workers", *(["0"] if small else sorted({str(min(n, cores)) for n in (8, 16)}))]
    beside = [] if small or importlib.util.find_spec("xdist") is None else ["-n", str(min(6, cores))]
    tests = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_device*.py"))
    return {
        "tests": ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *beside, *(tests[:1] if small else tests)],
        "loaders": ["-m", "bench.device", "--device", device, *workers]
        + (few if quick or small else ["--samples", "2048", "--seconds", "0.7"]),
        "decode": ["-m", "bench.device_decode", "--device", device, "--json", str(rows)]
        + (["--share", "0.05", "--passes", "3"] if quick or small else []),
        "training": ["-m", "bench.device_training", "--device", device, *workers]
        + (little if quick or small else ["--share", "0.5", "--seconds", "1"])
        + (["--scenes", "PtychoNN", "--batch", "2", "--rounds", "1"] if small else []),
    }


def run(step: str, command: list[str], rows: Path) -> Iterator[Record]:
    """The records of a step as they come, and one of how it ended."""
    begin, lines = time.perf_counter(), list[str]()
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        late = threading.Timer(LIMIT, process.kill)
        late.start()
        try:
            for line in process.stdout or ():
                print(f"    {line}", end="", flush=True)
                lines.append(line.rstrip("\n"))
                if line.startswith("{"):
                    yield json.loads(line)
        except BaseException:
            process.kill()  # or whoever ends this would wait for it
            raise
        finally:
            late.cancel()
    if rows.exists():
        yield from (json.loads(line) for line in rows.read_text().splitlines())
        rows.unlink()
    seconds = round(time.perf_counter() - begin, 1)
    ended: Record = {"ended": True, "seconds": seconds}
    if process.returncode:
        said = f"no end in {LIMIT} s" if seconds >= LIMIT else parts.last_words("\n".join(lines), process.returncode)
        ended["failed"] = said
    if step == "tests":
        ended |= counted(lines)
    yield ended


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


def main(argv: list[str] | None = None) -> int:
    """Runs the steps; 1 if one of them failed."""
    parser = records.arguments("bench.gpu", __doc__, "gpu", steps=commands("cpu", True, Path()))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args(argv)
    if asked.device != "cpu" and not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device here (--device cpu only shows that it runs)", file=sys.stderr)
        return 2
    recorded = asked.out.parent == records.RESULTS
    if recorded and (asked.device == "cpu" or asked.quick):
        parser.error("--record is for a GPU and whole runs")
    facts, status = place(asked.device), 0
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        for step, command in commands(asked.device, asked.quick, rows).items():
            same = {"step": step, "ended": True, "quick": asked.quick, "device": facts["device"]}
            if (asked.steps and step not in asked.steps) or records.found(asked.out, **same):
                continue
            print(f"{step}: {' '.join(command)}", flush=True)
            for record in run(step, command, rows):
                status |= int("failed" in record)
                records.append(asked.out, {"bench": "gpu", "step": step, "quick": asked.quick, **facts, **record})
    table = tables.gpu(records.read(asked.out))
    print(f"\n{table}")
    if recorded:
        report.put_into(report.DOCS / "measured.md", "results", table)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
