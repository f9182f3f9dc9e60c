"""How much is read ahead: batches by number, and by bytes where they are large. Counted, to the byte."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transforms
from faults_kit import fault, injected
from kit import engine
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, _native
from solar.io.reading.engine import Engine
from solar.loader import iterator as native_iter
from solar.planning.budget import pooled_nbytes
from solar.samples import pending
from solar.values import BATCHES_AHEAD

NBYTES = 1 << 16  # of a sample, which is a batch


@pytest.fixture
def dataset(make: Callable[..., str]) -> H5Dataset:
    return H5Dataset(make("large.h5", x=np.arange(12 * NBYTES, dtype="u4").astype("u1").reshape(12, NBYTES)), "x")


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def set_to(batches: float) -> None:
        monkeypatch.setattr(native_iter, "NBYTES_AHEAD", int(batches * NBYTES))

    return set_to


@pytest.mark.parametrize(("batches", "most"), [(0.1, 1), (1, 1), (1.9, 1), (2, 2), (3.5, 3), (5, 5), (100, 5)])
def test_large_batches_are_as_many_as_bytes_allow(dataset: H5Dataset, limit: Any, batches: float, most: int) -> None:
    limit(batches)
    loader, before = DataLoader(dataset), _native.pool_stats()["in_use"]
    for number, batch in enumerate(loader):
        assert batch[0, 0] == dataset[number][0]
        left = len(dataset) - number - 1
        assert loader.stats()["resident_bytes"] == min(left, max(1, most - 1)) * NBYTES
        held = 1 + min(left, max(1, most - 1))  # the loop has one, and one is on its way while it computes
        assert _native.pool_stats()["in_use"] - before <= held * pooled_nbytes(NBYTES)
    assert loader.stats()["peak_bytes"] == most * NBYTES


@pytest.mark.parametrize("options", [{"ahead": 1}, {"ahead": 4}, {"ahead": 7}])
def test_what_was_asked_for_is_obeyed(dataset: H5Dataset, limit: Any, options: dict[str, int]) -> None:
    limit(0.1)
    loader = DataLoader(dataset, **options)
    list(loader)
    assert loader.stats()["peak_bytes"] == (options["ahead"] + 1) * NBYTES


def test_a_large_batch_among_small_ones_is_no_reason_to_read_less_afterwards(dataset: H5Dataset, limit: Any) -> None:
    limit(5)
    batches = [[0], [1], [2, 3, 4, 5, 6, 7], *([i] for i in range(12))]
    loader = DataLoader(dataset, batch_sampler=batches)
    resident = []
    for got, expected in zip(loader, TorchLoader(dataset, batch_sampler=batches), strict=True):
        assert torch.equal(got, expected)
        resident.append(loader.stats()["resident_bytes"] // NBYTES)
    assert max(resident[4:]) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_what_python_makes_of_them_is_limited_too(make: Callable[..., str], limit: Any, workers: int) -> None:
    path = make("some.h5", x=np.zeros((12, NBYTES), "u1"), label=np.zeros(12, "u1"))
    limit(2.5)
    loader = DataLoader(
        H5Dataset(path, {"x": "x", "label": "label"}, transform=transforms.doubled), num_workers=workers
    )
    assert len(list(loader)) == 12
    assert loader.stats()["peak_bytes"] == 2 * (NBYTES + 1)


def test_without_a_limit_four_are_ahead(dataset: H5Dataset) -> None:
    assert (BATCHES_AHEAD, pending.NBYTES_AHEAD) == (4, 1 << 30)
    loader = DataLoader(dataset)
    list(loader)
    assert loader.stats()["peak_bytes"] == 5 * NBYTES


# --- that they are on their way ----


def reached(count: Callable[[], int], wanted: int) -> int:
    """What is counted once it is as much as is wanted, or when it has had time enough."""
    end = time.monotonic() + 60
    while count() < wanted and time.monotonic() < end:
        time.sleep(0.001)
    return count()


@pytest.mark.parametrize("ahead", [1, 4, 7])
def test_so_many_batches_come_while_the_first_does_not(dataset: H5Dataset, ahead: int) -> None:
    first, got = int(dataset.layouts.chunk_offset[0]), []
    with engine(2, "pread"), DataLoader(dataset, ahead=ahead, buffer=0) as loader:
        batches = iter(loader)
        taking = threading.Thread(target=lambda: got.append(next(batches)))
        with injected([fault("read", begin=first, end=first + 1, delay=600)]):  # until this is over
            taking.start()
            assert reached(lambda: Engine.get().stats()["rows"], ahead) == ahead
            assert not got
        taking.join(60)
        assert torch.equal(got[0][0], torch.from_numpy(dataset[0]))
        assert loader.stats()["resident_bytes"] == ahead * NBYTES


@pytest.mark.parametrize("ahead", [1, 4, 7])
def test_a_buffer_has_so_many_batches_ready(dataset: H5Dataset, ahead: int) -> None:
    with DataLoader(dataset, ahead=ahead, buffer="16MiB", epochs=1) as loader:
        for number, batch in enumerate(loader, 1):
            assert torch.equal(batch[0], torch.from_numpy(dataset[number - 1]))
            made = min(len(loader), number + ahead)
            assert reached(lambda: loader._buffered.running.counts()["steps"], made) == made
