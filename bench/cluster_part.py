"""One rank of `python -m bench.cluster`: epochs by one reader, a step of all ranks at a time.

torch     PyTorch's loader over h5py, its DistributedSampler, the file kept open in each worker
pinned    a fixed part of the samples in memory that all ranks of all nodes read, the others read one by one by threads
windowed  memory filled with the next steps of all ranks in one ascending pass that they divide; handed out; again
solar     DataLoader with a PlanSampler, epochs=, storage= and buffer=

Memory is of all nodes together. For `pinned` and `windowed` what another node holds is as near as their own: both are
faster here than they could be on a cluster.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.ranks import pss
from bench.scene import digest

Job = dict[str, Any]
Ints = NDArray[np.int64]
FIELD = "x"
SEED = 11
COUNTED = ("requests", "bytes", "late_seconds")
THREADS = 8  # of a rank of `pinned` and `windowed`: 32 requests in flight on a node
LOOKED_AT = 8  # of so many batches one has a sample that is compared by all its bytes
PIECE = 4 << 20  # bytes of one read of `windowed`: of one request of the storage
Batches = Callable[[int], Iterator[Any]]  # of an epoch, as this rank has them


def part(job: Job) -> Job:
    """What this rank finds. ValueError: the samples of a step are not those of torch's order."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    before, begin = pss(), time.perf_counter()
    batches = READERS[job["peer"]](job)
    distributed.barrier()
    filling = time.perf_counter() - begin
    epochs = [epoch_of(job, number, batches) for number in range(job["epochs"])]
    epochs[0]["first"] += filling  # what has to be there before any batch, of `pinned`
    found = {"epochs": epochs, "pss_grown": pss() - before, "filling": filling}
    distributed.barrier()
    distributed.destroy_process_group()
    return found


def epoch_of(job: Job, number: int, batches: Batches) -> Job:
    """Seconds and requests of an epoch, in step with the others. A step ends for all together, as gradients have it."""
    from torch import distributed

    distributed.barrier()
    before, seen, first = counts(job), list[Any](), 0.0
    reference = np.load(Path(job["folder"]) / "digests.npy", mmap_mode="r")
    distributed.barrier()
    begin = time.perf_counter()
    for batch in batches(number):
        first = first or time.perf_counter() - begin
        numbers = np.rint(np.asarray(batch[:, 0])).astype(np.int64)
        if len(seen) % LOOKED_AT == 0 and digest(np.asarray(batch[-1])) != reference[numbers[-1]]:
            raise ValueError(f"sample {numbers[-1]} has other bytes than h5py reads")
        seen.append(numbers)
        time.sleep(job["compute"])
        distributed.barrier()
    seconds = time.perf_counter() - begin
    after = counts(job)
    check(job, number, seen)
    counted = {name: after[name] - before[name] for name in COUNTED}
    return {"seconds": seconds, "first": first, "samples": sum(map(len, seen)), "counts": counted}


def counts(job: Job) -> dict[str, float]:
    """What the mount was asked for so far, by its own count."""
    found: dict[str, float] = json.loads((Path(job["mount"]) / ".slowfs").read_text())
    return found


def check(job: Job, number: int, seen: list[Ints]) -> None:
    """Sees that each step of all ranks together had the samples that torch's samplers give them."""
    from torch import distributed

    every: list[Any] = [None] * job["ranks"]
    distributed.all_gather_object(every, seen)
    wanted = global_steps(job, number)
    if {len(one) for one in every} != {len(wanted)}:
        raise ValueError(f"epoch {number} has {[len(one) for one in every]} steps, and {len(wanted)} are wanted")
    for step, samples in enumerate(wanted):
        found = np.sort(np.concatenate([one[step] for one in every]))
        if not np.array_equal(found, np.sort(samples)):
            raise ValueError(f"step {step} of epoch {number} has other samples: {found[:4]}...")


def global_steps(job: Job, epoch: int) -> Ints:
    """The samples of each step of all ranks, as torch's DistributedSampler draws them: [step, place]."""
    import torch

    order = torch.randperm(job["samples"], generator=torch.Generator().manual_seed(SEED + epoch)).numpy()
    step = job["batch"] * job["ranks"]
    return order[: len(order) // step * step].reshape(-1, step)[: job["steps"]]


def own_steps(job: Job, epoch: int) -> Ints:
    """Those of this rank."""
    return global_steps(job, epoch)[:, rank() :: job["ranks"]]


def rank() -> int:
    return int(os.environ["RANK"])


# --- what people run ----


def torch_batches(job: Job) -> Batches:
    from torch.utils.data import DataLoader, DistributedSampler

    from solar.baseline.h5py_loader import dataset_of, simple
    from solar.baseline.h5py_samples import H5pySamples

    setting = simple(job["workers"], job["kind"])
    data, options = dataset_of(H5pySamples([job["path"]], [FIELD]), setting, job["batch"], job["memory"])
    sampler: Any = DistributedSampler(data, job["ranks"], rank(), seed=SEED, drop_last=True)
    chosen = Cut(sampler, job["batch"] * job["steps"])
    loader = DataLoader(data, job["batch"], sampler=chosen, drop_last=True, **options)

    def batches(epoch: int) -> Iterator[Any]:
        sampler.set_epoch(epoch)
        return (one[FIELD] for one in loader)

    return batches


class Cut:
    """The first samples of a sampler, so that workers read nothing that is not counted."""

    def __init__(self, sampler: Any, samples: int) -> None:
        self.sampler, self.samples = sampler, samples

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(iter(self.sampler), self.samples)

    def __len__(self) -> int:
        return min(len(self.sampler), self.samples)


# --- the best that is known without solar ----


def pinned_batches(job: Job) -> Batches:
    """Room for the batches on their way is taken off; hits cost no more than a copy."""
    read, nbytes, pool = reader(job), job["sample_nbytes"], ThreadPoolExecutor(THREADS)
    beside = job["ranks"] * job["batch"] * (job["ahead"] + 1)
    kept = min(max(0, job["memory"] * job["nodes"] // nbytes - beside), job["samples"])
    held = shared(kept, nbytes)
    own = range(kept * rank() // job["ranks"], kept * (rank() + 1) // job["ranks"])
    each = max(1, PIECE // nbytes)
    spans = [range(at, min(at + each, own.stop)) for at in own[::each]]
    list(pool.map(lambda span: read(span.start, [held[span.start : span.stop]]), spans))

    ring = np.empty((job["ahead"] + 2, job["batch"], nbytes), np.uint8)  # a batch in use, one handed out, those ahead

    def begun(step: int, rows: Ints) -> tuple[NDArray[Any], list[Future[None]]]:
        batch = ring[step % len(ring)]
        missed = np.flatnonzero(rows >= kept)
        return batch, [pool.submit(read, int(rows[place]), [batch[place]]) for place in missed]

    def batches(epoch: int) -> Iterator[Any]:
        order = own_steps(job, epoch)
        coming = [begun(step, rows) for step, rows in enumerate(order[: job["ahead"]])]
        for step, rows in enumerate(order):
            if step + job["ahead"] < len(order):
                coming.append(begun(step + job["ahead"], order[step + job["ahead"]]))
            batch, reads = coming.pop(0)
            for place in np.flatnonzero(rows < kept):
                batch[place] = held[rows[place]]
            for one in reads:
                one.result()
            yield batch.view(np.float32)

    return batches


def windowed_batches(job: Job) -> Batches:
    """A window has whole steps of all ranks; holes that cost less than a request are read along."""
    from torch import distributed

    read, nbytes, pool = reader(job), job["sample_nbytes"], ThreadPoolExecutor(THREADS)
    storage, step = job["storage"], job["ranks"] * job["batch"]
    gap = int(storage["bandwidth"] / storage["iops"]) // nbytes
    room = (job["memory"] * job["nodes"] // nbytes - job["ranks"] * (job["batch"] + gap)) // step
    if room < 1:
        raise ValueError("no room for one step of all ranks")
    held, hole = shared(room * step, nbytes), np.empty((max(1, gap), nbytes), np.uint8)

    def fill(span: tuple[Ints, int]) -> None:
        rows, place = span
        into = [held[place]]
        for number, between in enumerate(np.diff(rows) - 1, place + 1):
            into += [hole[:between], held[number]] if between else [held[number]]
        read(int(rows[0]), into)

    def batches(epoch: int) -> Iterator[Any]:
        order = global_steps(job, epoch)
        for begin in range(0, len(order), room):
            window = order[begin : begin + room]
            wanted = np.unique(window)
            own = slice(len(wanted) * rank() // job["ranks"], len(wanted) * (rank() + 1) // job["ranks"])
            list(pool.map(fill, spans_of(wanted[own], own.start, gap, max(1, PIECE // nbytes))))
            distributed.barrier()
            for samples in window:
                place = np.searchsorted(wanted, samples[rank() :: job["ranks"]])
                yield held[place].view(np.float32)
            distributed.barrier()

    return batches


def spans_of(rows: Ints, first: int, gap: int, longest: int) -> Iterator[tuple[Ints, int]]:
    """Ascending rows that are read at once, and the place of the first of them."""
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] - rows[end - 1] > gap or rows[end] - rows[begin] >= longest:
            yield rows[begin:end], first + begin
            begin = end


def reader(job: Job) -> Callable[[int, list[NDArray[Any]]], None]:
    """What reads neighbouring samples into memory, past h5py: the data are contiguous."""
    import h5py

    with h5py.File(job["path"], locking=False) as file:
        offset = file[FIELD].id.get_offset()
    descriptor, nbytes = os.open(job["path"], os.O_RDONLY), job["sample_nbytes"]

    def read(first: int, into: list[NDArray[Any]]) -> None:
        if os.preadv(descriptor, into, offset + first * nbytes) != sum(one.nbytes for one in into):
            raise OSError(f"what was asked of samples from {first} on came short")

    return read


def shared(samples: int, nbytes: int) -> NDArray[np.uint8]:
    """Memory that all ranks have."""
    from torch import distributed

    path = [""]
    if rank() == 0:
        descriptor = os.memfd_create("held")
        os.ftruncate(descriptor, max(1, samples * nbytes))
        path = [f"/proc/{os.getpid()}/fd/{descriptor}"]
    distributed.broadcast_object_list(path)
    with Path(path[0]).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), max(1, samples * nbytes))
    return np.frombuffer(memory, np.uint8, samples * nbytes).reshape(samples, nbytes)


# --- solar ----


def solar_batches(job: Job) -> Batches:
    """It is told of one epoch more than is read, so that none is read as the last one."""
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.values import Storage

    data = H5Dataset(job["path"], FIELD)
    sampler = PlanSampler(data, job["ranks"], rank(), seed=SEED, drop_last=True)
    storage = Storage(**{name: job["storage"][name] for name in ("latency", "bandwidth", "iops")})
    loader: Any = DataLoader(
        data, job["batch"], sampler=sampler, drop_last=True, buffer=job["memory"], epochs=job["epochs"] + 1,
        storage=storage,
    )  # fmt: skip

    def batches(epoch: int) -> Iterator[Any]:
        sampler.set_epoch(epoch)
        return iter(loader)

    return batches


READERS: dict[str, Callable[[Job], Batches]] = {
    "torch": torch_batches, "pinned": pinned_batches, "windowed": windowed_batches, "solar": solar_batches,
}  # fmt: skip
