"""Transforms and collate functions for tests, in a module of their own so that they can be sent to processes."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["x"] * 2, "label": sample["label"]}


def as_tensor(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return torch.from_numpy(sample["x"].astype("f4")), int(sample["label"])


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> Any:
    return sample["x"] + rng.standard_normal(sample["x"].shape)


def noisy_of_old(sample: dict[str, Any]) -> Any:
    """As transforms are that draw from whatever generator there is."""
    return sample["x"][:2] + np.random.rand() + random.random() + torch.rand(()).numpy()


def failing_at_seven(sample: dict[str, Any]) -> Any:
    if sample["label"] == 7:
        raise KeyError("sample seven")
    return sample["x"]


def dying(sample: dict[str, Any]) -> Any:
    os._exit(3)


def sleeping(sample: dict[str, Any]) -> Any:
    time.sleep(60)


def with_process(sample: dict[str, Any]) -> tuple[int, int]:
    info = get_worker_info()
    return os.getpid(), -1 if info is None else info.id


def collated_by_label(samples: list[Any]) -> dict[int, Any]:
    return {int(sample["label"]): default_collate([sample["x"]]) for sample in samples}


def first_of_worker(worker: int) -> None:
    os.environ["SOLAR_TEST_WORKER"] = str(worker)


def mark_of_worker(sample: dict[str, Any]) -> str:
    return os.environ["SOLAR_TEST_WORKER"]


def mixed_up(samples: list[Any]) -> Any:
    return default_collate([sample["x"] for sample in samples]) * torch.rand(()) + random.random()


def late(sample: dict[str, Any]) -> Any:
    raise TimeoutError("of mine")


class DyingOnce:
    """A transform that ends its process the first time it is called, in whatever process."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)

    def __call__(self, sample: dict[str, Any]) -> Any:
        if not self.mark.exists():
            self.mark.touch()
            os._exit(3)
        return sample["x"]


def twice(sample: np.ndarray[Any, Any]) -> Any:
    return sample * 2


def of_its_own_length(sample: Any) -> Any:
    return {"x": np.zeros(int(sample["x"]))}


def doubled_and_more(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"x": sample["x"] * 2 + rng.integers(5)}
