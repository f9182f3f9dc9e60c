"""Batches that native code copies to a device: the same as without one, in their order, and what goes wrong is told."""

from __future__ import annotations

import os
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from device_kit import all_same, loaders, same, write
from kit import broken_file, check_all_but_the_broken
from null_device import calls, driver, null_device

from solar import DataLoader, Field, H5Dataset, ReadError
from solar.device.landed import LandedBatches
from solar.device.ring import SLOTS

_ = null_device  # a fixture


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("native"))


def lands(iterator: Any) -> bool:
    """Whether native code copies the batches that are to come."""
    return iterator._direct is not None and isinstance(iterator._direct.feed, LandedBatches)


FIELDS: dict[str, Any] = {
    "one": "x",
    "dict": {"x": "x", "y": "y"},
    "tuple": ("x", "counts"),
    "finished there": {"n": Field("counts", mean=2, std=0.3), "turned": Field("x", axes=(1, 0)), "y": "y"},
}
FORMS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "dtype": {"dtype": "bfloat16"},
    "static": {"static": True},
}


@pytest.mark.parametrize("buffer", [0, "1MiB"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fields", FIELDS)
def test_batches_are_those_without_a_device(
    fields: str, form: str, buffer: Any, path: str, null_device: list[Any]
) -> None:
    host, there = loaders(H5Dataset(path, FIELDS[fields]), 3, True, buffer=buffer, **FORMS[form])
    driver().null_delay(200_000)
    for _epoch in range(3):
        batches, number = iter(there), 0
        for number, (one, batch) in enumerate(zip(host, batches, strict=True), 1):
            floats = FORMS[form].get("dtype") is not None
            for mine, theirs in zip(parts(one), parts(batch), strict=True):
                wanted = mine.to(torch.bfloat16) if floats and mine.is_floating_point() else mine
                assert same(wanted, theirs)
            assert lands(batches) or number > (1 if not buffer else 6)
        assert number == 14
    assert calls("cuMemcpyHtoDAsync") > 0
    stats = there.stats()
    assert stats["samples"] == 3 * 41 and (buffer or not stats["resident_bytes"])
    assert stats["device_copy_seconds"] > 0
    with there:
        pass


def parts(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, dict):
        return list(batch.values())
    return list(batch) if isinstance(batch, (list, tuple)) else [batch]


@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_counts_and_states_are_those_without_a_device(buffer: Any, path: str, null_device: list[Any]) -> None:
    host, there = loaders(H5Dataset(path, {"x": "x", "y": "y"}), 2, True, buffer=buffer)
    for _epoch in range(2):
        batches = iter(there)
        for one, batch in zip(host, batches, strict=True):
            assert same(one, batch)
            assert host.state_dict() == there.state_dict()
    mine, theirs = host.stats(), there.stats()
    for name in ("epochs", "batches", "samples", "batch_bytes", "bytes_decoded", "buffer_hits"):
        assert mine[name] == theirs[name], name
    assert theirs["device_bytes"] == theirs["batch_bytes"]
    assert theirs["device_peak_bytes"] <= 2 * theirs["batch_bytes"] // 21


def test_an_iterator_can_be_resumed_and_broken_off(path: str, null_device: list[Any]) -> None:
    for buffer in (0, "1MiB"):
        host, there = loaders(H5Dataset(path, "x"), 2, True, buffer=buffer)
        mine, theirs = iter(host), iter(there)
        assert all(same(next(mine), next(theirs)) for _ in range(5))
        host.load_state_dict(host.state_dict())
        there.load_state_dict(there.state_dict())
        del mine, theirs
        assert all_same(host, there)
        for _broken in range(3):
            for one, other in islice(zip(host, there, strict=True), 2):
                assert same(one, other)
        assert all_same(host, there)


def test_two_iterators_take_turns(path: str, null_device: list[Any]) -> None:
    host, there = loaders(H5Dataset(path, "x"), 2, buffer="1MiB")
    wanted = list(host)
    pairs = list(zip(there, there, strict=True))
    assert all(same(one, wanted[k]) and same(two, wanted[k]) for k, (one, two) in enumerate(pairs))
    assert len(pairs) == len(wanted)


def test_a_batch_stays_as_long_as_it_is_kept(path: str, null_device: list[Any]) -> None:
    host, there = loaders(H5Dataset(path, "x"), 2, True, ahead=3)
    driver().null_delay(300_000)
    kept = list(there)
    time.sleep(0.01)  # for memory that was let go too early to be used again
    assert all(same(one, other) for one, other in zip(host, kept, strict=True))


def test_the_loop_does_not_wait_for_the_device_and_few_copies_are_under_way(path: str, null_device: list[Any]) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 2, device="cpu", buffer=0)
    batches = iter(loader)
    next(batches)
    [device] = null_device
    device.waits = False
    driver().null_delay(50_000_000)
    time.sleep(0.02)  # for the copies that there is room for to begin
    begin, before = time.perf_counter(), driver().null_copies(False)
    first = [next(batches), next(batches)]
    assert time.perf_counter() - begin < 0.045  # they are on their way
    under_way = driver().null_copies(False) - before
    assert under_way <= SLOTS
    driver().null_synchronize(device.consumer)
    driver().null_delay(0)
    assert all(torch.equal(one, _read(path, 2 * (k + 1))) for k, one in enumerate(first))


def _read(path: str, first: int) -> torch.Tensor:
    return next(iter(DataLoader(torch.utils.data.Subset(H5Dataset(path, "x"), range(first, first + 2)), 2)))


def test_memory_is_pinned_once_and_let_go_with_its_block(tmp_path: Path, null_device: list[Any]) -> None:
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(64 * 50_000, dtype="f4").reshape(64, 50_000)
    loader = DataLoader(H5Dataset(path, "x"), 4, device="cpu", ahead=3, buffer=0)
    for _epoch in range(4):
        assert sum(len(batch) for batch in loader) == 64
    assert 0 < calls("cuMemHostRegister") <= 3 + 1 + SLOTS + 2
    assert driver().null_copies(True) > 0.9 * driver().null_copies(False)
    assert 0 < null_device[0].native().pinned <= driver().null_pinned()


def test_a_failed_batch_comes_in_its_turn(tmp_path: Path, null_device: list[Any]) -> None:
    path = broken_file(tmp_path)
    for buffer in (0, "1MiB"):
        batches = iter(DataLoader(H5Dataset(path, "x"), 4, buffer=buffer, device="cpu"))
        next(batches)
        assert lands(batches)
        check_all_but_the_broken(batches)


@pytest.mark.parametrize(
    ("function", "code", "said"),
    [
        ("cuMemcpyHtoDAsync", 709, "the device failed to copy a batch: CUDA_ERROR_CONTEXT_IS_DESTROYED"),
        ("cuEventRecord", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuEventCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuStreamWaitEvent", 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
        ("cuEventQuery", 709, "while it copied a batch"),
    ],
)
@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_where_the_driver_fails_torch_goes_on(
    function: str,
    code: int,
    said: str,
    buffer: Any,
    path: str,
    null_device: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    host, there = loaders(H5Dataset(path, "x"), 2, True, buffer=buffer)
    wanted, batches = list(host), iter(there)
    driver().null_fail(function.encode(), 2, code)
    got = list(batches)
    assert all(same(one, other) for one, other in zip(wanted, got, strict=True))
    assert not lands(batches)
    assert [said in record.getMessage() for record in caplog.records if "by torch" in record.getMessage()] == [True]


def test_without_pinned_memory_batches_come_all_the_same(path: str, null_device: list[Any]) -> None:
    driver().null_fail(b"cuMemHostRegister", 0, 2)
    host, there = loaders(H5Dataset(path, "x"), 2, True, buffer=0)
    assert all_same(host, there)
    assert calls("cuMemHostRegister") == 1


def test_the_state_is_that_of_batches_handed_out(path: str, null_device: list[Any]) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 2, True, device="cpu", buffer=0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    time.sleep(0.01)  # for batches to be copied that the loop has not asked for
    state = loader.state_dict()
    rest = list(batches)
    loader.load_state_dict(state)
    assert all(same(one, other) for one, other in zip(rest, loader, strict=True))


def test_a_forked_process_says_that_the_iterator_is_not_its_own(path: str, null_device: list[Any]) -> None:
    batches = iter(DataLoader(H5Dataset(path, "x"), 2, device="cpu", buffer=0))
    next(batches)
    child = os.fork()
    if not child:
        try:
            next(batches)
        except (ReadError, RuntimeError) as error:
            os._exit(7 if "fork" in str(error) else 8)
        except BaseException:
            os._exit(9)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert len(list(batches)) == 20


def test_a_loop_in_another_thread_may_end_the_loader(path: str, null_device: list[Any]) -> None:
    for _attempt in range(20):
        loader = DataLoader(H5Dataset(path, "x"), 1, device="cpu", buffer="1MiB")
        batches = iter(loader)
        next(batches)
        ender = threading.Thread(target=loader.close)
        ender.start()
        try:
            for _ in batches:
                pass
        except RuntimeError as error:
            assert "closed" in str(error)
        ender.join(10)
        assert not ender.is_alive()


def test_threads_read_near_the_device_once_for_a_loader(
    path: str, null_device: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    monkeypatch.setattr("solar.device.options.read_near", asked.append)
    monkeypatch.setattr("null_device.NullStreams.address", lambda self: "0000:3b:00.0")
    _, there = loaders(H5Dataset(path, "x"), 3)
    for _epoch in range(2):
        list(there)
    assert asked == ["0000:3b:00.0"]
