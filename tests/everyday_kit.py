"""What tests of kinds of samples share: everything that a loader does with them, held to a list of samples."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from buffer_kit import equal
from serve_kit import PATIENT, serving, together
from serve_kit import check as check_served
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, PlanSampler


class Listed(torch.utils.data.Dataset[Any]):
    """The samples that are expected."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def alike(ours: Any, theirs: Any) -> bool:
    """Whether two samples have the same values, shapes and types."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    kinds = ours.dtype == theirs.dtype.newbyteorder("=")
    return kinds and ours.shape == theirs.shape and ours.tobytes() == theirs.astype(ours.dtype).tobytes()


def check(
    data: H5Dataset, samples: Sequence[Any], *, buffers: Sequence[Any] = (0, "1MiB"), torchs: bool = True
) -> None:
    """Samples one by one, batches of both loaders, a state in the middle of an epoch, and two ranks.

    `torchs`: torch's collation of the samples makes our batches.
    """
    assert len(data) == len(samples)
    assert all(alike(data[i], one) for i, one in enumerate(samples))
    _check_batches(data, Listed(samples) if torchs else data, buffers)
    for buffer in buffers:
        _check_resumed(data, buffer)


def _check_batches(data: Any, expected: Any, buffers: Sequence[Any]) -> None:
    torch.manual_seed(1)
    theirs = [batch for _ in range(2) for batch in TorchLoader(expected, 5, shuffle=True)]
    torch.manual_seed(1)
    assert equal([batch for _ in range(2) for batch in TorchLoader(data, 5, shuffle=True)], theirs)
    for buffer in buffers:
        torch.manual_seed(1)
        with DataLoader(data, 5, shuffle=True, buffer=buffer, epochs=2) as loader:
            assert equal([batch for _ in range(2) for batch in loader], theirs), buffer
            assert buffer == 0 or loader._buffered.running is not None
    for rank in range(2):
        sampler = PlanSampler(data, 2, rank, seed=3)
        theirs = list(TorchLoader(expected, 3, sampler=sampler))
        for buffer in buffers:
            with DataLoader(data, 3, sampler=sampler, buffer=buffer, exchange="off") as loader:
                assert equal(list(loader), theirs), (rank, buffer)


def _check_resumed(data: Any, buffer: Any) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(data, 3, sampler=PlanSampler(data, 1, 0, seed=4), buffer=buffer)

    with loader() as whole:
        every = list(whole)
    with loader() as first:
        begun = iter(first)
        seen = [next(begun) for _ in range(2)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del begun
    with loader() as second:
        second.load_state_dict(state)
        assert equal([*seen, *second], every), buffer


def check_service(make: Callable[[], Any], files: Sequence[Path], where: Path) -> None:
    """Two jobs of a service have the batches that they would have alone, and get them from it."""
    data = [make() for _ in range(2)]
    with serving(*files, where=where, slack=PATIENT, memory=64 << 20) as service:
        found = together(data, str(service.path))
    check_served(data, found)
    assert all(counts is not None and counts["served"] for _, counts in found.values())
