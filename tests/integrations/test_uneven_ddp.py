"""Uneven batches in training: with their weights DDP gives the gradients of even ones; frameworks keep the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from solar.loader.uneven import weight_batch

Told = dict[str, Any]

PROGRAM = Path(__file__).with_name("uneven_program.py")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch cannot do distributed")


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def told(request: pytest.FixtureRequest, program: Callable[..., Told]) -> Told:
    """Of each run the gradients of each step, after those of the steps before it were applied."""
    ranks = program(PROGRAM, processes=request.param)
    assert all(ranks[f"rank{rank}"] == ranks["rank0"] for rank in range(request.param))
    return {name: np.array(gradients) for name, gradients in ranks["rank0"].items()}


def difference(one: Any, other: Any) -> float:
    """The largest, beside the largest value."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def test_gradients_of_uneven_batches_are_those_of_even_ones(told: Told) -> None:
    assert told["uneven"].shape == told["even"].shape
    assert len(told["uneven"]) == 6
    assert difference(told["uneven"], told["even"]) < 1e-12


def test_the_weights_are_what_makes_them_so(told: Told) -> None:
    assert difference(told["unweighted"][0], told["even"][0]) > 1e-3


def test_even_batches_give_the_bits_that_ddp_gives_alone(told: Told) -> None:
    assert np.array_equal(told["even with weights"], told["even"])


def test_scaled_losses_give_the_same_gradients(told: Told) -> None:
    assert difference(told["scaled"], told["even, no scale"]) < 1e-12


def test_scaled_losses_give_the_same_gradients_when_they_are_accumulated(told: Told) -> None:
    assert len(told["accumulated"]) == 3
    assert difference(told["accumulated"], told["even, accumulated"]) < 1e-12


@pytest.mark.parametrize(
    "batch", [{"x": torch.ones(2)}, [torch.ones(2), "name"], (torch.ones(2), {"y": torch.ones(1)})]
)
def test_accelerate_and_lightning_keep_the_weight_of_what_they_move(batch: Any) -> None:
    operations = pytest.importorskip("accelerate.utils.operations")
    functions = pytest.importorskip("lightning.fabric.utilities.apply_func")
    for move in (operations.send_to_device, functions.move_data_to_device):
        moved = move(weight_batch(batch, 0.75), torch.device("meta"))
        assert isinstance(moved, type(batch))
        assert moved.weight == 0.75
