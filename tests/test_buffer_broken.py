"""What breaks off: a pass, by the user or by Ctrl-C; and what fails where nobody has asked for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffer_kit import BATCH, DISK, dataset_of, equal, generator, loader_of, noted_runs, passes, plain, run_of
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler

from solar import DataLoader, H5Dataset, PlanSampler, ReadError, _native
from solar.buffer import buffer as buffered
from solar.buffer import thread as work
from solar.io.reading.run import Running
from solar.planning import planned_passes as windows

BUFFER = 22_000


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    return dataset_of(tmp_path, "chunks of four samples")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Running]:
    return noted_runs(monkeypatch)


# --- a shuffle by a generator of the user's ----


def shuffled(dataset: Any, kind: str, ours: torch.Generator) -> dict[str, Any]:
    """A loader's arguments."""
    if kind == "the loader's":
        return {"batch_size": BATCH, "shuffle": True, "generator": ours}
    replacement, draws = {"a sampler's": (False, None), "with replacement": (True, 150), "twice": (False, 150)}[kind]
    sampler = RandomSampler(dataset, replacement, draws, ours)
    return {"batch_size": BATCH, "sampler": sampler, "drop_last": kind == "a sampler's"}


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("nbytes", [0, BUFFER])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("stop", [1, 4, 12, 13, 14])
@pytest.mark.parametrize("kind", ["the loader's", "a sampler's", "with replacement", "twice"])
def test_a_broken_pass_leaves_the_generator_where_torch_does(
    kind: str, stop: int, before: int, nbytes: int, dataset: Any
) -> None:
    found = []
    for cls, options in ((TorchLoader, {}), (DataLoader, {"buffer": nbytes, "storage": DISK})):
        ours, states = generator(3), []
        torch.manual_seed(1)
        loader = cls(dataset, **shuffled(dataset, kind, ours), **options)
        batches = [batch for _ in range(before) for batch in loader]
        for number, batch in enumerate(loader, 1):
            batches.append(batch)
            if number == stop:
                break
        states.append(ours.get_state())
        batches += [*loader, *loader]
        states.append(ours.get_state())
        found.append([batches, states])
    assert equal(found[1], found[0])


def test_after_a_broken_first_pass_a_state_tells_the_next(dataset: Any) -> None:
    for nbytes in (0, BUFFER):
        ours = DataLoader(dataset, BATCH, shuffle=True, generator=generator(3), buffer=nbytes, storage=DISK)
        next(iter(ours))
        iterator = iter(ours)
        next(iterator)
        state, left = ours.state_dict(), list(iterator)
        other = DataLoader(dataset, BATCH, shuffle=True, generator=generator(3), buffer=nbytes, storage=DISK)
        other.load_state_dict(state)
        assert equal(list(other), left)


# --- Ctrl-C ----


class Interrupting:
    """A transform, or anything else, that is interrupted once."""

    def __init__(self, act: Any) -> None:
        self.act, self.interrupts = act, True

    def __call__(self, *given: Any) -> Any:
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return self.act(*given)


@pytest.mark.parametrize("nbytes", [0, BUFFER])
def test_a_batch_whose_transform_was_interrupted_comes_again(nbytes: int, tmp_path: Path) -> None:
    dataset_of(tmp_path, "contiguous")
    path = str(tmp_path / "one.h5")
    once = Interrupting(lambda sample: sample + 1)
    with DataLoader(H5Dataset(path, "x", transform=once), BATCH, buffer=nbytes, storage=DISK) as loader:
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert equal(list(iterator), [batch + 1 for batch in DataLoader(H5Dataset(path, "x"), BATCH, buffer=0)])
        if nbytes:
            assert run_of(loader)._received.here == {}


def test_a_pass_whose_planning_was_interrupted_goes_on(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Interrupting(work.apart)
    monkeypatch.setattr("solar.buffer.planned_run.apart", once)
    with loader_of(dataset, "by a generator", buffer=BUFFER) as loader:
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert equal([list(iterator), list(loader)], passes(plain(dataset, "by a generator"), 2))
        assert run_of(loader).counts()["steps"] >= 2 * len(loader)


# --- what fails in the background ----


def test_a_plan_of_later_passes_that_fails_is_said_once_and_made_anew(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told, faults = windows.PlannedPasses.scripts, [True, True]

    def failing(self: windows.PlannedPasses, number: int) -> Any:
        if number and faults:
            faults.pop()
            raise MemoryError("for a moment")
        return told(self, number)

    monkeypatch.setattr(windows.PlannedPasses, "scripts", failing)
    with loader_of(dataset, "by a generator", buffer=BUFFER) as loader:
        assert equal(passes(loader, 5), passes(plain(dataset, "by a generator"), 5))
        assert run_of(loader).counts()["steps"] > len(loader)  # it is foreseen again
    assert [one.levelname for one in caplog.records if "for a moment" in one.message] == ["WARNING"]


def test_without_a_thread_passes_are_planned_when_they_begin(
    dataset: Any, runs: list[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: work.Background) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(work.Background, "start", refuse)
    monkeypatch.setattr("solar.planning.planned_passes.SEGMENTS", (2, 3))
    with loader_of(dataset, "by a generator", buffer=BUFFER, epochs=7) as loader:
        assert equal(passes(loader, 7), passes(plain(dataset, "by a generator"), 7))
    assert len(runs) == 1


def test_a_planning_thread_is_waited_for_amid_threadings_own_code() -> None:
    """The garbage collector may run there and end a buffer: to join a thread takes the lock that is held there."""
    lock = getattr(threading, "_shutdown_locks_lock", None)
    if lock is None:
        pytest.skip("this Python has no such lock")
    begun, over = threading.Event(), threading.Event()

    def planning(stopped: threading.Event) -> None:
        begun.set()
        stopped.wait()

    one = work.in_background(planning)
    assert one is not None
    begun.wait()
    with lock:
        threading.Thread(target=lambda: (one.stop(), over.set()), daemon=True).start()
        assert over.wait(60)
    assert one.error() is None


def test_what_fails_after_a_pass_was_told_leaves_no_run_behind(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = PlanSampler(dataset, num_replicas=1, rank=0)
    with DataLoader(dataset, BATCH, sampler=sampler, buffer=BUFFER, storage=DISK) as loader:
        list(loader)
        sampler.set_epoch(1)
        once = Interrupting(buffered.in_background)
        monkeypatch.setattr(buffered, "in_background", once)
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert loader._buffered.running is None
        expected = DataLoader(dataset, BATCH, sampler=sampler, buffer=0)
        assert equal(list(iterator), list(expected))


def test_the_end_of_the_program_ends_what_is_planned() -> None:
    program = "from solar.buffer.thread import in_background; in_background(lambda stopped: stopped.wait())"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


# --- batches that nobody takes ----


@pytest.mark.parametrize("early", [False, True])
def test_a_batch_that_is_forgotten_is_not_kept(early: bool, dataset: Any) -> None:
    with loader_of(dataset, "sequential", buffer=BUFFER) as loader:
        iterator = iter(loader)
        next(iterator)
        running = run_of(loader)
        if early:
            running.forget(2)
        batch = running.wait(3, BATCH, None)
        assert set(running._received.here) == ({1, 3} if early else {1, 2, 3})
        running.forget(2)
        assert set(running._received.here) == {1, 3}
        with pytest.raises(RuntimeError, match="given up"):
            running.wait(2, BATCH, None)
        assert len(batch[0][0]) == BATCH


def test_batches_that_did_not_come_in_time_are_not_kept(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    native, late = _native.Run, threading.Event()

    class Late:
        """A run whose batches are late for a while."""

        def __init__(self, *facts: Any, **named: Any) -> None:
            self.run = native(*facts, **named)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.run, name)

        def take(self, seconds: float) -> Any:
            return self.run.take(seconds) if late.is_set() else late.wait(seconds) or None

    monkeypatch.setattr(_native, "Run", Late)
    expected = list(plain(dataset, "sequential"))
    with loader_of(dataset, "sequential", buffer=BUFFER, timeout=0.3) as loader:
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(ReadError, match=r"did not come in 0\.3 s"):
                next(iterator)
        late.set()
        assert equal(list(iterator), expected[2:])
        assert run_of(loader)._received.here == {}
        assert len(list(loader)) == len(expected)


# --- empty batches ----


@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_an_empty_batch_has_no_samples(kind: str, make: Any) -> None:
    dataset = H5Dataset(make("few.h5", x=np.arange(1, 6, dtype=kind)), "x")
    sampler = PlanSampler(dataset, num_replicas=4, rank=3, shuffle=False, tail="exact")
    found = [list(DataLoader(dataset, 1, sampler=sampler, buffer=nbytes)) for nbytes in ("64MiB", 0)]
    assert equal(*found)
    assert [len(batch) for batch in found[0]] == [1, 0]
