"""One epoch as it passed: when the training waited, what was read and decoded meanwhile; by PyTorch's loader and ours.

    python -m bench.timeline [--out FILE] [--samples N] [--compute MS]

Some seconds. The training is a sleep of so many ms a step, for an accelerator computes elsewhere.
`python -m bench.page` draws the record.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import machine
from solar import DataLoader, H5Dataset, PlanSampler
from solar.io import sample_file as specimen
from solar.io.plain import Plain
from solar.torch.plain import plain_loader

ROOT = Path(__file__).parent.parent
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
    plain = plain_loader(Plain([str(path)], [DATASET]), BATCH, 0, "items", 0)
    data = H5Dataset(str(path), {DATASET: DATASET})
    ours = DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=0, drop_last=True), drop_last=True, buffer=0)
    for label, loader in (("PyTorch + h5py, no workers", plain), ("solar", ours)):
        how = machine.drop_cache(folder)
        loaders.append({"label": label, "cache_how": how, **passed(loader, compute)})
    ours.close()
    return {
        "bench": "timeline", "title": "diffraction patterns of 16 KiB, one a chunk, gzip, cold", "samples": samples,
        "batch": BATCH, "compute_seconds": compute, "loaders": loaders, "machine": machine.facts(folder),
        "versions": machine.versions(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.timeline", description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--compute", type=float, default=10.0, help="ms of a step (10)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "timeline.jsonl")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="timeline-", dir=asked.out.parent) as folder:
        record = measure(Path(folder), asked.samples, asked.compute / 1000)
    asked.out.write_text(json.dumps(record) + "\n")
    for one in record["loaders"]:
        print(f"{one['label']:28} {one['seconds']:7.2f} s, of which {sum(one['waited']):6.2f} s waiting")
    print(asked.out)


if __name__ == "__main__":
    main()
