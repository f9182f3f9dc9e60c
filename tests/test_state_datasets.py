"""Datasets with a state of their own, in this process and in persistent workers: they too go on where they stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from state_kit import BATCH, SAMPLES, Plain, make_loader, taken, through_json
from torch.utils.data import IterableDataset

from solar import DataLoader, H5Dataset

_ = make_loader  # a fixture


class Stream(IterableDataset[int]):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < SAMPLES:
            self.at += 1
            yield self.at
        self.at = 0


class StreamWithState(Stream):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("kind", [Stream, StreamWithState])
@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_datasets_go_on_by_their_state_or_by_passing_over(kind: type[Stream], workers: int) -> None:
    whole = taken(DataLoader(kind(), 4, num_workers=workers))
    loader = DataLoader(kind(), 4, num_workers=workers)
    iterator = iter(loader)
    taken(iterator, 3)
    state = through_json(loader.state_dict())
    other = DataLoader(kind(), 4, num_workers=workers)
    other.load_state_dict(state)
    assert taken(other) == whole[3:] == taken(iterator)


class OwnIterator(IterableDataset[int]):
    """Its own iterator, with its own state, which has random numbers in it."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        self.at = 0
        return self

    def __next__(self) -> float:
        self.at += 1
        if self.at > SAMPLES:
            raise StopIteration
        return float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
        torch.set_rng_state(state["random"])


def test_a_dataset_may_be_its_own_iterator_and_keep_the_random_state(make_loader: Any) -> None:
    for stop in (0, 3):
        loader = DataLoader(OwnIterator(), 4)
        iterator = iter(loader)
        taken(iterator, stop)
        state = loader.state_dict()
        rest = taken(iterator)
        torch.manual_seed(5)
        other = DataLoader(OwnIterator(), 4)
        other.load_state_dict(state)
        assert taken(other) == rest


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("stop", [3, None])
def test_persistent_workers_draw_once_also_after_a_resume(make: Any, stop: int | None, seeded: bool) -> None:
    dataset = H5Dataset(make("persistent.h5", x=np.arange(SAMPLES)), "x")
    for kind in (dataset, Plain()):

        def loader(kind: Any = kind) -> DataLoader[Any]:
            generator = torch.Generator().manual_seed(8) if seeded else None
            options: Any = {"num_workers": 1, "persistent_workers": True, "generator": generator}
            return DataLoader(kind, BATCH, shuffle=True, **options)

        first = loader()
        taken(first)
        iterator = iter(first)
        taken(iterator, stop)
        state, random_state = through_json(first.state_dict()), torch.get_rng_state()
        rest = [] if stop is None else taken(iterator)
        following = taken(first)
        torch.set_rng_state(random_state)
        other = loader()
        other.load_state_dict(state)
        assert (taken(other) if stop else []) == rest
        assert taken(other) == following
