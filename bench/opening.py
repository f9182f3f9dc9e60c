"""How long it takes to open 10 million chunks (first and second time), and 50,000 files of one sample each.

python -m bench.opening [--chunks N] [--files N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import solar


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


def seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
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
