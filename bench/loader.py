"""What solar.DataLoader costs beside the reading itself: JSON lines, and one line for people each.

    python -m bench.loader [--quick] [--parts NAME ...] [--folder DIR] [--out FILE] [--record]

overhead: microseconds a batch beyond the same native reads without the loader. first_batch: from iter() to the first
batch. memory: what 50 epochs leave behind. waiting: the share of the time that a training waits which computes 2 ms a
batch, for solar, and for PyTorch's loader over h5py with 0, 1 and 2 workers. set_up: making a loader of a million
samples, its state, going on in the midst of an epoch. Each part runs in a fresh process. --record adds the lines to
bench/results/loader.jsonl.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import machine, parts, records, tables
from bench.loader_parts import PARTS, PATTERNS, ROWS, TINY

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
    try:
        words = (name, str(folder), *(["--quick"] if quick else []))
        return {"part": name} | parts.measured(LIMIT, "bench.loader_parts", *words)[0]
    except RuntimeError as error:
        return {"part": name, "failed": str(error)}


def line(record: dict[str, Any]) -> str:
    """One record for people, with what is wanted of it."""
    return tables.line(f"{record['part']:16}", record, said)


def said(record: dict[str, Any]) -> str:
    measured = record["measured"]
    verdicts = [
        f"\n{'':16} {name} {tables.shown(measured[name])}, wanted at most {tables.shown(most)}: "
        + ("yes" if measured[name] <= most else "NO")
        for name, most in record.get("wanted", {}).items()
    ]
    return ", ".join(f"{name} {tables.shown(value)}" for name, value in measured.items()) + "".join(verdicts)


def main() -> None:
    parser = records.arguments("bench.loader", __doc__, "loader", parts=PARTS)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
        folder = Path(name)
        make(folder, 1024 if asked.quick else 4096)
        facts = {"load_before": load, "quick": asked.quick, **machine.described(folder)}
        for part in asked.parts or PARTS:
            machine.fill_cache(folder)
            record = {"bench": "loader", **run_part(part, folder, asked.quick), **facts}
            parts.note(line(record))
            print(json.dumps(record), flush=True)
            records.append(asked.out, record)


if __name__ == "__main__":
    main()
