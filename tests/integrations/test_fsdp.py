"""FSDP2 in a mesh: the data parallel group shares the samples, a tensor parallel group sees the same ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

SAMPLES = 53

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch cannot do distributed"),
]


@pytest.fixture(scope="module")
def told(numbered: str, program: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """What the four ranks told."""
    found = program(Path(__file__).with_name("fsdp_program.py"), numbered, processes=4)
    return [found[f"rank{rank}"] for rank in range(4)]


def order() -> list[int]:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(5 + 1)).tolist()


def padded(samples: list[int], start: int, ranks: int) -> list[int]:
    """The order from `start` on, filled from its beginning until it divides by the ranks, as torch does."""
    left = samples[start:]
    return left + samples[: -len(left) % ranks]


def test_a_tensor_parallel_group_sees_the_same_batches(told: list[dict[str, Any]]) -> None:
    for one in told:
        for other in told:
            alike = one["before"] == other["before"] and one["rest"] == other["rest"]
            assert alike == (one["dp"] == other["dp"])


def test_the_data_parallel_groups_share_the_order(told: list[dict[str, Any]]) -> None:
    for one in told:
        mine = list(chain.from_iterable(one["before"] + one["rest"]))
        assert mine == padded(order(), 0, 2)[one["dp"] :: 2]


def test_a_distributed_checkpoint_of_the_loader_is_resumed_exactly(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert one["resumed"] == one["rest"]


def test_a_mesh_of_another_shape_goes_on_from_it(told: list[dict[str, Any]]) -> None:
    left = padded(order(), 3 * 4 * 2, 4)
    for rank, one in enumerate(told):
        mine = left[rank::4]
        assert one["wider"] == [mine[i : i + 4] for i in range(0, len(mine), 4)]
