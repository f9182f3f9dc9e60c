"""Batches on a GPU: how fast they come, beside the copy alone and torch's loader, and how long a step waits for them.

    python -m bench.device [--device cuda] [--samples N] [--seconds S] [--folder DIR]

Of a file that the page cache holds: one JSON line for the copy of one pinned batch over and over; one for each loader
with nothing done between the batches, and with a step of matrix products that takes as long as five copies. Ratios come
from one run: peers take turns, three rounds each, and the median is told. Epochs go over the file many times, so that
hardly one ends while it is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch.utils.data import Subset

from examples.common import PlainH5
from solar import DataLoader, H5Dataset, compress

SIDE, BATCH, ROUNDS = 256, 64, 3
LONG = 1_000_000  # samples of an epoch, or as many as the file has
LARGE, SMALL = "solar, batches of 256", "solar, batches of 16"
TIMES = {LARGE: 4, SMALL: 0.25}  # as large as the others
BUFFER = "2GiB"  # has room for all samples
ON_HOST = "solar, on the host"  # what it could bring at most: batches that nobody copies to the device
FIELDS = {"x": "x"}
Batches = Iterator[dict[str, torch.Tensor]]


def write(folder: Path, samples: int) -> tuple[str, str]:
    """A file of float32 images that compress a little, and the same encoded by our codec."""
    plain, encoded = folder / "plain.h5", folder / "encoded.h5"
    rng = np.random.default_rng(1)
    with h5py.File(plain, "w") as file:
        made = file.create_dataset("x", (samples, SIDE, SIDE), "f4")
        for first in range(0, samples, BATCH):
            count = min(BATCH, samples - first)
            made[first : first + count] = rng.normal(size=(count, SIDE, SIDE)).cumsum(-1).astype("f4")
    compress(plain, encoded, "abs=1e-2,coder=pack", chunk_samples=1)
    return str(plain), str(encoded)


def by_solar(path: str, fields: dict[str, str], batch: int, device: str | None, **options: Any) -> Batches:
    data = for_long(H5Dataset(path, fields))
    with DataLoader(data, batch, True, drop_last=True, device=device, ahead=8, **options) as loader:
        while True:
            yield from loader


def by_torch(path: str, fields: dict[str, str], batch: int, device: str, workers: int) -> Batches:
    data = for_long(PlainH5(Path(path), fields))
    loader = torch.utils.data.DataLoader(
        data, batch, True, drop_last=True, num_workers=workers, pin_memory=device != "cpu",
        persistent_workers=workers > 0, multiprocessing_context="forkserver" if workers else None,
    )  # fmt: skip
    while True:
        for one in loader:
            yield {name: values.to(device, non_blocking=True) for name, values in one.items()}


def for_long(data: Any) -> Subset[Any]:
    """Its samples over and over."""
    return Subset(data, np.resize(np.arange(len(data)), max(LONG, len(data))))  # type: ignore[arg-type]


def needs_gpu(device: str) -> None:
    if device != "cpu" and not torch.cuda.is_available():
        sys.exit("skipped: torch finds no CUDA device here (--device cpu only shows that it runs)")


def wait(device: str) -> None:
    """Until all is done that this thread has begun: not what a loader copies meanwhile."""
    if device != "cpu":
        torch.cuda.current_stream().synchronize()


def copy_rate(device: str, seconds: float) -> float:
    """Bytes a second of one pinned batch, copied over and over."""
    host = torch.ones((BATCH, SIDE, SIDE), pin_memory=device != "cpu")
    there = torch.empty_like(host, device=device)
    wait(device)
    copies, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(8):
            there.copy_(host, non_blocking=True)
        wait(device)
        copies += 8
    return copies * host.nbytes / (time.perf_counter() - begin)


class Pace(NamedTuple):
    """How long a batch took, and of that the processor time of the loop's thread for asking for it."""

    seconds: float
    asking: float


def paced(batches: Batches, device: str, seconds: float, products: int) -> Pace:
    """The pace of a loop with so many matrix products in each step."""
    weight = torch.ones((2048, 2048), device=device)
    steps, asking = 0, 0
    wait(device)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        before = time.thread_time_ns()
        batch = next(batches)
        asking += time.thread_time_ns() - before
        for _ in range(products):
            weight @ weight
        if batch["x"].device.type == torch.device(device).type:
            batch["x"].sum()
        wait(device)
        steps += 1
    return Pace((time.perf_counter() - begin) / steps, asking / 1e9 / steps)


def alone(device: str, seconds: float) -> tuple[int, float]:
    """As many products as take about as long as five copies of a batch, and how long a step of them takes."""
    given = itertools.repeat({"x": torch.ones(1, device=device)})
    each = (paced(given, device, seconds, 16).seconds - paced(given, device, seconds, 0).seconds) / 16
    copy = BATCH * SIDE * SIDE * 4 / copy_rate(device, seconds)
    products = max(1, round(5 * copy / max(each, 1e-9)))
    return products, paced(given, device, seconds, products).seconds


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--folder")
    asked = parser.parse_args()
    needs_gpu(asked.device)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        plain, encoded = write(Path(folder), asked.samples)
        measure(plain, encoded, asked.device, asked.seconds, asked.workers)


def measure(plain: str, encoded: str, device: str, seconds: float, workers: list[int]) -> None:
    """One JSON line for each peer."""
    of = (FIELDS, BATCH, device)
    running: dict[str, Batches] = {
        "solar": by_solar(plain, *of),
        LARGE: by_solar(plain, FIELDS, round(TIMES[LARGE] * BATCH), device),
        SMALL: by_solar(plain, FIELDS, round(TIMES[SMALL] * BATCH), device),
        "solar, out of a buffer": by_solar(plain, *of, buffer=BUFFER),
        "solar, bfloat16": by_solar(plain, *of, dtype="bfloat16"),
        "solar, decoded on the host": by_solar(encoded, *of),
        "solar, decoded on the device": by_solar(encoded, *of, decode="device"),
        ON_HOST: by_solar(plain, FIELDS, BATCH, None),
    }
    running |= {f"torch, {n} workers": by_torch(plain, *of, n) for n in workers}
    copied = copy_rate(device, seconds)
    products, without = alone(device, seconds)
    tell(what="pinned copy", gigabytes_a_second=copied / 1e9, step_seconds_without_loader=without)
    rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in running}
    for batches in running.values():
        paced(batches, device, seconds / 3, 0)  # files come into the page cache, processes start
    for _ in range(ROUNDS):
        for name, batches in running.items():
            many = round(TIMES.get(name, 1) * products)
            free, step = (paced(batches, device, seconds, made) for made in (0, many))
            rounds[name].append((free.seconds, step.seconds, step.asking))
    for name, found in rounds.items():
        free, step, asking = (statistics.median(column) for column in zip(*found, strict=True))
        rate = TIMES.get(name, 1) * BATCH * SIDE * SIDE * 4 / free
        tell(
            what=name, gigabytes_a_second=rate / 1e9, of_the_copy=rate / copied,
            step_seconds=step, waited=max(0.0, 1 - TIMES.get(name, 1) * without / step),
            asking_microseconds=asking * 1e6,
        )  # fmt: skip


def tell(**facts: Any) -> None:
    """One line, with where it was measured."""
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(json.dumps({**facts, "device": place, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
