"""Compressed gradients on several ranks: near the exact ones, the same on all, in fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from solar.training import compressed_gradients
from solar.training.gradients import SCALED, decode_rows, encode_rows

PROGRAM = Path(__file__).with_name("compressed_program.py")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch cannot do distributed")
SHORT = ("0.weight", "3.weight")  # the others are vectors or small


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, program: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """What each rank told."""
    told = program(PROGRAM, processes=request.param)
    return [told[f"rank{rank}"] for rank in range(request.param)]


def off(found: dict[str, list[float]], exact: dict[str, list[float]], names: tuple[str, ...]) -> float:
    one, other = (np.concatenate([np.array(some[name]) for name in names]) for some in (found, exact))
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def test_all_ranks_keep_the_same_parameters_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    for run in ("4", "8", "auto", "weighted"):
        assert len({told[run]["digest"] for told in ranks}) == 1
    assert len({ranks[0][run]["digest"] for run in ("None", "4", "8")}) == 3
    assert ranks[0]["again"]["digest"] == ranks[0]["4"]["digest"]


@pytest.mark.parametrize(("bits", "most"), [("8", 0.03), ("4", 0.5)])
def test_gradients_are_near_the_exact_ones_and_small_layers_are_exact(
    ranks: list[dict[str, Any]], bits: str, most: float
) -> None:
    found, exact = (ranks[0][run]["gradients"][0] for run in (bits, "None"))
    assert 0 < off(found, exact, SHORT) < most
    others = tuple(name for name in exact if name not in SHORT)
    assert len(others) == 6
    assert off(found, exact, others) < 1e-6


def test_bytes_are_fewer_and_counted(ranks: list[dict[str, Any]]) -> None:
    world = len(ranks)
    layers, vectors = (64 * 301, 301 * 50), 301 * 3 + 50 + 50 + 1
    rows = sum(-(-one // SCALED) for one in layers)
    for bits in (4, 8):
        sent, exact, kinds = ranks[-1][str(bits)]["counts"]
        assert kinds == dict.fromkeys(SHORT, bits)
        each = (
            2 * (world - 1) * (4 + SCALED * bits // 8) / world
        )  # of a row: to those who have its mean to take, and back
        least = 6 * (rows * each + 2 * 4 * vectors * (world - 1) / world)
        assert least - 24 <= sent <= least * 1.1
        assert exact == pytest.approx(6 * 2 * 4 * (sum(layers) + vectors) * (world - 1) / world, rel=1e-3)
    assert ranks[0]["4"]["counts"][0] * 4 < ranks[0]["4"]["counts"][1]


def test_auto_gives_more_bits_to_what_costs_few_bytes(ranks: list[dict[str, Any]]) -> None:
    assert all(told["auto"]["counts"][2] == ranks[0]["auto"]["counts"][2] for told in ranks)
    four, auto, eight = (ranks[0][run]["counts"][0] for run in ("4", "auto", "8"))
    assert four <= auto < four + 0.3 * (eight - four) + 1


def test_what_rounding_takes_off_is_made_good(ranks: list[dict[str, Any]]) -> None:
    found, exact = (ranks[0][run]["gradients"] for run in ("same", "same, exact"))
    mean = {name: np.mean([step[name] for step in found], axis=0).tolist() for name in SHORT}
    assert off(mean, exact[0], SHORT) < 0.25 * off(found[0], exact[0], SHORT)


def test_uneven_batches_with_their_weights_give_the_gradients_of_even_ones(ranks: list[dict[str, Any]]) -> None:
    assert off(ranks[0]["weighted"]["gradients"][0], ranks[0]["None"]["gradients"][0], SHORT) < 0.03


def test_a_gradient_that_is_not_finite_is_so_on_all_ranks_and_is_over_in_the_next_step(
    ranks: list[dict[str, Any]],
) -> None:
    for told in ranks:
        assert told["finite"][0] == told["finite"][2] == told["finite"][3] == [True] * 8
        assert False in told["finite"][1]
        assert told["finite"] == ranks[0]["finite"]


def test_other_bits_and_other_models_are_refused(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["refused"] == 'bits=3: give 4, 8 or "auto"'
    with pytest.raises(TypeError, match=r"model is a Linear: give it as DistributedDataParallel"):
        compressed_gradients(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_off_by_half_a_step_of_their_own_at_most(bits: int) -> None:
    rows = torch.randn(7, SCALED, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-3, 4)[:, None]
    rows[3] = 0
    back = decode_rows(encode_rows(rows, bits), bits)
    step = rows.abs().amax(1, keepdim=True) / ((1 << (bits - 1)) - 1)
    assert ((back - rows).abs() <= step * (0.5 + 1e-5)).all()
    assert torch.equal(encode_rows(back, bits)[:, 4:], encode_rows(rows, bits)[:, 4:])
