"""DataLoader(device=...): the batches that come without one, on the device, when the consumer may read them there."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import SAMPLES, Eager, Lazy, all_same, loaders, pretend, pretended, same, write
from torch.utils.data import TensorDataset, default_collate

from solar import DataLoader, Field, H5Dataset, _native
from solar.device import copier as landing_module
from solar.device import ring as ring_module
from solar.device.copier import DeviceCopier, DeviceForm
from solar.errors import CodecError, PlanError
from solar.io.system.waiting import WaitTimeout
from solar.loader.batch_queue import BatchFuture
from solar.loader.stats import Stats
from solar.planning.budget import pooled_nbytes
from solar.samples.pending import PendingBatch

Pair = namedtuple("Pair", ["one", "two"])
_ = pretended  # a fixture


class Ragged:
    """What can move itself, and is no tensor."""

    def __init__(self, values: list[torch.Tensor], moved: int = 0) -> None:
        self.values, self.moved = values, moved

    def to(self, device: Any) -> Ragged:
        return Ragged([one.to(device) for one in self.values], self.moved + 1)


def nested(samples: list[Any]) -> Any:
    made = default_collate([sample["x"] for sample in samples])
    return {
        "pair": Pair(made, [made[:, :3].to(torch.complex64), "words", None]),
        "turned": made.transpose(0, 1).contiguous().transpose(0, 1),
        "sparse": made.to_sparse(),
        "empty": made[:0],
        "number": torch.tensor(3),
        "ragged": Ragged([made, made[:1]]),
    }


def halved(sample: Any) -> Any:
    return {"x": sample["x"] / 2}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("device"))


FIELDS = {
    "x": "x",
    "normalised": Field("counts", mean=2, std=0.3),
    "deep": ("y", {"half": Field("counts", dtype="float16", axes=(2, 0, 1)), "cut": Field("x", select=slice(1, 9, 3))}),
    "turned": Field("x", axes=(1, 0)),
    "flat": Field("counts", shape=(40, 6), mean=2),
    "text": "text",
}


@pytest.mark.parametrize("batch_size", [6, None])
def test_batches_are_those_without_a_device(pretended: str, batch_size: int | None, path: str) -> None:
    host, there = loaders(H5Dataset(path, FIELDS), batch_size, True)
    for _epoch in range(2):
        assert all_same(host, there)
    assert there.stats()["resident_bytes"] == 0
    counted = there.stats()["device_bytes"]
    # What a Field makes larger is sent as it is stored.
    assert (counted > 0) is (pretended != "none") and counted <= host.stats()["batch_bytes"]


PYTHON: dict[str, dict[str, Any]] = {
    "in the loop": {"transform": halved},
    "in threads": {"transform": halved, "thread_safe": True},
    "none": {},
}


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("where", PYTHON)
def test_python_of_the_users_gets_what_it_gets_without_a_device(pretended: str, where: str, path: str) -> None:
    dataset = H5Dataset(path, {"x": Field("x", mean=1)}, **PYTHON[where])
    host, there = loaders(dataset, 6, collate_fn=nested)
    for one, two in zip(host, there, strict=True):
        ragged, moved = one.pop("ragged"), two.pop("ragged")
        sparse, landed = one.pop("sparse"), two.pop("sparse")
        assert same(one, two)
        assert same(ragged.values, moved.values) and moved.moved == 1
        assert torch.equal(sparse.to_dense(), landed.to_dense())
        assert one["turned"].stride() == two["turned"].stride()


def test_a_consumer_waits_for_the_event_of_its_batch_and_keeps_its_memory(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pretend(monkeypatch, Lazy)
    host, there = loaders(H5Dataset(path, {"x": "x", "y": "y"}), 4)
    with there:
        for batch, one in zip(there, host, strict=True):
            [device] = made
            assert same(one, batch)
            assert device.calls == ["follow", "keep", "keep"]
            assert {id(part) for part in device.kept} == {id(part) for part in batch.values()}
            device.calls.clear(), device.kept.clear()


@pytest.mark.parametrize("kind", [Eager, Lazy])
def test_what_is_pinned_and_what_waits_on_the_device_is_bounded(
    kind: type[Eager], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "ADOPTED_FROM", 0)
    made = pretend(monkeypatch, kind)
    loader = DataLoader(H5Dataset(path, "x"), 2, device="cpu", ahead=9)
    nbytes = 2 * 24 * 40 * 4
    for _batch in (*loader, *loader):
        time.sleep(0.001)  # for more to land, were there places
    [device] = made
    one = nbytes // 2  # the last batch is smaller
    assert {len(slot) for slot in device.slots} <= {nbytes, one, *map(pooled_nbytes, (nbytes, one))}
    most = loader.ahead + 2 * (1 + ring_module.SLOTS)  # that are adopted
    assert len(device.slots) <= most + 2 * ring_module.SLOTS  # those of two iterators
    stats = loader.stats()
    assert 0 < stats["device_peak_bytes"] <= landing_module.COPIES_AHEAD * nbytes
    assert stats["device_bytes"] == 2 * SAMPLES * nbytes // 2
    assert stats["device_copy_seconds"] > 0


COPIED: list[tuple[Any, dict[str, Any], int]] = [  # fields, options -> bytes that the host copies for each sample
    ({"x": "x", "y": "y"}, {}, 0),
    ("x", {"batch_size": None}, 0),
    (("x", "text"), {"decode": "device"}, 0),
    (Field("counts", mean=2, std=0.3), {}, 0),  # is normalised on the device
    ("x", {"resident": 1 << 20}, 8),  # where it stays
    (Field("x", select=slice(2, 4)), {}, 0),
    ("x", {"buffer": "1MiB"}, 0),
]


@pytest.mark.parametrize(("fields", "options", "each"), COPIED, ids=str)
def test_what_is_read_is_read_to_pinned_memory_and_not_copied_there(
    fields: Any, options: dict[str, Any], each: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "ADOPTED_FROM", 0)
    made = pretend(monkeypatch, Eager)
    given = {"batch_size": 4, "shuffle": True, "drop_last": True, "ahead": 6} | options
    host, there = loaders(H5Dataset(path, fields), **given | ({"drop_last": False} if "batch_size" in options else {}))
    for _epoch in range(9):  # until as much memory was adopted as batches take at once
        for device in made:
            device.sources.clear()
        iterator = iter(there)
        got = list(iterator)
        assert all_same(host, got)  # now: its batches would take what was adopted
        if (copied := iterator._starter.landing.ring.staged_nbytes) <= SAMPLES * each:
            break
    assert copied <= SAMPLES * each
    [device] = made
    assert device.sources and all(map(device.has_pinned, device.sources))


def test_memory_is_read_to_again_only_when_all_let_go_of_it_and_it_was_copied() -> None:
    landing, device = on_lazy()
    nbytes = ring_module.ADOPTED_FROM
    landing.land(torch.from_numpy(_native.take(nbytes)))  # whose place is taken
    address = device.slots[-1].data_ptr()

    def is_next() -> bool:
        return bool(_native.take(nbytes).ctypes.data == address)

    assert is_next()
    landed = landing.land(torch.from_numpy(_native.take(nbytes)))
    assert landing.ring is not None and landing.ring.staged_nbytes == nbytes  # the first alone
    assert not is_next()  # it has not been copied yet
    landing.handed_out(landed)
    assert not is_next()
    others = [landing.land(torch.zeros(1)) for _ in range(ring_module.SLOTS)]
    assert is_next() and len(others) == ring_module.SLOTS


def test_memory_that_was_adopted_stays_until_nobody_uses_it() -> None:
    device = Lazy(torch.device("cpu"))
    adopted, nbytes = ring_module.PinnedPool(device), ring_module.ADOPTED_FROM
    for _ in range(3):  # two at most
        adopted.take_the_place_of(0, torch.from_numpy(_native.take(nbytes)), 2)
    adopted.take_the_place_of(0, torch.zeros(nbytes), 9)  # not the pool's
    assert len(device.slots) == 2
    here = [_native.take(nbytes) for _ in range(3)]
    theirs = [one for one in here if any(one.ctypes.data == slot.data_ptr() for slot in device.slots)]
    assert len(theirs) == 2
    adopted.close()
    assert sum(device.slots[k] is one for k in range(2) for one in adopted.left) == 2
    del here, theirs
    last = _native.take(nbytes).ctypes.data
    assert all(last != slot.data_ptr() for slot in device.slots)
    adopted.close()
    assert not any(device.slots[k] is one for k in range(2) for one in adopted.left)
    adopted.take_the_place_of(0, torch.from_numpy(_native.take(nbytes)), 2)  # of a loader that goes on
    assert len(device.slots) == 3


def on_lazy(ahead: int = 2) -> tuple[DeviceCopier, Lazy]:
    device = Lazy(torch.device("cpu"))
    adopted = ring_module.PinnedPool(device)
    return DeviceCopier(DeviceForm(torch.device("cpu")), device, adopted, Stats(), ahead=ahead), device


def test_a_batch_larger_than_its_slot_gets_a_larger_one() -> None:
    landing, device = on_lazy()
    for length in (3, 5, 2, 900, 1, 800, 800):
        values = torch.arange(length)
        assert torch.equal(landing.handed_out(landing.land([values]))[0], values)
    assert [len(slot) // 8 for slot in device.slots] == [8, 8, 904, 800]


def test_a_slot_is_filled_again_only_when_it_has_been_copied_from() -> None:
    landing, _device = on_lazy()
    landed = [landing.land(torch.arange(4) + number) for number in range(3 * ring_module.SLOTS)]
    for number, one in enumerate(landed):
        assert landing.handed_out(one).tolist() == list(range(number, number + 4))


def test_without_pinned_memory_batches_come_all_the_same_and_the_limit_is_named_once(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unpinned(Eager):
        def pinned(self, nbytes: int) -> torch.Tensor:
            raise RuntimeError("CUDA error: out of memory")

    pretend(monkeypatch, Unpinned)
    monkeypatch.setattr(ring_module, "_warned", threading.Event())
    host, there = loaders(H5Dataset(path, FIELDS), 6)
    with caplog.at_level(logging.WARNING):
        assert all_same(host, there)
    [said] = [record.getMessage() for record in caplog.records]
    assert "RLIMIT_MEMLOCK" in said and "CUDA error: out of memory" in said


# --- where it is, and how it ends ----


def test_a_state_counts_batches_handed_out_not_those_landed(pretended: str, path: str) -> None:
    dataset = H5Dataset(path, "y")
    _, loader = loaders(dataset, 4, True)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(3)]
    time.sleep(0.05)  # for others to land
    state = loader.state_dict()
    rest = list(iterator)
    _, again = loaders(dataset, 4, True, seed=6)
    again.load_state_dict(state)
    assert same(list(again), rest)
    assert sorted(torch.cat(before + rest).tolist()) == list(range(SAMPLES))


def landing_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("solar-landing")}


def test_a_break_leaves_no_thread_and_nothing_on_the_device(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Eager)
    before = landing_threads()
    with DataLoader(H5Dataset(path, "x"), 2, device="cpu") as loader:
        for _batch in loader:
            break
        assert len(list(loader)) == len(loader)
    until = time.monotonic() + 60
    while (landing_threads() - before or loader.stats()["resident_bytes"]) and time.monotonic() < until:
        time.sleep(0.01)
    assert not landing_threads() - before
    assert loader._stats._levels["landed_bytes"] == 0


def test_an_error_comes_when_the_turn_of_its_batch_does(pretended: str, path: str, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.h5"
    dataset = H5Dataset(path, "x")
    content = bytearray(Path(path).read_bytes())
    content[int(dataset.layouts.chunk_offset[5]) + 90] ^= 1
    damaged.write_bytes(content)
    for options in ({}, {"decode": "device"}):
        loader = DataLoader(H5Dataset(str(damaged), "x"), 2, device="cpu", **options)  # type: ignore[arg-type]
        iterator = iter(loader)
        assert len([next(iterator), next(iterator)]) == 2
        with pytest.raises(CodecError, match=r"damaged\.h5.*sample 5.*checksum"):
            next(iterator)
        assert len(list(iterator)) == len(loader) - 3
        assert loader.stats()["resident_bytes"] == 0


def stuck(coming: BatchFuture, seconds: float | None) -> Any:
    time.sleep(seconds or 0)
    raise WaitTimeout("no values: still waiting for sample 17")


def there(coming: BatchFuture, seconds: float | None) -> Any:
    return torch.arange(3)


def test_who_waits_too_long_is_told_for_what_and_the_next_batch_lands() -> None:
    landing, _device = on_lazy(ahead=1)
    first, second, third = (landing.start(BatchFuture(PendingBatch((), []), 3, get)) for get in (stuck, there, there))
    with pytest.raises(WaitTimeout, match="still waiting for sample 17"):
        first.wait(0.3)
    first.forget()
    with pytest.raises(WaitTimeout, match="no place for it on the device"):
        third.wait(0.5)
    second.forget()  # which has landed: its place is the third's
    assert third.wait(60).tolist() == [0, 1, 2]
    assert landing._stats._levels["landed_bytes"] == 0
    landing.close()


# --- how they come ----


def test_dtype_and_channels_last_are_those_of_to(pretended: str, path: str) -> None:
    fields = {"volume": Field("counts", dtype="float64"), "counts": "counts", "x": "x"}
    for dtype in ("float16", torch.bfloat16, "torch.float64"):
        host, there = loaders(H5Dataset(path, fields), 6, dtype=dtype, channels_last=True)
        for one, two in zip(host, there, strict=True):
            name = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype.removeprefix("torch."))
            assert torch.equal(one["volume"].to(name), two["volume"]) and torch.equal(one["x"].to(name), two["x"])
            assert two["counts"].dtype == torch.uint16 and two["x"].dtype == name
            assert two["volume"].is_contiguous(memory_format=torch.channels_last)


def test_static_batches_have_the_addresses_of_the_first(pretended: str, path: str) -> None:
    host, there = loaders(H5Dataset(path, {"x": "x", "y": "y"}), 6, static=True)
    addresses = set()
    for _epoch in range(2):
        for one, two in zip(host, there, strict=True):
            assert same(one, two)  # the last has fewer samples: it begins at the same address
            addresses.add((two["x"].data_ptr(), two["y"].data_ptr()))
    assert len(addresses) == 1


def test_static_copies_are_ordered_after_what_the_consumer_began(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pretend(monkeypatch, Lazy)
    for _batch in DataLoader(H5Dataset(path, "x"), 6, device="cpu", static=True):
        assert made[0].calls == ["follow", "keep", "continued"]
        made[0].calls.clear()


def test_torchs_own_datasets_land_too(pretended: str) -> None:
    host, there = loaders(TensorDataset(torch.arange(20.0), torch.arange(20)), 3, True)
    assert all_same(host, there)
    _, halves = loaders(TensorDataset(torch.arange(20.0)), 3, dtype="float16", device_transform=lambda batch: batch[0])
    assert next(iter(halves)).dtype == torch.float16


def test_a_device_transform_sees_batches_that_have_landed(pretended: str, path: str) -> None:
    host, there = loaders(H5Dataset(path, "x"), 6, device_transform=lambda batch: batch.sum())
    assert same(list(host), list(there))


def test_a_loader_with_a_device_can_be_pickled(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 6, device="cpu", static=True, decode="device")
    first = next(iter(loader)).clone()
    assert same(first, next(iter(pickle.loads(pickle.dumps(loader)))))


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dtype": "float16"}, ValueError, "give device="),
    ({"channels_last": True}, ValueError, "channels_last= is for batches on a device"),
    ({"decode": "device"}, ValueError, "decode= is for batches on a device"),
    ({"device": "cpu", "decode": "gpu"}, ValueError, "'host' or on the 'device'"),
    ({"device": "cpu", "dtype": "int8"}, ValueError, "floating-point"),
    ({"device": "cpu", "dtype": "float17"}, ValueError, "none of torch's"),
    ({"device": "nowhere"}, ValueError, "nowhere"),
    ({"device": "cuda", "reader": "gds"}, ValueError, r"'gds': GPUDirect Storage is no longer offered\. Leave reader="),
    ({"reader": "cufile"}, ValueError, "reader='cufile': leave it out"),
    ({"device": "cpu", "decode": "device", "collate_fn": nested}, PlanError, "transform or collate_fn"),
]


@pytest.mark.parametrize(("options", "error", "said"), WRONG)
def test_what_cannot_be_is_said(options: dict[str, Any], error: type[Exception], said: str, path: str) -> None:
    with pytest.raises(error, match=said):
        iter(DataLoader(H5Dataset(path, "x"), 6, **options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cuda_device_that_is_not_there_is_an_error_with_a_remedy(path: str) -> None:
    with pytest.raises(ValueError, match=r"torch finds 0 CUDA devices here\. Give device='cpu'"):
        iter(DataLoader(H5Dataset(path, "x"), 6, device="cuda:0"))


def test_values_that_no_numpy_type_has_come_by_dtype(path: str) -> None:
    loader = DataLoader(H5Dataset(path, Field("counts", mean=1.5, std=2)), 6, device="cpu", dtype="bfloat16")
    counts = H5Dataset(path, "counts").read_batch(np.arange(6))
    want = torch.from_numpy((counts.astype("f4") - np.float32(1.5)) / np.float32(2)).to(torch.bfloat16)
    assert torch.equal(next(iter(loader)), want)
