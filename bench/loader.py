"""What solar.DataLoader costs beside the reading itself: JSON lines, and one line for people each.

    python -m bench.loader [--quick] [--parts NAME ...] [--folder DIR] [--out FILE] [--record]

overhead: microseconds a batch beyond the same native reads without the loader. first_batch: from iter() to the first
batch. memory: what 50 epochs leave behind. waiting: the share of the time that a training waits which computes 2 ms a
batch, for solar, and for PyTorch's loader over h5py with 0, 1 and 2 workers. set_up: making a loader of a million
samples, its state, going on in the midst of an epoch. Each part runs in a fresh process. --record adds the lines to
bench/results/loader.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import machine, report
from bench.loader_parts import PARTS, PATTERNS, ROWS, TINY

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "bench" / "results" / "loader.jsonl"
MILLION = 1_000_000
LIMIT = 600  # seconds for a part


def make(folder: Path, patterns: int) -> None:
    """`patterns` samples of 64 KB, contiguous; as many of 64 bytes; and a million rows of 8 bytes."""
    rng = np.random.default_rng(7)
    with h5py.File(folder / PATTERNS, "w") as file:
        data = file.create_dataset("x", (patterns, 128, 128), "f4")
        for first in range(0, patterns, 256):
            last = min(first + 256, patterns)
            data[first:last] = rng.poisson(1.0, (last - first, 128, 128))
    with h5py.File(folder / TINY, "w") as file:
        file["x"] = rng.random((patterns, 16), "f4")
    with h5py.File(folder / ROWS, "w") as file:
        file["x"] = np.arange(MILLION)


def run_part(name: str, folder: Path, quick: bool) -> dict[str, Any]:
    """The record of a part, from its own process."""
    command = [sys.executable, "-m", "bench.loader_parts", name, str(folder), *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"part": name, "failed": f"no end in {LIMIT} s"}
    if done.returncode:
        return {"part": name, "failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"part": name} | found


def line(record: dict[str, Any]) -> str:
    """One record for people, with what is wanted of it."""
    if "failed" in record or "skipped" in record:
        return f"{record['part']:16} {'failed: ' + record['failed'] if 'failed' in record else record['skipped']}"
    facts = ", ".join(f"{name} {shown(value)}" for name, value in record["measured"].items())
    verdicts = [
        f"{name} {shown(record['measured'][name])}, wanted at most {shown(most)}: "
        + ("yes" if record["measured"][name] <= most else "NO")
        for name, most in record.get("wanted", {}).items()
    ]
    return f"{record['part']:16} {facts}" + "".join(f"\n{'':16} {verdict}" for verdict in verdicts)


def shown(value: Any) -> str:
    return report.rate(value) if isinstance(value, int | float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.loader", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer data and rounds")
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="NAME", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, help="for the data, on the disk to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "loader.jsonl", help="lines are added")
    parser.add_argument("--record", action="store_true", help=f"add them to {RECORDED.relative_to(ROOT)} instead")
    asked = parser.parse_args()
    out = RECORDED if asked.record else asked.out
    out.parent.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
        folder = Path(name)
        make(folder, 1024 if asked.quick else 4096)
        facts = {"load_before": load, "quick": asked.quick, "machine": machine.facts(folder)}
        facts["versions"] = machine.versions()
        for part in asked.parts:
            machine.fill_cache(folder)
            record = {"bench": "loader", **run_part(part, folder, asked.quick), **facts}
            print(line(record), file=sys.stderr, flush=True)
            print(text := json.dumps(record), flush=True)
            with out.open("a") as file:
                print(text, file=file)


if __name__ == "__main__":
    main()
