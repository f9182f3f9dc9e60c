"""What tests of the buffer need: data sets of every layout, every order, and a storage on which buffers pay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import run_kit
import torch
from kit import settle
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

from solar import DataLoader, H5Dataset, PlanError, PlanSampler, _native
from solar.io.reading import engine
from solar.io.reading import run as buffered
from solar.values import Storage

SAMPLES = 96
BATCH = 7
DISK = Storage(latency=1e-3, bandwidth=1e8, iops=500)  # a request costs as much as 200 kB
NEAR = Storage(latency=1e-6, bandwidth=1e9, iops=4e6)  # 250 bytes

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "rows of chunks": {"chunks": (4, 3, 5)},
    "chunks of a sample": {"chunks": (1, 3, 5), "compression": "gzip"},
    "chunks of four samples": {"chunks": (4, 3, 5), "compression": "gzip"},
    "chunks across samples": {"chunks": (4, 2, 5)},
    "tiles in a sample": {"chunks": (1, 2, 3), "compression": "gzip"},
}


def write(path: Path, options: dict[str, Any], seed: int = 0, samples: int = SAMPLES) -> None:
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        values = rng.integers(0, 9, (samples, 3, 5)).astype("f4")
        file.create_dataset("x", data=values, **options)
        file.create_dataset("y", data=rng.integers(0, 99, (samples, 2)).astype(">i8"))
    settle(path)


def dataset_of(folder: Path, layout: str) -> Any:
    """The data set of a name: one of LAYOUTS, or of several files, fields or data sets."""
    one, two = folder / "one.h5", folder / "two.h5"
    if layout in LAYOUTS:
        write(one, LAYOUTS[layout])
        return H5Dataset(str(one), "x")
    write(one, LAYOUTS["chunks of four samples"], 1, SAMPLES // 2)
    write(two, LAYOUTS["chunks of four samples"], 2, SAMPLES // 2)
    parts = [H5Dataset(str(path), {"x": "x", "y": "y"}) for path in (one, two)]
    if layout == "several files":
        return H5Dataset([str(one), str(two)], "x")
    if layout == "two fields":
        return H5Dataset([str(one), str(two)], {"x": "x", "y": "y"})
    return ConcatDataset([parts[0], Subset(parts[1], list(range(0, SAMPLES // 2, 2)))])


MANY = ("several files", "two fields", "concatenated")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class EveryThird:
    """A batch sampler with batches of different sizes, some samples in it twice."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[list[int]]:
        begin = 0
        while begin < self.samples:
            size = 1 + begin % 5
            yield [(3 * i) % self.samples for i in range(begin, min(begin + size, self.samples))]
            begin += size


ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sequential": lambda d: {"batch_size": BATCH},
    "shuffled": lambda d: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
    "by a generator": lambda d: {"batch_size": BATCH, "shuffle": True, "generator": generator(3)},
    "by the sampler's generator": lambda d: {"batch_size": BATCH, "sampler": RandomSampler(d, generator=generator(3))},
    "with replacement": lambda d: {"batch_size": BATCH, "sampler": RandomSampler(d, True, 150, generator(5))},
    "weighted": lambda d: {
        "batch_size": BATCH,
        "sampler": WeightedRandomSampler([1.0 + i % 9 for i in range(len(d))], 120, generator=generator(6)),
    },
    "distributed": lambda d: {"batch_size": BATCH, "sampler": DistributedSampler(d, 2, 1, seed=4)},
    "planned": lambda d: {"batch_size": BATCH, "sampler": PlanSampler(d, 5, 2, seed=4)},
    "planned, exact": lambda d: {"batch_size": BATCH, "sampler": PlanSampler(d, 5, 2, seed=4, tail="exact")},
    "planned, dropped": lambda d: {"batch_size": BATCH, "sampler": PlanSampler(d, 5, 2, seed=4, tail="drop")},
    "one by one": lambda d: {"batch_size": None, "shuffle": True, "generator": generator(8)},
    "a list": lambda d: {"batch_size": BATCH, "sampler": [5, 5, 0, 2, 9, -1, 7, 1, 0, 3] * 4},
    "odd batches": lambda d: {"batch_sampler": EveryThird(len(d))},
    "batches of a shuffle": lambda d: {
        "batch_sampler": BatchSampler(RandomSampler(d, generator=generator(9)), 5, True)
    },
}


def least_of(make: Callable[[int], DataLoader[Any]]) -> int:
    """The least buffer that works, as the error of one that is too small says."""
    with pytest.raises(PlanError, match="is too small") as caught:
        next(iter(make(1)))
    found = re.search(r"at least buffer=(\d+)", str(caught.value))
    assert found is not None
    return int(found[1])


def plain_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on runs are those of the kit. Only for data sets that are made after this."""
    for module in ("reader", "box_rows"):
        monkeypatch.setattr(f"solar.io.reading.{module}.source_of", run_kit.recorded(engine.source_of))
    monkeypatch.setattr(_native, "Run", run_kit.Run)
    monkeypatch.setattr(_native, "Extents", run_kit.Extents)
    monkeypatch.setattr(_native, "Boxes", run_kit.Boxes)


def noted_runs(monkeypatch: pytest.MonkeyPatch) -> list[buffered.Running]:
    """Every run that is begun from now on."""
    begun: list[buffered.Running] = []
    begin = buffered.Running.__init__

    def noted(self: buffered.Running, *facts: Any, **more: Any) -> None:
        begun.append(self)
        begin(self, *facts, **more)

    monkeypatch.setattr(buffered.Running, "__init__", noted)
    return begun


def counted(loader: DataLoader[Any]) -> tuple[int, ...]:
    """What the run did."""
    counts = run_of(loader).counts()
    return tuple(counts[name] for name in ("reads", "requests", "bytes", "hits", "peak_bytes"))


def passes(loader: Any, epochs: int) -> list[list[Any]]:
    """The batches of so many epochs."""
    found = []
    for epoch in range(epochs):
        for sampler in (loader.sampler, loader.batch_sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        found.append(list(loader))
    return found


def equal(ours: Any, theirs: Any) -> bool:
    """Whether two values have the same structure, types and bits."""
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    return bool(ours == theirs)


def loader_of(dataset: Any, order: str, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **ORDERS[order](dataset), storage=DISK, **options)


def plain(dataset: Any, order: str) -> DataLoader[Any]:
    """The loader without a buffer."""
    return loader_of(dataset, order, buffer=0)


def run_of(loader: DataLoader[Any]) -> buffered.Running:
    """The run of a loader's buffer."""
    running = loader._buffered.running
    assert running is not None
    return running


def chunked(make: Callable[..., str], samples: int = 4096, width: int = 64) -> H5Dataset:
    """A data set of many chunks, each with many samples, encoded."""
    values = np.zeros((samples, width), "f4")
    return H5Dataset(make("chunked.h5", x=(values, {"chunks": (256, width), "compression": "gzip"})), "x")
