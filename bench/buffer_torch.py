"""PyTorch's loader over h5py, for bench.buffer: each worker opens the file, with its share of memory as cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from bench import torch_side
from bench.buffer_data import FIELD

SLOTS = 100_003  # of the cache's table: a prime, a hundred times the chunks that it could hold


class Items(Dataset[torch.Tensor]):
    """One sample after another, as one writes it at first."""

    def __init__(self, path: Path, cache_nbytes: int) -> None:
        self.path, self.cache_nbytes = path, cache_nbytes
        self._data: h5py.Dataset | None = None
        with h5py.File(path) as file:
            self.samples = len(file[FIELD])

    def __len__(self) -> int:
        return self.samples

    @property
    def data(self) -> h5py.Dataset:
        if self._data is None:
            self._data = h5py.File(self.path, rdcc_nbytes=self.cache_nbytes, rdcc_nslots=SLOTS)[FIELD]
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


def batches(path: Path, memory: int, order: NDArray[np.int64], kind: str, workers: int) -> Any:
    """Each row of the order is a batch; `memory` is shared among the workers as chunk caches."""
    share = memory // max(1, workers)
    if kind == "items":
        return torch_side.batches(Items(path, share), order, workers)
    return torch_side.batches(Sorted(path, share), order, workers, torch_side.as_is)
