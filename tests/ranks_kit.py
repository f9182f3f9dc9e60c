"""What the tests of samplers share: a dataset of any length, samplers on all ranks, the steps they make together."""

from __future__ import annotations

import itertools
from typing import Any

from solar import PlanBatchSampler, PlanSampler

TAILS = ["pad", "drop", "exact"]


class Sized:
    """A dataset of which only the length matters."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples


def on_all_ranks(samples: int, ranks: int, **options: Any) -> list[PlanSampler]:
    return [PlanSampler(Sized(samples), ranks, rank, **options) for rank in range(ranks)]


def batched(samplers: list[PlanSampler], batch_size: int, drop_last: bool = False) -> list[PlanBatchSampler]:
    return [PlanBatchSampler(sampler, batch_size, drop_last) for sampler in samplers]


def steps_of(batches: list[list[list[int]]]) -> list[list[int]]:
    """The samples of each step in the order's order: one of each rank in turn."""
    assert len({len(of_rank) for of_rank in batches}) == 1, "the ranks have different numbers of batches"
    steps = []
    for step in zip(*batches, strict=True):
        take_turns = itertools.zip_longest(*step)
        steps.append([index for turn in take_turns for index in turn if index is not None])
    return steps


def flat(nested: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(nested))
