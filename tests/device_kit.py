"""Devices that are not there: host memory stands for theirs, and their work is done when somebody may rely on it."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from store_kit import smooth

from solar import DataLoader, compress
from solar.device import ring

Tensor = torch.Tensor
SAMPLES = 41


class Mark:
    """All that was begun until it was made."""

    def __init__(self, device: Eager) -> None:
        self.device, self.number = device, device.begun

    def query(self) -> bool:
        return self.device.done >= self.number

    def synchronize(self) -> None:
        self.device.run(self)

    def elapsed_time(self, end: Any) -> float:
        return float(end.number - self.number)


def lent(host: Tensor) -> Tensor:
    """The same memory, which it does not keep: a device does not, either."""
    if host.nbytes == 0:
        return host
    memory = (ctypes.c_uint8 * host.untyped_storage().nbytes()).from_address(host.untyped_storage().data_ptr())
    whole = torch.from_numpy(np.frombuffer(memory, np.uint8)).untyped_storage()
    return torch.empty(0, dtype=host.dtype).set_(whole, host.storage_offset(), host.shape, host.stride())


class Eager:
    """A device that copies at once."""

    made: list[Eager] = []  # noqa: RUF012  # emptied by each test
    pinned_by_any: list[Tensor] = []  # noqa: RUF012  # what one device has pinned, another copies from, too
    lazy = False

    def __init__(self, device: torch.device) -> None:
        self.begun = self.done = 0
        self.work: deque[Callable[[], Any]] = deque()
        self.beside_now = False
        self.calls: list[str] = []
        self.kept: list[Tensor] = []
        self.slots: list[Tensor] = []
        self.sources: list[int] = []  # addresses that were copied from
        self.made.append(self)

    def pinned(self, nbytes: int) -> Tensor:
        self.slots.append(torch.zeros(nbytes, dtype=torch.uint8))
        self.pinned_by_any.append(self.slots[-1])
        return self.slots[-1]

    def address(self) -> str | None:
        return None

    def is_pinned(self, tensor: Tensor) -> bool:
        return self.has_pinned(tensor.data_ptr())

    def has_pinned(self, address: int) -> bool:
        return any(0 <= address - slot.data_ptr() < slot.nbytes for slot in self.pinned_by_any)

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.beside_now = True
        yield
        self.beside_now = False

    def there(self, host: Tensor) -> Tensor:
        assert self.beside_now, "the copy is begun in the consumer's own stream"
        there = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype)
        there.untyped_storage().fill_(0xA5)
        if host.nbytes:
            self.sources.append(host.data_ptr())
        source = lent(host)
        self.work.append(lambda: there.copy_(source))
        self.begun += 1
        if not self.lazy:
            self.run(self.mark())
        return there

    def mark(self) -> Mark:
        return Mark(self)

    def follow(self, mark: Mark) -> None:
        self.calls.append("follow")
        self.run(mark)

    def keep(self, tensor: Tensor) -> None:
        self.calls.append("keep")
        self.kept.append(tensor)

    def continued(self) -> None:
        self.calls.append("continued")

    def native(self) -> None:
        """Nothing copies without Python."""

    def run(self, mark: Mark) -> None:
        while self.done < mark.number:
            self.work.popleft()()
            self.done += 1


class Lazy(Eager):
    """A device that copies only when its copies are waited for, by an event: nobody else sees what it should have."""

    lazy = True


@pytest.fixture(params=["none", "eager"])
def pretended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The host as a device: of the kind that copies while the consumer waits, or with streams that only pretend."""
    if request.param == "eager":
        pretend(monkeypatch, Eager)
    return str(request.param)


def pretend(monkeypatch: pytest.MonkeyPatch, kind: type[Eager]) -> list[Eager]:
    """Has device="cpu" be such a device; gives those that are made, one for each iterator."""
    monkeypatch.setitem(ring.STREAMS, "cpu", kind)
    kind.made = []
    return kind.made


def write(folder: Path, name: str = "a.h5", seed: int = 0, rough: float = 0.0) -> str:
    """A file of which two fields are stored by our codec, a chunk to a sample."""
    rng = np.random.default_rng(seed)
    with h5py.File(folder / f"raw-{name}", "w") as file:
        file["x"] = smooth(SAMPLES, 24, 40, seed=seed) + rough * rng.random((SAMPLES, 24, 40)).astype("f4")
        file["counts"] = rng.poisson(3, (SAMPLES, 6, 8, 5)).astype("u2")
        file["y"] = np.arange(SAMPLES)
        file["text"] = [f"sample {i}" for i in range(SAMPLES)]
    compress(folder / f"raw-{name}", folder / name, {"x": "abs=1e-3", "counts": "lossless"}, chunk_samples=1)
    settle(folder / name)
    return str(folder / name)


def same(one: Any, other: Any) -> bool:
    """Whether two batches are the same, but for the order of their tensors' memory."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def all_same(ours: Any, others: Any) -> bool:
    """Whether two loaders give the same batches; both to their end, where samplers draw once more."""
    compared = [same(one, other) for one, other in zip(ours, others, strict=True)]
    return all(compared) and bool(compared)


def loaders(dataset: Any, *given: Any, seed: int = 5, **options: Any) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Two loaders that draw alike: one without a device, one with all the options."""
    of_device = ("dtype", "channels_last", "static", "decode", "resident", "reader")
    ours = {key: options.pop(key) for key in list(options) if key in of_device}
    made = [torch.Generator().manual_seed(seed) for _ in range(2)]
    return (
        DataLoader(dataset, *given, generator=made[0], **options),
        DataLoader(dataset, *given, generator=made[1], device="cpu", **ours, **options),
    )
