"""The shuffles are torch's, to the bit, and what is not torch's is a shuffle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_kit import torch_randperm
from torch.utils.data import DistributedSampler, RandomSampler

from solar import _native
from solar.errors import PlanError
from solar.planning import torch_shuffles
from solar.samplers import samplers
from solar.samplers.samplers import seeded

SEEDS = st.sampled_from([0, 1, 5489, 2**31, 2**32 - 1, 2**32 + 7, 2**63 + 11])


@given(st.integers(1, 3000), SEEDS)
@settings(max_examples=80, deadline=None)
def test_a_permutation_is_that_of_torch(n: int, seed: int) -> None:
    wanted = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert _native.randperm(n, seed).tolist() == wanted.tolist()
    assert torch_randperm(n, seed % 2**32).tolist() == wanted.tolist()


@pytest.mark.parametrize("n", [100_003, 1_000_000])
def test_a_large_permutation_is_that_of_torch(n: int) -> None:
    wanted = torch.randperm(n, generator=torch.Generator().manual_seed(3)).numpy()
    assert np.array_equal(_native.randperm(n, 3), wanted)


def test_from_where_torch_takes_numbers_of_64_bits_they_are_counted_so() -> None:
    large = (2**32 - 1) // 20
    assert _native.randperm_draws(large - 1) == large - 2
    assert _native.randperm_draws(large) == 2 * large


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("samples", "ranks"), [(10, 4), (12, 4), (3, 8), (101, 7), (1, 1), (9, 2)])
def test_the_ranks_of_an_order_are_those_of_a_distributed_sampler(
    samples: int, ranks: int, shuffle: bool, drop_last: bool
) -> None:
    made = torch_shuffles.distributed(samples, seed=4, ranks=ranks, drop_last=drop_last, shuffle=shuffle)
    if drop_last and samples < ranks:  # torch has no answer then
        assert made.uses == 0
        return
    for epoch in (0, 1, 9):
        uses = made.of(epoch)
        assert len(uses) == made.uses
        for rank in range(ranks):
            sampler = DistributedSampler(range(samples), ranks, rank, shuffle=shuffle, seed=4, drop_last=drop_last)  # type: ignore[arg-type]
            sampler.set_epoch(epoch)
            assert uses[rank::ranks].tolist() == list(sampler)


def test_epochs_of_one_generator_follow_each_other_as_in_torch() -> None:
    generator = torch.Generator().manual_seed(11)
    sampler = RandomSampler(range(50), generator=generator)  # type: ignore[arg-type]
    made = torch_shuffles.random(50, seed=11)
    assert [list(sampler) for _ in range(3)] == [made.of(epoch).tolist() for epoch in range(3)]


def test_what_a_data_loader_takes_from_the_same_generator_is_skipped() -> None:
    generator = torch.Generator().manual_seed(11)
    loader = torch.utils.data.DataLoader(range(50), batch_size=None, shuffle=True, generator=generator)  # type: ignore[arg-type, var-annotated]
    made = torch_shuffles.random(50, seed=11, between=2)
    assert [[int(x) for x in loader] for _ in range(3)] == [made.of(epoch).tolist() for epoch in range(3)]


def test_given_sequences_may_repeat_samples_and_have_an_end() -> None:
    made = torch_shuffles.of_sequences([[3, 3, 0], [1, 2, 3]], 4)
    assert (made.samples, made.uses, made.epochs) == (4, 3, 2)
    assert made.of(0).tolist() == [3, 3, 0]
    with pytest.raises(PlanError, match="epoch 1 takes samples 0 to 4; the data set has 0 to 3"):
        torch_shuffles.of_sequences([[0, 1], [0, 4]], 4)
    with pytest.raises(PlanError, match="must be equally many"):
        torch_shuffles.of_sequences([[0, 1], [0]], 4)
    with pytest.raises(PlanError, match="no sequence"):
        torch_shuffles.of_sequences([], 4)


def test_steps_keep_the_last_one_short_or_drop_it() -> None:
    made = torch_shuffles.distributed(10)
    assert torch_shuffles.steps(made, 4).tolist() == [0, 4, 8, 10]
    assert torch_shuffles.steps(made, 4, drop_last=True).tolist() == [0, 4, 8]
    assert torch_shuffles.steps(made, 5).tolist() == [0, 5, 10]
    with pytest.raises(PlanError, match="no step is left"):
        torch_shuffles.steps(made, 11, drop_last=True)
    with pytest.raises(PlanError, match="at least one"):
        torch_shuffles.steps(made, 0)


def test_orders_are_named_by_what_makes_them() -> None:
    assert torch_shuffles.distributed(10, seed=1).facts == torch_shuffles.distributed(10, seed=1).facts
    names = [
        torch_shuffles.distributed(10),
        torch_shuffles.distributed(10, seed=1),
        torch_shuffles.random(10),
        torch_shuffles.of_sequences([range(10)], 10),
    ]
    assert len({one.facts for one in names}) == len(names)


def test_too_many_samples_are_refused() -> None:
    with pytest.raises(PlanError, match="takes 1 to 2147483647"):
        torch_shuffles.distributed(2**31)
    with pytest.raises(PlanError, match="at least one"):
        torch_shuffles.distributed(5, ranks=0)


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5, 2**63 - 1, 2**64 - 1, -3])
@pytest.mark.parametrize("samples", [0, 1, 2, 63, 64, 65, 66, 129, 100_003])
def test_a_seeded_shuffle_is_torchs(samples: int, seed: int) -> None:
    wanted = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    assert seeded(samples, seed).tolist() == wanted.tolist()


def test_where_torch_shuffles_otherwise_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(samples: int, *, generator: torch.Generator, dtype: torch.dtype, device: str) -> torch.Tensor:
        return torch.arange(samples, dtype=dtype).flip(0)

    monkeypatch.setattr(torch, "randperm", backwards)
    samplers._as_torch.cache_clear()
    try:
        assert seeded(1000, 1).tolist() == [*range(999, -1, -1)]
    finally:
        monkeypatch.undo()
        samplers._as_torch.cache_clear()
    assert samplers._as_torch()
