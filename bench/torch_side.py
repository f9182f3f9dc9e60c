"""PyTorch's own loader over a map-style dataset in a given order: what most peers run in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

WORKERS = (0, 1, 2, 4)


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
