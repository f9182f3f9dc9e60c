"""A buffer beside other iterators, transforms, errors and processes, and its end."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from buffer_kit import BATCH, DISK, dataset_of, equal, generator, loader_of, noted_runs, passes, plain, run_of
from kit import settle
from transforms import noisy

from solar import DataLoader, H5Dataset, ReadError, SolarError
from solar.io.reading import run as buffered
from solar.io.reading.run import Running

BUFFER = 22_000  # bytes: some of the samples have room, and four batches, which take a page each


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    return dataset_of(tmp_path, "chunks of four samples")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Running]:
    return noted_runs(monkeypatch)


# --- beside others ----


def test_a_second_iterator_reads_without_the_buffer(dataset: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "solar")
    expected = passes(plain(dataset, "sequential"), 1)[0]
    with loader_of(dataset, "sequential", buffer=BUFFER) as loader:
        first, second = iter(loader), iter(loader)
        pairs = [(next(first), next(second)) for _ in expected]
        assert equal([one for one, _ in pairs], expected)
        assert equal([one for _, one in pairs], expected)
        assert "another iterator of this loader takes batches from its buffer" in caplog.text
        del first, second
        assert equal(list(loader), expected)


@pytest.mark.parametrize("options", [{"thread_safe": True}, {}], ids=["threads", "in the loop"])
@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_work_on_top(options: dict[str, Any], workers: int, tmp_path: Path) -> None:
    dataset_of(tmp_path, "chunks of four samples")
    dataset = H5Dataset(str(tmp_path / "one.h5"), {"x": "x", "y": "y"}, transform=noisy, **options)
    found = []
    for nbytes in (150_000, 0):
        with DataLoader(
            dataset, BATCH, shuffle=True, generator=generator(1), num_workers=workers, buffer=nbytes, storage=DISK
        ) as loader:
            found.append(passes(loader, 2))
            assert loader.stats()["peak_bytes"] <= 150_000 or not nbytes
    assert equal(*found)


def test_workers_that_stay_are_seeded_once_and_that_is_foreseen(tmp_path: Path, runs: list[Running]) -> None:
    dataset_of(tmp_path, "chunks of four samples")
    dataset = H5Dataset(str(tmp_path / "one.h5"), {"x": "x"}, transform=noisy)
    found = []
    for nbytes in (150_000, 0):
        with DataLoader(
            dataset, BATCH, shuffle=True, generator=generator(1), num_workers=1, persistent_workers=True,
            buffer=nbytes, storage=DISK,
        ) as loader:  # fmt: skip
            found.append(passes(loader, 3))
    assert equal(*found)
    assert len(runs) == 1


def test_a_damaged_chunk_spoils_its_batches_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    values = np.arange(64 * 8, dtype="i4").reshape(64, 8)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(4, 8), compression="gzip", fletcher32=True)
        where = file["x"].id.get_chunk_info_by_coord((20, 0)).byte_offset
    with path.open("r+b") as file:
        file.seek(where + 3)
        file.write(b"\xff\x00\xff")
    settle(path)
    with DataLoader(H5Dataset(str(path), "x"), 4, buffer=24_000, epochs=1, storage=DISK) as loader:
        batches, good, bad = iter(loader), [], 0
        for number in range(16):
            try:
                good.append(next(batches))
            except SolarError as error:
                bad += 1
                assert number == 5
                assert "damaged.h5" in str(error)
        assert bad == 1
        assert torch.equal(torch.cat(good), torch.from_numpy(np.delete(values, range(20, 24), 0)))
        assert next(batches, None) is None


def test_a_batch_that_does_not_come_in_time_is_an_error_that_names_it(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stalled:
        """A run that never has a batch."""

        def __init__(self, *_: Any, **named: Any) -> None: ...

        def part(self, *_: Any) -> None: ...

        def append(self, *_: Any) -> None: ...

        def take(self, seconds: float) -> None:
            threading.Event().wait(seconds)

        def waiting_for(self) -> str:
            return "one.h5: x, sample 17, offset 123"

        def counts(self) -> dict[str, int]:
            return {}

        def close(self, seconds: float) -> bool:
            return True

    monkeypatch.setattr("solar._native.Run", Stalled)
    text = r"did not come in 0.05 s.*still waiting for one.h5: x, sample 17"
    with (
        loader_of(dataset, "sequential", buffer=BUFFER, timeout=0.05) as loader,
        pytest.raises(ReadError, match=text),
    ):
        next(iter(loader))


@pytest.mark.parametrize("timeout", [0, 60])
def test_an_interrupted_wait_loses_no_batch(dataset: Any, timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(plain(dataset, "sequential"))
    interrupted = iter([True])
    at_hand = Running.at_hand

    def waiting(self: Running, *facts: Any) -> Any:
        if next(interrupted, False):
            raise KeyboardInterrupt
        return at_hand(self, *facts)

    monkeypatch.setattr(Running, "at_hand", waiting)
    with loader_of(dataset, "sequential", buffer=BUFFER, timeout=timeout) as loader:
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert equal(list(iterator), expected)


def test_closing_in_another_thread_ends_the_waiting_with_words(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(dataset, "sequential", buffer=BUFFER)
    iterator = iter(loader)
    next(iterator)
    at_hand = Running.at_hand

    def closing(self: Running, *facts: Any) -> Any:
        thread = threading.Thread(target=loader.close)
        thread.start()
        thread.join()
        return at_hand(self, *facts)

    monkeypatch.setattr(Running, "at_hand", closing)
    with pytest.raises(RuntimeError, match="closed with its loader"):
        next(iterator)
    assert loader.stats()["resident_bytes"] == 0


# --- the end, and other processes ----


def test_close_ends_threads_and_runs_and_the_next_pass_begins_anew(dataset: Any, runs: list[Running]) -> None:
    before = set(threading.enumerate())
    loader = loader_of(dataset, "by a generator", buffer=BUFFER)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert "solar-planning" not in {thread.name for thread in set(threading.enumerate()) - before}
    assert loader.stats()["resident_bytes"] == 0
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    with loader:
        assert len(list(loader)) == len(loader)
    assert len(runs) == 2


def test_a_loader_that_is_dropped_takes_its_run_along(dataset: Any) -> None:
    loader = loader_of(dataset, "by a generator", buffer=BUFFER)
    iterator = iter(loader)
    next(iterator)
    running = run_of(loader)
    assert running in buffered._live
    del loader, iterator
    assert running.counts() == {}


def test_a_pickled_loader_has_a_buffer_of_its_own(dataset: Any) -> None:
    with loader_of(dataset, "sequential", buffer=BUFFER) as loader:
        iterator = iter(loader)
        next(iterator)
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert equal(list(copy), list(plain(dataset, "sequential")))
            assert run_of(copy) is not run_of(loader)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_makes_a_run_of_its_own(dataset: Any) -> None:
    expected = list(plain(dataset, "sequential"))
    with loader_of(dataset, "sequential", buffer=BUFFER) as loader:
        iterator = iter(loader)
        first = next(iterator)
        child = os.fork()
        if child == 0:
            same = equal(list(loader), expected)
            os._exit(0 if same and loader._buffered.running is not None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert equal([first, *iterator], expected)
