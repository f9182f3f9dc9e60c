"""What tests of loaders' states share: data of which each sample is its number, every order, and loaders of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, RandomSampler

from solar import DataLoader, H5Dataset, PlanSampler

SAMPLES = 23
BATCH = 3
BATCHES = 8


class Plain(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Odd:
    """A batch sampler of the user's, with batches of different sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0], [5, 1], [2, 3, 4], [7, 6, 22], [8], [9], [10, 11], [12, 13])

    def __len__(self) -> int:
        return BATCHES


class Counting:
    """A sampler that keeps a state of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < SAMPLES:
            self.at += 1
            yield (self.at * 7) % SAMPLES
        self.at = 0

    def __len__(self) -> int:
        return SAMPLES

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sequential": lambda d: {"batch_size": BATCH},
    "shuffled": lambda d: {"batch_size": BATCH, "shuffle": True},
    "shuffled, the last dropped": lambda d: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
    "with replacement": lambda d: {"batch_size": BATCH, "sampler": RandomSampler(d, True, 2 * SAMPLES)},
    "by a generator": lambda d: {
        "batch_size": BATCH,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(3),
    },
    "by the sampler's generator": lambda d: {
        "batch_size": BATCH,
        "sampler": RandomSampler(d, generator=torch.Generator().manual_seed(3)),
    },
    "distributed": lambda d: {"batch_size": BATCH, "sampler": DistributedSampler(d, 1, 0, seed=4)},
    "planned": lambda d: {"batch_size": BATCH, "sampler": PlanSampler(d, 1, 0, seed=4)},
    "planned, exact": lambda d: {"batch_size": BATCH, "sampler": PlanSampler(d, 1, 0, seed=4, tail="exact")},
    "by weights": lambda d: {
        "batch_size": BATCH,
        "sampler": PlanSampler(d, 1, 0, seed=4, weights=np.arange(SAMPLES), num_samples=31),
    },
    "by classes": lambda d: {
        "batch_size": BATCH,
        "sampler": PlanSampler(d, 1, 0, seed=4, labels=np.arange(SAMPLES) % 3, per_class="equal", tail="exact"),
    },
    "groups": lambda d: {"batch_size": BATCH, "sampler": PlanSampler(d, 1, 0, groups=np.arange(SAMPLES) % 4)},
    "one by one": lambda d: {"batch_size": None, "shuffle": True},
    "a list": lambda d: {"batch_size": BATCH, "sampler": [4, 4, 0, 2, 9, 8, 7, 1, 0, 3, 3]},
    "odd batches": lambda d: {"batch_sampler": Odd()},
    "batches of a shuffle": lambda d: {"batch_sampler": BatchSampler(RandomSampler(d), BATCH, True)},
    "a sampler with a state": lambda d: {"batch_size": BATCH, "sampler": Counting()},
}


@pytest.fixture
def make_loader(make: Callable[..., str]) -> Callable[..., DataLoader[Any]]:
    path = make("numbers.h5", x=np.arange(SAMPLES))

    def make_loader(engine: str, order: str) -> DataLoader[Any]:
        dataset: Any = H5Dataset(path, "x") if engine == "native" else Plain()
        return DataLoader(dataset, **ORDERS[order](dataset), num_workers=2 * (engine == "torch's workers"))

    return make_loader


def taken(batches: Any, count: int | None = None) -> list[Any]:
    """The batches left, or the next `count` of them."""
    iterator = iter(batches)
    chosen = iterator if count is None else (next(iterator) for _ in range(count))
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in chosen]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 1000, text
    return dict(json.loads(text))
