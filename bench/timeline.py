"""One epoch as it passed: when the training waited, what was read and decoded meanwhile; by PyTorch's loader and ours.

    python -m bench.timeline [--out FILE] [--samples N] [--compute MS]

Some seconds. The training is a sleep of so many ms a step, for an accelerator computes elsewhere. The file has one
record: that of the last time.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import machine, records, tables
from solar import DataLoader, H5Dataset, PlanSampler
from solar.baseline.h5py_loader import plain_loader, simple
from solar.baseline.h5py_samples import H5pySamples
from solar.io import example_files as specimen

BATCH = 64
DATASET = specimen.STORED["one sample a chunk, gzip"]
Record = dict[str, Any]


def passed(loader: Any, compute: float) -> Record:
    """One epoch, step by step: when each wait began and how long it was, and the loader's own counts after it."""
    began, waited, counts = [], [], []
    stats = getattr(loader, "stats", dict)
    start = time.perf_counter()
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        came = time.perf_counter()
        if batch is None:
            break
        began.append(round(asked - start, 6))
        waited.append(round(came - asked, 6))
        counts.append(stats())
        time.sleep(compute)
    seconds = time.perf_counter() - start
    record: Record = {"began": began, "waited": waited, "seconds": round(seconds, 6)}
    if counts[0]:
        record |= {name: [one[name] for one in counts] for name in ("bytes", "bytes_decoded")}
        record["wait_seconds"] = counts[-1]["wait_seconds"]
    return record


def measure(folder: Path, samples: int, compute: float) -> Record:
    """The record of both loaders on a file made for it; before each it is taken out of the page cache."""
    path = folder / "timeline.h5"
    specimen.write(path, samples)
    loaders = []
    plain = plain_loader(H5pySamples([str(path)], [DATASET]), BATCH, 0, simple(0, "straight"), 0)
    data = H5Dataset(str(path), {DATASET: DATASET})
    ours = DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=0, drop_last=True), drop_last=True, buffer=0)
    for label, loader in (("PyTorch + h5py, no workers", plain), ("solar", ours)):
        how = machine.drop_cache(folder)
        loaders.append({"label": label, "cache_how": how, **passed(loader, compute)})
    ours.close()
    return {
        "bench": "timeline", "title": "diffraction patterns of 16 KiB, one a chunk, gzip, cold", "samples": samples,
        "batch": BATCH, "compute_seconds": compute, "loaders": loaders, **machine.described(folder),
    }  # fmt: skip


def main() -> None:
    parser = records.arguments("bench.timeline", __doc__, "timeline")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--compute", type=float, default=10.0, help="ms of a step (10)")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="timeline-", dir=asked.folder or asked.out.parent) as folder:
        record = measure(Path(folder), asked.samples // (8 if asked.quick else 1), asked.compute / 1000)
    asked.out.write_text(json.dumps(record) + "\n")
    print(tables.timeline([record]))


if __name__ == "__main__":
    main()
