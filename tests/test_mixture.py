"""Mixture: each source has its share, within one sample, at every step; on any number of ranks, with or without h5."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ranks_kit import batched, flat, steps_of
from torch.utils.data import ConcatDataset, Subset

from solar import DataLoader, Field, H5Dataset, Mixture, PlanError, PlanSampler
from solar.values import Storage

NAMES = "abcdefgh"
shares_of = st.lists(st.integers(1, 200), min_size=1, max_size=8)  # others have a pattern of a million, made in .1 s
unlike = [2**0.5, 3**0.5, 1e-2]
many = settings(max_examples=60, deadline=None)


def mixture(shares: list[float], sizes: list[int] | None = None, epoch: Any = "first") -> Mixture:
    sizes = sizes or [7 * (at + 1) for at in range(len(shares))]
    return Mixture(
        {name: (range(size), share) for name, size, share in zip(NAMES, sizes, shares, strict=False)}, epoch=epoch
    )


def went(of: Mixture, epochs: int = 1) -> np.ndarray[Any, Any]:
    """The number of the source at each position of some epochs."""
    sampler, made = PlanSampler(of, 1, 0, seed=3), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        made.append(np.searchsorted(of.cumulative_sizes, sampler.order(), side="right"))
    return np.concatenate(made)


def worst(came: np.ndarray[Any, Any], shares: np.ndarray[Any, Any]) -> float:
    """How far the count of any source was from its share, at any step."""
    steps = np.arange(1, len(came) + 1)
    return max(np.abs(np.cumsum(came == at) - steps * share).max() for at, share in enumerate(shares))


@pytest.mark.parametrize(
    "shares",
    [[0.7, 0.3], [1, 1], [1 / 3, 2 / 3], [5, 3, 2, 1], [0.98, 0.01, 0.01], [2**0.5, 3**0.5, np.pi, 1e-3], [1] * 8],
)
def test_counts_are_within_one_of_the_shares_at_every_step_of_a_hundred_thousand(shares: list[float]) -> None:
    of = mixture(shares, epoch=33_333)
    came = went(of, 3)
    assert worst(came, np.array([*of.shares.values()])) < 1
    assert np.abs(np.array([*of.shares.values()]) - np.array(shares) / sum(shares)).max() < 2**-20
    if all(share in (0.7, 0.3, 0.98, 0.01) or share % 1 == 0 for share in shares):
        assert worst(came, np.array(shares) / sum(shares)) < 1 + 1e-9


@many
@given(shares_of, st.integers(1, 300), st.integers(0, 10**6))
@example(unlike, 300, 10**6)
def test_counts_are_within_one_in_any_epoch(shares: list[float], length: int, epoch: int) -> None:
    of, before = mixture(shares, epoch=length), epoch * length
    turns = of.order().turns
    assert turns is not None
    sources, each = turns(epoch, range(length))
    taken = np.array([*of.shares.values()])
    for at in range(length):
        # How many of its source came before tells how many came in all, from the first sample of the first epoch on.
        due = (before + at) * taken[sources[at]]
        assert -1 - 1e-6 < each[at] - due < 1 + 1e-6


@many
@given(shares_of, st.integers(1, 90))
@example(unlike, 90)
def test_each_sample_of_a_source_comes_once_before_any_comes_twice(shares: list[float], length: int) -> None:
    of = mixture(shares, epoch=length)
    sampler, made = PlanSampler(of, 1, 0), []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        made += list(sampler)
    begin = 0
    for end in of.cumulative_sizes:
        own = [sample for sample in made if begin <= sample < end]
        for first in range(0, len(own), end - begin):
            shuffle = own[first : first + end - begin]
            assert len(set(shuffle)) == len(shuffle)
        begin = end


@many
@given(shares_of, st.lists(st.integers(1, 50), min_size=8, max_size=8))
@example(unlike, [50, 3, 7])
def test_an_epoch_ends_with_the_first_or_with_all_sources(shares: list[float], sizes: list[int]) -> None:
    first, all_ = (mixture(shares, sizes, epoch) for epoch in ("first", "all"))
    sizes = sizes[: len(shares)]
    counts = PlanSampler(first, 1, 0).counts().values()
    assert all(count <= size for count, size in zip(counts, sizes, strict=True))
    assert (
        first.order().length >= min(size / share for size, share in zip(sizes, first.shares.values(), strict=True)) - 1
    )
    counts = PlanSampler(all_, 1, 0).counts().values()
    assert all(count >= size for count, size in zip(counts, sizes, strict=True))


@many
@given(shares_of, st.integers(1, 8), st.integers(1, 8), st.integers(1, 5), st.integers(0, 9))
@example(unlike, 2, 3, 4, 5)
def test_other_numbers_of_ranks_go_on_with_exactly_the_rest(
    shares: list[float], ranks: int, others: int, batch: int, steps: int
) -> None:
    of, found = mixture(shares, epoch=50), []
    samplers = [PlanSampler(of, ranks, rank, tail="exact") for rank in range(ranks)]
    took = [list(islice(of_rank, steps)) for of_rank in batched(samplers, batch)]
    found += flat(steps_of(took))
    state = json.dumps(samplers[0].state_dict())
    assert len(state) < 1000
    samplers = [PlanSampler(of, others, rank, tail="exact") for rank in range(others)]
    for one in samplers:
        one.load_state_dict(json.loads(state))
    found += flat(steps_of([list(of_rank) for of_rank in batched(samplers, batch)]))
    assert found == PlanSampler(of, 1, 0).order().tolist()


@pytest.mark.parametrize("shares", [[1, 1], [3, 1], [1] * 8, [0.5, 0.25, 0.25], [0.7, 0.3]])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_rank_has_always_the_same_sources(shares: list[float], ranks: int) -> None:
    """A pattern as long as there are ranks would give each of them one source."""
    came = went(mixture(shares, epoch=40_000))
    for rank in range(ranks):
        found = np.bincount(came[rank::ranks], minlength=len(shares))
        due = np.array(shares) / sum(shares) * 40_000 / ranks
        assert (np.abs(found - due) < 5 * np.sqrt(due)).all()


# With files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, H5Dataset]:
    made, begin = {}, 0
    for name, size, options in (("real", 40, {}), ("made", 90, {"chunks": (8, 3), "compression": "gzip"})):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=np.arange(3 * begin, 3 * (begin + size)).reshape(size, 3), **options)
        made[name] = H5Dataset(tmp_path / f"{name}.h5", {"x": "x"})
        begin += size
    return made


class AsTorchReads(torch.utils.data.Dataset[Any]):
    """The same samples, read by torch's engine."""

    def __init__(self, data: H5Dataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


def numbered(batch: Any) -> list[int]:
    return [row[0] // 3 for row in batch["x"].tolist()]


@pytest.mark.parametrize(("native", "buffer"), [(True, 0), (True, 40_000), (True, None), (False, None)])
def test_a_loader_gives_the_samples_of_the_order_and_tells_their_sources(
    files: dict[str, H5Dataset], buffer: int | None, native: bool
) -> None:
    kept = {name: data if native else AsTorchReads(data) for name, data in files.items()}
    of = Mixture({"real": (kept["real"], 0.6), "made": (kept["made"], 0.4)}, epoch="all")
    sampler = PlanSampler(of, 1, 0, seed=5)
    storage = Storage(latency=1e-3, bandwidth=1e8, iops=500)
    own = {"buffer": buffer, "epochs": 3, "storage": storage} if native else {}
    with DataLoader(of, 7, sampler=sampler, **own) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            found, sources = [], []
            for batch in loader:
                found += numbered(batch)
                assert [("real", "made")[sample >= 40] for sample in numbered(batch)] == loader.sources()
                sources += loader.sources()
            assert found == sampler.order().tolist()
            assert Counter(sources) == sampler.counts()
            assert ", ".join(f"{n} of {name}" for name, n in Counter(sources).most_common()) in loader.report()


def test_a_loader_goes_on_in_the_middle(files: dict[str, H5Dataset]) -> None:
    of = Mixture({name: (data, 1) for name, data in files.items()}, epoch=70)
    loader = DataLoader(of, 8, sampler=PlanSampler(of, 1, 0))
    found, states = [], []
    for batch in loader:
        found.append(numbered(batch))
        states.append(json.dumps(loader.state_dict()))
    assert max(map(len, states)) < 1000
    again = DataLoader(of, 8, sampler=PlanSampler(of, 1, 0))
    again.load_state_dict(json.loads(states[3]))
    assert [numbered(batch) for batch in again] == found[4:]


def test_sources_may_be_parts_of_datasets_and_several_of_them(files: dict[str, H5Dataset]) -> None:
    part = Subset(files["made"], range(50, 90))
    both = ConcatDataset([files["real"], Subset(files["made"], range(10))])
    of = Mixture({"part": (part, 1), "both": (both, 1)}, epoch=60)
    loader = DataLoader(of, 6, sampler=PlanSampler(of, 1, 0))
    for batch in loader:
        assert loader.sources() == [("both", "part")[sample >= 90] for sample in numbered(batch)]


# What cannot be


def test_sources_of_unlike_structure_are_refused(files: dict[str, H5Dataset], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros((5, 4), "f4")
    other = H5Dataset(tmp_path / "other.h5", {"x": "x"})
    with pytest.raises(
        PlanError, match=r"source real and of source other cannot .* int64 \(3,\)\}; and .*float32 \(4,\)"
    ):
        Mixture({"real": (files["real"], 1), "other": (other, 1)})
    sliced = H5Dataset(tmp_path / "real.h5", {"x": Field("x", dtype="float64")})
    with pytest.raises(PlanError, match="float64"):
        Mixture({"real": (files["real"], 1), "sliced": (sliced, 1)})
    with pytest.raises(PlanError, match="source real is read natively, and source list is not: list is not an H5D"):
        Mixture({"real": (files["real"], 1), "list": ([1, 2], 1)})


@pytest.mark.parametrize(
    ("sources", "epoch", "said"),
    [
        ({}, "first", "one source or more"),
        ({"a": range(3)}, "first", "source a: give"),
        ({"a": (range(3), 0)}, "first", "share of source a is 0.0"),
        ({"a": (range(3), -1), "b": (range(3), 1)}, "first", "share of source a is -1.0"),
        ({"a": (range(3), float("nan"))}, "first", "share of source a is nan"),
        ({"a": (range(3), 1e308), "b": (range(3), 1e308)}, "first", "too large for their sum"),
        ({"a": (range(3), 1), "b": (range(3), 1e-9)}, "first", "source b is less than one sample in 1,048,576"),
        ({"a": (range(0), 1)}, "first", "source a has no sample"),
        ({"a": (range(3), 1)}, "last", "epoch='last'"),
        ({"a": (range(3), 1)}, 0, "epoch=0"),
    ],
)
def test_what_cannot_be_mixed_is_refused_in_words(sources: Any, epoch: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Mixture(sources, epoch=epoch)


def test_a_mixture_is_not_shuffled_nor_ordered_otherwise_by_mistake() -> None:
    of = mixture([1, 1])
    with pytest.raises(ValueError, match="shuffle=True goes through all samples of a Mixture once"):
        DataLoader(of, 2, shuffle=True)
    with pytest.raises(ValueError, match="without a sampler a loader goes through all samples of a Mixture once"):
        DataLoader(of, 2)
    for options in ({"weights": np.ones(len(of))}, {"num_samples": 3}, {"shuffle": False}, {"order": "blocks"}):
        with pytest.raises(ValueError, match="a Mixture has its own order"):
            PlanSampler(of, 1, 0, **options)
    with pytest.raises(PlanError, match="a part of a Mixture has not its shares"):
        PlanSampler(Subset(of, range(5)), 1, 0)
    with pytest.raises(TypeError, match="is of a Mixture"):
        DataLoader(range(3)).sources()


def test_a_state_of_other_shares_is_refused() -> None:
    with pytest.raises(PlanError, match="by other mixture"):
        PlanSampler(mixture([1, 2], epoch=9), 1, 0).load_state_dict(
            PlanSampler(mixture([1, 3], epoch=9), 1, 0).state_dict()
        )
