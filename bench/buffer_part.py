"""One reader of `python -m bench.buffer`, in a process of its own: whole epochs from the first import on, or a part.

torch       PyTorch + h5py at its best (solar/baseline/h5py_loader.py) with the same memory for caches; whole runs,
            less the trials, or part of an epoch where that would take minutes
windowed    memory filled with the next uses in one ascending pass, handed out; again (Plain.windows)
page_cache  plain reads of contiguous bytes by threads, in a control group whose page cache is the memory
ram_copy    all copied to memory first, where it fits
pinned      the policy of a cache that never changes (which NoPFS reaches at best), carried out by solar's own reader
paper       the policy that SOLAR published (an epoch begins with what the last one ended with), carried out likewise
solar       DataLoader(shuffle=True, buffer=...): the orders of later epochs are guessed
solar_known the same with a PlanSampler, epochs=, and the storage: all orders are known
solar_unpacked  solar_known that holds samples as they are, though they could be packed
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import groups, machine
from bench.scene import FIELD, Check
from solar.samplers.orders import by_weights

Job = dict[str, Any]
Measures = dict[str, Any]
Batches = Iterable[tuple[Any, NDArray[np.int64] | None]]  # and the samples that they are to be, if that is known
SEED = 11
LOCAL = {"latency": 1e-4, "bandwidth": 1.5e9, "iops": 20e3}  # a local disk, as a plan needs it
LONGEST = 100.0  # seconds that a whole run of PyTorch's loader may take; of a longer one a part is timed
PIECE, THREADS = 8 << 20, 16
COUNTED = ("requests", "bytes", "late_seconds")


def rank() -> int:
    """Of this process among those that read together."""
    return int(os.environ.get("RANK", "0"))


def weights(job: Job) -> NDArray[np.float64] | None:
    """A tenth is drawn ten times as often as the others; None: all are shuffled."""
    return np.where(np.arange(job["samples"]) % 10, 1.0, 10.0) if job.get("weighted") else None


def order_of(job: Job, epoch: int) -> NDArray[np.int64]:
    """Whole batches of this rank's part of an epoch, as DistributedSampler or PlanSampler draws it: [batch, place]."""
    if (by := weights(job)) is not None:
        order = np.asarray(by_weights(by, job["samples"]).whole(SEED, epoch), np.int64)
    else:
        import torch

        generator = torch.Generator().manual_seed(SEED + epoch)
        order = torch.randperm(job["samples"], generator=generator).numpy()
    ranks = job.get("ranks", 1)
    order = order[: len(order) // ranks * ranks][rank() :: ranks]
    return order[: len(order) // job["batch"] * job["batch"]].reshape(-1, job["batch"])


def costs(job: Job) -> dict[str, float]:
    return {name: job["storage"][name] for name in LOCAL} if job["storage"] else LOCAL


def timed(job: Job, epochs: Iterable[Batches]) -> Measures:
    """When the first batch came and each epoch ended, since the first import; and what the mount counted until then.

    All samples are seen to be there by their numbers, and of each batch one by all its bytes.
    """
    check = Check(Path(job["folder"]), job["shape"])
    mount = Path(job["mount"]) / ".slowfs" if job["mount"] else None
    first, ends, each = 0.0, list[float](), list[int]()
    counts = [json.loads(mount.read_text()) if mount else {}]
    for epoch in epochs:
        there, came = np.zeros(job["samples"], bool), 0
        for batch, rows in epoch:
            first = first or time.perf_counter() - job["begin"]
            found = check.numbers(batch, rows)
            check.bytes(batch[:1], found[:1])
            if there[found].any() and not job.get("weighted"):
                raise ValueError(f"a sample came twice in an epoch: one of {found[:4]}...")
            there[found] = True
            came += len(found)
        each.append(came)
        ends.append(time.perf_counter() - job["begin"])
        counts.append(json.loads(mount.read_text()) if mount else {})
    passed = [{name: b[name] - a[name] for name in COUNTED if b} for a, b in itertools.pairwise(counts)]
    return {"first": first, "ends": ends, "each": each, "mount_counts": passed}


def given(job: Job, batches: Iterator[Any], orders: list[NDArray[np.int64]]) -> Iterator[Batches]:
    """Batches in orders that were given, by epoch."""
    return (zip(itertools.islice(batches, len(order)), order, strict=True) for order in orders)


# --- PyTorch and what an expert writes ----


def plain_of(job: Job) -> Any:
    from solar.baseline.h5py_samples import H5pySamples

    if job["bounded"]:
        import solar.filters  # noqa: F401 - tells libhdf5, and that of the workers, of our filter
    return H5pySamples([job["path"]], [FIELD])


def torch_part(job: Job) -> Measures:
    """The best of its settings by trials; then a part of an epoch: its epochs are all alike."""
    from torch.utils.data import DataLoader

    from solar.baseline.h5py_loader import best_of, dataset_of

    plain = plain_of(job)
    started = time.perf_counter() - job["begin"]  # what comes before the first batch, but for the trials

    def batches(setting: Job, order: NDArray[np.int64]) -> Iterator[Any]:
        data, options = dataset_of(plain, setting, job["batch"], job["memory"])
        return (one[FIELD] for one in DataLoader(data, batch_sampler=order.tolist(), **options))

    def rate(setting: Job) -> float:
        run_up = 1 + 2 * setting["workers"]  # of which workers have two each on their way
        search = max(job["search"], run_up)
        made = batches(setting, order_of(job, 0)[: run_up + search + 2 * setting["workers"]])
        for _ in itertools.islice(made, run_up):
            pass
        begin = time.perf_counter()
        came = sum(1 for _ in itertools.islice(made, search))
        return came * job["batch"] / (time.perf_counter() - begin)

    setting, tried, _ = best_of(plain, job["batch"], job["memory"], job["workers"], rate, job["trying"])
    if job["ranks"] > 1:  # with the same settings, and at the same time
        import torch

        agreed = [setting]
        torch.distributed.broadcast_object_list(agreed)
        [setting] = agreed
        torch.distributed.barrier()
    told = {"label": "PyTorch + h5py", "setting": setting, "tried": tried}
    best = max(one.get("samples_per_second", 0.0) for one in tried)
    if job["samples"] * job["epochs"] < best * LONGEST:
        orders = [order_of(job, epoch) for epoch in range(job["epochs"])]
        every = batches(setting, np.concatenate(orders))
        return timed(job | {"begin": time.perf_counter() - started}, given(job, every, orders)) | told
    # What workers have ready when the clock starts is as much as they have when it stops: not a batch is free.
    ready = 1 + 2 * setting["workers"]
    part = max(job["part"], 2 * ready)
    order = order_of(job, 1)[: 2 * ready + part]
    made = batches(setting, order)
    found = timed(job | {"begin": time.perf_counter()}, given(job, made, [order[:ready], order[ready : ready + part]]))
    return found | told | {"partly": True}


def windowed_part(job: Job) -> Measures:
    plain, known = plain_of(job), costs(job)
    orders = [order_of(job, epoch) for epoch in range(job["epochs"])]
    gap = int(max(known["latency"], 1 / known["iops"]) * known["bandwidth"])  # costs no more than another request
    piece = max(PIECE, plain.nbytes())
    made = (one[FIELD] for one in plain.windows([row for order in orders for row in order], job["memory"], gap, piece))
    return timed(job, given(job, made, orders)) | {"label": "windowed reader", "setting": {}}


def ram_part(job: Job) -> Measures:
    plain = plain_of(job)
    orders = [order_of(job, epoch) for epoch in range(job["epochs"])]

    def batches() -> Iterator[Any]:
        [(shape, dtype)] = plain.shapes()
        held = np.empty((len(plain), *shape), dtype)
        step = max(1, PIECE // plain.nbytes())
        for first in range(0, len(held), step):
            plain.rows(first, held[first : first + step])
        for order in orders:
            yield from (held[rows] for rows in order)

    return timed(job, given(job, batches(), orders)) | {"label": "copied to RAM first", "setting": {}}


def page_cache_part(job: Job) -> Measures:
    """An epoch, after which the cache is as full as it gets, and the next, which is timed."""
    import h5py

    with h5py.File(job["path"], locking=False) as file:
        data = file[FIELD]
        offset, row, dtype = data.id.get_offset(), data[0].nbytes, data.dtype
    orders = [order_of(job, 0), order_of(job, 1)]
    descriptor = os.open(job["path"], os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def batches(pool: ThreadPoolExecutor) -> Iterator[Any]:
        def read(batch: NDArray[Any], place: int, sample: int) -> None:
            if os.preadv(descriptor, [batch[place : place + 1].view("u1").reshape(-1)], offset + sample * row) != row:
                raise OSError(f"sample {sample} came short")

        for rows in itertools.chain(*orders):
            batch = np.empty((len(rows), *job["shape"]), dtype)
            list(pool.map(read, itertools.repeat(batch), range(len(rows)), rows.tolist()))
            yield batch

    with ThreadPoolExecutor(THREADS) as pool:
        made = batches(pool)
        for _ in itertools.islice(made, 2):  # threads and imports have their memory before the group counts
            pass
        groups.enter(Path(job["group"]), job["memory"] + groups.OWN)
        return timed(job | {"begin": time.perf_counter()}, given(job, made, [orders[0][2:], orders[1]])) | {
            "label": "a page cache of this memory, 16 threads", "setting": {}, "partly": True,
        }  # fmt: skip


# --- solar ----


def solar_part(job: Job) -> Measures:
    """With the defaults and `buffer`; with several ranks the sampler that they need."""
    from solar import DataLoader, H5Dataset, PlanSampler

    data = H5Dataset(job["path"], FIELD)
    if job["ranks"] > 1:
        order: dict[str, Any] = {"sampler": PlanSampler(data, job["ranks"], rank(), seed=SEED)}
    else:
        order = {"shuffle": True}
    with DataLoader(data, job["batch"], drop_last=True, buffer=job["memory"], **order) as loader:

        def epochs() -> Iterator[Batches]:
            for epoch in range(job["epochs"]):
                loader.set_epoch(epoch) if "sampler" in order else None
                yield ((batch, None) for batch in loader)

        return timed(job, epochs()) | {"label": "solar, shuffle=True, buffer=", "setting": {}} | said(loader)


def known_part(job: Job) -> Measures:
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.values import Storage

    data = H5Dataset(job["path"], FIELD)
    sampler = PlanSampler(data, job["ranks"], rank(), seed=SEED, drop_last=True, weights=weights(job))
    more: dict[str, Any] = {"storage": Storage(**costs(job))} if job["storage"] else {}
    with DataLoader(
        data, job["batch"], sampler=sampler, drop_last=True, buffer=job["memory"], epochs=job["epochs"], **more
    ) as loader:

        def epochs() -> Iterator[Batches]:
            for epoch in range(job["epochs"]):
                sampler.set_epoch(epoch)
                yield zip(loader, order_of(job, epoch), strict=True)

        label = "solar, PlanSampler, epochs=, storage=, buffer="
        return timed(job, epochs()) | {"label": label, "setting": {}} | said(loader)


def unpacked_part(job: Job) -> Measures:
    from solar.io.reading import trial

    trial.WORTH = float("inf")
    return known_part(job) | {"label": "solar, PlanSampler, samples held as they are"}


def said(loader: Any) -> Measures:
    stats = loader.stats()
    return {"waits": stats["wait_seconds"], "peak_counted": stats["peak_bytes"], "hits": stats["buffer_hits"]}


# --- policies of others, carried out by solar's reader ----


def pinned_part(job: Job) -> Measures:
    """The pinned part is read before the first of the epochs, which are cut short."""
    return _carried(job, [order_of(job, epoch)[: job["part"]] for epoch in range(2)], "pinned", "a pinned cache")


def paper_part(job: Job) -> Measures:
    orders = [order_of(job, epoch) for epoch in range(2)]
    return _carried(job, orders, "paper", "SOLAR's published policy, by solar's reader")


def _carried(job: Job, orders: list[NDArray[np.int64]], policy: str, label: str) -> Measures:
    from bench import buffer_policy
    from solar.values import Storage

    storage, path, memory = Storage(**costs(job)), Path(job["path"]), job["memory"]
    if policy == "paper":
        carried = buffer_policy.edge_reuse(path, orders, memory, storage)
    else:
        carried = buffer_policy.carried_out(path, orders, memory, storage, buffer_policy.pinned_way(memory))
    ways = asdict(carried.course.policy) if carried.course else {}
    chosen = {name: value for name, value in ways.items() if value and name != "direct"}
    return timed(job, given(job, carried.batches, orders)) | {"label": label, "setting": chosen, "partly": True}


PARTS: dict[str, Callable[[Job], Measures]] = {
    "torch": torch_part, "windowed": windowed_part, "page_cache": page_cache_part, "ram_copy": ram_part,
    "pinned": pinned_part, "paper": paper_part, "solar": solar_part, "solar_known": known_part,
    "solar_unpacked": unpacked_part,
}  # fmt: skip


def part(job: Job) -> Measures:
    if job["ranks"] > 1:
        import torch

        torch.distributed.init_process_group("gloo")
    found: Measures = {}
    peak = machine.peak(lambda: found.update(PARTS[job["peer"]](job)))
    return found | {"peak_rss": peak}
