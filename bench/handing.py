"""What the loop's thread does for a batch, and how long it waits with 2 ms of work: warm or slowed, a buffer or none.

    python -m bench.handing [--quick] [--compute MS] [--folder DIR]

Half a minute. Seconds of the thread's own clock are said beside those that passed: on a machine with other work the
second ones are not the loader's. The loop of the first row is given one batch that is there already.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from bench import machine, records, slowfs, tables
from solar import DataLoader, H5Dataset, PlanSampler

BATCH, SHAPE = 16, (64, 64)
SKIPPED = 32  # batches of an epoch before the clock starts


def make(path: Path, samples: int) -> None:
    noise = np.random.default_rng(1).random((BATCH, *SHAPE), np.float32)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (samples, *SHAPE), "f4")
        for at in range(0, samples, BATCH):
            data[at : at + BATCH] = noise


def waited(batches: Iterator[Any], number: int, compute: float) -> tuple[float, float, float]:
    """Of one batch in microseconds: the thread's seconds (median), those that passed; and the share of all waiting."""
    for _ in range(SKIPPED):
        next(batches)
    own, passed, begin = [], [], time.perf_counter()
    for _ in range(number):
        time.sleep(compute)
        asked, at = time.perf_counter(), time.thread_time()
        next(batches)
        own.append(time.thread_time() - at)
        passed.append(time.perf_counter() - asked)
    share = sum(passed) / (time.perf_counter() - begin)
    return 1e6 * statistics.median(own), 1e6 * statistics.median(passed), share


def epochs_of(path: Path, buffer: int) -> Iterable[Callable[[], Iterator[Any]]]:
    """The second epoch of a loader and the third: plans are made and files are open."""
    data = H5Dataset(str(path), "x")
    loader: Any = DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=1), buffer=buffer)
    for epoch in range(3):
        loader.set_epoch(epoch)
        batches = iter(loader)
        if epoch:
            yield lambda batches=batches: batches
        for _ in batches:
            pass
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compute", type=float, default=2.0, help="ms of work for each batch (2)")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    records.load()
    samples, compute = (8192 if asked.quick else 32768), asked.compute / 1000
    number = samples // BATCH - 2 * SKIPPED
    rows = [("no loader", "", *waited(repeat(torch.zeros(1)), number, compute))]
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
        folder = Path(name)
        make(folder / "data.h5", samples)
        machine.fill_cache(folder)
        lacking = slowfs.lacking()
        for storage in ("warm",) if lacking else ("warm", "slowed"):
            with nullcontext() if storage == "warm" else slowfs.mounted(folder) as mount:
                path = (folder if mount is None else mount.path) / "data.h5"
                for buffer in (0, samples * SHAPE[0] * SHAPE[1] * 4 // 4):
                    said = f"{buffer >> 20} MiB" if buffer else "none"
                    found = [waited(batches(), number, compute) for batches in epochs_of(path, buffer)]
                    rows.append((storage, said, *min(found)))
        if lacking:
            print(f"slowed: skipped: {lacking}")
    said = [(*row[:2], f"{row[2]:.0f}", f"{row[3]:.0f}", f"{row[4]:.1%}") for row in rows]
    print(tables.table("file|buffer|its own µs a batch:|µs passed:|waiting, of all:", said))


if __name__ == "__main__":
    main()
