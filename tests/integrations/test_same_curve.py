"""At the same global batch, training takes the same course on any number of ranks, resumed on any other as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle

SAMPLES = 5 * 24 + 12  # the last step is half a step, and has a sample for each of 8 ranks
STEPS = 6
SAVED_AT = STEPS + 2

Steps = list[tuple[float, float, list[int]]]  # of each the loss by averaging, that by gathering, and the samples
Program = Callable[..., dict[str, Any]]

PROGRAM = Path(__file__).with_name("curve_program.py")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch cannot do distributed")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data, and where a run leaves its state."""
    folder = tmp_path_factory.mktemp("curve")
    random = np.random.default_rng(2)
    x = random.normal(size=(SAMPLES, 6))
    with h5py.File(folder / "data.h5", "w") as file:
        file["i"], file["x"], file["y"] = np.arange(SAMPLES), x, np.sin(x).sum(axis=1)
    settle(folder / "data.h5")
    return folder / "data.h5", folder / "state.pt"


def together(told: dict[str, Any], job: str) -> Steps:
    """The steps of all ranks."""
    of_ranks = [of_rank[job] for of_rank in told.values()]
    steps = []
    for step in zip(*of_ranks, strict=True):
        assert len({tuple(losses) for *losses, _ in step}) == 1, "ranks tell different losses of a step"
        steps.append((*step[0][:2], sorted(i for *_, samples in step for i in samples)))
    return steps


def averaged(steps: Steps) -> list[float]:
    return [loss for loss, _, _ in steps]


def gathered(steps: Steps) -> list[str]:
    """Bit by bit."""
    return [loss.hex() for _, loss, _ in steps]


def samples(steps: Steps) -> list[list[int]]:
    return [of_step for _, _, of_step in steps]


@pytest.fixture(scope="module")
def four(files: tuple[Path, Path], program: Program) -> Steps:
    """The whole course with four ranks, which leave their state amid the second epoch."""
    return together(program(PROGRAM, *files, "save", processes=4), "save")


def test_training_learns_something_from_each_sample_once_an_epoch(four: Steps) -> None:
    assert len(four) == 3 * STEPS
    assert averaged(four)[-1] < averaged(four)[0] / 2
    for epoch in range(3):
        of_epoch = samples(four)[epoch * STEPS : (epoch + 1) * STEPS]
        assert sorted(i for of_step in of_epoch for i in of_step) == list(range(SAMPLES))
    assert samples(four)[:STEPS] != samples(four)[STEPS : 2 * STEPS]


def test_one_rank_takes_the_same_course_also_resumed(files: tuple[Path, Path], program: Program, four: Steps) -> None:
    told = program(PROGRAM, *files, "whole", "resume", processes=1)
    check_same(together(told, "whole"), four)
    check_same(together(told, "resume"), four[SAVED_AT:])


@pytest.mark.slow
def test_two_ranks_take_the_same_course_also_resumed_and_with_uneven_batches(
    files: tuple[Path, Path], program: Program, four: Steps
) -> None:
    told = program(PROGRAM, *files, "whole", "resume", "uneven", processes=2)
    assert len(told) == 2
    check_same(together(told, "whole"), four)
    check_same(together(told, "resume"), four[SAVED_AT:])
    check_same(together(told, "uneven"), four)
    shares = {len(of_step[2]) for of_rank in told.values() for of_step in of_rank["uneven"]}
    assert len(shares) > 3, "the batches were even"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 8])
def test_other_numbers_of_ranks_go_on_from_amid_an_epoch_as_the_first_would_have(
    ranks: int, files: tuple[Path, Path], program: Program, four: Steps
) -> None:
    told = program(PROGRAM, *files, "resume", processes=ranks)
    assert len(told) == ranks
    check_same(together(told, "resume"), four[SAVED_AT:])


def check_same(steps: Steps, expected: Steps) -> None:
    assert samples(steps) == samples(expected)
    assert averaged(steps) == pytest.approx(averaged(expected), rel=1e-12)
    assert gathered(steps) == gathered(expected)
