"""One rank of bench.ranks: iterates a loader as training does, in step with the others, and prints what it took."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from solar import DataLoader, H5Dataset, PlanSampler
from solar.io.ranks import detect
from solar.values import Storage

NAP = 50e-6  # seconds between looks whether all ranks are done with a step


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if job["by"] == "mpi":
        from mpi4py import MPI

        world = MPI.COMM_WORLD.Dup()

        def together() -> None:
            request = world.Ibarrier()
            while not request.Test():
                time.sleep(NAP)
    else:
        if job["by"] == "torch":
            torch.distributed.init_process_group("gloo")

        def together() -> None:
            if job["by"] == "torch":
                torch.distributed.barrier()

    rank = detect()
    dataset = H5Dataset(job["path"], "x")
    before = pss()
    loader: Any = DataLoader(
        dataset, job["batch"], sampler=PlanSampler(dataset, rank.ranks, rank.rank), buffer=job["buffer"],
        epochs=job["epochs"], storage=Storage(**job["storage"]), exchange=job["exchange"],
    )  # fmt: skip
    epochs, last, before_travel = [], loader.stats(), 0.0
    for epoch in range(job["epochs"]):
        loader.set_epoch(epoch)
        together()
        begin = time.perf_counter()
        for _ in loader:
            time.sleep(job["compute"])
            together()
        seconds, now = time.perf_counter() - begin, loader.stats()
        waits = {cause: now["wait_seconds"][cause] - last["wait_seconds"][cause] for cause in now["wait_seconds"]}
        counted = {name: now[name] - last[name] for name in ("samples", "requests", "bytes", "exchanged_bytes")}
        travelled = loader._buffered.running.counts().get("travel_wait_ns", 0) / 1e9
        epochs.append({"seconds": seconds, "waits": waits | {"travel": travelled - before_travel}, **counted})
        last, before_travel = now, travelled
    buffered = loader._buffered
    found = {"rank": rank.rank, "epochs": epochs, "pss_grown": pss() - before, "planned": list(buffered.planned)}
    together()
    print(json.dumps(found | {"counts": buffered.running.counts()}), flush=True)
    loader.close()
    if job["by"] == "torch":
        torch.distributed.destroy_process_group()


def pss() -> int:
    """This process's memory, of which what is shared counts for each by its part."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
