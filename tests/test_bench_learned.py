"""bench/learned.py: what latents and a basis foretell comes back within the bound; another basis is noticed."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from solar import _native

ROOT = Path(__file__).parent.parent
BOUND = 0.01


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The measured predictor; bench/ is not installed, and comes behind all else, so that it hides nothing."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module("bench.learned_parts")


def waves(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Smooth values with some that no bound can hold."""
    values = np.sin(np.arange(np.prod(shape)) / 9).reshape(shape).astype(np.float32)
    values.flat[[0, 5, 6, 70]] = np.nan, 1e30, 1e30, -np.inf
    return values


def tile_of(parts: Any, values: NDArray[Any], bound: float) -> Any:
    (cut,) = parts.tiles_of(values)
    return parts.Tile.of(cut, parts.Scale.of(_native.encode(values, bound)))


@pytest.mark.parametrize("shape", [(13, 21), (5, 9, 6)])
def test_a_tile_cut_into_patches_can_be_joined_again(parts: Any, shape: tuple[int, ...]) -> None:
    (tile,) = parts.tiles_of(np.arange(np.prod(shape)).reshape(shape))
    cut = parts.patches(tile)
    assert cut.shape[1] == 64
    assert np.array_equal(parts.joined(cut, tile), tile)


@pytest.mark.parametrize("shape", [(40, 50), (10, 20, 30)])
def test_every_plan_comes_back_within_the_bound(parts: Any, shape: tuple[int, ...]) -> None:
    tile = tile_of(parts, waves(shape), BOUND)
    assert tile.kept_nbytes == 3 * 8, "two equal values are one run"
    plans = parts.in_patches(tile)
    for basis in parts.bases(parts.patches(tile.integers)):
        assert basis.patterns.dtype == np.int8
        plans += parts.foretold(tile, basis)
    assert len(plans) == 4 + 2 * 12
    assert [parts.coded(tile, [plan]).beyond(tile) for plan in plans] == [0] * len(plans)


def test_counts_come_back_bit_for_bit(parts: Any) -> None:
    tile = tile_of(parts, np.random.default_rng(1).poisson(3, (40, 50)).astype(np.int16), 0.0)
    basis = next(parts.bases(parts.patches(tile.integers)))
    for plan in parts.foretold(tile, basis):
        done = parts.coded(tile, [plan])
        assert done.beyond(tile) == 0
        assert done.nbytes < tile.values.nbytes


def test_what_another_basis_foretells_is_noticed(parts: Any) -> None:
    tile = tile_of(parts, waves((40, 50)), BOUND)
    basis = list(parts.bases(parts.patches(tile.integers)))[-1]
    right, wrong = (parts.foretold(tile, one)[0] for one in (basis, replace(basis, shift=basis.shift + 1)))
    done = parts.coded(tile, [right])
    assert replace(done, plan=replace(right, back=wrong.back)).beyond(tile) > tile.values.size / 2


def test_a_row_counts_tables_basis_and_values_beyond(parts: Any) -> None:
    row = import_module("bench.learned").row_of("waves", 1e-2, [waves((40, 50)), waves((40, 50))[::-1].copy()])
    assert row.beyond == 0
    assert row.nbytes == 16000
    assert row.offered <= row.known <= row.as_is
    assert row.either <= row.built_in + row.learned
    assert row.basis == 64 * row.latents + 4
