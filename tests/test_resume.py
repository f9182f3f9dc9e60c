"""A PlanSampler resumes in the middle of an epoch, at any number of ranks, with exactly what is left, in order."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_kit import TAILS, Sized, batched, flat, on_all_ranks, steps_of

from solar import PlanBatchSampler, PlanError, PlanSampler

samples = st.integers(0, 60)
rank_counts = st.integers(1, 8)
batch_sizes = st.integers(1, 9)
tails = st.sampled_from(TAILS)
many = settings(max_examples=150, deadline=None)


@st.composite
def stopped(draw: st.DrawFn) -> tuple[int, list[PlanSampler], int, int]:
    """Samples, samplers of some ranks, a batch size, and a number of batches after which the run stops."""
    n, ranks, batch_size = draw(samples), draw(st.sampled_from([1, 2, 3, 4, 8])), draw(batch_sizes)
    samplers = on_all_ranks(n, ranks, tail=draw(tails), seed=draw(st.integers(0, 99)), shuffle=draw(st.booleans()))
    epoch = draw(st.integers(0, 3))
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return n, samplers, batch_size, draw(st.integers(0, len(PlanBatchSampler(samplers[0], batch_size, False))))


def stop_after(samplers: list[PlanSampler], batch_size: int, batches: int) -> dict[str, Any]:
    """What the samplers' states are, on all ranks the same, after so many batches."""
    for sampler in batched(samplers, batch_size):
        iterator = iter(sampler)
        for _ in range(batches):
            next(iterator)
    states = [json.dumps(sampler.state_dict()) for sampler in samplers]
    assert len(set(states)) == 1
    assert len(states[0]) < 1024
    state: dict[str, Any] = json.loads(states[0])
    return state


@many
@given(stopped(), st.sampled_from([1, 2, 3, 4, 8]), batch_sizes, tails)
def test_at_another_number_of_ranks_exactly_what_is_left_comes_in_order(
    run: tuple[int, list[PlanSampler], int, int], ranks: int, other_size: int, tail: Any
) -> None:
    n, samplers, batch_size, batches = run
    state = stop_after(samplers, batch_size, batches)
    consumed = PlanBatchSampler(samplers[0], batch_size, False).bounds()[batches]
    assert state["samples"] == consumed
    order = samplers[0].order().tolist()

    others = on_all_ranks(n, ranks, seed=1000, tail=tail)
    for sampler in others:
        sampler.load_state_dict(state)
        assert sampler.state_dict() == state
        assert sampler.order().tolist() == order
    samplers_of_batches = batched(others, other_size)
    bounds = samplers_of_batches[0].bounds(state["samples"])
    steps = steps_of([list(sampler) for sampler in samplers_of_batches])
    came, left = flat(steps), order[consumed:]
    assert len(bounds) == len(steps) + 1
    if tail == "exact":
        assert came == left
    elif tail == "drop":
        assert came == left[: len(left) // ranks * ranks]
    else:
        padding = -len(left) % ranks
        assert came == left + (order * ranks)[:padding]
    for step, (begin, end) in zip(steps, itertools.pairwise(bounds.tolist()), strict=True):
        assert step[: end - begin] == order[begin:end]
    for sampler in samplers_of_batches:  # the one after is whole again
        whole = PlanBatchSampler(copy.deepcopy(sampler.sampler), other_size, False)
        assert list(sampler) == list(whole)
        assert len(list(whole)) == len(whole)
        assert whole.sampler.order().tolist() == order


@many
@given(stopped())
def test_at_the_same_ranks_and_batch_size_the_rest_is_that_of_the_uninterrupted_run(
    run: tuple[int, list[PlanSampler], int, int],
) -> None:
    n, samplers, batch_size, batches = run
    whole = [list(sampler) for sampler in batched(copy.deepcopy(samplers), batch_size)]
    state = stop_after(samplers, batch_size, batches)
    for sampler in samplers:
        sampler.set_epoch(sampler.epoch + 1)
    following = [list(sampler) for sampler in batched(samplers, batch_size)]
    resumed = on_all_ranks(n, len(samplers), tail=samplers[0].tail)
    for sampler, of_rank, after in zip(resumed, whole, following, strict=True):
        sampler.load_state_dict(state)
        in_batches = PlanBatchSampler(sampler, batch_size, False)
        assert len(in_batches) == len(of_rank)
        assert list(in_batches) == of_rank[batches:]
        sampler.set_epoch(sampler.epoch + 1)
        assert list(in_batches) == after


@many
@given(samples, rank_counts, tails, st.integers(0, 20))
def test_without_batches_the_rest_is_that_of_the_uninterrupted_run_too(
    n: int, ranks: int, tail: Any, drawn: int
) -> None:
    for sampler in on_all_ranks(n, ranks, tail=tail):
        whole = list(sampler)
        drawn = min(drawn, n // ranks)
        iterator = iter(sampler)
        assert list(itertools.islice(iterator, drawn)) == whole[:drawn]
        state = sampler.state_dict()
        assert state["samples"] == drawn * ranks
        resumed = PlanSampler(Sized(n), ranks, sampler.rank, tail=tail)
        resumed.load_state_dict(state)
        assert list(resumed) == whole[drawn:]
        assert list(resumed) == whole


def test_the_same_epoch_keeps_a_resume_and_another_forgets_it() -> None:
    sampler = PlanSampler(Sized(10), 1, 0, shuffle=False)
    sampler.set_epoch(2)
    sampler.resume(7)
    sampler.set_epoch(2)
    assert sampler.state_dict()["samples"] == 7
    assert list(sampler) == [7, 8, 9]
    sampler.resume(7)
    sampler.set_epoch(3)
    sampler.set_epoch(2)
    assert sampler.state_dict()["samples"] == 0
    assert list(sampler) == list(range(10))


def test_a_resumed_batch_sampler_keeps_its_place_when_the_epoch_is_set_after_iter() -> None:
    """In this order Lightning calls: load_state_dict, iter, len, set_epoch, next."""
    sampler = PlanSampler(Sized(10), 1, 0, shuffle=False)
    sampler.load_state_dict({"epoch": 1, "seed": 0, "shuffle": False, "length": 10, "samples": 6})
    batch_sampler = PlanBatchSampler(sampler, 2, False)
    iterator = iter(batch_sampler)
    assert len(batch_sampler) == 5
    sampler.set_epoch(1)
    assert list(iterator) == [[6, 7], [8, 9]]


@pytest.mark.parametrize("tail", TAILS)
def test_after_its_end_an_epoch_has_nothing_left(tail: Any) -> None:
    for batch_size in (None, 3):
        samplers = on_all_ranks(11, 4, tail=tail)
        for sampler in samplers:
            list(PlanBatchSampler(sampler, batch_size, False) if batch_size else sampler)
        states = [sampler.state_dict() for sampler in samplers]
        assert states == [states[0]] * 4
        alone = PlanSampler(Sized(11), 1, 0, tail=tail)
        alone.load_state_dict(states[0])
        assert list(alone) == []
        assert len(list(alone)) == 11


def test_a_resume_at_the_end_leaves_nothing_and_beyond_it_is_refused() -> None:
    for ranks, tail in itertools.product((1, 3), TAILS):
        for sampler in on_all_ranks(10, ranks, tail=tail):
            sampler.resume(10)
            assert list(PlanBatchSampler(sampler, 2, False)) == []
            for wrong in (11, -1):
                with pytest.raises(ValueError, match=f"{wrong} samples: an epoch has 10"):
                    sampler.resume(wrong)
            assert len(list(sampler)) == len(sampler)
    with pytest.raises(TypeError):
        PlanSampler(Sized(10), 1, 0).resume(1.5)  # type: ignore[arg-type]


def test_a_state_of_another_dataset_or_of_something_else_is_refused_and_changes_nothing() -> None:
    sampler = PlanSampler(Sized(10), 1, 0)
    before = sampler.state_dict()
    with pytest.raises(PlanError, match=r"of a dataset of 12 samples, this one has 10.*begin a new run"):
        sampler.load_state_dict({"epoch": 4, "seed": 1, "shuffle": False, "length": 12, "samples": 3})
    with pytest.raises(PlanError, match=r"has \['epoch', 'samples'\], and lacks \['length', 'seed', 'shuffle'\]"):
        sampler.load_state_dict({"epoch": 4, "samples": 3})
    with pytest.raises(ValueError, match="11 samples"):
        sampler.load_state_dict({"epoch": 4, "seed": 1, "shuffle": False, "length": 10, "samples": 11})
    assert sampler.state_dict() == before


def test_live_iterators_of_one_sampler_do_not_disturb_each_other() -> None:
    sampler = PlanSampler(Sized(30), 2, 1)
    whole = list(sampler)
    first = iter(sampler)
    begun = list(itertools.islice(first, 4))
    sampler.resume(20)
    second, third = iter(sampler), iter(PlanBatchSampler(sampler, 5, False))
    assert [next(second), next(first), *next(third), next(second)] == [whole[10], whole[4], *whole[:5], whole[11]]
    assert sampler.state_dict()["samples"] == 10  # the third is the newest
    assert [*begun, whole[4], *first] == whole
    assert flat(list(third)) == whole[5:]
    assert list(second) == whole[12:]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
def test_copies_taken_in_mid_epoch_have_the_state_and_a_life_of_their_own(copied: Any) -> None:
    batch_sampler = PlanBatchSampler(PlanSampler(Sized(30), 2, 1, tail="exact"), 4, False)
    whole = list(batch_sampler)
    iterator = iter(batch_sampler)
    next(iterator)
    twin = copied(batch_sampler)
    assert twin.sampler.state_dict() == batch_sampler.sampler.state_dict()
    assert list(iterator) == whole[1:]
    assert twin.sampler.state_dict()["samples"] == 8
    assert list(twin) == whole
    batch_sampler.sampler.resume(8)
    assert list(copied(batch_sampler)) == whole[1:]


def test_an_epoch_is_an_integer() -> None:
    sampler = PlanSampler(Sized(4), 1, 0)
    sampler.set_epoch(np.int64(3))  # type: ignore[arg-type]
    assert json.dumps(sampler.state_dict())
    with pytest.raises(TypeError):
        sampler.set_epoch(1.5)  # type: ignore[arg-type]
