"""PlanSampler and PlanBatchSampler iterate as torch's do, and can end exactly. How they resume: test_resume.py."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_kit import TAILS, Sized, batched, flat, on_all_ranks, steps_of
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from solar import PlanBatchSampler, PlanError, PlanSampler
from solar.samplers import samplers as sampling

samples = st.integers(0, 60)
rank_counts = st.integers(1, 8)
batch_sizes = st.integers(1, 9)
orders = st.fixed_dictionaries(
    {"shuffle": st.booleans(), "seed": st.integers(0, 2**40)}, optional={"tail": st.sampled_from(TAILS)}
)
many = settings(max_examples=150, deadline=None)


# As torch


@many
@given(samples, rank_counts, st.booleans(), st.booleans(), st.integers(0, 2**40), st.integers(0, 5), st.booleans())
def test_indices_and_attributes_are_torchs(
    n: int, ranks: int, shuffle: bool, drop: bool, seed: int, epoch: int, by_tail: bool
) -> None:
    ending: dict[str, Any] = {"tail": "drop" if drop else "pad"} if by_tail else {"drop_last": drop}
    for rank in range(ranks):
        theirs = DistributedSampler(Sized(n), ranks, rank, shuffle, seed, drop)
        ours = PlanSampler(theirs.dataset, ranks, rank, shuffle, seed, **ending)
        assert list(ours) == list(theirs)
        for sampler in (ours, theirs):
            sampler.set_epoch(epoch)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)
        assert vars(theirs).items() <= vars(ours).items()


@many
@given(samples, rank_counts, st.booleans(), st.booleans(), batch_sizes, st.booleans())
def test_batches_are_those_of_torchs_two_samplers(
    n: int, ranks: int, shuffle: bool, drop: bool, batch_size: int, drop_last: bool
) -> None:
    for rank in range(ranks):
        theirs = BatchSampler(DistributedSampler(Sized(n), ranks, rank, shuffle, 3, drop), batch_size, drop_last)
        ours = PlanBatchSampler(PlanSampler(Sized(n), ranks, rank, shuffle, 3, drop), batch_size, drop_last)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)


def test_indices_are_pythons_own_integers() -> None:
    for n in (10, 11):  # with and without padding
        sampler = PlanSampler(Sized(n), 2, 1)
        assert {type(index) for index in sampler} == {int}
        assert {type(index) for batch in PlanBatchSampler(sampler, 3, False) for index in batch} == {int}
        assert {type(batch) for batch in PlanBatchSampler(sampler, 3, False)} == {list}


def test_more_samples_than_are_made_python_integers_at_a_time_are_torchs_too() -> None:
    for ranks, rank in ((1, 0), (3, 2)):
        theirs = DistributedSampler(Sized(50_001), ranks, rank)
        assert list(PlanSampler(Sized(50_001), ranks, rank)) == list(theirs)


@pytest.mark.parametrize(
    "arguments",
    [(Sized(4), 2, 2), (Sized(4), 2, -1), (Sized(4), 0, 0), (object(), 2, 0)],
    ids=["rank too large", "rank negative", "no ranks", "no length"],
)
def test_wrong_arguments_are_torchs_errors(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        DistributedSampler(*arguments)
    with pytest.raises(theirs.type) as ours:
        PlanSampler(*arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("arguments", [(0, False), (-1, False), (True, False), (2.0, False), (2, 1)])
def test_wrong_arguments_of_the_batch_sampler_are_torchs_errors(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError) as theirs:
        BatchSampler(DistributedSampler(Sized(4), 1, 0), *arguments)
    with pytest.raises(ValueError) as ours:
        PlanBatchSampler(PlanSampler(Sized(4), 1, 0), *arguments)
    assert str(ours.value) == str(theirs.value)


def test_no_generator_of_the_program_is_drawn_from() -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    list(PlanBatchSampler(PlanSampler(Sized(100), 2, 0), 8, False))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_an_order_does_not_depend_on_the_default_device() -> None:
    expected = list(PlanSampler(Sized(20), 1, 0, seed=11))
    torch.set_default_device("meta")
    try:
        assert list(PlanSampler(Sized(20), 1, 0, seed=11)) == expected
    finally:
        torch.set_default_device(None)


def test_the_epoch_is_taken_when_torch_takes_it() -> None:
    """A sampler's iterator has its order from the start; a batch sampler's asks for it with its first batch."""
    for sampler_kind, batch_kind in ((DistributedSampler, BatchSampler), (PlanSampler, PlanBatchSampler)):
        sampler = sampler_kind(Sized(20), 1, 0)
        first, second = list(sampler), []
        indices, batches = iter(sampler), iter(batch_kind(sampler, 20, False))
        sampler.set_epoch(1)
        second = list(sampler)
        assert first != second
        assert list(indices) == first
        assert list(batches) == [second]


@many
@given(samples, rank_counts, batch_sizes, st.booleans())
def test_over_another_sampler_the_batch_sampler_is_torchs(n: int, ranks: int, batch_size: int, drop_last: bool) -> None:
    for sampler in (SequentialSampler(Sized(n)), DistributedSampler(Sized(n), ranks, ranks - 1), range(n)):
        theirs, ours = BatchSampler(sampler, batch_size, drop_last), PlanBatchSampler(sampler, batch_size, drop_last)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)
        ends = np.cumsum([0] + [len(batch) for batch in theirs])
        assert ours.bounds().tolist() == ends.tolist()


def test_a_subclass_that_iterates_in_its_own_way_is_asked() -> None:
    class Backwards(PlanSampler):
        def __iter__(self) -> Any:
            return iter(list(super().__iter__())[::-1])

    sampler = Backwards(Sized(5), 1, 0, shuffle=False)
    assert list(PlanBatchSampler(sampler, 2, False)) == [[4, 3], [2, 1], [0]]


def test_a_torch_sampler_can_be_had_as_a_plan_sampler_of_the_same_indices() -> None:
    theirs = DistributedSampler(Sized(23), 4, 3, seed=9, drop_last=True)
    theirs.set_epoch(6)
    ours = PlanSampler.like(theirs)
    assert list(ours) == list(theirs)
    assert ours.dataset is theirs.dataset

    class Other(DistributedSampler):
        pass

    with pytest.raises(TypeError, match="Other"):
        PlanSampler.like(Other(Sized(4), 1, 0))


@pytest.mark.parametrize("tail", TAILS)
def test_a_sampler_can_be_made_again_from_its_attributes(tail: Any) -> None:
    sampler = PlanSampler(Sized(23), 4, 3, seed=5, shuffle=False, tail=tail)
    assert sampler.drop_last == (tail == "drop")
    names = ("dataset", "num_replicas", "rank", "shuffle", "seed", "drop_last", "tail")
    again = PlanSampler(**{name: getattr(sampler, name) for name in names})
    assert list(again) == list(sampler)
    batch_sampler = PlanBatchSampler(sampler, 3, False)
    again = PlanBatchSampler(batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last)
    assert list(again) == list(batch_sampler)


def test_contradicting_endings_are_refused() -> None:
    with pytest.raises(ValueError, match="'pad', 'drop', 'exact'"):
        PlanSampler(Sized(4), 1, 0, tail="keep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drop_last=True and tail='exact'"):
        PlanSampler(Sized(4), 1, 0, drop_last=True, tail="exact")
    with pytest.raises(ValueError, match='drop_last=False, or a sampler with tail="drop"'):
        PlanBatchSampler(PlanSampler(Sized(4), 1, 0, tail="exact"), 2, True)


def test_ranks_that_are_not_given_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = PlanSampler(Sized(12))
    assert (sampler.rank, sampler.num_replicas) == (2, 4)
    sampler = PlanSampler(Sized(12), rank=1)
    assert (sampler.rank, sampler.num_replicas) == (1, 4)
    with pytest.raises(ValueError, match=r"Invalid rank 2, rank should be in the interval \[0, 1\]"):
        PlanSampler(Sized(12), 2)


# Exact


@many
@given(samples, rank_counts, st.booleans())
def test_exact_ranks_have_every_sample_once_between_them(n: int, ranks: int, shuffle: bool) -> None:
    samplers = on_all_ranks(n, ranks, shuffle=shuffle, tail="exact")
    shares = [list(sampler) for sampler in samplers]
    assert sorted(flat(shares)) == list(range(n))
    assert [len(share) for share in shares] == [len(sampler) for sampler in samplers]


@many
@given(samples, rank_counts, batch_sizes)
def test_exact_batches_are_as_many_on_all_ranks_and_have_every_sample_once(n: int, ranks: int, batch_size: int) -> None:
    samplers = on_all_ranks(n, ranks, tail="exact")
    batches = [list(sampler) for sampler in batched(samplers, batch_size)]
    steps = steps_of(batches)
    assert flat(steps) == samplers[0].order().tolist()
    assert len(steps) == -(-n // (ranks * batch_size))
    assert all(len(batch) <= batch_size for of_rank in batches for batch in of_rank)
    for sampler, of_rank in zip(samplers, batches, strict=True):
        assert len(PlanBatchSampler(sampler, batch_size, False)) == len(of_rank)
        assert sum(map(len, of_rank)) == len(sampler)
    if n >= ranks and batch_size > 1:
        assert all(batch for of_rank in batches for batch in of_rank), "an empty batch where none is needed"
    for step in zip(*batches, strict=True):
        assert max(map(len, step)) - min(map(len, step)) <= 1
    spared = 1 if batch_size == 1 else 2  # steps that may be smaller than the others
    assert all(len(step) == ranks * batch_size for step in steps[:-spared])


# Steps


@many
@given(samples, rank_counts, batch_sizes, st.booleans(), orders)
def test_each_step_is_a_slice_of_the_order_and_bounds_says_which(
    n: int, ranks: int, batch_size: int, drop_last: bool, options: dict[str, Any]
) -> None:
    drop_last = drop_last and options.get("tail") != "exact"
    samplers = batched(on_all_ranks(n, ranks, **options), batch_size, drop_last)
    steps = steps_of([list(sampler) for sampler in samplers])
    order = samplers[0].sampler.order().tolist()
    for sampler in samplers:
        bounds = sampler.bounds().tolist()
        assert len(bounds) == len(sampler) + 1 == len(steps) + 1
        for step, (begin, end) in zip(steps, itertools.pairwise(bounds), strict=True):
            padding = step[end - begin :]
            assert step[: end - begin] == order[begin:end]
            assert padding == (order * ranks)[: len(padding)]
        if options.get("tail", "pad") != "drop" and not drop_last:
            assert bounds[-1] == n


def test_bounds_outside_the_order_are_refused() -> None:
    for sampler in (PlanSampler(Sized(10), 2, 0), range(10)):
        with pytest.raises(ValueError, match="from sample 11 on: the order has 10"):
            PlanBatchSampler(sampler, 2, False).bounds(11)


def test_an_order_is_made_once_while_somebody_has_it_and_let_go_with_its_last_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    permuted: Callable[..., Any] = sampling.seeded
    monkeypatch.setattr(sampling, "seeded", lambda *args: made.append(args) or permuted(*args))
    samplers = on_all_ranks(3000, 4, seed=123)
    iterators = [iter(sampler) for sampler in samplers]
    assert samplers[0].order() is samplers[3].order()
    assert len(made) == 1
    del iterators
    gc.collect()
    samplers[0].order()
    assert len(made) == 2
    assert not samplers[0].order().flags.writeable


def test_a_dataset_that_changed_its_length_is_refused() -> None:
    dataset = Sized(10)
    sampler = PlanSampler(dataset, 2, 0)
    dataset.samples = 13
    with pytest.raises(PlanError, match=r"13 samples now.*total_size=10 over 2 ranks: make a new sampler"):
        iter(sampler)
