"""One reader of `python -m bench.buffer`, in a process of its own.

torch     the best of a few settings; each round is a stated part of an epoch
solar     DataLoader(buffer=...): whole epochs, of which the first and the last are not timed, but compared byte by byte
pinned    the policy of a cache that never changes (which NoPFS reaches at best), carried out by solar's own reader
paper     the policy that SOLAR published (an epoch begins with what the last one ended with), carried out likewise
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import machine, torch_side
from bench.scene import FIELD, NBYTES, Check

Job = dict[str, Any]
Measures = dict[str, Any]
SEED = 11
COMPARED = 8  # batches of torch that are compared byte by byte
LOCAL = {"latency": 1e-4, "bandwidth": 1.5e9, "iops": 20e3, "decode": 1.5e9}  # a local disk, as a plan needs it


def rank() -> int:
    """Of this process among those that read together."""
    return int(os.environ.get("RANK", "0"))


def order_of(job: Job, epoch: int) -> NDArray[np.int64]:
    """Whole batches of this rank's part of an epoch, as torch's DistributedSampler draws it: [batch, place]."""
    import torch

    generator = torch.Generator().manual_seed(SEED + epoch)
    order = torch.randperm(job["samples"], generator=generator).numpy()
    ranks = job.get("ranks", 1)
    order = order[: len(order) // ranks * ranks][rank() :: ranks]
    return order[: len(order) // job["batch"] * job["batch"]].reshape(-1, job["batch"])


class Meter:
    """The clock, and what the slowed mount counted, since the last look."""

    def __init__(self, job: Job) -> None:
        self.mount = Path(job["mount"]) / ".slowfs" if job["mount"] else None
        self.at, self.counted = time.perf_counter(), self.counts()

    def counts(self) -> dict[str, Any]:
        return json.loads(self.mount.read_text()) if self.mount else {}

    def lap(self) -> Measures:
        now, counted = time.perf_counter(), self.counts()
        passed = {name: counted[name] - self.counted[name] for name in ("requests", "bytes", "late_seconds") if counted}
        took = {"seconds": now - self.at, **{f"mount_{name}": value for name, value in passed.items()}}
        self.at, self.counted = now, counted
        return took


def timed_part(job: Job, batches: Iterable[Any], order: NDArray[np.int64], run_up: int, part: int) -> Measures:
    """So many batches after the run-up, with more to come."""
    check = Check(Path(job["folder"]), job["shape"])
    meter = Meter(job)
    for place, (batch, samples) in enumerate(zip(batches, order, strict=False)):
        check.numbers(batch, samples)  # no more here: while all bytes are compared, workers would get ahead
        if place == run_up - 1:
            meter.lap()
        if place == run_up + part - 1:
            return meter.lap() | {"samples": part * job["batch"]}
    raise RuntimeError(f"{check.numbered} samples came, of {order.size}")


# --- PyTorch ----


def by_torch(job: Job, order: NDArray[np.int64], kind: str, workers: int) -> Any:
    """Each row of the order is a batch; the memory is shared among the workers as chunk caches."""
    made, collate = (torch_side.Items, None) if kind == "items" else (torch_side.Sorted, torch_side.as_is)
    data = made(Path(job["path"]), job["samples"], job["memory"] // max(1, workers))
    return torch_side.batches(data, order, workers, collate)


def torch_part(job: Job) -> Measures:
    if job["bounded"]:
        import solar.filters  # noqa: F401 - tells libhdf5, and that of the workers, of our filter
    tried: list[tuple[dict[str, Any], float]] = []

    def run(setting: dict[str, Any], batches: int, epoch: int) -> Measures:
        workers = setting["workers"]
        run_up, part = 1 + 2 * workers, max(batches, 2 * workers)  # of which workers have two each on their way
        order = order_of(job, epoch)[: run_up + part + 2 * workers]
        made = by_torch(job, order, **setting)
        return timed_part(job, made, order, run_up, part)

    for setting in job["settings"]:
        took = run(setting, job["search"], 0)
        tried.append((setting, took["samples"] / took["seconds"]))
    best = max(tried, key=lambda pair: pair[1])[0]
    check = Check(Path(job["folder"]), job["shape"])
    some = order_of(job, 0)[:COMPARED]
    for batch, samples in zip(by_torch(job, some, **best), some, strict=True):
        check.bytes(batch, samples)
    rounds = [run(best, job["part"], 1 + number) for number in range(job["rounds"])]
    return {
        "label": "PyTorch + h5py", "setting": best, "tried": tried, "rounds": rounds, "compared": check.digested,
    }  # fmt: skip


# --- solar ----


def solar_part(job: Job) -> Measures:
    """Epochs back to back, each from the last batch of the one before to its own last batch."""
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.values import Storage

    check = Check(Path(job["folder"]), job["shape"])
    dataset = H5Dataset(job["path"], FIELD)
    sampler = PlanSampler(dataset, job["ranks"], rank(), seed=SEED, drop_last=True)
    storage = Storage(**job["storage"]) if job["storage"] else None
    epochs = job["rounds"] + 2
    rounds = []
    with DataLoader(
        dataset, job["batch"], sampler=sampler, drop_last=True, buffer=job["memory"], epochs=epochs, storage=storage
    ) as loader:
        meter, before = Meter(job), loader.stats()
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            unmeasured = epoch in (0, epochs - 1)
            for batch, samples in zip(loader, order_of(job, epoch), strict=True):
                check.numbers(batch, samples)
                if unmeasured:
                    check.bytes(batch, samples)
            took, now = meter.lap(), loader.stats()
            if not unmeasured:
                counted = {name: now[name] - before[name] for name in ("requests", "bytes", "buffer_hits")}
                rounds.append(took | counted | {"samples": order_of(job, epoch).size})
            before = now
        waits = loader.stats()["wait_seconds"]
    return {
        "label": "solar, DataLoader(buffer=)", "setting": {}, "rounds": rounds, "compared": check.digested,
        "peak_counted": now["peak_bytes"], "waits": waits,
    }  # fmt: skip


# --- plans carried out without the loader ----


def course_part(job: Job) -> Measures:
    """What the loader would do, by itself: whole epochs, of which the first and the last are not timed."""
    found = _carried(job, [order_of(job, epoch) for epoch in range(job["rounds"] + 2)], "course")
    return found | {"label": "solar, the plan without the loader", "rounds": found["rounds"][1:-1]}


def pinned_part(job: Job) -> Measures:
    """The pinned part is read before the first of the epochs, which are cut short, and which is not timed."""
    found = _carried(job, [order_of(job, epoch)[: job["part"]] for epoch in range(job["rounds"] + 1)], "pinned")
    return found | {"label": "a pinned cache", "rounds": found["rounds"][1:]}


def paper_part(job: Job) -> Measures:
    """Whole epochs, of which the first is not timed: memory is empty before it."""
    orders = [order_of(job, epoch) for epoch in range((job["rounds"] + 1) // 2 + 1)]
    found = _carried(job, orders, "paper")
    return found | {"label": "SOLAR's published policy, by solar's reader", "rounds": found["rounds"][1:]}


def _carried(job: Job, orders: list[NDArray[np.int64]], policy: str) -> Measures:
    from bench import buffer_policy
    from solar.values import Storage

    check, storage = Check(Path(job["folder"]), job["shape"]), Storage(**job["storage"] or LOCAL)
    path, memory = Path(job["path"]), job["memory"]
    if policy == "paper":
        carried = buffer_policy.edge_reuse(path, orders, memory, storage)
    else:
        way = buffer_policy.pinned_way(memory) if policy == "pinned" else None
        carried = buffer_policy.carried_out(path, orders, memory, storage, way)
    rounds = []
    meter = Meter(job)
    for epoch, order in enumerate(orders):
        for samples in order:
            batch = next(carried.batches)
            check.numbers(batch, samples)
            if epoch == 0:
                check.bytes(batch, samples)
        rounds.append(meter.lap() | {"samples": order.size})
        if carried.course:
            planned = carried.course.counts[epoch]
            seconds = storage.seconds(planned.requests, planned.bytes, planned.decoded * NBYTES)
            rounds[-1]["planned_seconds"] = seconds
    ways = asdict(carried.course.way) if carried.course else {}
    chosen = {name: value for name, value in ways.items() if value and name != "direct"}
    return {"setting": chosen, "rounds": rounds, "compared": check.digested, "run": carried.counts()}


PARTS: dict[str, Callable[[Job], Measures]] = {
    "torch": torch_part,
    "solar": solar_part,
    "pinned": pinned_part,
    "paper": paper_part,
    "course": course_part,
}


def part(job: Job) -> Measures:
    if job["ranks"] > 1:
        import torch

        torch.distributed.init_process_group("gloo")
    found: Measures = {}
    peak = machine.peak(lambda: found.update(PARTS[job["peer"]](job)))
    return found | {"peak_rss": peak}
