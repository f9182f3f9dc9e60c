"""Rates of Ray Data over an HDF5 file: solar's read_hdf5 beside tasks that read by h5py, as one writes them by hand.

python -m bench.ray_data [--samples N] [--rounds N] [--folder DIR]

Two workers on this machine. Both read the same ranges of whole chunks, from the page cache; this process gets batches
of 256 samples. It needs pip install 'ray[data]'.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

SHAPE, ROWS, BATCH, TASKS = (128, 128), 16, 256, 8  # of a sample; samples of a chunk
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of 16": {"chunks": (ROWS, *SHAPE)},
    "chunks of 16, gzip": {"chunks": (ROWS, *SHAPE), "compression": "gzip", "compression_opts": 4},
}
CLUSTER = {"num_cpus": 2, "object_store_memory": 512 << 20, "include_dashboard": False, "log_to_driver": False}


def make(path: Path, samples: int) -> None:
    values = np.random.default_rng(0).poisson(3, (samples, *SHAPE)).astype("f4")
    with h5py.File(path, "w") as file:
        for name, options in KINDS.items():
            file.create_dataset(name, data=values, **options)


def by_h5py(path: str, name: str, samples: int) -> Any:
    """A dataset whose tasks each read a range of whole chunks."""
    import ray

    bounds = (np.linspace(0, samples // ROWS, TASKS + 1).astype(int) * ROWS).tolist()
    bounds[-1] = samples

    def read(row: dict[str, Any]) -> dict[str, Any]:
        with h5py.File(path) as file:
            return {"x": file[name][row["begin"][0] : row["end"][0]]}

    ranges = [{"begin": begin, "end": end} for begin, end in pairwise(bounds) if begin < end]
    return ray.data.from_items(ranges, override_num_blocks=len(ranges)).map_batches(read, batch_size=1)


def by_solar(path: str, name: str, samples: int) -> Any:
    from solar.integrations.ray import read_hdf5

    return read_hdf5(path, {"x": name}, override_num_blocks=TASKS)


WAYS = {"h5py": by_h5py, "solar": by_solar}


def rate(dataset: Any, samples: int) -> float:
    """Samples a second of a pass."""
    begin, seen = time.perf_counter(), 0
    for batch in dataset.iter_batches(batch_size=BATCH, batch_format="numpy"):
        seen += len(batch["x"])
    assert seen == samples
    return samples / (time.perf_counter() - begin)


def measured(path: Path, samples: int, rounds: int) -> None:
    print(f"{samples} samples of {np.prod(SHAPE) * 4 >> 10} KiB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| data | " + " | ".join(f"{way}, samples/s" for way in WAYS) + " | solar / h5py |\n|---|--:|--:|--:|")
    for name in KINDS:
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for way in list(WAYS) * (rounds + 1):  # the first round starts workers, and fills the page cache
            rates[way].append(rate(WAYS[way](str(path), name, samples), samples))
        median = {way: statistics.median(found[1:]) for way, found in rates.items()}
        cells = " | ".join(f"{median[way]:,.0f}" for way in WAYS)
        print(f"| {name} | {cells} | {median['solar'] / median['h5py']:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the file is made (a new folder)")
    asked = parser.parse_args()
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None:
        sys.exit("skipped: ray is not installed: pip install 'ray[data]'")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    import ray

    with tempfile.TemporaryDirectory(dir=asked.folder) as folder, tempfile.TemporaryDirectory(dir="/tmp") as sessions:
        make(Path(folder) / "a.h5", asked.samples)
        ray.init(**CLUSTER, _node_ip_address="127.0.0.1", _temp_dir=sessions, logging_level="error")
        try:
            measured(Path(folder) / "a.h5", asked.samples, asked.rounds)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
