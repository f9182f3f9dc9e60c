"""States where batches come in any order (in_order=False): what was handed out stays out, and all else comes once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from state_kit import through_json
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, get_worker_info

from solar import DataLoader, Mixture, PlanError, PlanSampler
from solar.samplers.states import check_values

SAMPLES, LONGEST = 30, 60
OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)
pytestmark = [
    pytest.mark.skipif(OLD, reason="torch before 2.6 has no in_order"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Held(Dataset[int]):
    """Samples of which some do not come before `free` is set."""

    def __init__(self, held: set[int]) -> None:
        self.held, self.free = held, multiprocessing.Event()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        if index in self.held:
            assert self.free.wait(LONGEST)
        return index


class HeldStream(IterableDataset[int]):
    """The samples of each worker, of which those of the first do not come before `free` is set."""

    def __init__(self) -> None:
        self.free = multiprocessing.Event()

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        for sample in range(info.id, SAMPLES, info.num_workers):
            if info.id == 0:
                assert self.free.wait(LONGEST)
            yield sample


class HeldStreamWithState(HeldStream):
    at = 0

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        for sample in range(info.id + self.at * info.num_workers, SAMPLES, info.num_workers):
            if info.id == 0:
                assert self.free.wait(LONGEST)
            self.at += 1
            yield sample

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def loader_of(data: Any, workers: int = 2, **options: Any) -> Any:
    more = {"multiprocessing_context": "fork", "in_order": False} if workers else {}
    return DataLoader(data, num_workers=workers, timeout=LONGEST * (workers > 0), **options, **more)


def given(batches: Iterator[Any], count: int | None = None) -> list[int]:
    chosen = batches if count is None else (next(batches) for _ in range(count))
    return [sample for batch in chosen for sample in batch.tolist()]


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": dict,
    "shuffled": lambda: {"shuffle": True},
    "by a generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "a list": lambda: {"sampler": [*range(SAMPLES)]},
    "planned": lambda: {"sampler": PlanSampler(range(SAMPLES), 1, 0, seed=2)},
}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [2, 0])
def test_what_was_not_handed_out_comes_after_resuming(order: str, batch: int, workers: int) -> None:
    torch.manual_seed(5)
    order_of = [sample for one in DataLoader(range(SAMPLES), batch, **ORDERS[order]()) for sample in one.tolist()]
    data = Held(set(order_of[:batch]))  # those of the first worker's first batch
    torch.manual_seed(5)
    loader = loader_of(data, batch_size=batch, **ORDERS[order]())
    iterator = iter(loader)
    before = given(iterator, 4)
    assert not data.held & set(before)
    state = through_json(loader.state_dict())
    data.free.set()
    assert sorted(before + given(iterator)) == list(range(SAMPLES))
    assert loader.stats()["samples"] == SAMPLES
    del iterator

    other = loader_of(data, workers, batch_size=batch, **ORDERS[order]())
    other.load_state_dict(state)
    if workers:
        data.free.clear()
        again = iter(other)
        some = given(again, 2)  # and once more from here
        state = through_json(other.state_dict())
        data.free.set()
        assert sorted(before + some + given(again)) == list(range(SAMPLES))
        other = loader_of(data, 0, batch_size=batch, **ORDERS[order]())
        other.load_state_dict(state)
        before += some
    assert sorted(before + given(iter(other))) == list(range(SAMPLES))


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("kind", [HeldStream, HeldStreamWithState])
def test_of_an_iterable_each_worker_goes_on_where_it_was(kind: type[HeldStream]) -> None:
    data = kind()
    loader = loader_of(data, batch_size=2)
    iterator = iter(loader)
    before = given(iterator, 4)
    assert all(sample % 2 for sample in before)  # the first worker has given none
    state = through_json(loader.state_dict())
    data.free.set()
    other = loader_of(data, batch_size=2)
    other.load_state_dict(state)
    assert sorted(before + given(iter(other))) == list(range(SAMPLES))


def test_a_stream_says_that_other_workers_give_other_batches(caplog: pytest.LogCaptureFixture) -> None:
    data = HeldStream()
    data.free.set()
    loader = loader_of(data, batch_size=2)
    given(iter(loader), 3)
    other = loader_of(data, 1, batch_size=2)
    other.load_state_dict(loader.state_dict())
    given(iter(other))
    assert "taken with num_workers=2, and this loader has num_workers=1" in caplog.text


def test_the_sources_are_those_of_the_batch_that_came() -> None:
    parts = [range(10), range(10, 20)]
    mixture = Mixture({"low": (parts[0], 0.5), "high": (parts[1], 0.5)}, epoch=20)
    data = Held(set())
    loader = loader_of(mixture, batch_size=1, sampler=PlanSampler(mixture, 1, 0, seed=1))
    for batch in loader:
        assert loader.sources() == ["low" if int(batch) < 10 else "high"]
    assert len(data) == SAMPLES


@pytest.mark.parametrize("sampler", [DistributedSampler, PlanSampler])
def test_ranks_that_share_a_state_are_told_that_it_cannot_be_exact(sampler: Any) -> None:
    data = Held(set())
    loader = loader_of(data, batch_size=2, sampler=sampler(data, 2, 0))
    state = loader.state_dict()  # at the beginning it is exact
    given(iter(loader), 2)
    with pytest.raises(
        PlanError, match=r"in_order=False .* a sampler over 2 ranks: .* Make the loader with in_order=True"
    ):
        loader.state_dict()
    with pytest.raises(PlanError, match="a sampler over 2 ranks"):
        loader.load_state_dict(state | {"begun": True, "gaps": {"of": 3, "left": [0]}})


@pytest.mark.parametrize(
    "wrong", [3, {"of": 2}, {"of": 2, "left": [2]}, {"of": 3, "left": [1, 0]}, {"of": 1 << 40, "left": []}]
)
def test_damaged_gaps_are_refused(wrong: Any) -> None:
    loader = loader_of(Held(set()), batch_size=2)
    state = loader.state_dict()
    with pytest.raises(PlanError, match="the state is damaged: "):
        loader.load_state_dict(state | {"gaps": wrong})
    with pytest.raises(PlanError, match="the state is damaged: given"):
        check_values(state | {"given": "2"})


class Slow(Held):
    """A sample that comes after the loader's patience, the first time."""

    def __getitem__(self, index: int) -> int:
        if index == 0 and not self.free.is_set():
            assert self.free.wait(LONGEST)
        return index


def test_a_batch_that_did_not_come_in_time_is_not_counted() -> None:
    data = Slow(set())
    loader = DataLoader(data, 1, num_workers=1, timeout=0.2, multiprocessing_context="fork")
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    assert loader.state_dict()["batches"] == 0
    data.free.set()
