"""What each share of the data in memory is worth: rows, clips and crops of gzip chunks, with memory for 5 to 120 %.

    python -m bench.shares [--scenes NAME ...] [--shares F ...] [--epochs N] [--part P] [--folder DIR]

A line for each share: samples a second in the median of the epochs after the first, and what the plan reads and decodes
in one of them, of all that there is. `share` is of the decoded data, and batches are in it. One process; the page cache
has the file. `--part` makes the data so many times smaller.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import h5py
import numpy as np

from solar import Crops, DataLoader, Field, H5Dataset, PlanError, PlanSampler, Windows

SHARES = (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2)
GZIP: dict[str, Any] = {"compression": "gzip", "compression_opts": 4}
MADE = 256  # rows that are made at a time


class Scene(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    batch: int
    dataset: Callable[[Path, int], H5Dataset]


SCENES = {
    "rows": Scene((16_384, 64, 64), "f4", (16, 64, 64), 32, lambda path, _: H5Dataset(path, "u")),
    "clips": Scene((16_384, 64, 64, 3), "u1", (16, 64, 64, 3), 8,
                   lambda path, _: H5Dataset(path, Field("u", steps=range(16)), samples=Windows())),
    "crops": Scene((400, 384, 384), "f4", (32, 32, 32), 8,
                   lambda path, part: H5Dataset(path, "u", samples=Crops((48, 48, 48), at="random", per=2048 // part))),
}  # fmt: skip


def make(scene: Scene, path: Path, part: int) -> int:
    """Counts of a detector, as gzip chunks of about a quarter of the bytes. Their number, decoded."""
    rng = np.random.default_rng(1)
    shape = (max(2 * scene.chunks[0], scene.shape[0] // part), *scene.shape[1:])
    with h5py.File(path, "w") as file:
        made = file.create_dataset("u", shape, scene.dtype, chunks=scene.chunks, **GZIP)
        for begin in range(0, shape[0], MADE):
            made[begin : begin + MADE] = rng.integers(0, 32, (min(MADE, shape[0] - begin), *shape[1:]))
        return int(made.nbytes)


def measured(scene: Scene, path: Path, part: int, memory: int, epochs: int) -> tuple[float, int, int] | None:
    """Samples a second, and bytes and samples decoded in an epoch, as planned; None: memory has no room for batches."""
    data, rates = scene.dataset(path, part), []
    sampler = PlanSampler(data, 1, 0, seed=1)
    try:
        with DataLoader(data, scene.batch, sampler=sampler, buffer=memory, epochs=epochs + 2) as loader:
            for epoch in range(epochs + 1):
                sampler.set_epoch(epoch)
                begin = time.perf_counter()
                seen = sum(len(batch) for batch in loader)
                rates.append(seen / (time.perf_counter() - begin))
            window = loader._buffered.planned_run.window
            counts = [one for plan in window.plans for one in plan.counts[1 : epochs + 1]]
    except PlanError:
        return None
    return median(rates[1:]), *(sum(getattr(one, of) for one in counts) // epochs for of in ("bytes", "decoded"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as folder:
        for name in asked.scenes:
            path = Path(folder) / f"{name}.h5"
            nbytes = make(SCENES[name], path, asked.part)
            for share in asked.shares:
                found = measured(SCENES[name], path, asked.part, int(share * nbytes), asked.epochs)
                if found is None:
                    print(f"{name}, memory for {share:.2f}: no room for the batches")
                    continue
                rate, read, decoded = found
                print(f"{name}, memory for {share:.2f}: {rate:,.0f} samples/s; {read:,} bytes, {decoded:,} decoded")
            path.unlink()


if __name__ == "__main__":
    main()
