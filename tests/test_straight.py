"""The short way of a batch: what it takes of the loop's thread, in calls; and that it is the long way's in all else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import broken_file, check_all_but_the_broken

from solar import DataLoader, H5Dataset, PlanSampler
from solar.loader.iterator import EpochIterator

SAMPLES, BATCH = 1000, 8  # the last batch is a whole one
BUFFER = 1 << 20
AS_IT_COMES = (
    "wait_share",
    "requests",
    "calls",
    "bytes",
    "bytes_mapped",
    "bypassed",
)  # mapped or read: as the system has it


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("straight") / "scan.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(1).random((SAMPLES, 32, 8), np.float32)
        file["y"] = np.arange(SAMPLES)
    return path


def loader_of(path: Path, fields: Any = "x", batch: int = BATCH, **options: Any) -> Any:
    data = H5Dataset(path, fields)
    return DataLoader(data, batch, sampler=PlanSampler(data, 1, 0, seed=3), **options)


def goes_straight(iterator: Any) -> bool:
    assert isinstance(iterator, EpochIterator)
    return iterator._direct is not None


def calls(batches: Iterator[Any]) -> int:
    """Functions of Python called for the next batch."""
    counted = 0

    def count(frame: object, event: str, what: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        next(batches)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize(("buffer", "fields", "most"), [(0, "x", 9), (BUFFER, "x", 10), (BUFFER, {"x": "x"}, 11)])
def test_a_batch_takes_few_calls_of_the_loops_thread(path: Path, buffer: int, fields: Any, most: int) -> None:
    batches = iter(loader_of(path, fields, buffer=buffer))
    list(islice(batches, 8))
    found = []
    for _ in range(64):
        time.sleep(1e-3)  # as a loop that computes, so that the next batch is there
        found.append(calls(batches))
    assert goes_straight(batches)
    assert min(found) == most, found  # on a busy machine some batches are not there yet, and take more calls


@pytest.mark.slow(every=9)
@pytest.mark.parametrize("buffer", [0, BUFFER])
@pytest.mark.parametrize("fields", ["x", {"x": "x", "y": "y"}, ("x", "y")], ids=str)
@pytest.mark.parametrize("batch", [BATCH, 7])
def test_both_ways_give_the_same_batches_and_counts(path: Path, buffer: int, fields: Any, batch: int) -> None:
    found: list[Any] = []
    for long_way in ({}, {"on_error": "skip"}):
        with loader_of(path, fields, batch, buffer=buffer, epochs=2, **long_way) as loader:
            epochs = []
            for epoch in range(2):
                loader.set_epoch(epoch)
                batches = iter(loader)
                epochs.append([next(batches)])
                assert goes_straight(batches) == (not long_way)
                states = [loader.state_dict()]
                for one in batches:
                    epochs[-1].append(one)
                    states.append(loader.state_dict())
        stats = loader.stats()
        counted = {name: value for name, value in stats.items() if "seconds" not in name and name not in AS_IT_COMES}
        found.append((epochs, states, counted))
    (short, short_states, short_counts), (long, long_states, long_counts) = found
    torch.testing.assert_close(short, long, rtol=0, atol=0)
    assert short_states == long_states
    assert short_counts == long_counts
    assert short_counts["resident_bytes"] == 0
    assert short_counts["epochs"] == 2
    assert short_counts["samples"] == 2 * SAMPLES


@pytest.mark.parametrize("buffer", [0, BUFFER])
def test_counts_are_exact_at_every_batch_and_the_time_is_all_there(path: Path, buffer: int) -> None:
    loader = loader_of(path, buffer=buffer)
    begin = time.perf_counter()
    for number, _ in enumerate(loader, 1):
        stats = loader.stats()
        assert (stats["batches"], stats["samples"]) == (number, number * BATCH)
    assert 0 < sum(stats["wait_seconds"].values()) + stats["busy_seconds"] <= time.perf_counter() - begin


@pytest.mark.parametrize("buffer", [0, BUFFER])
def test_a_batch_that_fails_is_raised_in_its_turn_and_the_others_come(tmp_path: Path, buffer: int) -> None:
    batches = iter(DataLoader(H5Dataset(broken_file(tmp_path), "x"), 4, buffer=buffer))
    next(batches)
    assert goes_straight(batches)
    check_all_but_the_broken(batches)


def test_a_pass_that_is_left_gives_its_memory_back(path: Path) -> None:
    for buffer in (0, BUFFER):
        loader = loader_of(path, buffer=buffer)
        batches = iter(loader)
        list(islice(batches, 20))
        assert loader.stats()["resident_bytes"] > 0
        loader.close()
        assert loader.stats()["resident_bytes"] == 0
        with pytest.raises(RuntimeError, match="closed with its loader"):
            next(batches)
