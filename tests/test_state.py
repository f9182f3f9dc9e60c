"""state_dict and load_state_dict: a loader goes on where another stopped, whatever its order and engine."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from state_kit import BATCH, BATCHES, ORDERS, SAMPLES, make_loader, taken, through_json
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler

from solar import DataLoader, H5Dataset, PlanError, PlanSampler

_ = make_loader  # a fixture

# Starting processes takes time, so not every order is tried with them.
WITH_WORKERS = ("shuffled", "by a generator", "distributed", "odd batches", "a sampler with a state")
CASES = [
    *(("native", order) for order in ORDERS),
    *(("torch's", order) for order in ORDERS),
    ("torch's workers", WITH_WORKERS[0]),
    *(pytest.param("torch's workers", order, marks=pytest.mark.slow) for order in WITH_WORKERS[1:]),
]


def flat(batches: list[list[Any]]) -> list[Any]:
    return [sample for batch in batches for sample in batch]


@pytest.mark.slow(every=10)
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


def test_a_sampler_that_cannot_give_the_same_again_is_told_of(make_loader: Any) -> None:
    dataset = make_loader("native", "sequential").dataset
    loader, other = (DataLoader(dataset, BATCH, sampler=WeightedRandomSampler([1.0] * 20, 20)) for _ in range(2))
    taken(iter(loader), 2)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="gave other samples than before"):
        taken(other)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize(
    "kind", [lambda n: WeightedRandomSampler([1.0] * n, n), lambda n: SubsetRandomSampler(range(n))]
)
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_sampler_that_is_seeded_as_it_was_goes_on_where_it_was(
    make_loader: Any, engine: str, kind: Any, epoch: int
) -> None:
    dataset = make_loader(engine, "sequential").dataset
    loader, other = (DataLoader(dataset, BATCH, sampler=kind(SAMPLES)) for _ in range(2))
    for _ in range(epoch):
        taken(loader)
    torch.manual_seed(7)
    taken(iterator := iter(loader), 2)
    state = through_json(loader.state_dict())
    rest = taken(iterator)
    torch.manual_seed(7)
    other.load_state_dict(state)
    assert taken(other) == rest


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


def test_a_state_that_was_cut_short_is_refused_by_what_it_lacks(make_loader: Any) -> None:
    loader = make_loader("native", "sequential")
    state = loader.state_dict()
    for name in set(state) - {"solar", "base_seed"}:
        with pytest.raises(PlanError, match=f"lacks {name}"):
            loader.load_state_dict({key: value for key, value in state.items() if key != name})


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


@pytest.mark.slow(every=4)
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
