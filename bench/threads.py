"""What a small batch costs a process with many native threads: processor time, threads woken, and files opened.

    python -m bench.threads [--threads 2 32 128] [--seconds S] [--folder DIR] [--files N]

Batches of 64 KB of a file that the page cache holds, one after another; then random samples of 64 KB of many files. One
line for each number of threads. More threads than cores show what a machine of many cores does but by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from solar import _native, inspect
from solar.io.reading.engine import GAP, source_of

SAMPLE, ROWS = 64 << 10, 64  # bytes of a sample, and samples of a file


def write(folder: Path, files: int) -> list[Path]:
    """Files with so many samples each."""
    paths = [folder / f"{number:04d}.h5" for number in range(files)]
    values = np.arange(ROWS * SAMPLE // 4, dtype="f4").reshape(ROWS, -1)
    for path in paths:
        with h5py.File(path, "w") as file:
            file["x"] = values
    return paths


def used(
    reader: _native.Reader, source: _native.Source, batches: list[NDArray[np.int64]], seconds: float
) -> dict[str, float]:
    """The cost of a batch, over these again and again."""
    out = np.empty(max(map(len, batches)) * SAMPLE, np.uint8)

    def once(batch: NDArray[np.int64]) -> None:
        ticket = reader.submit(source, batch, out[: len(batch) * SAMPLE])
        while reader.wait(ticket, 10.0) is None:
            pass

    for batch in batches:
        once(batch)
    wakes, opened, begun, end = reader.wakes, reader.opened, time.process_time(), time.monotonic() + seconds
    count = samples = 0
    while time.monotonic() < end:
        for batch in batches:
            once(batch)
            count, samples = count + 1, samples + len(batch)
    return {
        "processor_us": (time.process_time() - begun) / count * 1e6,
        "wakes": (reader.wakes - wakes) / count,
        "opens_per_sample": (reader.opened - opened) / samples,
    }


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 32, 128])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--folder")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        paths = [str(path) for path in write(Path(folder), asked.files)]
        one, many = (source_of(inspect(chosen, "x", cache=None), 0, True) for chosen in (paths[0], paths))
        rng = np.random.default_rng(1)
        small = [np.array([row]) for row in rng.permutation(ROWS)]
        mixed = [rng.integers(0, asked.files * ROWS, 16) for _ in range(64)]
        for threads in asked.threads:
            reader = _native.Reader(threads, 4 * threads, GAP, "auto")
            of_one = used(reader, one, small, asked.seconds)
            of_many = used(reader, many, mixed, asked.seconds)
            print(json.dumps({"threads": threads, "cores": os.cpu_count(), "batch of 64 KB": of_one, "files": of_many}))
            reader.close(5.0)


if __name__ == "__main__":
    main()
