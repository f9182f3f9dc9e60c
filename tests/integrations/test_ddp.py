"""DistributedDataParallel under torchrun: each rank its share, and a state that other numbers of ranks go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler

SAMPLES = 53
Told = dict[str, dict[str, Any]]

PROGRAM = Path(__file__).with_name("ddp_program.py")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch cannot do distributed")


def order(epoch: int) -> list[int]:
    """torch's order of all ranks together, seed 5."""
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(5 + epoch)).tolist()


def torchs(rank: int, epoch: int) -> list[list[int]]:
    sampler = DistributedSampler(range(SAMPLES), 2, rank, seed=5)  # type: ignore[arg-type]
    sampler.set_epoch(epoch)
    return [batch.tolist() for batch in TorchLoader(range(SAMPLES), 4, sampler=sampler)]  # type: ignore[arg-type]


def interleaved(ranks: list[list[int]]) -> Iterator[int]:
    """The samples in the order of all ranks: rank 0's first, rank 1's first, ..."""
    return chain.from_iterable(zip(*ranks, strict=True))


@pytest.fixture(scope="module")
def saved(numbered: str, program: Callable[..., Told]) -> Told:
    return program(PROGRAM, numbered, "", "pad", processes=2)


def test_each_rank_gets_the_batches_of_torchs_sampler(saved: Told) -> None:
    for rank in range(2):
        told = saved[f"rank{rank}"]
        assert told["first"] == torchs(rank, 0)
        assert told["before"] + told["rest"] == torchs(rank, 1)
        assert told["next"] == torchs(rank, 2)
        assert told["length"] == 7


def test_the_state_is_the_same_on_all_ranks_and_small(saved: Told) -> None:
    assert saved["rank0"]["state"] == saved["rank1"]["state"]
    assert len(saved["rank0"]["state"]) < 1000


def test_the_same_number_of_ranks_goes_on_as_if_nothing_had_been(
    numbered: str, program: Callable[..., Told], saved: Told
) -> None:
    resumed = program(PROGRAM, numbered, saved["rank0"]["state"], "pad", processes=2)
    for rank in ("rank0", "rank1"):
        for part in ("rest", "next"):
            assert resumed[rank][part] == saved[rank][part]
        assert resumed[rank]["length"] == resumed[rank]["length_resumed"] == 7


def test_another_number_of_ranks_takes_exactly_the_samples_that_are_left(
    numbered: str, program: Callable[..., Told], saved: Told
) -> None:
    alone = program(PROGRAM, numbered, saved["rank0"]["state"], "exact", processes=1)["rank0"]
    left = order(1)[3 * 4 * 2 :]
    assert alone["rest"] == [left[i : i + 4] for i in range(0, len(left), 4)]
    assert list(chain.from_iterable(alone["next"])) == order(2)
    assert alone["length"] == alone["length_resumed"] == 14


def test_consumed_and_left_are_the_order_of_the_epoch(saved: Told) -> None:
    batches = [saved[rank]["before"] + saved[rank]["rest"] for rank in ("rank0", "rank1")]
    ranks = [list(chain.from_iterable(part)) for part in batches]
    assert list(interleaved(ranks))[:SAMPLES] == order(1)
