"""solar.read in a loop beside h5py, in turns; and what it costs an epoch to look whether its files are the same.

python -m bench.reading [--reads N] [--rounds N] [--files N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import solar
from bench.opening import make_files, seconds
from solar.io.system.identity import check_unchanged

SAMPLES = 4000
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of 1": {"chunks": (1, 32, 32)},
    "chunks of 16, gzip": {"chunks": (16, 32, 32), "compression": "gzip", "compression_opts": 1},
}


def make_file(path: Path, options: dict[str, Any]) -> None:
    values = np.random.default_rng(1).integers(0, 9, (SAMPLES, 32, 32)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, **options)
    os.utime(path, (1e9, 1e9))  # one that was written to just now is inspected each time


def readers(path: Path, opened: h5py.File) -> dict[str, Callable[[slice], Any]]:
    def anew(part: slice) -> Any:
        with h5py.File(path) as file:
            return file["x"][part]

    return {
        "solar.read": lambda part: solar.read(path, "x", part),
        "h5py, file[name] of one that is open": lambda part: opened["x"][part],
        "h5py, opened each time": anew,
    }


def rates(path: Path, reads: int, rounds: int) -> dict[str, float]:
    """Reads a second of each, the median of the rounds; the readers take turns, for the machine may be busy."""
    parts = [slice(k, k + 1) for k in np.random.default_rng(2).integers(0, SAMPLES, reads)]
    took: dict[str, list[float]] = {}
    with h5py.File(path) as opened:
        for _ in range(rounds):
            for name, one in readers(path, opened).items():
                took.setdefault(name, []).append(seconds(lambda one=one: [one(part) for part in parts]))
    return {name: reads / statistics.median(each) for name, each in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reads", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        for kind, options in KINDS.items():
            make_file(folder / "a.h5", options)
            found = rates(folder / "a.h5", asked.reads, asked.rounds)
            print(f"{kind}: one sample of 4 KiB a read", flush=True)
            for reader, rate in found.items():
                print(
                    f"  {rate:8,.0f} reads a second, {rate / found['solar.read']:5.2f} of solar's: {reader}", flush=True
                )
        make_files(folder / "many", asked.files)
        layout = solar.inspect(folder / "many", "x", samples="files")
        looks = [seconds(lambda: check_unchanged([layout])) for _ in range(asked.rounds)]
        opening = seconds(lambda: solar.inspect(folder / "many", "x", samples="files"))
        print(f"a look at {asked.files:,} files, once an epoch: {1e3 * statistics.median(looks):.1f} ms", flush=True)
        print(f"  inspecting them anew, as making the H5Dataset does: {1e3 * opening:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
