"""The short way of a batch: what it takes of the loop's thread, in calls; and that it is the long way's in all else."""

from __future__ import annotations

import sys
import threading
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
from serve_kit import serving

from solar import Crops, DataLoader, Field, H5Dataset, PlanSampler, Windows
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
        file.create_dataset(
            "volume", data=np.random.default_rng(2).random((SAMPLES, 8, 4), np.float32), chunks=(5, 8, 4)
        )
    return path


def loader_of(path: Path, fields: Any = "x", batch: int = BATCH, **options: Any) -> Any:
    data = H5Dataset(path, fields)
    return DataLoader(data, batch, sampler=PlanSampler(data, 1, 0, seed=3), **options)


def goes_straight(iterator: Any) -> bool:
    assert isinstance(iterator, EpochIterator)
    return iterator._direct is not None


def calls(batches: Iterator[Any], found: list[Any] | None = None) -> int:
    """Functions of Python called for the next batch, which `found` gets."""
    counted = 0

    def count(frame: object, event: str, what: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        batch = next(batches)
    finally:
        sys.setprofile(None)
    if found is not None:
        found.append(batch)
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
def test_both_ways_give_the_same_batches_and_counts(
    path: Path, buffer: int, fields: Any, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    for long_way in (False, True):
        if long_way:
            monkeypatch.setattr("solar.loader.iterator.direct_source", lambda *_, **__: None)
        with loader_of(path, fields, batch, buffer=buffer, epochs=2) as loader:
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


WINDOW = Field("x", steps=(0, 1, 5))
CLIPS = Windows(every=2, pad="edge")


@pytest.mark.parametrize(
    ("fields", "samples", "buffer"),
    [
        (WINDOW, CLIPS, 0),
        (WINDOW, CLIPS, BUFFER),
        ({"y": "y", "x": WINDOW}, CLIPS, 0),
        ({"y": "y", "x": WINDOW}, CLIPS, BUFFER),
        (Field("x", steps=(0, 1), dtype="f8", mean=0.5), CLIPS, 0),
        (Field("x", steps=(0, 1), dtype="f8", mean=0.5), CLIPS, BUFFER),
        ("volume", Crops((1, 4, 4)), BUFFER),
    ],
    ids=lambda one: type(one).__name__,
)
def test_windows_and_boxes_are_those_of_the_long_way(
    path: Path, fields: Any, samples: Any, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, found = H5Dataset(path, fields, samples=samples), list[Any]()
    assert len(data) >= SAMPLES // 2
    for long_way in (False, True):
        if long_way:
            monkeypatch.setattr("solar.loader.iterator.direct_source", lambda *_, **__: None)
        with DataLoader(data, 7, sampler=PlanSampler(data, 1, 0, seed=3), buffer=buffer) as loader:
            batches, states = iter(loader), []
            epoch = [next(batches)]
            assert goes_straight(batches) == (not long_way)
            for batch in batches:
                epoch.append(batch)
                states.append(loader.state_dict())
        counted = {name: loader.stats()[name] for name in ("batches", "samples", "batch_bytes", "epochs")}
        found.append((epoch, states, counted))
    (short, *facts), (long, *long_facts) = found
    torch.testing.assert_close(short, long, rtol=0, atol=0)
    assert facts == long_facts


@pytest.mark.parametrize("fields", ["x", {"x": "x", "y": "y"}], ids=str)
def test_batches_of_a_service_take_few_calls_and_are_those_of_the_long_way(
    path: Path, fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    with serving(path, where=tmp_path) as service:
        for long_way in (False, True):
            if long_way:
                monkeypatch.setattr("solar.loader.iterator.direct_source", lambda *_, **__: None)
            with loader_of(path, fields, service=str(service.path), buffer=0) as loader:
                epoch, states, few = list[Any](), [], []
                batches = iter(loader)
                for _ in range(SAMPLES // BATCH):
                    time.sleep(1e-3)  # the next batch is there then: calls that wait are not counted
                    few.append(calls(batches, epoch))
                    states.append(loader.state_dict())
                    assert goes_straight(batches) == (not long_way) or len(epoch) > SAMPLES // BATCH - 9
                assert next(batches, None) is None
                assert loader._buffered.running.counts()["served"] > 100
            counted = {name: loader.stats()[name] for name in ("batches", "samples", "batch_bytes", "epochs")}
            found.append((epoch, states, counted))
            assert long_way or min(few) <= 27, few
    (short, *facts), (long, *long_facts) = found
    torch.testing.assert_close(short, long, rtol=0, atol=0)
    assert facts == long_facts


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


# --- with Python of the user's, and with Fields ----


def same(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("buffer", [0, BUFFER])
def test_a_transform_takes_little_but_its_own_calls(path: Path, buffer: int) -> None:
    data = H5Dataset(path, "x", transform=same)
    batches = iter(DataLoader(data, 64, sampler=PlanSampler(data, 1, 0, seed=3), buffer=buffer))
    list(islice(batches, 4))
    found = []
    for _ in range(6):
        time.sleep(2e-3)
        found.append(calls(batches))
    assert goes_straight(batches)
    assert min(found) <= 64 + 20, found


@pytest.mark.parametrize("buffer", [0, BUFFER])
@pytest.mark.parametrize("field", [Field("x", dtype="f8", mean=0.5), Field("x", select=(slice(3, 20),), axes=(1, 0))])
def test_fields_are_converted_by_native_threads(path: Path, buffer: int, field: Field) -> None:
    with h5py.File(path) as file:
        x, y = file["x"][()], file["y"][()]
    loader = loader_of(path, {"x": field, "y": "y"}, 7, buffer=buffer, epochs=2)
    for epoch in range(2):
        loader.set_epoch(epoch)
        batches, few = iter(loader), list[int]()
        found = list(islice(batches, 8))
        for _ in range(32):
            time.sleep(5e-4)
            few.append(calls(batches, found))
        assert goes_straight(batches)
        assert min(few) <= 18, few
        found += batches
        at = torch.cat([one["y"] for one in found]).numpy()
        assert sorted(at) == list(range(SAMPLES))
        wanted = field.convert(x[at])
        np.testing.assert_array_equal(torch.cat([one["x"] for one in found]).numpy(), wanted)
        np.testing.assert_array_equal(y[at], at)
    loader.close()
    stats = loader.stats()
    assert stats["samples"] == 2 * SAMPLES
    assert stats["resident_bytes"] == 0


def test_waiting_for_a_conversion_is_no_waiting_for_the_storage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from solar.loader import lent

    taken = lent.ConvertedQueue.take

    def late(self: Any, seconds: float) -> Any:
        found = taken(self, seconds)
        if found is None:
            return None
        time.sleep(0.01)
        return found[0], (*found[1][:-1], 10**10)

    monkeypatch.setattr(lent.ConvertedQueue, "take", late)
    loader = loader_of(path, Field("x", dtype="f8"), 100)
    list(islice(loader, 5))
    waits = loader.stats()["wait_seconds"]
    assert waits["transform"] >= 0.02 > waits["storage"] + waits["decode"]
    loader.close()


class FailsOnce:
    """A transform that raises at one sample, the first time."""

    def __init__(self, error: BaseException, at: int) -> None:
        self.error, self.at, self.seen = error, at, list[int]()

    def __call__(self, sample: Any) -> Any:
        self.seen.append(int(sample["y"]))
        if int(sample["y"]) == self.at and self.seen.count(self.at) == 1:
            raise self.error
        return sample


@pytest.mark.parametrize("buffer", [0, BUFFER])
def test_the_error_of_a_transform_comes_in_its_turn_and_nothing_is_transformed_twice(path: Path, buffer: int) -> None:
    transform = FailsOnce(ValueError("odd"), 27)
    batches = iter(DataLoader(H5Dataset(path, {"x": "x", "y": "y"}, transform=transform), BATCH, buffer=buffer))
    found = []
    with pytest.raises(ValueError, match="odd") as raised:
        for batch in batches:
            found += batch["y"].tolist()
    assert found == list(range(24))
    assert "sample 27" in raised.value.__notes__[0]
    assert [int(one) for batch in batches for one in batch["y"]] == list(range(32, SAMPLES))
    assert transform.seen == [*range(28), *range(32, SAMPLES)]


@pytest.mark.parametrize("buffer", [0, BUFFER])
@pytest.mark.parametrize("leaves", [False, True])
def test_ctrl_c_in_a_transform_loses_no_batch(
    path: Path, buffer: int, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = FailsOnce(KeyboardInterrupt(), 27)
    loader = DataLoader(H5Dataset(path, {"x": "x", "y": "y"}, transform=transform), BATCH, buffer=buffer)
    batches, found = iter(loader), list[int]()
    with pytest.raises(KeyboardInterrupt):
        for batch in batches:
            found += batch["y"].tolist()
    assert found == list(range(24))
    assert goes_straight(batches)
    if leaves:  # as while torch's profiler runs, which has ranges of the queue
        monkeypatch.setattr("solar.loader.direct.profiling", lambda: True)
    rest = [int(one) for batch in batches for one in batch["y"]]
    assert rest == list(range(24, SAMPLES))
    loader.close()
    assert loader.stats()["samples"] == SAMPLES
    assert loader.stats()["resident_bytes"] == 0


def test_a_transform_during_which_its_loader_is_closed_ends_in_words(path: Path) -> None:
    def closing(sample: Any) -> Any:
        if int(sample["y"]) == 12:
            thread = threading.Thread(target=loader.close)
            thread.start()
            thread.join()
        return sample

    loader = DataLoader(H5Dataset(path, {"x": "x", "y": "y"}, transform=closing), BATCH)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match="closed with its loader"):
        next(batches)
    assert loader.stats()["resident_bytes"] == 0


def test_broken_samples_are_left_out_from_the_direct_way_on(tmp_path: Path) -> None:
    loader = DataLoader(H5Dataset(broken_file(tmp_path), "x"), 4, on_error="skip")
    batches = iter(loader)
    next(batches)
    assert goes_straight(batches)
    rest = list(batches)
    assert not goes_straight(batches)
    assert rest and loader.stats()["skipped"] > 0


def test_none_is_a_batch_if_a_collate_fn_makes_it(path: Path) -> None:
    def nothing(samples: Any) -> None:
        return None

    loader = DataLoader(H5Dataset(path, "x"), BATCH, collate_fn=nothing)
    assert list(loader) == [None] * (SAMPLES // BATCH)


def test_device_transform_and_progress_follow_the_direct_way(path: Path) -> None:
    loader = DataLoader(H5Dataset(path, "y"), BATCH, device_transform=lambda batch: batch + 1)
    batches = iter(loader)
    assert next(batches).tolist() == list(range(1, BATCH + 1))
    assert goes_straight(batches)
