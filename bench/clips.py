"""Clips for world models: solar beside stable-worldmodel's own Dataset and beside Lance, from here and from afar.

    python -m bench.clips [--frames N] [--seconds S] [--rounds N] [--delays MS ...] [--who NAME ...] [--folder DIR]

Shuffled clips of 16 steps in batches of 64: images of 96 x 96 with channels first, actions, and proprioception, from
episodes of 100 to 200 steps. The HDF5 file is as stable-worldmodel writes it, a step in a chunk. Lance has a step in a
row, with images as bytes, and is asked for all rows of a batch at once, each once. Delay 0 is the file here, in the
page cache; others are those of a server (bench.far_server) with a link of 1 GB/s on the same cores. All hand out the
same tensors: first batches are compared.

Each way runs for some seconds from its opening on, and as long after that: the first figure has opening, the start of
workers, and what is read for the first time; the second has not. Rounds take turns, and medians are printed. Ways
whose packages are not installed are left out: stable-worldmodel (`pip install --no-deps stable-worldmodel`; else the
format written out, as its class reads it), pylance.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from bench import clips_peers, records, tables
from bench.clips_peers import BATCH, SEED
from bench.far import server
from bench.far_peers import BUCKET
from solar import DataLoader
from solar.integrations import worldmodel

WORKERS = (0, 2, 4)
Make = Callable[[], Any]


def solar_loader(path: str, buffer: Any) -> Any:
    data = worldmodel.clips(path, clips_peers.STEPS, keys_to_load=clips_peers.COLUMNS)
    order = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(SEED))
    return DataLoader(data, BATCH, sampler=order, buffer=buffer)


def ways(folder: Path, root: str | None) -> dict[str, Make]:
    """Those that make batches, by the name that the table gives them."""
    path = f"{root}/{BUCKET}/clips.h5" if root else str(folder / BUCKET / "clips.h5")
    found: dict[str, Make] = {}
    for label, data in clips_peers.datasets(folder / BUCKET, root).items():
        for workers in WORKERS:
            found[f"{label}, {workers} workers"] = lambda data=data, n=workers: clips_peers.torch_loader(data(), n)
    found["solar, buffer=0"] = lambda: solar_loader(path, 0)
    found["solar"] = lambda: solar_loader(path, None)
    return found


def rates_of(make: Make, seconds: float) -> tuple[float, float]:
    """Clips a second in so many seconds from the opening on, and in as many after that."""
    began, rates, seen = time.perf_counter(), [], 0
    loader = make()
    for batch in endless(loader):
        seen += len(batch["action"])
        now = time.perf_counter()
        if now - began > seconds:
            rates.append(seen / (now - began))
            if len(rates) == 2:
                break
            began, seen = time.perf_counter(), 0
    del loader, batch
    gc.collect()
    return rates[0], rates[1]


def endless(loader: Any) -> Iterator[Any]:
    """One epoch after another."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def check(made: dict[str, Make]) -> None:
    """ValueError where the first batches of two ways differ."""
    batches = {name: next(iter(make())) for name, make in made.items()}
    (first, wanted), *others = batches.items()
    for name, batch in others:
        for column in clips_peers.COLUMNS:
            if batch[column].dtype != wanted[column].dtype or not torch.equal(batch[column], wanted[column]):
                raise ValueError(f"{name} and {first} give another {column}")


def measured(asked: argparse.Namespace, folder: Path, delay: float) -> dict[str, tuple[float, float]]:
    """The medians of each way at this delay."""
    with server(folder, delay) if delay else nullcontext() as root:
        made = {name: make for name, make in ways(folder, root).items() if not asked.who or name in asked.who}
        check({name: make for name, make in made.items() if "0 workers" in name or name.startswith("solar")})
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
        for _ in range(asked.rounds):
            for name, make in made.items():
                found[name].append(rates_of(make, asked.seconds))
                print(f"{delay:g} ms: {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    return {
        name: (statistics.median(one for one, _ in rates), statistics.median(one for _, one in rates))
        for name, rates in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.clips", description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 20], help="milliseconds; 0: a file here")
    parser.add_argument("--who", nargs="+", help="measure these ways alone")
    parser.add_argument("--folder", type=Path, help="where the data are kept for the next run (else they are removed)")
    asked = parser.parse_args()
    print(f"load average {records.load():.1f}; {clips_peers.lacking()}".rstrip("; "), file=sys.stderr)
    with nullcontext(asked.folder) if asked.folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not (folder / BUCKET).exists():
            (folder / BUCKET).mkdir(parents=True)
            clips_peers.made(folder / BUCKET, asked.frames)
            time.sleep(2.1)  # a file of this moment may change without its time
        by_delay = {delay: measured(asked, folder, delay) for delay in asked.delays}
    names = list(dict.fromkeys(name for found in by_delay.values() for name in found))
    heads = [f"{delay:g} ms:" if delay else "here:" for delay in by_delay]
    rows = ((name, *(shown(found.get(name)) for found in by_delay.values())) for name in names)
    print(tables.table("|".join(["clips a second, then later", *heads]), rows))


def shown(rates: tuple[float, float] | None) -> str:
    return ", ".join(map(tables.rate, rates)) if rates else "–"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
