"""state_dict and load_state_dict: a loader goes on where another stopped, whatever its order and engine."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from solar import DataLoader, H5Dataset, PlanError, PlanSampler

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
    "one by one": lambda d: {"batch_size": None, "shuffle": True},
    "a list": lambda d: {"batch_size": BATCH, "sampler": [4, 4, 0, 2, 9, 8, 7, 1, 0, 3, 3]},
    "odd batches": lambda d: {"batch_sampler": Odd()},
    "batches of a shuffle": lambda d: {"batch_sampler": BatchSampler(RandomSampler(d), BATCH, True)},
    "a sampler with a state": lambda d: {"batch_size": BATCH, "sampler": Counting()},
}


# Starting processes takes time, so not every order is tried with them.
WITH_WORKERS = ("shuffled", "by a generator", "distributed", "odd batches", "a sampler with a state")
CASES = [
    *(("native", order) for order in ORDERS),
    *(("torch's", order) for order in ORDERS),
    *(("torch's workers", order) for order in WITH_WORKERS),
]


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


def flat(batches: list[list[Any]]) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 1000, text
    return dict(json.loads(text))


@pytest.mark.parametrize("stop", [0, 3, None])
@pytest.mark.parametrize(("engine", "order"), CASES)
def test_another_loader_goes_on_with_exactly_the_batches_that_are_left(
    make_loader: Any, engine: str, order: str, stop: int | None
) -> None:
    torch.manual_seed(7)
    loader = make_loader(engine, order)
    taken(loader)
    iterator = iter(loader)
    taken(iterator, stop)
    state = through_json(loader.state_dict())
    random_state = torch.get_rng_state()
    rest = [] if stop is None else taken(iterator)
    following = taken(loader)

    torch.set_rng_state(random_state)  # as a script does that saves torch's state with the loader's
    other = make_loader(engine, order)
    other.load_state_dict(state)
    assert through_json(other.state_dict()) == state
    assert len(other) == len(loader)
    if stop is not None:
        assert taken(other) == rest
    assert taken(other) == following


@pytest.mark.parametrize("order", ORDERS)
def test_the_state_alone_is_enough_to_go_on_in_an_epoch(make_loader: Any, order: str) -> None:
    """Nothing of torch's generators need be saved with it."""
    loader = make_loader("native", order)
    iterator = iter(loader)
    taken(iterator, 2)
    state = through_json(loader.state_dict())
    rest = taken(iterator)
    torch.manual_seed(123)
    other = make_loader("native", order)
    other.load_state_dict(state)
    assert taken(other) == rest


def test_a_finished_loader_tells_the_epoch_that_it_would_have_begun_next(make_loader: Any) -> None:
    for order in ("shuffled", "by a generator", "sequential"):
        loader = make_loader("native", order)
        taken(loader)
        other = make_loader("native", order)
        other.load_state_dict(through_json(loader.state_dict()))
        state = torch.get_rng_state()
        following = taken(loader)
        torch.set_rng_state(state)
        assert taken(other) == following


def test_after_the_last_batch_and_before_the_end_nothing_is_left(make_loader: Any) -> None:
    loader = make_loader("native", "planned")
    iterator = iter(loader)
    taken(iterator, BATCHES)
    other = make_loader("native", "planned")
    other.load_state_dict(loader.state_dict())
    assert taken(other) == []
    assert len(taken(other)) == BATCHES


def test_a_sampler_that_cannot_give_the_same_again_is_told_of(make_loader: Any) -> None:
    dataset = make_loader("native", "sequential").dataset
    loader, other = (DataLoader(dataset, BATCH, sampler=WeightedRandomSampler([1.0] * 20, 20)) for _ in range(2))
    taken(iter(loader), 2)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="gave other samples than before"):
        taken(other)


def test_a_generator_that_others_draw_from_is_refused_not_guessed(make_loader: Any) -> None:
    loader = make_loader("native", "by a generator")
    torch.rand(1, generator=loader.generator)
    taken(loader)
    taken(iter(loader), 2)
    other = make_loader("native", "by a generator")
    other.load_state_dict(loader.state_dict())
    with pytest.raises(PlanError, match="a generator of its own"):
        taken(other)


def test_a_state_of_other_data_or_another_order_is_refused(make_loader: Any, make: Callable[..., str]) -> None:
    loader = make_loader("native", "shuffled")
    longer = H5Dataset(make("longer.h5", x=np.arange(SAMPLES + 1)), "x")
    with pytest.raises(PlanError, match=r"23 samples.*24"):
        DataLoader(longer, 3, shuffle=True).load_state_dict(loader.state_dict())
    with pytest.raises(PlanError, match=r"shuffled.*sequential"):
        make_loader("native", "sequential").load_state_dict(loader.state_dict())
    with pytest.raises(PlanError, match="no state of solar's"):
        loader.load_state_dict({"_num_yielded": 3})
    seeded = DataLoader(longer, 3, sampler=PlanSampler(longer, 1, 0, seed=1))
    seeded.load_state_dict(DataLoader(longer, 3, sampler=PlanSampler(longer, 1, 0, seed=2)).state_dict())
    with pytest.raises(PlanError, match=r"seed=2.*seed=1"):
        next(iter(seeded))


def test_an_empty_state_means_a_beginning(make_loader: Any) -> None:
    loader = make_loader("native", "sequential")
    taken(iter(loader), 3)
    loader.load_state_dict(loader.state_dict())
    loader.load_state_dict({})
    assert len(taken(loader)) == BATCHES


# --- epochs and ranks ----


def test_set_epoch_keeps_a_position_of_that_epoch_and_forgets_one_of_another(make_loader: Any) -> None:
    loader = make_loader("native", "distributed")
    loader.set_epoch(2)
    whole = taken(loader)
    iterator = iter(loader)
    taken(iterator, 3)
    state = through_json(loader.state_dict())
    assert state["epoch"] == 2

    other = make_loader("native", "distributed")
    len(other)
    other.load_state_dict(state)  # the order of Lightning's calls
    resumed = iter(other)
    len(other)
    other.sampler.set_epoch(2)
    assert taken(resumed) == whole[3:]

    other.load_state_dict(state)
    other.set_epoch(3)
    assert len(taken(other)) == BATCHES

    other.load_state_dict(state)
    other.sampler.set_epoch(3)  # behind the loader's back
    assert len(taken(other)) == BATCHES

    other.load_state_dict(state)  # nobody says an epoch: the state's
    assert taken(other) == whole[3:]


def test_of_a_finished_epoch_the_state_names_the_next(make_loader: Any) -> None:
    for order in ("distributed", "sequential"):
        loader = make_loader("native", order)
        loader.set_epoch(4)
        taken(loader)
        state = loader.state_dict()
        assert state["epoch"] == 5
        other = make_loader("native", order)
        other.load_state_dict(state)
        assert other.state_dict()["epoch"] == 5
        other.set_epoch(5)
        loader.set_epoch(5)
        assert taken(other) == taken(loader)


@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_any_number_of_ranks_goes_on_with_the_samples_that_are_left(
    make: Callable[..., str], ranks: int, tail: Any
) -> None:
    dataset = H5Dataset(make("numbers.h5", x=np.arange(101)), "x")

    def loaders(ranks: int, batch_size: int) -> list[DataLoader[Any]]:
        samplers = [PlanSampler(dataset, ranks, rank, seed=1, tail=tail) for rank in range(ranks)]
        for sampler in samplers:
            sampler.set_epoch(5)
        return [DataLoader(dataset, batch_size, sampler=sampler) for sampler in samplers]

    order = PlanSampler(dataset, 1, 0, seed=1)
    order.set_epoch(5)
    whole = list(order)
    before = loaders(ranks, 4)
    begun = [taken(iter(loader), 2) for loader in before]
    states = [through_json(loader.state_dict()) for loader in before]
    assert all(state == states[0] for state in states)
    consumed = states[0]["samples"]
    assert consumed == 8 * ranks
    assert sorted(flat(flat(begun))) == sorted(whole[:consumed])

    for ranks_after in (1, 2, 3, 4, 8):
        after = loaders(ranks_after, 5)
        for loader in after:
            loader.load_state_dict(states[0])
        rest = [flat(taken(loader)) for loader in after]
        left = len(whole) - consumed
        in_order = [sample for step in zip(*rest, strict=tail != "exact") for sample in step]
        whole_steps = left // ranks_after * ranks_after
        if tail != "exact":  # whose last steps are shared otherwise
            assert in_order[:whole_steps] == whole[consumed : consumed + whole_steps]
        expected = {"pad": -(-left // ranks_after) * ranks_after, "drop": whole_steps, "exact": left}[tail]
        assert sum(map(len, rest)) == expected
        if tail == "exact":
            assert sorted(flat(rest)) == sorted(whole[consumed:])
        assert all(len(loader) == len(after[0]) for loader in after)


def test_another_batch_size_and_other_workers_go_on_too(make_loader: Any) -> None:
    torch.manual_seed(2)
    loader = make_loader("native", "shuffled")
    iterator = iter(loader)
    taken(iterator, 3)
    state = through_json(loader.state_dict())
    rest = flat(taken(iterator))
    for options in ({"batch_size": 5}, {"batch_size": 1, "num_workers": 2}, {"batch_size": 7, "ahead": 1}):
        other = DataLoader(loader.dataset, shuffle=True, **options)
        other.load_state_dict(state)
        assert flat(taken(other)) == rest


def test_the_state_is_of_the_newest_iterator_and_of_what_it_handed_out(make_loader: Any) -> None:
    loader = make_loader("native", "sequential")
    first, second = iter(loader), iter(loader)
    taken(first, 5)
    taken(second, 2)
    assert loader.state_dict()["batches"] == 2
    assert taken(first) == taken(loader)[5:]
    assert taken(second) == taken(loader)[2:]


def test_a_loader_with_a_loaded_state_can_be_copied_and_sent(make_loader: Any) -> None:
    loader = make_loader("native", "shuffled")
    iterator = iter(loader)
    taken(iterator, 3)
    state = loader.state_dict()
    rest = taken(iterator)
    for copied in (copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))):
        other = make_loader("native", "shuffled")
        other.load_state_dict(state)
        assert taken(copied(other)) == rest


# --- datasets with a state of their own ----


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


@pytest.mark.parametrize("engine", ["native", "torch's"])
def test_passes_that_were_broken_off_are_made_again_as_they_were(make_loader: Any, engine: str) -> None:
    loader = make_loader(engine, "by a generator")
    taken(loader), taken(iter(loader), 1), taken(iter(loader), 2), taken(loader), taken(iter(loader), 1)
    iterator = iter(loader)
    taken(iterator, 3)
    state = through_json(loader.state_dict())
    rest, following = taken(iterator), taken(loader)
    other = make_loader(engine, "by a generator")
    other.load_state_dict(state)
    assert taken(other) == rest
    assert taken(other) == following


def test_an_epoch_that_was_set_before_the_state_is_loaded_stays(make_loader: Any) -> None:
    loader = make_loader("native", "distributed")
    loader.set_epoch(4)
    taken(loader)
    other = make_loader("native", "distributed")
    other.set_epoch(5)
    other.load_state_dict(loader.state_dict())
    assert other.sampler.epoch == 5
    loader.set_epoch(5)
    assert taken(other) == taken(loader)


def test_a_state_that_was_cut_short_is_refused_by_what_it_lacks(make_loader: Any) -> None:
    loader = make_loader("native", "sequential")
    state = loader.state_dict()
    for name in set(state) - {"solar", "base_seed"}:
        with pytest.raises(PlanError, match=f"lacks {name}"):
            loader.load_state_dict({key: value for key, value in state.items() if key != name})
