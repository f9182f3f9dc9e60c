"""What tests of adopted Datasets share: loaders side by side, and when two batches are the same to the bit."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.utils.data
from kit import settle

from solar import DataLoader
from solar.loader import adopt


class Around(torch.utils.data.Dataset[Any]):
    """A Dataset around another, as for the parts of random_split."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


def adopt_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has what is learned acted upon, however fast h5py is here."""
    monkeypatch.setattr(adopt, "CHEAP", 0.0)
    monkeypatch.setattr(adopt, "WORTH_A_TABLE", 0.0)
    monkeypatch.setattr(adopt, "WORTH_A_DATASET", 0.0)
    monkeypatch.setattr(adopt, "BAD_CHECKS", 1 << 30)


def scan(folder: Path, samples: int) -> str:
    """A file of rows of several kinds: gzip, large, tiny, several of a sample, big-endian, text."""
    rng = np.random.default_rng(0)
    name = folder / "scan.h5"
    with h5py.File(name, "w") as file:
        x = rng.integers(0, 9, (samples, 8, 6)).astype("f4")
        file.create_dataset("x", data=x, chunks=(16, 8, 6), compression="gzip")
        file["flat"] = rng.standard_normal((samples, 300, 20))
        file["y"], file["long"] = np.arange(samples), rng.random((3 * samples, 600))
        file["big"] = rng.integers(0, 9, (samples, 5)).astype(">i2")
        file["name"] = np.array([f"s{i}" for i in range(samples)], h5py.string_dtype())
    settle(name)
    return str(name)


def kept(samples: Any) -> Any:
    """A collate_fn that hands on what `__getitem__` gave."""
    return samples


def told(value: Any) -> Any:
    """All that a program can see of a value, to be compared."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        flags = value.flags.c_contiguous, value.flags.writeable, value.flags.aligned
        own = value.tolist() if value.dtype.hasobject else value.tobytes()
        return "array", type(value), value.dtype.str, value.dtype.metadata is None, value.shape, flags, repr(own)
    if isinstance(value, np.generic):
        return "scalar", type(value), value.dtype.str, value.tobytes()
    if isinstance(value, list | tuple):
        return type(value), [told(one) for one in value]
    if isinstance(value, dict):
        return "dict", {key: told(one) for key, one in value.items()}
    return type(value), repr(value)


def draws() -> tuple[Any, ...]:
    """The state of every global generator."""
    numpys = np.random.get_state()
    return random.getstate(), (numpys[0], numpys[1].tobytes(), *numpys[2:]), torch.get_rng_state().numpy().tobytes()


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def epochs_of(loader: Any, epochs: int, seed: int = 0) -> Iterator[Any]:
    """All that comes of so many epochs: batches, or errors in their place, and the generators in the end."""
    seed_all(seed)
    for _ in range(epochs):
        batches = iter(loader)
        while True:
            try:
                yield told(next(batches))
            except StopIteration:
                break
            except Exception as error:
                yield type(error), str(error)
        yield draws()


def compared(
    make: Callable[[], Any],
    epochs: int = 2,
    seed: int = 0,
    more: Callable[[], dict[str, Any]] = dict,
    ours: dict[str, Any] | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """Asserts that solar's loader over a Dataset gives what torch's gives; returns it.

    `make` makes the Dataset, and `more` what each loader has of its own; `ours` is for solar's alone.
    """
    expected = list(epochs_of(torch.utils.data.DataLoader(make(), **more(), **options), epochs, seed))
    loader = DataLoader(make(), **more(), **options, **(ours or {}))
    for number, (found, theirs) in enumerate(zip(epochs_of(loader, epochs, seed), expected, strict=True)):
        assert found == theirs, f"item {number}"
    assert h5py.Dataset.__getitem__.__module__.startswith("h5py"), "h5py has its own methods again"
    assert h5py.Dataset.read_direct.__module__.startswith("h5py")
    return loader


def answered(loader: DataLoader[Any]) -> tuple[int, int]:
    """How many calls were answered from memory, and how many were read as asked."""
    adopted = loader._adopted
    return (0, 0) if adopted is None else (adopted.counts.answered, adopted.counts.asked)


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """The lines of the logger, those of processes that are forked meanwhile too."""
    handler, log = logging.FileHandler(path, "a"), logging.getLogger("solar")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)
        handler.close()
