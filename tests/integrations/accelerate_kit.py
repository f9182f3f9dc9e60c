"""What tests with Accelerate need: stand-ins for the processes that are not there, and what a loader gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Accelerate keeps one state for the process, and tells its children of it through the environment."""
    before = dict(os.environ)
    Accelerator(cpu=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ.clear()
    os.environ.update(before)


def standin(rank: int = 0, ranks: int = 1, **options: Any) -> Any:
    """What prepare asks of an Accelerator, for a process of many that are not there."""
    asked = {
        "process_index": rank,
        "num_processes": ranks,
        "split_batches": False,
        "even_batches": True,
        "dispatch_batches": None,
        "rng_types": ["generator"],
        "dataloader_config": SimpleNamespace(data_seed=7),
        "device": torch.device("cpu"),
        "device_placement": True,
        "non_blocking": False,
        "distributed_type": "NO",
        "torch_device_mesh": None,
        "prepare_data_loader": lambda loader: loader,
    }
    return SimpleNamespace(**(asked | options))


def indices(loader: Any) -> list[list[int]]:
    return [(batch["i"] if isinstance(batch, dict) else batch).tolist() for batch in loader]


def ends(loader: Any) -> list[tuple[bool, int]]:
    """What the state that gather_for_metrics looks at says with each batch."""
    state = GradientState()
    return [(state.end_of_dataloader, state.remainder) for _ in loader]
