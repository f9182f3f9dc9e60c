"""One reader of `python -m bench.shapes`, in a process of its own: its own format is made, or it runs for some seconds.

A reader is a function of a job and of orders [epoch, batch, place] that gives one batch after another, over all epochs.
Batches of clips and crops are arrays or tensors; those of rows are values, columns and offsets, or matrices of them.

solar       DataLoader(shuffle=True), with the default arguments, or with so much `buffer`; solar_stage: chunks are also
            kept decoded in a stage, which its first epoch fills
h5py        at an expert's best: bench.shapes tries chunk caches, workers, and memory filled with the next samples in
            one ascending pass (`ahead`)
memmap      numpy over the mapped file; ram: all is decoded into memory first, and samples are copied out of it
limit       copying, by as many C threads as there are cores, out of the mapped file or by pread (bench.shapes_limit)
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import itertools
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench import machine
from bench.shapes_data import BOUND, LENGTH, filters_of, scene_of

Job = dict[str, Any]
Orders = NDArray[np.int64]  # [epoch, batch, place]
Fetch = Callable[[NDArray[np.int64]], Any]  # of the samples of a batch
EPOCHS, CHECKED, SEED, SLOTS = 60, 2, 11, 100_003
ENOUGH = 4_000_000  # samples of all epochs
MODULES = {"limit": "bench.shapes_limit", **dict.fromkeys(("solar", "solar_stage", "h5py", "memmap", "ram"), __name__)}
OWN = ("scdataset", "scdataset_blocks", "annbatch", "annbatch_blocks")  # whose order is their own


def part(job: Job) -> Job:
    """What was measured."""
    module = importlib.import_module(MODULES.get(job["peer"], "bench.shapes_peers"))
    if job["do"] == "make":
        begin = time.perf_counter()
        path = Path(job["folder"]) / job["form"]
        getattr(module, f"make_{job['peer']}")(scene_of(job), job, path)
        nbytes = sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
        return {"seconds": time.perf_counter() - begin, "nbytes": nbytes, "version": version(job)}
    reader = getattr(module, f"by_{job['peer']}")
    check(reader, job)
    gc.collect()  # a file that is open twice has one chunk cache, that of the first
    if job.get("storage") == "cold":
        machine.drop_cache(Path(job["folder"]))
    return timed(reader, job) | {"version": version(job)}


def version(job: Job) -> str:
    return importlib.metadata.version(job["needs"]) if job.get("needs") else ""


def orders_of(job: Job, epochs: int = EPOCHS) -> Orders:
    """Whole batches of exact shuffles."""
    scene = scene_of(job)
    samples, batch = scene.samples(job["variant"]), scene.batch
    whole, epochs = samples // batch * batch, min(epochs, max(3, ENOUGH // samples))
    each = [np.random.default_rng([SEED, epoch]).permutation(samples)[:whole] for epoch in range(epochs)]
    return np.stack(each).reshape(epochs, -1, batch)


def timed(reader: Any, job: Job) -> Job:
    """When epochs ended since the reader began, opening and planning included; and how it was in the end.

    It ends with an epoch, once there were two of them and the time since the first batch is over; or three times it,
    and the batches that were fetched together were handed out.
    """
    orders = orders_of(job)
    each, seconds, stamps, ends = orders.shape[1], job["seconds"], list[float](), list[float]()
    together = at_once(job)
    begin = time.perf_counter()
    for came, _ in enumerate(reader(job, orders), 1):
        stamps.append(time.perf_counter() - begin)
        if came % each == 0:
            ends.append(stamps[-1])
        lasted = stamps[-1] - stamps[0]
        if (came % each == 0 and len(ends) > 1 and lasted > seconds) or (lasted > 3 * seconds and came % together == 0):
            break
        if ends and job.get("storage") == "cold":
            break  # from now on it is warm
    batch = orders.shape[2]
    first = batch * each / ends[0] if ends else batch * len(stamps) / stamps[-1]
    if job.get("storage") == "cold":
        later = first
    elif job.get("setting", {}).get("ahead") or (together > 1 and len(ends) < 2):  # what was fetched comes in no time
        later = batch * len(stamps) / stamps[-1]
    elif len(ends) > 1:
        later = batch * each * (len(ends) - 1) / (ends[-1] - ends[0])
    else:
        half = len(stamps) // 2
        later = batch * (len(stamps) - 1 - half) / (stamps[-1] - stamps[half]) if len(stamps) > 3 else first
    began, memory = stamps[0], own_nbytes()
    return {
        "begun": began, "first": first, "later": later, "epochs": len(ends), "batches": len(stamps), "memory": memory
    }  # fmt: skip


def at_once(job: Job) -> int:
    """Batches that this reader fetches together."""
    setting = job.get("setting", {})
    if setting.get("ahead"):
        scene = scene_of(job)
        return max(1, int(job["memory"]) // (scene.sample_nbytes(job["variant"]) * scene.batch))
    return int(setting.get("fetch", 1))


def own_nbytes() -> int:
    """What this process has of memory of its own, pages of files left aside, and the most of a child."""
    told = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    own = sum(int(told.get(name, "0 kB").split()[0]) << 10 for name in ("Pss_Anon", "Pss_Shmem"))
    return own + (resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)


# --- the samples as h5py reads them ----


def check(reader: Any, job: Job) -> None:
    """ValueError where the first batches are not those that h5py reads."""
    scene, orders = scene_of(job), orders_of(job, 1)[:, :CHECKED]
    batches = reader(job | {"check": True}, orders)
    for batch, wanted in zip(itertools.islice(batches, CHECKED), orders[0], strict=True):
        if scene.kind != "rows":
            found, truth = np.asarray(batch), fetch_h5py(job | {"setting": {}})(wanted)
            near = BOUND if scene.filters == "codec" and job["peer"] in ("b2nd", "zarr", "ram") else 0
            if found.shape != truth.shape or np.abs(found.astype("f4") - truth.astype("f4")).max() > near:
                raise ValueError(f"returned other {scene.kind} than h5py")
        elif job["peer"] not in OWN:
            truth = fetch_h5py(job | {"setting": {}})(wanted)
            if not all(np.array_equal(one, two) for one, two in zip(triple(batch), truth, strict=True)):
                raise ValueError("returned other rows than h5py")
        elif not np.isin(sums(*triple(batch)), all_sums(job)).all():
            raise ValueError("returned rows that the matrix does not have")


def triple(batch: Any) -> tuple[Any, Any, Any]:
    """Values, columns and offsets of a batch of rows, of torch, scipy, or as they are."""
    if isinstance(batch, tuple):
        return batch
    if hasattr(batch, "crow_indices"):
        return batch.values().numpy(), batch.col_indices().numpy(), batch.crow_indices().numpy()
    return batch.data, batch.indices, batch.indptr


def sums(values: Any, columns: Any, offsets: Any) -> NDArray[np.float64]:
    """A number for each row that tells it from others."""
    return np.add.reduceat(values.astype("f8") * (columns + 1.5), offsets[:-1])


def all_rows(job: Job) -> tuple[Any, Any, Any]:
    with h5py.File(path_of(job)) as file:
        return tuple(file["X"][name][()] for name in ("data", "indices", "indptr"))


def all_sums(job: Job) -> NDArray[np.float64]:
    """Those of the matrix, made once and block by block: it may be larger than memory."""
    if (kept := Path(job["folder"]) / "sums.npy").exists():
        return np.load(kept)
    with h5py.File(path_of(job)) as file:
        matrix, offsets = file["X"], file["X/indptr"][()]
        edges = [*range(0, len(offsets) - 1, 20_000), len(offsets) - 1]
        found = [
            sums(*(matrix[name][offsets[begin] : offsets[end]] for name in ("data", "indices")),
                 offsets[begin : end + 1] - offsets[begin])
            for begin, end in itertools.pairwise(edges)
        ]  # fmt: skip
    np.save(kept, np.concatenate(found))
    return np.load(kept)


def path_of(job: Job) -> Path:
    return Path(job["folder"]) / "data.h5"


def starts_of(job: Job) -> NDArray[np.int64]:
    """Where each sample begins: of clips their rows, of crops a voxel."""
    scene = scene_of(job)
    if scene.kind == "clips":
        return np.arange(scene.samples(job["variant"]))[:, None]
    with h5py.File(path_of(job)) as file:
        return file[f"centres_{job['variant']}"][()] - job["variant"] // 2


def cut_of(job: Job) -> tuple[tuple[int, ...], int]:
    """The shape of a sample, and how many rows lie between two of it."""
    scene = scene_of(job)
    return ((LENGTH, *scene.shape[1:]), job["variant"]) if scene.kind == "clips" else ((job["variant"],) * 3, 1)


# --- solar ----


def by_solar(job: Job, orders: Orders) -> Iterator[Any]:
    import solar
    from solar.values import Storage

    scene, path = scene_of(job), str(path_of(job))
    more = {} if (stage := job.get("stage")) is None else {"stage": stage, "stage_as": "decoded"}
    if scene.kind == "clips":
        steps = range(0, LENGTH * job["variant"], job["variant"])
        data = solar.H5Dataset(path, solar.Field("u", steps=steps), **more)
    elif scene.kind == "crops":
        crops = solar.Crops((job["variant"],) * 3, at=f"centres_{job['variant']}")
        data = solar.H5Dataset(path, "u", samples=crops, **more)
    else:
        data = solar.H5Dataset(path, solar.CSR("X"), **more)
    if job.get("check"):
        yield from solar.DataLoader(data, batch_sampler=orders[0].tolist())
        return
    buffer = {} if job["memory"] is None else {"buffer": job["memory"]}
    more = {"storage": Storage(**job["costs"])} if "costs" in job else {}
    with solar.DataLoader(data, scene.batch, shuffle=True, drop_last=True, **buffer, **more) as loader:
        for _ in orders:
            yield from loader


def by_solar_stage(job: Job, orders: Orders) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(dir=job["folder"]) as stage:
        yield from by_solar(job | {"stage": stage}, orders)


# --- h5py ----


def by_h5py(job: Job, orders: Orders) -> Iterator[Any]:
    setting, flat = job["setting"], orders.reshape(-1, orders.shape[2])
    if setting.get("ahead"):
        return ahead_of(job, flat)
    return fetched(fetch_h5py, job, flat)


def fetched(opened: Callable[[Job], Fetch], job: Job, flat: NDArray[np.int64]) -> Iterator[Any]:
    """Batches in this process, or in workers, as many as the setting says."""
    if not (workers := job["setting"].get("workers", 0)):
        return map(opened(job), flat)
    from bench import torch_side

    return iter(torch_side.batches(InWorkers(opened, job | {"fresh": True}), flat, workers, torch_side.as_is))


class InWorkers:
    """What reads a batch, opened in each worker. Arrays travel as tensors, whose memory is shared."""

    def __init__(self, opened: Callable[[Job], Fetch], job: Job) -> None:
        self.opened, self.job, self.fetch = opened, job, None

    def __getitems__(self, samples: list[int]) -> Any:
        import torch

        self.fetch = self.fetch or self.opened(self.job)
        batch = self.fetch(np.array(samples))
        if isinstance(batch, np.ndarray):
            return torch.from_numpy(batch)
        return tuple(map(torch.from_numpy, triple(batch)))


def ahead_of(job: Job, flat: NDArray[np.int64]) -> Iterator[Any]:
    """Memory is filled with the next samples in one ascending pass, and handed out; and again."""
    scene, each = scene_of(job), at_once(job)
    fetch = fetch_h5py(job)
    for first in range(0, len(flat), each):
        some = flat[first : first + each]
        held = fetch(some.ravel())
        for number in range(len(some)):
            at = slice(number * scene.batch, (number + 1) * scene.batch)
            yield held[at].copy() if isinstance(held, np.ndarray) else of_rows(held, at)


def of_rows(held: tuple[Any, Any, Any], at: slice) -> tuple[Any, Any, Any]:
    values, columns, offsets = held
    begin, end = offsets[at.start], offsets[at.stop]
    return values[begin:end].copy(), columns[begin:end].copy(), offsets[at.start : at.stop + 1] - begin


def fetch_h5py(job: Job) -> Fetch:
    scene, cached = scene_of(job), job["setting"].get("cache")
    filters_of(scene)
    more = {} if cached is None else {"rdcc_nbytes": cached, "rdcc_nslots": SLOTS}
    file = h5py.File(path_of(job), "r", **more)
    return rows_of(file) if scene.kind == "rows" else boxes_of(job, file["u"])


def boxes_of(job: Job, data: Any) -> Fetch:
    """By h5py's own calls below read_direct, in the order of the file, into memory that is used again."""
    shape, step = cut_of(job)
    starts, rest = starts_of(job), (0,) * (len(shape) - starts_of(job).shape[1])
    whole = job["setting"].get("span") and step > 1  # also the rows between, which are dropped
    read = ((shape[0] - 1) * step + 1, *shape[1:]) if whole else shape
    space, inner = data.id.get_space(), h5py.h5s.create_simple(read)
    dtype = h5py.h5t.py_create(data.dtype)
    stride = None if whole or step == 1 else (step, *(1,) * (len(shape) - 1))
    between, held = np.empty(read, data.dtype), list[Any]()

    def fetch(samples: NDArray[np.int64]) -> Any:
        out = held[0] if held and len(held[0]) == len(samples) else np.empty((len(samples), *shape), data.dtype)
        held[:] = [] if job.get("fresh") else [out]
        corners = starts[samples]
        for place in np.lexsort(corners.T[::-1]).tolist():
            space.select_hyperslab((*corners[place].tolist(), *rest), read, stride)
            data.id.read(inner, space, between if whole else out[place], dtype)
            if whole:
                out[place] = between[::step]
        return out

    return fetch


def rows_of(file: h5py.File) -> Fetch:
    """Each row by a stretch of both datasets, in the order of the file, by h5py's own calls below read_direct."""
    values, columns = file["X/data"], file["X/indices"]
    indptr = file["X/indptr"][()]
    opened = [(data.id, data.id.get_space(), h5py.h5t.py_create(data.dtype)) for data in (values, columns)]

    def fetch(samples: NDArray[np.int64]) -> Any:
        offsets = np.concatenate([[0], np.cumsum(indptr[samples + 1] - indptr[samples])])
        out = np.empty(offsets[-1], values.dtype), np.empty(offsets[-1], columns.dtype)
        for place in np.argsort(samples).tolist():
            first, last = int(offsets[place]), int(offsets[place + 1])
            inner = h5py.h5s.create_simple((last - first,))
            for (data, space, dtype), to in zip(opened, out, strict=True):
                space.select_hyperslab((int(indptr[samples[place]]),), (last - first,))
                data.read(inner, space, to[first:last], dtype)
        return *out, offsets

    return fetch


# --- numpy, on the mapped file or on all of it in memory ----


def by_memmap(job: Job, orders: Orders) -> Iterator[Any]:
    return map(copied(job, mapped_of(job), job["setting"].get("take", False)), orders.reshape(-1, orders.shape[2]))


def by_ram(job: Job, orders: Orders) -> Iterator[Any]:
    scene = scene_of(job)
    filters_of(scene)
    flat = orders.reshape(-1, orders.shape[2])
    if scene.kind == "rows":
        return map(gathered(*all_rows(job)), flat)
    with h5py.File(path_of(job)) as file:
        whole = np.empty(scene.shape, scene.dtype)
        file["u"].read_direct(whole)
    return map(copied(job, whole, job["setting"].get("take", False)), flat)


def mapped_of(job: Job) -> NDArray[Any]:
    with h5py.File(path_of(job)) as file:
        data = file["u"]
        return np.memmap(path_of(job), data.dtype, "r", data.id.get_offset(), data.shape)


def copied(job: Job, whole: NDArray[Any], take: bool) -> Fetch:
    """Sample by sample into memory that is used again, or all rows of a batch at once."""
    shape, step = cut_of(job)
    starts = starts_of(job)
    out = np.empty((scene_of(job).batch, *shape), whole.dtype)
    steps = np.arange(0, shape[0] * step, step)

    def fetch(samples: NDArray[np.int64]) -> Any:
        if take:
            return np.take(whole, starts[samples] + steps, axis=0, out=out, mode="clip")
        for place, corner in enumerate(starts[samples].tolist()):
            first, *others = [slice(b, b + n) for b, n in zip(corner, shape, strict=False)]
            out[place] = whole[(slice(first.start, first.start + shape[0] * step, step), *others)]
        return out

    return fetch


def gathered(values: Any, columns: Any, indptr: NDArray[np.int64]) -> Fetch:
    """Rows by one selection of all their values."""

    def fetch(samples: NDArray[np.int64]) -> Any:
        lengths = indptr[samples + 1] - indptr[samples]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        at = np.arange(offsets[-1]) + np.repeat(indptr[samples] - offsets[:-1], lengths)
        return values[at], columns[at], offsets

    return fetch
