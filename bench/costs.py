"""What an epoch costs by each policy, for the form of docs/cost.md: a table that `solar plan` fills.

    python -m bench.costs [FILE] [--cells N] # docs/cost-table.js; some minutes

The file is JSON after the name of a variable, so that a page on a disk can have it, too. Times and requests are of one
epoch of SAMPLES samples. They grow with the number of samples, while the share of the data in memory stays.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from solar.cli import main as solar
from solar.io.system.profile import DISK, ELSEWHERE, FLASH, NETWORK

FILE = Path(__file__).parent.parent / "docs" / "cost-table.js"
BEGIN = "const COSTS = "
SAMPLES, BATCH = 50_000, 8
STORAGES = {
    "a parallel file system on disks": NETWORK,
    "an object store": ELSEWHERE,
    "a disk of one's own": DISK,
    "NVMe": FLASH,
}
SIZES = (4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20)
SHARES = (0.05, 0.1, 0.25, 0.5, 0.8)
CHUNKS = (1, 8, 64)  # samples that share one
RANKS = ((1, 1), (8, 8), (32, 8))  # in all, and on a node
POLICIES = ("torch", "lru", "pinned", "solar")
Case = tuple[str, int, float, int, tuple[int, int]]
Cell = list[float] | None  # seconds of each policy, then requests; None: no room for the batches


def cases() -> Iterator[Case]:
    """All of them, in the order of the table."""
    return itertools.product(STORAGES, SIZES, SHARES, CHUNKS, RANKS)


def command(case: Case) -> list[str]:
    """The command that fills its cell."""
    name, size, share, chunk, (ranks, per_node) = case
    storage, nodes = STORAGES[name], ranks // per_node
    return [
        "plan", "--samples", str(SAMPLES), "--sample-bytes", str(size), "--samples-per-chunk", str(chunk),
        "--memory", str(int(share * SAMPLES * size / nodes)), "--batch-size", str(BATCH), "--ranks", str(ranks),
        "--ranks-per-node", str(per_node), "--latency", f"{storage.latency * 1e6:g}us",
        "--bandwidth", f"{storage.bandwidth:g}", "--iops", f"{storage.iops:g}", "--json",
    ]  # fmt: skip


def cell(case: Case) -> Cell:
    """What `solar plan` says today, in three digits."""
    said, refused = io.StringIO(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(refused):
        ended = solar(command(case))
    if ended and "the batches of a node's ranks alone take" in refused.getvalue():
        return None
    if ended:
        raise RuntimeError(f"solar {' '.join(command(case))}: {refused.getvalue()}")
    found = json.loads(said.getvalue())["policies"]
    return [shortened(found[name][what]) for what in ("seconds", "requests") for name in POLICIES]


THREADS = "2"  # that read in each rank


def shortened(value: float) -> float:
    """A figure with three digits."""
    return float(f"{value:.3g}")


def filled(cells: Sequence[Cell]) -> str:
    """The file."""
    axes: dict[str, Any] = {
        "samples": SAMPLES, "batch": BATCH, "sizes": SIZES, "shares": SHARES, "chunks": CHUNKS, "ranks": RANKS,
        "storages": [[name, one.latency, one.bandwidth, one.iops] for name, one in STORAGES.items()],
        "policies": POLICIES,
    }  # fmt: skip
    lines = (json.dumps([int(one) if one % 1 == 0 else one for one in found] if found else None) for found in cells)
    rows = ",\n".join(line.replace(" ", "") for line in lines)
    return f'{BEGIN}{json.dumps(axes)[:-1]}, "cells": [\n{rows}\n]}};\n'


def table(path: Path = FILE) -> dict[str, Any]:
    """What is in the file."""
    read: dict[str, Any] = json.loads(path.read_text().removeprefix(BEGIN).rstrip(";\n"))
    return read


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.costs", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--cells", type=int, help="only so many, to see that it runs (all)")
    asked = parser.parse_args()
    if asked.cells and asked.file == FILE:
        parser.error("--cells: name another file, for the page needs all cells")
    os.environ["SOLAR_THREADS"] = THREADS
    with get_context("spawn").Pool(asked.cells) as processes:
        asked.file.write_text(filled(processes.map(cell, itertools.islice(cases(), asked.cells), chunksize=5)))
    print(asked.file)


if __name__ == "__main__":
    main()
