"""What an epoch in each order reads: on the slowed mount by its counters, and over the web by the server's.

exact       PlanSampler(data), buffer=
mixed       PlanSampler(data, order="mixed", block="1MiB", window=half of what the memory holds), buffer=
fetched     as scDataset does it: as many random blocks as fill half of the memory are read, shuffled and handed out,
            while the next are read by 16 threads
clumps      as Lance does it: clumps of neighbours in random order, one after another, none mixed, and so small that a
            batch comes from as many parts of the file as with `mixed`; read ahead by 16 threads

The memory is a share of the data, beside two batches and what a read takes (9 MiB), for all alike.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench import far, parts, slowfs
from bench.slowfs import LATENCY
from solar import DataLoader, H5Dataset, PlanSampler
from solar.planning.spread import regions_of_steps
from solar.samplers.mixed_blocks import BlockMix, by_mixed_blocks
from solar.values import Storage

EACH, BATCH, BLOCK, EPOCHS = 1 << 16, 64, 16, 3
BESIDE = 9 << 20  # two batches, and what a read takes
SHARES = (0.02, 0.05, 0.1)
THREADS = 16
DISKS = Storage(LATENCY, 1e9, 500)
Record = dict[str, Any]
Longs = NDArray[np.int64]
Epochs = Iterable[tuple[Iterator[Any], NDArray[Any]]]  # batches, and the samples that they are to be


def written(path: Path, samples: int) -> int:
    """Numbered samples of noise, which no buffer can pack; where they begin in the file."""
    noise = np.random.default_rng(0).integers(0, 2**63, (256, EACH // 8))
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (samples, EACH // 8), "i8")
        for begin in range(0, samples, 256):
            numbers = np.arange(begin, min(begin + 256, samples))
            noise[: len(numbers), 0] = numbers
            data[begin : begin + len(numbers)] = noise[: len(numbers)]
        file.flush()
        return int(data.id.get_offset())


def by_solar(path: Any, memory: int, order: Record, storage: Storage | None = None) -> Iterator[tuple[Any, Any]]:
    data = H5Dataset(path, "x")
    sampler = PlanSampler(data, 1, 0, **order)
    more = {} if storage is None else {"storage": storage}
    with DataLoader(data, BATCH, sampler=sampler, buffer=memory, epochs=EPOCHS, **more) as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            yield iter(loader), sampler.order()


def by_blocks(path: Path, offset: int, samples: int, block: int, window: int) -> Iterator[tuple[Any, Any]]:
    """Random blocks, read by threads and shuffled window by window while the next window is read."""
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(THREADS) as pool:
        for epoch in range(EPOCHS):
            rng = np.random.default_rng(epoch)
            firsts = rng.permutation(-(-samples // block)) * block
            some = max(1, window // block)
            windows = [firsts[begin : begin + some] for begin in range(0, len(firsts), some)]
            if window > block:
                orders = [rng.permutation(int(np.minimum(block, samples - own).sum())) for own in windows]
            else:
                orders = [np.arange(int(np.minimum(block, samples - own).sum())) for own in windows]
            numbers = [
                np.concatenate([np.arange(first, min(first + block, samples)) for first in own])[order]
                for own, order in zip(windows, orders, strict=True)
            ]
            order = np.concatenate(numbers)
            yield _batches(file.fileno(), pool, offset, samples, block, windows, orders), order


def _batches(
    descriptor: int, pool: ThreadPoolExecutor, offset: int, samples: int, block: int, windows: list[Longs],
    orders: list[Longs],
) -> Iterator[NDArray[Any]]:  # fmt: skip
    def read(first: int) -> NDArray[Any]:
        nbytes = EACH * min(block, samples - first)
        held = bytearray(nbytes)
        if os.preadv(descriptor, [held], offset + first * EACH) != nbytes:
            raise OSError(f"block {first} came short")
        return np.frombuffer(held, "i8").reshape(-1, EACH // 8)

    ahead = 1 if len(windows[0]) > 1 else 4 * THREADS  # single clumps are many requests on their way
    coming: list[list[Future[NDArray[Any]]]] = []
    left = np.zeros((0, EACH // 8), np.int64)
    every = iter(zip(windows, orders, strict=True))
    shuffles: list[Longs] = []
    while True:
        for own, order in itertools.islice(every, 1 + ahead - len(coming)):
            coming.append([pool.submit(read, int(first)) for first in own])
            shuffles.append(order)
        if not coming:
            break
        held = np.concatenate([one.result() for one in coming.pop(0)])[shuffles.pop(0)]
        left = np.concatenate((left, held)) if len(left) else held
        while len(left) >= BATCH:
            yield left[:BATCH].copy()
            left = left[BATCH:]
    if len(left):
        yield left


def measured(epochs: Epochs, counts: Callable[[], Record], samples: int) -> Record:
    """Of the epochs after the first: samples a second, requests and bytes of one, and the parts that a batch has."""
    found: list[tuple[float, int, int]] = []
    spread = 0.0
    for batches, order in epochs:
        before, begin = counts(), time.perf_counter()
        came = np.concatenate([np.asarray(batch)[:, 0].astype(np.int64) for batch in batches])
        passed, after = time.perf_counter() - begin, counts()
        if not np.array_equal(came, order):
            raise ValueError("other samples came than the order has")
        found.append((passed, *(after[name] - before[name] for name in ("requests", "bytes"))))
        spread = regions_of_steps(np.asarray(order), samples, BATCH)
    seconds, requests, nbytes = (float(one) for one in np.mean(found[1:], axis=0))
    scan = DISKS.seconds(1, samples * EACH)
    return {
        "median": samples / seconds, "requests": requests, "nbytes": nbytes, "regions": spread,
        "scans": DISKS.seconds(requests, nbytes) / scan, "seconds": seconds,
    }  # fmt: skip


def reading(folder: Path, quick: bool) -> Iterator[Record]:
    """A record for each memory and reader, on the slowed mount."""
    if reason := slowfs.lacking():
        parts.note(f"reading: skipped: {reason}")
        return
    samples = 4096 if quick else 32_768
    offset = written(folder / "data.h5", samples)
    for share in SHARES[:1] if quick else SHARES:
        memory, held = int(share * samples * EACH) + BESIDE, int(share * samples)
        window = max(2 * BLOCK, held // 2)
        mixed = {"order": "mixed", "block": "1MiB", "window": window}
        order = by_mixed_blocks(BlockMix(samples, BLOCK, window)).whole(0, 1)
        clump = max(1, round(BATCH / regions_of_steps(order, samples, BATCH)))
        with slowfs.mounted(folder, latency=LATENCY, bandwidth=DISKS.bandwidth, iops=DISKS.iops) as mount:
            path = mount.path / "data.h5"
            readers: dict[str, Callable[[], Epochs]] = {
                "exact": partial(by_solar, path, memory, {}, DISKS),
                "mixed": partial(by_solar, path, memory, mixed, DISKS),
                "fetched": partial(by_blocks, path, offset, samples, BLOCK, window),
                "clumps": partial(by_blocks, path, offset, samples, clump, clump),
            }
            for name, make in readers.items():
                found = measured(make(), mount.counts, samples)
                yield {"what": "reading", "share": share, "reader": name, "samples": samples, "window": window,
                       "clump": clump if name == "clumps" else None, **found}  # fmt: skip


def web(folder: Path, quick: bool) -> Iterator[Record]:
    """A record for each order, over the web: what the server sent."""
    samples = 1024 if quick else 4096
    written(folder / "far.h5", samples)
    with far.server(folder, 5) as root:
        for share in SHARES[1:2] if quick else SHARES[1:]:
            window = int(share * samples) // 2
            for name, order in (
                ("exact", {}),
                ("mixed", {"order": "mixed", "block": "1MiB", "window": max(2 * BLOCK, window)}),
            ):
                memory = int(share * samples * EACH) + BESIDE
                found = measured(by_solar(f"{root}/far.h5", memory, order), partial(far.counts, root), samples)
                yield {"what": "web", "share": share, "reader": name, "samples": samples, **found}


def measure(folder: Path | None, quick: bool, what: str) -> Iterator[Record]:
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as name:
        yield from (reading if what == "reading" else web)(Path(name), quick)
