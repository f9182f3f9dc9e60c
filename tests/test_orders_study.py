"""PlanSampler(study=): jobs with orders of their own that want the same samples within a stretch of the epoch."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_kit import torch_randperm
from ranks_kit import Sized
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, Mixture, PlanError, PlanSampler, Windows
from solar.samplers.orders import by_study


def order_of(samples: int, *, epoch: int = 0, **asked: Any) -> list[int]:
    one = PlanSampler(Sized(samples), 1, 0, **asked)
    one.set_epoch(epoch)
    return list(one)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 400), st.floats(0.001, 1), st.integers(-5, 2**40), st.lists(st.integers(0, 2**63), min_size=2),
    st.integers(0, 3),
)  # fmt: skip
def test_all_jobs_of_a_study_want_the_same_samples_within_a_stretch(
    samples: int, share: float, study: int, seeds: list[int], epoch: int
) -> None:
    orders = [order_of(samples, epoch=epoch, seed=seed, study=(study, share)) for seed in seeds]
    length = max(1, round(share * samples))
    for begin in range(0, samples, length):
        assert len({frozenset(order[begin : begin + length]) for order in orders}) == 1
    assert all(sorted(order) == list(range(samples)) for order in orders)


def test_the_stretches_are_those_of_torchs_shuffle_by_the_study() -> None:
    for epoch in (0, 3):
        shared = torch_randperm(1000, 7 + epoch)
        assert order_of(1000, epoch=epoch, seed=5, study=(7, 0.001)) == shared.tolist()  # of one sample each
        own = np.array(order_of(1000, epoch=epoch, seed=5, study=7)).reshape(20, 50)
        assert np.array_equal(np.sort(own), np.sort(shared.reshape(20, 50)))
        assert not np.array_equal(own.ravel(), shared)


def chi(found: np.ndarray[Any, Any], wanted: float) -> float:
    return float(((found - wanted) ** 2 / wanted).sum())


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("size", "share"), [(2, 1.0), (3, 0.34), (4, 0.5), (5, 0.4), (20, 0.05), (20, 0.2), (31, 0.1)])
def test_each_place_of_a_jobs_order_may_have_any_sample(size: int, share: float) -> None:
    """Over studies with one seed, and over both: by the places, and for few samples by whole orders."""
    turns = 3000
    for seeds in (itertools.repeat(11), itertools.count()):
        of = (by_study(size, study, share).whole(seed, 0) for study, seed in zip(range(turns), seeds, strict=False))
        made = np.stack([*of])
        found = np.array([np.bincount(made[:, place], minlength=size) for place in range(size)])
        freedom = (size - 1) ** 2
        assert chi(found, turns / size) < freedom + 5 * np.sqrt(2 * freedom)
        if size <= 5:
            whole = Counter(map(tuple, made.tolist()))
            every = np.array([whole[one] for one in itertools.permutations(range(size))])
            assert chi(every, turns / len(every)) < len(every) - 1 + 5 * np.sqrt(2 * (len(every) - 1))


def test_within_a_stretch_seeds_shuffle_and_know_nothing_of_each_other() -> None:
    made = np.stack([by_study(8, 1, 0.5).whole(seed, 0) for seed in range(6000)])
    first = made[0, :4]
    within = Counter(map(tuple, made[:, :4].tolist()))
    every = np.array([within[one] for one in itertools.permutations(first.tolist())])
    assert chi(every, 6000 / 24) < 23 + 5 * np.sqrt(46)
    both = np.array([[np.sum((made[:, 0] == a) & (made[:, 4] == b)) for a in made[0, :4]] for b in made[0, 4:]])
    assert chi(both, 6000 / 16) < 15 + 5 * np.sqrt(30)  # one stretch says nothing of the other
    following = np.array([by_study(8, 1, 0.5).whole(3, epoch) for epoch in range(6000)])
    assert chi(np.bincount(following[:, 0], minlength=8), 6000 / 8) < 7 + 5 * np.sqrt(14)


def test_it_is_dropped_padded_and_resumed_as_any_order() -> None:
    whole = order_of(103, seed=2, study=9)
    for ranks in range(1, 9):
        for tail, wanted in (
            ("drop", whole[: 103 // ranks * ranks]), ("pad", (whole + whole)[: -(-103 // ranks) * ranks])
        ):  # fmt: skip
            of = [PlanSampler(Sized(103), ranks, rank, seed=2, study=9, tail=tail) for rank in range(ranks)]
            assert [index for step in zip(*of, strict=True) for index in step] == wanted
        of = [PlanSampler(Sized(103), ranks, rank, study=9, tail="exact") for rank in range(ranks)]
        first = PlanSampler(Sized(103), 1, 0, seed=2, study=9)
        assert list(itertools.islice(first, 40)) == whole[:40]
        state = json.loads(json.dumps(first.state_dict()))
        for one in of:
            one.load_state_dict(state)  # with the seed of the job
        assert sorted(itertools.chain(*of)) == sorted(whole[40:])


@pytest.fixture
def rows(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = np.arange(240.0).reshape(120, 2)
        file["lengths"] = np.arange(24) % 7
        file["hits"] = np.arange(float((np.arange(24) % 7).sum()))
    return str(tmp_path / "rows.h5")


@pytest.mark.parametrize("buffer", [None, 12_000])
def test_a_loader_gives_what_torchs_does_and_goes_on_where_it_was(rows: str, buffer: int | None) -> None:
    for data in (H5Dataset(rows, "x"), H5Dataset(rows, "x", samples=Windows(every=2))):
        sampler = PlanSampler(data, 1, 0, seed=4, study=(1, 0.1))
        with DataLoader(data, 7, sampler=sampler, buffer=buffer, drop_last=True) as ours:
            batches = iter(ours)
            taken = [next(batches) for _ in range(5)]
            state = json.loads(json.dumps(ours.state_dict()))
        with DataLoader(
            data, 7, sampler=PlanSampler(data, 1, 0, seed=4, study=(1, 0.1)), buffer=buffer, drop_last=True
        ) as rest:
            rest.load_state_dict(state)
            found = [*taken, *rest]
        theirs = [*TorchLoader(data, 7, sampler=PlanSampler(data, 1, 0, seed=4, study=(1, 0.1)), drop_last=True)]
        assert len(found) == len(theirs) > 5
        assert all(torch.equal(one, two) for one, two in zip(found, theirs, strict=True))


def test_the_state_of_another_study_is_refused_in_words(rows: str) -> None:
    data = H5Dataset(rows, "x")
    state = PlanSampler(data, 1, 0, seed=4, study=7).state_dict()
    assert (state["by"], state["study"], state["stretch"], state["seed"]) == ("study", 7, 6, 4)
    for asked, said in (
        ({"study": 8}, "of study 7, and this sampler's is of study 8"),
        ({"study": (7, 0.1)}, "stretches have 6 samples, and this sampler's have 12"),
        ({}, "by 'study', and this sampler's is by None"),
    ):
        with pytest.raises(PlanError, match=said):
            PlanSampler(data, 1, 0, **asked).load_state_dict(state)
        loader = DataLoader(data, 8, sampler=PlanSampler(data, 1, 0, seed=4, study=7))
        other = DataLoader(data, 8, sampler=PlanSampler(data, 1, 0, seed=4, **asked))
        other.load_state_dict(loader.state_dict())
        with pytest.raises(PlanError, match=said):
            next(iter(other))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"study": "seven"}, "study='seven': it is a whole number"),
        ({"study": True}, "study=True"),
        ({"study": (7, 0)}, r"study=\(7, 0\)"),
        ({"study": (7, 1.5)}, r"such as \(7, 0.05\)"),
        ({"study": (7, float("nan"))}, "nan"),
        ({"study": (7, 0.1, 2)}, "study="),
        ({"study": 7, "shuffle": False}, "shuffle=False, and study draws by chance"),
        ({"study": 7, "weights": [1, 2, 3]}, "weights and study are 2 orders"),
        ({"study": 7, "num_samples": 2}, "only weights or labels"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PlanSampler(Sized(3), 1, 0, **asked)


def test_a_mixture_has_its_own_order_and_a_data_set_may_be_too_large() -> None:
    with pytest.raises(ValueError, match="study: a Mixture has its own order"):
        PlanSampler(Mixture({"a": (range(5), 1), "b": (range(5), 1)}), 1, 0, study=7)
    with pytest.raises(PlanError, match="takes up to 2,147,483,647"):
        by_study(2**31, 7, 0.05)
    with pytest.raises(PlanError, match="no sample to put in order"):
        PlanSampler(Sized(0), 1, 0, study=7)
