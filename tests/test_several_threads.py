"""Several threads that call next() on one iterator: together they get every sample once, on every way of a batch."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from faults_kit import injected, reads
from serve_kit import serving
from torch.utils.data import Dataset, IterableDataset

from solar import DataLoader, H5Dataset, PlanSampler, _native
from solar.io.system.waiting import polling, until

SAMPLES, BATCH, THREADS = 1600, 8, 4
LONGEST = 120  # seconds, for all threads together


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("threads") / "numbers.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(SAMPLES)
        file.create_dataset("packed", data=np.arange(SAMPLES), chunks=(50,), compression="gzip")
    return path


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    """Lets the interpreter change threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Plain(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


def doubled(sample: Any, rng: Any) -> Any:
    return sample


def halved(batch: Any) -> Any:
    return torch.utils.data.default_collate(batch)


WAYS: dict[str, Callable[[Path], Any]] = {
    "the short way": lambda path: DataLoader(H5Dataset(path, "x"), BATCH, shuffle=True, buffer=0),
    "the short way of a buffer": lambda path: DataLoader(H5Dataset(path, "x"), BATCH, shuffle=True, buffer="1MiB"),
    "decoded": lambda path: DataLoader(H5Dataset(path, "packed"), BATCH, shuffle=True, buffer=0),
    "a buffer with a generator": lambda path: DataLoader(
        H5Dataset(path, "packed"), BATCH, shuffle=True, buffer="1MiB", generator=torch.Generator().manual_seed(1)
    ),
    "the long way": lambda path: DataLoader(
        H5Dataset(path, "x"), BATCH, shuffle=True, buffer=0, device_transform=lambda batch: batch
    ),
    "a timeout": lambda path: DataLoader(H5Dataset(path, "x"), BATCH, shuffle=True, timeout=LONGEST),
    "on_error": lambda path: DataLoader(H5Dataset(path, "x"), BATCH, shuffle=True, on_error="skip"),
    "a device": lambda path: DataLoader(H5Dataset(path, "x"), BATCH, shuffle=True, device="cpu"),
    "a transform": lambda path: DataLoader(H5Dataset(path, "x", transform=doubled), BATCH, shuffle=True),
    "a transform in threads": lambda path: DataLoader(
        H5Dataset(path, "x", transform=doubled, thread_safe=True), BATCH, shuffle=True, num_workers=2
    ),
    "processes": lambda path: DataLoader(
        H5Dataset(path, "x"), 40, shuffle=True, num_workers=2, collate_fn=halved, multiprocessing_context="fork"
    ),
    "a plan": lambda path: DataLoader(
        H5Dataset(path, "x"), BATCH, sampler=PlanSampler(H5Dataset(path, "x"), 1, 0, seed=1)
    ),
    "another dataset": lambda path: DataLoader(Plain(), BATCH, shuffle=True),
    "another dataset in workers": lambda path: DataLoader(Plain(), 40, shuffle=True, num_workers=2),
    "an iterable one": lambda path: DataLoader(Stream(), BATCH),
}


def taken_by_threads(loader: Any) -> list[int]:
    """All samples that threads get of one iterator of the loader, sorted."""
    iterator, found, errors = iter(loader), [list[int]() for _ in range(THREADS)], list[BaseException]()
    begin = threading.Barrier(THREADS)

    def take(own: list[int]) -> None:
        begin.wait(LONGEST)
        try:
            for batch in iterator:
                own.extend(batch.tolist())
        except BaseException as error:  # whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=take, args=(own,), daemon=True) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors
    return sorted(sample for own in found for sample in own)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("way", WAYS)
def test_threads_that_share_an_iterator_get_every_sample_once(way: str, path: Path) -> None:
    with WAYS[way](path) as loader:
        for _ in range(2):
            assert taken_by_threads(loader) == list(range(SAMPLES))
            assert loader.stats()["samples"] % SAMPLES == 0


def test_threads_share_the_batches_of_a_service(path: Path, tmp_path: Path) -> None:
    data = H5Dataset(path, "packed")
    with serving(path, where=tmp_path) as service:
        sampler = PlanSampler(data, 1, 0, seed=1)
        with DataLoader(data, BATCH, sampler=sampler, service=str(service.path)) as loader:
            assert taken_by_threads(loader) == list(range(SAMPLES))
            assert loader._buffered.served


def test_closing_a_loader_ends_all_threads_that_wait(path: Path) -> None:
    loader = DataLoader(H5Dataset(path, "x"), BATCH, shuffle=True)
    iterator, ended = iter(loader), list[bool]()
    next(iterator)
    loader.close()

    def take() -> None:
        with pytest.raises(RuntimeError, match="closed"):
            next(iterator)
        ended.append(True)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
    assert ended == [True] * THREADS


@pytest.mark.parametrize("way", ["the short way", "the short way of a buffer", "decoded", "the long way"])
@pytest.mark.parametrize("seed", range(3))
def test_another_thread_closes_a_loader_whose_batch_is_being_read(way: str, seed: int, path: Path) -> None:
    """Reads take 10 ms each, so the loop waits in nearly every case. What it had before is right."""
    rng, data, before = random.Random(seed), H5Dataset(path, "x"), _native.pool_stats()["in_use"]
    for _ in range(6):
        loader, found = WAYS[way](path), list[int]()
        closing = threading.Timer(rng.random() * 0.04, loader.close)
        with injected(reads(delay=0.01)):
            closing.start()
            try:
                with suppress(RuntimeError):
                    found.extend(chain.from_iterable(map(torch.Tensor.tolist, loader)))
            finally:
                closing.join(LONGEST)
        assert not closing.is_alive()
        assert len(set(found)) == len(found) and set(found) <= set(range(SAMPLES))
        loader.close()
        del loader, closing

    def given_back() -> bool:
        gc.collect()
        data[0]  # a read looks at what was abandoned
        return _native.pool_stats()["in_use"] <= before

    assert until(polling(given_back), 60)


@pytest.mark.parametrize("way", ["the short way", "the short way of a buffer", "decoded"])
def test_a_signal_handler_closes_a_loader_whose_batch_is_being_read(way: str, path: Path) -> None:
    """As programs do whose time on a cluster ends. The handler runs in the thread that waits for the batch."""
    loader = WAYS[way](path)
    before = signal.signal(signal.SIGUSR1, lambda *_: loader.close())
    try:
        with injected(reads(delay=0.1)):
            sending = threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGUSR1))
            sending.start()
            with pytest.raises(RuntimeError, match="closed"):
                for _ in loader:
                    pass
            sending.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
