"""Crops of a volume: solar's loader beside h5py's expert and copying out of mapped memory, in one run.

    python -m bench.crops [--quick] [--size 256] [--boxes 64 96] [--folder DIR]

Two minutes. The volume is in the page cache. h5py's expert holds its file open and reads boxes straight into the batch;
its chunk cache has as much memory as solar's threads keep of chunks decoded last, or (the last column) as the volume.
"buffered" is solar's with a buffer for all of it, which was filled before.
Rates are crops a second, the best of three rounds by turns; ratios are against the expert with the same memory.
"copied" is numpy's copy of each box from the mapped file into a batch that is used again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench import machine, tables
from solar import Crops, DataLoader, H5Dataset
from solar.torch.batch.make import cores

BATCH, CHUNK, ROUNDS = 8, 64, 3
DECODED = 8 << 20  # bytes of chunks decoded last that solar keeps for each thread
STAGED, BESIDE = 8, 64 << 20  # batches of a buffer that are on their way, and bytes that its threads decode with
STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of 64³": {"chunks": (CHUNK,) * 3},
    "gzip": {"chunks": (CHUNK,) * 3, "compression": "gzip", "compression_opts": 4},
}


def make(path: Path, size: int) -> None:
    """One file with the volume as each dataset has it: smooth noise, which gzip makes a third of."""
    steps = np.random.default_rng(1).integers(-3, 4, (size,) * 3, "i1")
    volume = np.cumsum(steps, axis=2, dtype="f4")
    with h5py.File(path, "w") as file:
        for name, options in STORED.items():
            file.create_dataset(name, data=volume, **options)


def by_loader(data: H5Dataset, buffer: int = 0) -> Callable[[], None]:
    loader: Any = DataLoader(data, BATCH, buffer=buffer)

    def run() -> None:
        loader.set_epoch(0)  # the same places each time
        for _ in loader:
            pass

    return run


def by_h5py(path: Path, name: str, places: list[list[int]], box: int, nbytes: int) -> Callable[[], None]:
    def run() -> None:
        with h5py.File(path, rdcc_nbytes=nbytes, rdcc_nslots=10_007) as file:
            dataset, batch = file[name], np.empty((BATCH, box, box, box), "f4")
            for number, place in enumerate(places):
                dataset.read_direct(batch, cut(place, box), np.s_[number % BATCH])

    return run


def by_copying(path: Path, name: str, places: list[list[int]], box: int) -> Callable[[], None]:
    with h5py.File(path) as file:
        offset, shape = file[name].id.get_offset(), file[name].shape
    volume: NDArray[Any] = np.memmap(path, "f4", "r", offset, shape)
    batch = np.empty((BATCH, box, box, box), "f4")

    def run() -> None:
        for number, place in enumerate(places):
            batch[number % BATCH] = volume[cut(place, box)]

    return run


def cut(place: list[int], box: int) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + box) for begin in place)


def rates(ways: dict[str, Callable[[], None]], crops: int) -> dict[str, float]:
    """The crops a second of each, by turns; the first round only warms."""
    found = dict.fromkeys(ways, 0.0)
    for turn in range(1 + ROUNDS):
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            rate = crops / (time.perf_counter() - begin)
            found[name] = max(found[name], rate) if turn else 0.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", type=int, default=256, help="of the volume along each axis (256)")
    parser.add_argument("--boxes", type=int, nargs="+", default=[64, 96], help="of a crop along each axis (64 96)")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    crops, memory = (16 if asked.quick else 64), cores() * DECODED
    rows = []
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as folder:
        path = Path(folder) / "volume.h5"
        make(path, asked.size)
        machine.fill_cache(Path(folder))
        for name in STORED:
            for box in asked.boxes:
                data = H5Dataset(str(path), name, samples=Crops((box,) * 3, at="random", per=crops))
                places = data.extents.places.of(np.arange(crops))[:, 2:].tolist()
                ways = {"solar": by_loader(data), "h5py": by_h5py(path, name, places, box, memory)}
                ways["buffered"] = by_loader(data, 6 * asked.size**3 + STAGED * BATCH * 4 * box**3 + BESIDE)
                if name == "contiguous":
                    ways["copied"] = by_copying(path, name, places, box)
                else:
                    ways["whole"] = by_h5py(path, name, places, box, 4 * asked.size**3 + DECODED)
                found = rates(ways, crops)
                ratio = f"{found['solar'] / found['h5py']:.2g}"
                others = [f"{found[way]:.0f}" if way in found else "" for way in ("buffered", "copied", "whole")]
                rows.append((name, f"{box}³", f"{found['solar']:.0f}", f"{found['h5py']:.0f}", ratio, *others))
    print(tables.table("stored|box|solar:|h5py:|ratio:|buffered:|copied:|h5py, memory for all:", rows))


if __name__ == "__main__":
    main()
