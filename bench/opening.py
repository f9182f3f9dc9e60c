"""How long it takes to open 10 million chunks (first and second time), and 50,000 files of one sample each; or with
--groups so many groups side by side in one file, with two datasets in each, and how fast these are read shuffled.

python -m bench.opening [--chunks N] [--files N] [--groups N] [--kept FILE] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import solar
from solar.io.system.memory import read_once, resident_nbytes

PIECE = 250_000  # groups that are written at a time
METADATA_CACHE = 128 << 20  # bytes, the most that libhdf5 takes: with its own 2 MiB it writes all names for each group
BATCH, BATCHES, H5PY_SECONDS = 256, 400, 10


def make_chunks(path: Path, chunks: int) -> None:
    """One dataset whose chunks are all there, 8 bytes each, allocated by libhdf5 without being written."""
    space = h5py.h5s.create_simple((chunks,))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((1,))
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT64, space, plist)


def make_files(folder: Path, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        with h5py.File(folder / f"{number:06}.h5", "w") as file:
            file["x"] = np.zeros((16, 16), "f4")


def make_groups(path: Path, groups: int) -> None:
    """/molecules/m0000000, ..., as h5py writes them by default, each with `coords` (5 to 20, 3) and `energy`."""
    access, create = h5py.h5p.create(h5py.h5p.FILE_ACCESS), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    cache = access.get_mdc_config()
    cache.set_initial_size, cache.initial_size, cache.max_size = True, METADATA_CACHE, METADATA_CACHE
    access.set_mdc_config(cache)
    access.set_meta_block_size(1 << 20)
    create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    spaces = [h5py.h5s.create_simple((rows, 3)) for rows in range(21)]
    scalar, own = h5py.h5s.create(h5py.h5s.SCALAR), np.arange(60, dtype="f4").reshape(20, 3)
    rows = np.random.default_rng(0).integers(5, 21, groups).tolist()
    h5py.File(path, "w").close()
    for first in range(0, groups, PIECE):
        file = h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDWR, fapl=access)
        above = h5py.h5g.open(file, b"molecules") if first else h5py.h5g.create(file, b"molecules")
        for number in range(first, min(first + PIECE, groups)):
            group = h5py.h5g.create(above, b"m%07d" % number)
            coords = h5py.h5d.create(group, b"coords", h5py.h5t.NATIVE_FLOAT, spaces[rows[number]], create)
            coords.write(h5py.h5s.ALL, h5py.h5s.ALL, own[: rows[number]] + number)
            energy = h5py.h5d.create(group, b"energy", h5py.h5t.NATIVE_DOUBLE, scalar, create)
            energy.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(number, "f8"))
        file.close()


def measure_groups(path: Path, cache: Path) -> None:
    """Opens them twice, reads shuffled batches, and the samples of these with h5py, all from the page cache."""
    open_it, loader_of = solar.H5Dataset, solar.DataLoader  # whose first mention imports torch
    read_once([str(path)])
    for which in ("first", "second"):
        held: Any = None  # the second is opened when the first has gone
        before, begin = resident_nbytes(os.getpid()), time.perf_counter()
        held = open_it(path, {"x": "coords", "y": "energy"}, samples="groups", cache=str(cache))
        took, more = time.perf_counter() - begin, resident_nbytes(os.getpid()) - before
        print(f"  the {which} time: {took:.2f} s, {more / 2**20:.0f} MiB are kept", flush=True)
    begin = time.perf_counter()
    with loader_of(held, BATCH, shuffle=True) as loader:
        for came, _ in enumerate(loader):
            if not came:
                first, begin = time.perf_counter() - begin, time.perf_counter()
            if came == BATCHES:
                break
    rate = BATCH * came / (time.perf_counter() - begin)
    print(f"  shuffled batches of {BATCH}: the first after {first:.2f} s, then {rate:,.0f} samples/s", flush=True)
    with h5py.File(path) as file:
        above = file["molecules"].id
        begin, count = time.perf_counter(), 0
        for batch in np.array_split(np.random.default_rng(0).permutation(len(held)), len(held) // BATCH):
            for number in np.sort(batch).tolist():
                for name in (b"coords", b"energy"):
                    one = h5py.h5d.open(above, b"m%07d/%s" % (number, name))
                    one.read(h5py.h5s.ALL, h5py.h5s.ALL, np.empty(one.shape, one.dtype))
            count += len(batch)
            if time.perf_counter() - begin > H5PY_SECONDS:
                break
    print(f"  h5py, each batch in the order of its names: {count / (time.perf_counter() - begin):,.0f} samples/s")


def seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--groups", type=int, help="side by side (none): making them takes some minutes a million")
    parser.add_argument("--kept", type=Path, help="the file of groups, which is made if it is not there")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        if asked.groups:
            path = asked.kept or folder / "groups.h5"
            if not path.exists():
                print(f"making {asked.groups:,} groups ...", flush=True)
                make_groups(path, asked.groups)
                time.sleep(2.5)  # as below
            measure_groups(path, folder / "groups")
            return
        path = folder / "chunks.h5"
        print(f"making {asked.chunks:,} chunks ...", flush=True)
        make_chunks(path, asked.chunks)
        time.sleep(2.5)  # younger tables are not kept: the file could change within one tick of its clock
        for which in ("first", "second"):
            took = seconds(lambda: solar.inspect(path, "x", cache=str(folder / "cache")))
            print(f"  the {which} time: {took:.2f} s", flush=True)
        print(f"making {asked.files:,} files ...", flush=True)
        make_files(folder / "many", asked.files)
        for _ in range(3):
            print(
                f"  opened in {seconds(lambda: solar.inspect(folder / 'many', 'x', samples='files')):.2f} s", flush=True
            )


if __name__ == "__main__":
    main()
