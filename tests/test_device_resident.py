"""resident=: what stays on the device is read once and copied once, and batches are those that come without."""

from __future__ import annotations

import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import SAMPLES, Eager, all_same, loaders, pretend, pretended, same, write
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from solar import DataLoader, Field, H5Dataset
from solar.device.cache import DeviceCache, PendingRows
from solar.errors import CodecError, PlanError
from solar.loader.stats import Stats

_ = pretended  # a fixture
ROW = 24 * 40 * 4  # bytes of a sample of x
INDEX = 8  # bytes that say which resident sample is meant
FIELDS = {
    "x": "x",
    "normalised": Field("counts", mean=2, std=0.3),
    "deep": ("y", {"half": Field("counts", dtype="float16", axes=(2, 0, 1)), "cut": Field("x", select=slice(1, 9, 3))}),
    "turned": Field("x", axes=(1, 0)),
    "empty": Field("x", select=slice(3, 3)),
    "text": "text",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("resident")
    for seed, name in enumerate(("a.h5", "b.h5")):
        write(made, name, seed=seed, rough=float(seed))
    return made


def counted(loader: DataLoader[Any], *names: str) -> list[int]:
    stats = loader.stats()
    return [stats[name] for name in names]


def rows_of(loader: DataLoader[Any]) -> list[torch.Tensor]:
    assert loader._on_device._tier is not None
    return loader._on_device._tier[1]._rows or []


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("resident", ["100kB", 1 << 30, 100])
@pytest.mark.parametrize("options", [{}, {"decode": "device"}, {"buffer": "4MiB", "decode": "device"}], ids=str)
def test_batches_are_those_without(pretended: str, options: dict[str, Any], resident: Any, folder: Path) -> None:
    host, there = loaders(H5Dataset(str(folder / "a.h5"), FIELDS), 6, True, resident=resident, **options)
    for _epoch in range(3):
        assert all_same(host, there)
    samples, nbytes, hits = counted(there, "device_resident_samples", "device_resident_bytes", "device_hits")
    assert sum(rows.nbytes for rows in rows_of(there)) == nbytes <= (100_000 if resident == "100kB" else resident)
    assert hits == 2 * samples  # in each epoch but the first
    assert (samples == 0, samples == SAMPLES) == (resident == 100, resident == 1 << 30)


def test_what_fits_is_read_once_and_copied_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Eager)
    host, there = loaders(H5Dataset(str(folder / "a.h5"), "x"), 6, True, resident="25%")
    assert all_same(host, there)
    read, copied = counted(there, "bytes", "device_bytes")
    assert copied == SAMPLES * ROW
    assert all_same(host, there)
    assert counted(there, "bytes", "device_bytes") == [read, copied + SAMPLES * INDEX]
    assert counted(there, "device_resident_samples", "device_resident_bytes") == [SAMPLES, SAMPLES * ROW]


def test_of_what_fits_in_part_the_rest_alone_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Eager)
    kept = 17
    loader = DataLoader(H5Dataset(str(folder / "raw-a.h5"), "x"), 5, device="cpu", resident=kept * ROW + 1)
    list(loader)
    assert counted(loader, "device_resident_samples", "device_resident_bytes", "device_hits") == [kept, kept * ROW, 0]
    read, copied = counted(loader, "bytes", "device_bytes")
    list(loader)
    again, sent = counted(loader, "bytes", "device_bytes")
    assert (again - read) / read == (SAMPLES - kept) / SAMPLES
    mixed = 5  # the batch of which two stay: also where they belong, and where the others do
    assert sent - copied == (SAMPLES - kept) * ROW + (kept + mixed) * INDEX
    assert counted(loader, "device_hits") == [kept]


def test_through_a_buffer_it_is_not_copied_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Eager)
    host, there = loaders(H5Dataset(str(folder / "a.h5"), "x"), 6, True, resident="1MB", buffer="1MiB")
    assert all_same(host, there)
    [copied] = counted(there, "device_bytes")
    assert all_same(host, there)
    assert counted(there, "device_bytes", "device_hits") == [copied + SAMPLES * INDEX, SAMPLES]


@pytest.mark.slow(every=2)
def test_samples_are_known_in_any_subset_and_as_often_as_they_come(pretended: str, folder: Path) -> None:
    parts = [H5Dataset(str(folder / name), {"x": "x", "text": "text"}) for name in ("a.h5", "b.h5")]
    whole = ConcatDataset([Subset(parts[0], [3, 1, 3, 40]), parts[1], Subset(parts[0], range(5))])
    order = np.random.default_rng(3).integers(0, len(whole), 90).tolist()
    for decode in ("host", "device"):
        host, there = loaders(whole, 7, sampler=order, decode=decode, resident="1MB")
        for _epoch in range(2):
            assert all_same(host, there)
        # A dataset that is given twice counts as two.
        names = {(0, [3, 1, 3, 40][i]) if i < 4 else (1, i - 4) if i < 45 else (2, i - 45) for i in order}
        assert counted(there, "device_resident_samples") == [len(names)]
        [before] = counted(there, "device_hits")
        list(there)
        assert counted(there, "device_hits") == [before + len(order)]


@pytest.mark.filterwarnings("ignore:.*torch.load:FutureWarning")  # torch 2.4's own, of tensors in pickles
def test_what_stays_outlasts_a_break_and_a_resumed_position(pretended: str, folder: Path) -> None:
    dataset = H5Dataset(str(folder / "a.h5"), FIELDS)
    host, there = loaders(dataset, 4, True, resident="1MB", decode="device")
    for one, two, number in zip(host, there, range(4), strict=False):
        assert same(one, two)
        if number == 3:
            break
    host.load_state_dict(state := host.state_dict())
    there.load_state_dict(pickle.loads(pickle.dumps(there.state_dict())))
    assert state["batches"] == 4
    assert all_same(host, there)
    assert all_same(host, there)
    assert counted(there, "device_resident_samples") == [SAMPLES]
    copy = pickle.loads(pickle.dumps(there))
    list(copy)
    assert counted(copy, "device_resident_samples", "device_hits") == [SAMPLES, 0]


def test_each_epoch_of_a_sampler_is_another(pretended: str, folder: Path) -> None:
    dataset = H5Dataset(str(folder / "a.h5"), "x")
    samplers = [torch.utils.data.DistributedSampler(dataset, 2, 0, seed=3) for _ in range(2)]
    host = DataLoader(dataset, 4, sampler=samplers[0], exchange="off")
    there = DataLoader(dataset, 4, sampler=samplers[1], exchange="off", device="cpu", resident=20 * ROW)
    for epoch in range(3):
        host.set_epoch(epoch), there.set_epoch(epoch)
        assert all_same(host, there)
    assert counted(there, "device_resident_samples") == [20] and there.stats()["device_hits"] > 0


def test_a_damaged_sample_is_an_error_each_time_and_the_others_stay(
    pretended: str, folder: Path, tmp_path: Path
) -> None:
    content = bytearray((folder / "a.h5").read_bytes())
    content[int(H5Dataset(str(folder / "a.h5"), "x").layouts.chunk_offset[5]) + 90] ^= 1
    (tmp_path / "damaged.h5").write_bytes(content)
    dataset = H5Dataset(str(tmp_path / "damaged.h5"), "x")
    for options in ({}, {"decode": "device"}):
        loader = DataLoader(dataset, 2, device="cpu", resident="1MB", **options)  # type: ignore[arg-type]
        for epoch in range(2):
            iterator = iter(loader)
            assert len([next(iterator), next(iterator)]) == 2
            with pytest.raises(CodecError, match=r"damaged\.h5.*sample 5.*checksum"):
                next(iterator)
            assert len(list(iterator)) == len(loader) - 3
            assert counted(loader, "device_resident_samples") == [SAMPLES - 2]
            assert counted(loader, "device_hits") == [epoch * (SAMPLES - 2)]
    host, there = loaders(dataset, 2, on_error="skip", resident="1MB")
    assert all_same(host, there) and all_same(host, there)
    assert counted(there, "skipped", "device_resident_samples") == [2, SAMPLES - 1]


def test_static_batches_and_dtypes_are_of_the_whole_batch(pretended: str, folder: Path) -> None:
    dataset = H5Dataset(str(folder / "a.h5"), {"x": "x", "counts": Field("counts", dtype="float64")})
    given: dict[str, Any] = {"static": True, "dtype": "float16", "channels_last": True}
    made = [torch.Generator().manual_seed(1) for _ in range(2)]
    plain = DataLoader(dataset, 6, True, generator=made[0], device="cpu", **given)
    there = DataLoader(dataset, 6, True, generator=made[1], device="cpu", resident="300kB", **given)
    for _epoch in range(2):
        for one, two in zip(plain, there, strict=True):
            assert same(one, two) and one["counts"].stride() == two["counts"].stride()


# --- the tier itself ----


def tier(samples: int, nbytes: int) -> tuple[DeviceCache, Stats]:
    stats = Stats()
    return DeviceCache(samples, nbytes, torch.device("cpu"), stats), stats


def join(one: DeviceCache, names: list[int], fail: bool = False) -> torch.Tensor:
    """The batch of these names, whose values are their names."""
    slots = one.slots(np.array(names))
    came = torch.tensor(names)[torch.from_numpy(slots) < 0]
    with one.joining(np.array(names), slots, [came]) as joining:
        joining.use(joining.indices)
        if fail:
            raise MemoryError
        return joining.joined(came, None)[0]


def test_nothing_is_kept_of_a_batch_that_failed() -> None:
    one, stats = tier(9, 4 * 8)
    with pytest.raises(MemoryError):
        join(one, [1, 2, 3], fail=True)
    assert (one.slots(np.arange(9)) < 0).all() and stats.as_dict()["device_resident_samples"] == 0
    for names in ([5, 5, 0], [0, 5, 7, 8], [8, 7, 1, 1, 5, 0, 7], [7, 0]):
        assert join(one, names).tolist() == names
    assert one.slots(np.arange(9)).tolist() == [1, -1, -1, -1, -1, 0, -1, 2, 3]


def test_memory_is_let_go_with_the_loader_and_counted_off(folder: Path) -> None:
    loader = DataLoader(H5Dataset(str(folder / "a.h5"), "x"), 6, device="cpu", resident="1MB")
    for _again in range(2):
        list(loader)
        assert counted(loader, "device_resident_samples", "device_resident_bytes") == [SAMPLES, SAMPLES * ROW]
        kept = [weakref.ref(rows) for rows in rows_of(loader)]
        loader.close()
        assert [one() for one in kept] == [None]
        assert counted(loader, "device_resident_samples", "device_resident_bytes") == [0, 0]
    one, stats = tier(3, 99)
    join(one, [1])
    assert stats.as_dict()["device_resident_bytes"] == 24
    one.close()
    with pytest.raises(RuntimeError, match="let go with the loader"):
        join(one, [1])
    del one
    assert stats.as_dict()["device_resident_bytes"] == 0


def test_batches_are_put_together_in_the_stream_of_copies_one_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pretend(monkeypatch, Eager)
    joined, threads = PendingRows.joined, set()

    def watched(self: PendingRows, *given: Any) -> Any:
        assert made[0].beside_now, "what stays would be written while another stream reads it"
        threads.add(threading.current_thread().name.split("_")[0])
        return joined(self, *given)

    monkeypatch.setattr(PendingRows, "joined", watched)
    host, there = loaders(H5Dataset(str(folder / "a.h5"), "x"), 6, True, resident="1MB")
    assert all_same(host, there) and all_same(host, there)
    assert len(made) == 1 and threads == {"solar-landing"}


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"resident": "1GiB", "device": None}, ValueError, "resident= is for batches on a device"),
    ({"resident": "much"}, PlanError, "resident='much'.*'much' is not a size"),
    ({"resident": 1.5}, PlanError, "resident=1.5"),
    ({"resident": 1 << 60}, PlanError, r"cpu has .* of memory; give a part"),
    ({"resident": "1MB", "batch_size": None}, PlanError, "is for batches"),
    ({"resident": "1MB", "collate_fn": len}, PlanError, "transform or collate_fn"),
    ({"resident": "1MB", "dataset": TensorDataset(torch.arange(3))}, PlanError, "TensorDataset is not an H5Dataset"),
]


@pytest.mark.parametrize(("options", "error", "said"), WRONG)
def test_what_cannot_be_is_said(options: dict[str, Any], error: type[Exception], said: str, folder: Path) -> None:
    given = {"dataset": H5Dataset(str(folder / "a.h5"), "x"), "batch_size": 6, "device": "cpu"} | options
    with pytest.raises(error, match=said):
        iter(DataLoader(**given))
