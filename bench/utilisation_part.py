"""One loader of `python -m bench.utilisation`, in its own process: a job as JSON in, its measures as JSON out."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine
from bench.buffer_part import order_of
from bench.scene import digest

Job = dict[str, Any]
Epoch = Callable[[int], Iterator[Any]]  # the batches of an epoch
WORKERS, KINDS = (0, 2, 4, 8), ("items", "sorted")
AHEAD = (4, 2)  # batches


def compared(job: Job, epoch: Epoch, seconds: float) -> int:
    """How many samples of epoch 0 were seen to be the reference's; ValueError for others. Not timed."""
    reference = np.load(Path(job["folder"]) / "digests.npy")
    seen, end = 0, time.perf_counter() + seconds
    for batch, samples in zip(epoch(0), order_of(job, 0), strict=False):
        if [digest(row) for row in np.asarray(batch)] != reference[samples].tolist():
            raise ValueError(f"returned other samples than the reference: not {samples[:4]}...")
        seen += len(samples)
        if time.perf_counter() > end and seen > 8 * len(samples):
            break
    return seen


def utilisation(job: Job, epoch: Epoch, number: int, seconds: float) -> float:
    """Computing over all time, from the end of the first step to the end of the epoch, or of so many seconds."""
    order, compute = order_of(job, number), job["compute"]
    begin, steps = 0.0, 0
    for batch, samples in zip(epoch(number), order, strict=False):
        if float(batch[0, 0]) != samples[0] or len(batch) != len(samples):
            raise ValueError(f"step {steps} of epoch {number} is not of samples {samples[:4]}...")
        time.sleep(compute)
        steps += 1
        now = time.perf_counter()
        if steps == 1:
            begin = now
        elif steps > 2 and now - begin > seconds:
            break
    return (steps - 1) * compute / (time.perf_counter() - begin)


def torch_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    """The best of PyTorch's settings over h5py."""
    from solar.io.plain import Plain
    from solar.torch.plain import plain_loader

    plain = Plain([job["path"]], ["x"])

    def epoch_of(kind: Any, workers: int) -> Epoch:
        loader = plain_loader(plain, job["batch"], SEED_OF, kind, workers)

        def epoch(number: int) -> Iterator[Any]:
            sampler: Any = loader.sampler
            sampler.set_epoch(number)
            return (batch["x"] for batch in loader)

        return epoch

    tried = []
    for kind, workers in itertools.product(KINDS, WORKERS):
        reached = utilisation(job, epoch_of(kind, workers), 100, job["seconds"] / 2)
        tried.append(({"kind": kind, "workers": workers}, reached))
    best = max(tried, key=lambda pair: pair[1])[0]
    return epoch_of(**best), best, tried


def solar_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.values import Storage

    data = H5Dataset(job["path"], "x")
    storage = Storage(**job["storage"]) if job["storage"] else None

    def loader_of(ahead: int) -> Any:
        sampler = PlanSampler(data, 1, 0, seed=SEED_OF, drop_last=True)
        given: dict[str, Any] = {"buffer": job["buffer"], "storage": storage, "ahead": ahead}
        return DataLoader(data, job["batch"], sampler=sampler, drop_last=True, **given)

    def epoch_of(loader: Any) -> Epoch:
        def epoch(number: int) -> Iterator[Any]:
            loader.set_epoch(number)
            return iter(loader)

        return epoch

    if job["buffer"] is None:
        return epoch_of(loader_of(4)), {}, []
    tried = []  # batches that wait take memory from what is kept
    for ahead in AHEAD:
        with loader_of(ahead) as loader:
            utilisation(job, epoch_of(loader), 99, math.inf)  # fills the memory
            tried.append(({"ahead": ahead}, utilisation(job, epoch_of(loader), 100, math.inf)))
    best = max(tried, key=lambda pair: pair[1])[0]
    said = {"buffer": f"buffer {job['buffer'] / 2**20:,.0f} MiB", "ahead": f"ahead {best['ahead']}"}
    return epoch_of(loader_of(**best)), said, tried


def none_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    """A batch that is there already: what sleeping overshoots alone."""
    batch = np.zeros((job["batch"], 1), np.float32)

    def epoch(number: int) -> Iterator[Any]:
        for samples in order_of(job, number):
            batch[:, 0] = samples
            yield batch

    return epoch, {}, []


SEED_OF = 11  # as order_of has it
SIDES = {
    "none": (none_side, "no loader, one batch in memory"),
    "torch": (torch_side, "PyTorch + h5py"),
    "solar": (solar_side, "solar"),
}


def main() -> None:
    job = json.loads(sys.argv[1])
    make, label = SIDES[job["peer"]]
    epoch, setting, tried = make(job)
    seen: list[int] = []
    first = (lambda: 0) if job["peer"] == "none" else (lambda: compared(job, epoch, seconds))
    # A buffer is planned for whole epochs; PyTorch's are alike in every part.
    seconds = math.inf if job["peer"] == "solar" else job["seconds"]
    peak = machine.peak_rss(lambda: seen.append(first()))
    # The first epoch after that fills the memory, and is not counted.
    reached = [utilisation(job, epoch, 1 + number, seconds) for number in range(job["epochs"])][1:]
    found = {"label": label, "setting": setting, "tried": tried, "utilisation": reached, "compared": seen[0]}
    print(json.dumps(found | {"peak_rss": peak}), flush=True)
    os._exit(0)  # workers of abandoned iterators would keep the process from ending


if __name__ == "__main__":
    main()
