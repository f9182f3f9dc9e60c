"""A loader that is interrupted or closed at a bad moment: no batch is lost, and the next epoch has its buffer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from serve_kit import scan, serving

from solar import DataLoader, H5Dataset, PlanSampler
from solar.arrays import Loader
from solar.buffer.buffer import LoaderBuffer
from solar.buffer.buffered_pass import BufferedPass
from solar.errors import ReadError
from solar.loader.workers import BatchStarter
from solar.samplers import sampler_streams
from solar.samples.dataset import Field

_ = scan  # a fixture
SAMPLES, BATCH = 320, 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("interrupted") / "scan.h5"
    with h5py.File(made, "w") as file:
        file["x"] = np.arange(SAMPLES)
    return str(made)


def loader_of(path: str, **options: Any) -> DataLoader[Any]:
    data = H5Dataset(path, "x")
    return DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=3), **options)


def flat(batches: Iterator[Any]) -> list[int]:
    return [int(sample) for batch in batches for sample in batch]


class Once:
    """Calls a function, and then, the first time, does something else: it raises, or closes a loader."""

    def __init__(self, act: Any, other: Any, *, first: bool = True) -> None:
        self.act, self.other, self.first, self.left = act, other, first, True

    def __call__(self, *args: Any, **named: Any) -> Any:
        now, self.left = self.left, False
        if now and self.first:
            self.other()
        found = self.act(*args, **named)
        if now and not self.first:
            self.other()
        return found


def interrupt() -> None:
    raise KeyboardInterrupt


def methodical(once: Once) -> Any:
    return lambda self, *args, **named: once(self, *args, **named)


@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_ctrl_c_while_the_order_is_drawn_changes_no_sample(
    buffer: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(H5Dataset(path, "x"), BATCH, shuffle=True, generator=generator, buffer=buffer)

    wanted = flat(iter(made()))
    monkeypatch.setattr(sampler_streams, "shuffled", Once(sampler_streams.shuffled, interrupt, first=False))
    batches = iter(made())
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert flat(batches) == wanted


@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_ctrl_c_while_a_batch_is_begun_loses_none(buffer: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> DataLoader[Any]:
        data = H5Dataset(path, Field("x", dtype="f4", mean=1.0))
        return DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=3), buffer=buffer)

    monkeypatch.setattr("solar.loader.iterator.direct_source", lambda *_, **__: None)
    wanted, loader = flat(iter(made())), made()
    batches = iter(loader)
    found = flat(iter([next(batches) for _ in range(7)]))
    owner, name = (BufferedPass, "start") if buffer else (BatchStarter, "start")
    monkeypatch.setattr(owner, name, methodical(Once(getattr(owner, name), interrupt)))
    with pytest.raises(KeyboardInterrupt):
        for _ in range(20):
            found += flat(iter([next(batches)]))
    state = loader.state_dict()
    assert state["batches"] * BATCH == len(found)
    assert found + flat(batches) == wanted


def test_ctrl_c_after_the_pass_has_its_buffer_leaves_it_to_the_next(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "solar")
    loader = loader_of(path, buffer="1MiB")
    with monkeypatch.context() as patched:
        from solar.buffer import buffered_pass

        class Line:
            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def __enter__(self) -> None:
                pass

            def __exit__(self, *_: object) -> None:
                interrupt()

        patched.setattr(buffered_pass, "awaited", Line)
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        del batches
        gc.collect()
    loader.set_epoch(1)
    flat(iter(loader))
    assert loader.stats()["buffer_hits"] > 0 or loader._buffered.running is not None
    assert not any("reads without" in record.message for record in caplog.records)


def test_a_loader_that_is_closed_while_it_plans_has_its_buffer_again(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "solar")
    loader = loader_of(path, buffer="1MiB")
    with monkeypatch.context() as patched:
        patched.setattr(LoaderBuffer, "enter", methodical(Once(LoaderBuffer.enter, loader.close)))
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="closed"):
            next(batches)
    loader.set_epoch(1)
    assert sorted(flat(iter(loader))) == list(range(SAMPLES))
    assert loader._buffered.running is not None
    assert not any("reads without" in record.message for record in caplog.records)


def test_a_close_amid_an_epoch_does_not_finish_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.loader.iterator.direct_source", lambda *_, **__: None)
    loader = loader_of(path, buffer=0)
    batches = iter(loader)
    next(batches)

    def ended() -> Iterator[Any]:
        loader.close()
        return
        yield

    queue: Any = batches._queue  # type: ignore[attr-defined]
    queue.indices, queue._ahead_that_fit = ended(), 1 << 20
    queue.ahead = len(queue) + 1
    with pytest.raises(RuntimeError, match="closed"):
        list(batches)
    assert loader.state_dict()["epoch"] == 0


def test_a_numpy_loader_that_is_closed_has_its_buffer_in_the_next_iteration(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "solar")
    loader = Loader(H5Dataset(path, "x"), BATCH, buffer="1MiB")
    suspended = iter(loader)
    next(suspended)
    loader.close()
    assert sorted(flat(iter(loader))) == list(range(SAMPLES))
    assert not any("reads without" in record.message for record in caplog.records)


def test_a_pass_that_was_left_is_freed_at_once(path: str) -> None:
    loader = loader_of(path, buffer="1MiB")
    batches = iter(loader)
    next(batches)
    held = weakref.ref(batches._starter.buffered_pass)  # type: ignore[attr-defined]
    assert held() is not None
    gc.disable()
    try:
        del batches
        loader.close()
        del loader
        assert held() is None
    finally:
        gc.enable()


def test_a_service_that_was_lost_and_comes_again_makes_whole_epochs(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, "y")
    with DataLoader(data, 8, sampler=PlanSampler(data, seed=3), epochs=6, service=str(tmp_path / "s.sock")) as loader:
        served: Any = loader._buffered.options.service
        before, found = 0, []
        for _lost in range(2):
            with serving(scan, where=tmp_path, slack=1000.0):
                for _ in range(2):
                    loader.set_epoch(len(found))
                    for _batch in loader:
                        pass
                    now = served.counts()["served"]
                    found.append(now - before)
                    before = now
    # The loss is noticed when the third epoch begins: that one is read alone.
    assert min(found[0], found[1], found[3]) >= 140, f"of 150 batches: {found}"


def test_a_service_that_was_lost_between_epochs_makes_the_next_one(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, "y")
    with DataLoader(data, 8, sampler=PlanSampler(data, seed=3), epochs=6, service=str(tmp_path / "s.sock")) as loader:
        served: Any = loader._buffered.options.service
        with serving(scan, where=tmp_path, slack=1000.0):
            for _batch in loader:
                pass
        before = served.counts()["served"]
        served.run._membership._end(ReadError("the service has gone"))
        with serving(scan, where=tmp_path, slack=1000.0):
            loader.set_epoch(1)
            for _batch in loader:
                pass
        assert served.counts()["served"] - before >= 140, "of 150 batches"
