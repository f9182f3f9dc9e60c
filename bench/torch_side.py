"""PyTorch's own loader over a map-style dataset in a given order: what most peers run in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from bench.scene import FIELD

WORKERS = (0, 1, 2, 4)
SLOTS = 100_003  # of the table of HDF5's chunk cache: a prime, a hundred times the chunks that it could hold


class Items(Dataset[torch.Tensor]):
    """One sample after another, as one writes it at first; the file is opened in each worker."""

    def __init__(self, path: Path, samples: int, cache_nbytes: int | None = None) -> None:
        self.path, self.samples = path, samples
        self.cache = {} if cache_nbytes is None else {"rdcc_nbytes": cache_nbytes, "rdcc_nslots": SLOTS}
        self._data: h5py.Dataset | None = None

    def __len__(self) -> int:
        return self.samples

    @property
    def data(self) -> h5py.Dataset:
        if self._data is None:
            self._data = h5py.File(self.path, **self.cache)[FIELD]
        return self._data

    def __getitem__(self, sample: int) -> torch.Tensor:
        return torch.from_numpy(self.data[sample])


class Sorted(Items):
    """A batch in one sorted selection, put back in order."""

    def __getitems__(self, samples: list[int]) -> torch.Tensor:
        order = np.argsort(samples)
        batch = np.empty((len(samples), *self.data.shape[1:]), self.data.dtype)
        batch[order] = self.data[np.asarray(samples)[order]]
        return torch.from_numpy(batch)


def batches(
    dataset: Dataset[Any], order: NDArray[np.int64], workers: int, collate: Any = None
) -> Iterator[torch.Tensor]:
    """Each row of `order` is a batch. Workers are forked, with PyTorch's own prefetch of two batches each."""
    loader = DataLoader(
        dataset,
        batch_sampler=BatchesInOrder(order),
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context="fork" if workers else None,
    )
    return iter(loader)


class BatchesInOrder:
    def __init__(self, order: NDArray[np.int64]) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list[int]]:
        return (row.tolist() for row in self.order)


def worker_settings(scene: Any) -> list[dict[str, int]]:
    """Cold reading gains from more requests in flight than there are cores."""
    return [{"workers": workers} for workers in (*WORKERS, *((8, 16) if scene.cache == "cold" else ()))]


def as_is(batch: Any) -> Any:
    return batch
