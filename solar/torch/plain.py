"""torch's own loader over h5py, as one writes it without solar. `solar bench` compares with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from solar.io.plain import Plain, Sample

Kind = Literal["items", "sorted"]


class Items(Dataset[Any]):
    """The simplest way: each sample is one read of each field, and torch collates."""

    def __init__(self, plain: Plain) -> None:
        self.plain = plain

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> Sample:
        return self.plain.sample(index)


class Sorted(Items):
    """A faster way, by torch's `__getitems__`: one ascending selection of each field per batch, then reordered."""

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(values) for name, values in self.plain.batch(indices).items()}


def plain_loader(plain: Plain, batch_size: int, seed: int, kind: Kind, workers: int) -> DataLoader[Any]:
    """A loader whose batches are those of solar's with a PlanSampler of the same seed."""
    items, collate = (Sorted(plain), _as_it_is) if kind == "sorted" else (Items(plain), None)
    sampler: DistributedSampler[Any] = DistributedSampler(items, 1, 0, seed=seed, drop_last=True)
    return DataLoader(
        items,
        batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=collate,
        drop_last=True,
        persistent_workers=workers > 0,
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def batches_from(loader: DataLoader[Any], epochs: Iterable[int]) -> Iterator[Any]:
    """The batches of these epochs, one after another."""
    sampler: Any = loader.sampler
    for epoch in epochs:
        sampler.set_epoch(epoch)
        yield from loader
