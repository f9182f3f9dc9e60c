"""What planning 10 million small samples takes: to the fourth batch, the processor's seconds an epoch, and memory.

    python -m bench.planning [--samples N] [--buffers MB ...] [--ranks N] [--folder DIR]

A quarter of a minute for each buffer, in a process of its own. Samples have 64 bytes, and the file is a hole: neither
disk nor bandwidth is measured. Memory is what the process has beyond its buffer and what it had before the loader.
With --ranks, ranks of one node that meet by gloo: the seconds to the first batch of the slowest, and what all of them
have together, until the next epoch is planned, too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import h5py

from bench import machine, parts, records, tables
from solar.io.system.memory import process_nbytes, resident_nbytes

BATCH, VALUES = 64, 16
LIMIT = 300  # seconds for a buffer
LOOK = 1.5  # seconds between two looks at the memory of a rank, each of which takes a third of a second for gigabytes
SETTLED = 0.5  # seconds without work in which the plans of later epochs count as made


def make(path: Path, samples: int) -> None:
    """Only the last sample is written."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (samples, VALUES), "f4")[samples - 1] = 1


def settled() -> float:
    """Waits until this process does nothing any more. The seconds of its processors until then."""
    while True:
        before = time.process_time()
        time.sleep(SETTLED)
        if time.process_time() - before < SETTLED / 10:
            return before


def part(job: dict[str, Any]) -> dict[str, Any]:
    """What one buffer takes, in a process of its own."""
    if "ranks" in job:
        return rank_part(job)
    import torch

    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.planning import planned_passes

    torch.set_num_threads(1)
    data, buffer = H5Dataset(job["path"], "x"), job["buffer"]
    list(islice(DataLoader(data, BATCH, buffer=0), 4))  # what only the first loader of a process takes
    planned: list[float] = []  # seconds of the planning threads
    epochs = 0
    plan, told = planned_passes.PlannedPasses.__init__, planned_passes.PlannedPasses.scripts

    def counted(act: Any, *args: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return act(*args, **options)
        finally:
            planned.append(time.thread_time() - begin)

    def plan_counted(self: Any, makers: Any, *args: Any) -> None:
        nonlocal epochs
        counted(plan, self, makers, *args)
        epochs += len(makers)

    planned_passes.PlannedPasses.__init__ = plan_counted  # type: ignore[method-assign]
    planned_passes.PlannedPasses.scripts = lambda *args: counted(told, *args)  # type: ignore[method-assign]
    settled()
    before, found = resident_nbytes(os.getpid()), dict[str, Any]()

    def work() -> None:
        begin = time.perf_counter()
        loader: Any = DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=1), buffer=buffer)
        batches = iter(loader)
        list(islice(batches, 4))
        found["seconds"] = time.perf_counter() - begin
        settled()
        list(islice(batches, 2000))
        found["held"] = min(buffer, loader.stats()["resident_bytes"])

    found["beyond"] = machine.peak(work) - before - found.pop("held")
    return found | {"epochs": epochs, "each": sum(planned) / epochs if epochs else None}


def rank_part(job: dict[str, Any]) -> dict[str, Any]:
    """What one of several ranks of a node takes."""
    import torch

    from solar import DataLoader, H5Dataset, PlanSampler

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    data = H5Dataset(job["path"], "x")
    list(islice(DataLoader(data, BATCH, buffer=0, exchange="off"), 4))
    torch.distributed.barrier()
    before, used = process_nbytes(os.getpid()), time.process_time()
    torch.distributed.barrier()
    begin, found = time.perf_counter(), dict[str, Any]()

    def work() -> None:
        loader: Any = DataLoader(data, BATCH, sampler=PlanSampler(data, seed=1), buffer=job["buffer"], epochs=3)
        batches = iter(loader)
        next(batches)
        found["seconds"] = time.perf_counter() - begin
        list(islice(batches, 50))
        torch.distributed.barrier()
        settled()
        torch.distributed.barrier()
        found["held"] = min(job["buffer"], loader.stats()["resident_bytes"])

    found["beyond"] = machine.peak(work, LOOK) - before - found.pop("held")
    return found | {"processor": time.process_time() - used}


def of_ranks(ranks: int, path: Path, buffers: list[int]) -> str:
    """The table of several ranks."""
    rows = []
    for buffer in buffers:
        job = {"path": str(path), "buffer": buffer * 1_000_000, "ranks": ranks}
        each = parts.measured(LIMIT, "bench.planning", job, parts.torch_ranks(ranks))
        seconds, beyond = max(one["seconds"] for one in each), sum(one["beyond"] for one in each)
        used = [f"{one['processor']:.1f}" for one in each]
        rows.append((f"{buffer} MB", f"{seconds:.1f}", " ".join(used), f"{beyond / 1e6:.0f}"))
    return tables.table("buffer|s to the first batch:|processor's s of each rank:|MB beyond it, of all:", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--buffers", type=int, nargs="+", default=[0, 20, 160], help="MB (0 20 160)")
    parser.add_argument("--ranks", type=int, default=1, help="of one node (1)")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    records.load()
    rows = []
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as folder:
        path = Path(folder) / "data.h5"
        make(path, asked.samples)
        if asked.ranks > 1:
            print(of_ranks(asked.ranks, path, [one for one in asked.buffers if one]))
            return
        for buffer in asked.buffers:
            [one] = parts.measured(LIMIT, "bench.planning", {"path": str(path), "buffer": buffer * 1_000_000})
            each = "" if one["each"] is None else f"{one['each']:.2f}"
            rows.append((f"{buffer} MB", f"{one['seconds']:.2f}", one["epochs"], each, f"{one['beyond'] / 1e6:.0f}"))
    print(tables.table("buffer|s to the fourth batch:|epochs planned:|processor's s an epoch:|MB beyond it:", rows))


if __name__ == "__main__":
    main()
