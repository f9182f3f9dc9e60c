"""Samples from a server far away: solar beside h5py over fsspec and over its own driver, Lance, Zarr, ranges by hand.

python -m bench.far [--record] [--samples N] [--delays MS ...] [--in-order] [--who NAME ...] [--folder FOLDER]
                    [--epochs N]

The server (bench.far_server) answers 5, 20 or 80 ms later, and has a link of 1 GB/s. It runs on the same two cores as
who asks. Samples of 64 KiB, contiguous; two epochs, shuffled, batches of 32; the first one counts with its opening. The
peers (bench.far_peers) read what is asked, nothing twice in an epoch. In order a file twice as large is read, beside
pieces of it fetched by hand. Lance and Zarr are left out where pylance and zarr are not installed, and h5py's own
driver where no Python here has it. A later run with the same --folder finds its data there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import h5py
import torch

from bench import records
from bench.far_peers import BATCH, BUCKET, EACH, SEED, loaders, made, pieces_by_hand, ros3
from solar import DataLoader, H5Dataset

EPOCHS = 2
DELAYS = (5, 20, 80)  # milliseconds
LONGEST, MORE = 15.0, 8.0  # seconds of an epoch that are measured at most, and then, of one that goes on, its pace
THREADS = (64, 256)  # that fetch pieces by hand, in order: the better one counts
RESULTS = records.RESULTS / "far.jsonl"
ROS3 = "h5py, its own driver (ros3)"


@contextmanager
def server(folder: Path, delay: float) -> Iterator[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.far_server", str(folder), str(delay)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.kill()
        child.wait()


def counts(root: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{root}/counts") as answer:
        found: dict[str, int] = json.load(answer)
    return found


def solar_loader(url: str, buffer: Any, epochs: int, stage: str | None = None) -> Any:
    data = H5Dataset(url, "x", **({} if stage is None else {"stage": stage}))
    order = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(SEED))
    return DataLoader(data, BATCH, sampler=order, buffer=buffer, epochs=epochs)


def contestants(root: str, folder: Path, samples: int, stage: str, epochs: int) -> dict[str, Callable[[], Any]]:
    path, url, quarter = folder / BUCKET / "far.h5", f"{root}/{BUCKET}/far.h5", samples * EACH // 4
    with h5py.File(path) as file:
        offset = file["x"].id.get_offset()
    return {
        **loaders(root, offset, samples),
        "solar, buffer=0": lambda: solar_loader(url, 0, epochs),
        "solar, a quarter": lambda: solar_loader(url, quarter, epochs),
        "solar, by default": lambda: solar_loader(url, None, epochs),
        "solar, staged": lambda: solar_loader(url, 0, epochs, stage),
        "solar, a file here": lambda: solar_loader(str(path), 0, epochs),
    }


def measured(make: Callable[[], Any], samples: int, root: str, epochs: int) -> dict[str, Any]:
    """Samples a second of each epoch, the first with its start; and what the server counted.

    Of one that takes long its first seconds are the first figure; those after them, with all workers there, the other.
    """
    before, began = counts(root), time.perf_counter()
    loader, rates, seen, begun = make(), [], 0, 0.0
    while len(rates) < epochs:
        for batch in loader:
            seen += len(batch)
            now = time.perf_counter()
            begun = begun or now - began
            if now - began > (MORE if rates else LONGEST):
                rates.append(seen / (now - began))
                seen, began = 0, now
                if len(rates) == epochs:
                    break
        else:
            if seen == samples:
                now = time.perf_counter()
                rates.append(seen / (now - began))
            seen, began = 0, time.perf_counter()
    del loader
    gc.collect()
    after = counts(root)
    whole = {name: after[name] - before[name] for name in after}
    then = {"then": rates[2:]} if epochs > EPOCHS else {}
    return {"begun": begun, "first": rates[0], "later": rates[1], **then, **whole}


def ordered(root: str, nbytes: int) -> dict[str, float]:
    """Bytes a second of an epoch in order, beside the link's; and of pieces fetched by hand."""

    def ours() -> None:
        for _ in loader:
            pass

    data = H5Dataset(f"{root}/{BUCKET}/ordered.h5", "x")
    loader = DataLoader(data, BATCH, buffer=0)
    found = {"solar, in order": rate_of(ours, nbytes)}
    by_hand = [rate_of(lambda threads=threads: pieces_by_hand(root, nbytes, threads), nbytes) for threads in THREADS]
    return {**found, "pieces by hand, in order": max(by_hand)}


def rate_of(act: Callable[[], None], nbytes: int) -> float:
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        act()
        rates.append(nbytes / (time.perf_counter() - began))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--in-order", action="store_true", help="measure these rows alone")
    parser.add_argument("--who", nargs="+", help="measure these rows alone")
    parser.add_argument("--delays", type=float, nargs="+", default=DELAYS)
    parser.add_argument("--folder", type=Path, help="where the data are kept for the next run (else they are removed)")
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help="two or more; those after the second are printed, too"
    )
    parser.add_argument("--load-before", type=float, help="load average before a run of which this is a part")
    asked = parser.parse_args()
    load = records.load(asked.load_before)
    with nullcontext(asked.folder) if asked.folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not (folder / BUCKET).exists():
            (folder / BUCKET).mkdir(parents=True)
            made(folder / BUCKET, asked.samples)
            time.sleep(2.1)  # a file of this moment may change without its time
        for delay in asked.delays:
            with server(folder, delay) as root, tempfile.TemporaryDirectory(dir=folder) as stage:
                about = {"delay_ms": delay, "of": asked.samples, "load": load}
                shuffled = {} if asked.in_order else contestants(root, folder, asked.samples, stage, asked.epochs)
                for who, make in shuffled.items():
                    if not asked.who or who in asked.who:
                        tell(asked, {**about, "who": who, **measured(make, asked.samples, root, asked.epochs)})
                if not asked.in_order and (not asked.who or ROS3 in asked.who) and (rate := ros3(root, LONGEST)):
                    tell(asked, {**about, "who": ROS3, "first": rate, "later": rate})
                if asked.in_order or not asked.who:
                    for who, rate in ordered(root, 2 * asked.samples * EACH).items():
                        tell(asked, {**about, "who": who, "bytes_per_second": rate})


def tell(asked: argparse.Namespace, record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)
    if asked.record:
        records.append(RESULTS, record)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
