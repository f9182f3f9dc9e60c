"""Batches of solar.arrays beside those of DataLoader: rates of epochs, and the first batch after the start of Python.

    python -m bench.arrays [--samples N] [--rounds N] [--folder DIR]

Both read the same shuffled epochs of samples of 16 KiB, from a warm page cache, in batches of 64: from contiguous data,
and from chunks of 16 samples, as they are and compressed by gzip. Each number is the median of rounds in which both
take turns; the last column is the median of the rounds' quotients. The first batch is timed in a new process, from just
before Python starts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np

SHAPE, BATCH, CHUNK = (64, 64), 64, 16
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    f"chunks of {CHUNK}": {"chunks": (CHUNK, *SHAPE)},
    f"chunks of {CHUNK}, gzip": {"chunks": (CHUNK, *SHAPE), "compression": "gzip", "compression_opts": 1},
}
FACES = ("solar.arrays", "DataLoader")
FIRST = {
    "solar.arrays": "from solar import H5Dataset; from solar.arrays import Loader; "
    "batch = next(iter(Loader(H5Dataset(sys.argv[1], 'contiguous'), 64, shuffle=True)))",
    "DataLoader": "from solar import DataLoader, H5Dataset; "
    "batch = next(iter(DataLoader(H5Dataset(sys.argv[1], 'contiguous'), 64, shuffle=True)))",
}


def make(path: Path, samples: int) -> None:
    values = np.random.default_rng(0).integers(0, 100, (samples, *SHAPE)).astype("f4")
    with h5py.File(path, "w") as file:
        for name, options in KINDS.items():
            file.create_dataset(name, data=values, **options)


def loader_of(face: str, path: Path, name: str, buffer: Any) -> Any:
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.arrays import Loader

    data = H5Dataset(path, name)
    if face == "solar.arrays":
        return Loader(data, BATCH, shuffle=True, seed=1, buffer=buffer)
    return DataLoader(data, BATCH, sampler=PlanSampler(data, seed=1), buffer=buffer)


def epoch_seconds(loader: Any, epoch: int) -> float:
    loader.set_epoch(epoch)
    begin, seen = time.perf_counter(), 0
    for batch in loader:
        seen += len(batch)
    assert seen == len(loader.dataset)
    return time.perf_counter() - begin


def rates(path: Path, samples: int, rounds: int) -> None:
    print("| data | " + " | ".join(f"{face}, samples/s" for face in FACES) + " | quotient |\n|---|--:|--:|--:|")
    for name in KINDS:
        for buffer in (0, None) if "compression" not in KINDS[name] else (None,):  # or a chunk is decoded 16 times
            loaders = {face: loader_of(face, path, name, buffer) for face in FACES}
            found: dict[str, list[float]] = {face: [] for face in FACES}
            for turn in range(rounds + 1):  # the first epoch fills the page cache, and a buffer
                for face in FACES[:: 1 if turn % 2 else -1]:
                    found[face].append(epoch_seconds(loaders[face], turn))
            for loader in loaders.values():
                loader.close()
            seconds = {face: every[1:] for face, every in found.items()}
            cells = " | ".join(f"{samples / median(seconds[face]):,.0f}" for face in FACES)
            quotient = median(b / a for a, b in zip(*(seconds[face] for face in FACES), strict=True))
            print(f"| {name}{', buffer=0' if buffer == 0 else ''} | {cells} | {quotient:.3f} |", flush=True)


def first_batches(path: Path, rounds: int) -> None:
    found: dict[str, list[float]] = {face: [] for face in FACES}
    for _ in range(rounds):
        for face in FACES:
            program = f"import sys, time; {FIRST[face]}; print(time.time(), 'torch' in sys.modules)"
            begin = time.time()
            done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
            ended, torch = done.stdout.split()
            assert torch == str(face == "DataLoader"), f"{face} has imported torch: {torch}"
            found[face].append(float(ended) - begin)
    for face, seconds in found.items():
        print(
            f"first batch of {face}: {median(seconds):.2f} s after the start ({min(seconds):.2f} to {max(seconds):.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where the file is made (a new folder)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder) / "a.h5"
        make(path, asked.samples)
        print(f"{asked.samples} samples of 16 KiB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        first_batches(path, min(asked.rounds, 7))
        rates(path, asked.samples, asked.rounds)
        print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
