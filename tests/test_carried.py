"""Datasets with a state of their own in worker processes: each worker is given its own back, and the order goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from carried_kit import SAMPLES, Counting, Generated, check_resumes, loader, share, take
from torch.utils.data import Dataset, IterableDataset

from solar.loader.torch_iterators import CarriedBatch

# torch warns of more workers than the machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Drawing(Dataset[Any]):
    """Draws random numbers, and keeps torch's random state."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return index, int(torch.randint(1_000_000, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["random"])


class Walk:
    """An iterator that keeps where it is."""

    def __init__(self, values: range) -> None:
        self.values = values
        self.at = 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1], int(torch.randint(1_000_000, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "random": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
        torch.set_rng_state(torch.tensor(state["random"], dtype=torch.uint8))


class Walked(IterableDataset[Any]):
    """Only its iterator has a state."""

    def __iter__(self) -> Walk:
        return Walk(share(SAMPLES))


class Both(Walked):
    """It has a state which its iterator looks at when it is made, and the iterator has one too."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Walk:
        self.begun += 1
        return Walk(range(self.begun * 100, self.begun * 100 + len(share(SAMPLES))))

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self.begun - 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begun = state["begun"]


class Itself(IterableDataset[Any]):
    """Its own iterator; to be given its state once."""

    def __init__(self) -> None:
        self.at = 0
        self.loads = 0

    def __iter__(self) -> Itself:
        self.at = 0
        return self

    def __next__(self) -> Any:
        if self.at == len(share(SAMPLES)):
            raise StopIteration
        self.at += 1
        assert self.loads <= 1
        return share(SAMPLES)[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
        self.loads += 1


DATASETS = (Counting, Drawing, Generated, Walked, Both, Itself)


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("dataset", DATASETS)
def test_each_worker_is_given_its_own_state_back(dataset: Any, workers: int) -> None:
    check_resumes(dataset, (4, 3), workers=workers)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("stop", [0, 1, 2, 3, 7, 11, 12])
def test_it_may_stop_after_any_batch(stop: int) -> None:
    for dataset in (Counting, Generated):
        check_resumes(dataset, (stop,))


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("dataset", [Counting, Generated, Walked])
@pytest.mark.parametrize(
    "options", [{"drop_last": True, "batch_size": 3}, {"batch_size": None}, {"prefetch_factor": 4}]
)
def test_batches_may_be_cut_in_any_way(dataset: Any, options: dict[str, Any]) -> None:
    check_resumes(dataset, (3, 2), workers=3, **options)


@pytest.mark.slow
def test_a_worker_that_came_to_its_end_stays_there() -> None:
    """Also one whose dataset then says that it is at its beginning: of three workers here the first has one sample."""
    for stop in (1, 4, 8):
        check_resumes(Generated, (stop, 2), workers=3)


def test_processes_need_not_be_forked() -> None:
    check_resumes(Walked, (3,), workers=1, multiprocessing_context="forkserver")


def test_the_state_is_plain() -> None:
    for dataset in (Counting, Generated, Walked):
        first = loader(dataset())
        iterator = iter(first)
        take(iterator, 3)
        state = json.loads(json.dumps(first.state_dict()))
        assert sorted(state["parts"]) == ["next", "workers"]
        assert len(state["parts"]["workers"]) == 2
        other = loader(dataset())
        other.load_state_dict(state)
        assert list(other) == list(iterator)


def test_a_state_that_was_given_out_does_not_change() -> None:
    first = loader(Counting())
    iterator = iter(first)
    take(iterator, 3)
    state = first.state_dict()
    before = json.dumps(state)
    take(iterator, 4)
    assert json.dumps(state) == before != json.dumps(first.state_dict())


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("stop", [0, 1, 5, None])
@pytest.mark.parametrize("dataset", [Counting, Drawing, Generated, Itself])
def test_persistent_workers_keep_their_datasets_over_the_epochs(dataset: Any, stop: int | None) -> None:
    """In the second epoch, at its beginning, in its midst and at its end."""
    first = loader(dataset(), persistent_workers=True)
    list(first)
    iterator = iter(first)
    rest = take(iterator, stop) if stop is not None else list(iterator)
    state = first.state_dict()
    rest = list(iterator) if stop is not None else list(first)
    following = list(first)
    other = loader(dataset(), persistent_workers=True)
    other.load_state_dict(state)
    assert list(other) == rest
    assert list(other) == following


@pytest.mark.parametrize("dataset", [Counting, Generated])
def test_persistent_workers_go_on_from_where_they_were_when_an_epoch_was_left(dataset: Any) -> None:
    """They had read ahead of what was handed out, and it is that which their datasets remember."""
    first = loader(dataset(), persistent_workers=True)
    take(iter(first), 3)
    iterator = iter(first)
    state = first.state_dict()
    other = loader(dataset(), persistent_workers=True)
    other.load_state_dict(state)
    assert list(other) == list(iterator)


def test_workers_that_are_not_persistent_begin_an_epoch_with_a_new_copy_of_the_dataset() -> None:
    first = loader(Generated())
    list(first)
    state = first.state_dict()
    assert "parts" not in state
    other = loader(Generated())
    other.load_state_dict(state)
    assert list(other) == list(first)


def test_a_dataset_in_this_process_that_came_to_its_end_stays_there() -> None:
    check_resumes(Generated, (12,), workers=0)


def test_shuffled_maps_go_on_too() -> None:
    for dataset in (Counting, Drawing):
        check_resumes(dataset, (4, 3), shuffle=True)


class Pinned:
    """A batch of the user's, which can be pinned."""

    pinned = False

    def pin_memory(self) -> Pinned:
        self.pinned = True
        return self


def test_what_is_carried_is_pinned_as_torch_pins_it() -> None:
    carried = CarriedBatch([Pinned()], 1, b"states").pin_memory()
    assert carried.data[0].pinned
    assert (carried.worker, carried.states) == (1, b"states")


class Bad(Counting):
    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise ValueError("bad 3")
        return super().__getitem__(index)


def test_after_a_batch_that_failed_the_next_worker_has_its_turn() -> None:
    first = loader(Bad(), batch_size=1)
    iterator = iter(first)
    take(iterator, 3)
    with pytest.raises(ValueError, match="bad 3"):
        next(iterator)
    state = first.state_dict()
    assert state["parts"]["next"] == 0
    other = loader(Bad(), batch_size=1)
    other.load_state_dict(state)
    assert list(other) == list(iterator)
