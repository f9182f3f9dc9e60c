"""A buffer that holds samples packed: the same bytes, what was planned is read, and only where it pays."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from buffer_kit import least_of
from faults_kit import fault, injected, reads
from kit import settle
from numpy.typing import NDArray
from test_together import case, check, run
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

import solar
from solar import DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.cli import main
from solar.io.reading import trial
from solar.values import RowPacking, Storage

SAMPLES, BATCH, EPOCHS, SEED = 2400, 16, 2, 5
SLOW = Storage(latency=1e-3, bandwidth=1e7, iops=250)  # reading takes the time; a request, that of five samples
SHAPES = {1: (80, 96), 2: (48, 80), 4: (40, 48), 8: (20, 48)}  # of about 7.5 KB, by the bytes of a number


def counts(dtype: str, samples: int = SAMPLES, seed: int = 0) -> NDArray[Any]:
    """What a detector counts: mostly nothing."""
    shape = SHAPES[np.dtype(dtype).itemsize]
    return np.random.default_rng(seed).poisson(0.4, (samples, *shape)).astype(dtype)


def patterns(samples: int = SAMPLES) -> NDArray[Any]:
    """Simulated ones: speckles under an envelope, as whole photons in float32; some are dark."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:40, :48]
    envelope = 60 * np.exp(-np.hypot(y - 20, x - 24) / 4)
    bright = rng.random((samples, 1, 1)) < 0.9
    return (rng.poisson(envelope * rng.exponential(1.0, (samples, 40, 48))) * bright).astype("f4")


def stored(path: Path, values: NDArray[Any], **options: Any) -> str:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, **options)
    settle(path)
    return str(path)


def loader_of(path: str, buffer: int, **more: Any) -> Any:
    data = H5Dataset(path, "x")
    more = {"sampler": PlanSampler(data, seed=SEED), "epochs": EPOCHS, "storage": SLOW} | more
    return DataLoader(data, BATCH, buffer=buffer, **more)


def memory_of(path: str, share: float, **more: Any) -> int:
    """A buffer for so much of the data beside the batches."""
    return least_of(lambda nbytes: loader_of(path, nbytes, **more)) + int(share * solar.inspect(path, "x").nbytes)


def how(loader: Any) -> tuple[str, str] | None:
    return loader._buffered.running.parts[0].pack


def batches(loader: Any, epochs: int = EPOCHS) -> list[Any]:
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found += list(loader)
    return found


def torchs(values: NDArray[Any], epochs: int = EPOCHS) -> list[Any]:
    sampler = PlanSampler(range(len(values)), seed=SEED)
    whole = TorchLoader(TensorDataset(torch.from_numpy(values)), BATCH, sampler=sampler)
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found += [batch for [batch] in whole]
    return found


def same(ours: list[Any], theirs: list[Any]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(one.dtype == two.dtype and one.numpy().tobytes() == two.numpy().tobytes() for one, two in pairs)


CASES: dict[str, tuple[Callable[[], NDArray[Any]], dict[str, Any]]] = {
    "u1": (lambda: counts("u1", 4800), {}),
    "u2": (lambda: counts("u2"), {}),
    "i2, plain chunks": (lambda: counts("i2"), {"chunks": (4, 48, 80)}),
    ">i2": (lambda: counts(">i2"), {}),
    "i4, a sample a chunk": (lambda: counts("i4"), {"chunks": (1, 40, 48)}),
    "f4": (lambda: counts("f4"), {}),
    "patterns": (patterns, {}),
}


@pytest.mark.slow(but=[">i2", "patterns"])
@pytest.mark.parametrize("name", CASES)
def test_batches_are_torchs_and_reads_the_plans(name: str, tmp_path: Path) -> None:
    made, options = CASES[name]
    values = made()
    path = stored(tmp_path / "x.h5", values, **options)
    memory = memory_of(path, 0.15)
    with loader_of(path, memory) as loader:
        ours = batches(loader)
        ran, stats, plan = loader._buffered.running.counts(), loader.stats(), loader._buffered.planned
        pack, [part], held = how(loader), loader._buffered.running.parts, loader._buffered.held()
    native = values.astype(values.dtype.newbyteorder("="))
    assert same(ours, torchs(native))
    assert pack is not None
    assert pack[0] == native.dtype.str[1:]
    assert (ran["reads"], ran["requests"], ran["bytes"]) == (plan.reads, plan.requests, plan.bytes)
    assert (ran["recovered"], ran["peak_bytes"]) == (0, plan.peak)
    assert plan.encoded == plan.reads
    assert plan.unpacked == EPOCHS * len(values)
    assert stats["bytes_decoded"] == EPOCHS * values.nbytes
    assert stats["peak_bytes"] <= memory
    assert held.startswith(f"The buffer holds samples packed without loss, {values[0].nbytes / part.page:.1f} : 1")


WARM = Storage(latency=1e-5, bandwidth=5e9, iops=1e6)  # decoding takes the time


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("dtype", ["u2", ">i2"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_out_of_chunks_with_filters_are_packed(
    shuffle: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sixteen rows in a chunk one is wanted at a time: what is held of the others is decoded no more."""
    values = np.random.default_rng(0).poisson(3, (2 * SAMPLES, 48, 80)).astype(dtype)
    values[5] = np.arange(48 * 80).reshape(48, 80) * 17  # it does not fit its page
    path = stored(tmp_path / "x.h5", values, chunks=(16, 48, 80), compression="gzip", shuffle=shuffle)
    memory = memory_of(path, 0.25, storage=WARM)
    decoded = []
    for packs in (True, False):
        with loader_of(path, memory, storage=WARM) as loader:
            ours = batches(loader)
            ran, stats, plan = loader._buffered.running.counts(), loader.stats(), loader._buffered.planned
            assert (how(loader) is not None) == packs
        assert same(ours, torchs(values.astype("i2" if dtype == ">i2" else dtype)))
        assert ran["reads"] == plan.reads
        assert ran["recovered"] == (EPOCHS if packs else 0)
        assert stats["peak_bytes"] <= memory
        again = 16 * ran["recovered"] - (EPOCHS if packs else 0)  # its chunk, and it is not unpacked
        assert stats["bytes_decoded"] == (plan.decoded + plan.unpacked + again) * values[0].nbytes
        decoded.append(plan.decoded)
        monkeypatch.setattr(trial, "WORTH", float("inf"))
    assert 2 * decoded[0] < decoded[1]


@pytest.mark.slow
def test_neighbours_are_read_in_one_go(tmp_path: Path) -> None:
    """Threads have memory to read in beside what encoding takes: a quarter of a MiB at a time, not a sample."""
    path = stored(tmp_path / "x.h5", counts("u2", 6 * SAMPLES))
    with loader_of(path, 72 << 20, epochs=1) as loader:
        batches(loader, 1)
        stats, pack = loader.stats(), how(loader)
    assert pack is not None
    assert stats["samples"] == 6 * SAMPLES
    assert stats["requests"] <= stats["samples"] / 8


def test_it_reads_less_than_a_buffer_of_the_same_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path / "x.h5", counts("u2"))
    memory = memory_of(path, 0.15)
    with loader_of(path, memory) as loader:
        batches(loader)
        packed = loader.stats()["bytes"]
        assert "packed without loss" in loader.report()
    monkeypatch.setattr(trial, "WORTH", float("inf"))
    with loader_of(path, memory) as loader:
        batches(loader)
        assert how(loader) is None
        assert "packed" not in loader.report()
        assert loader.stats()["bytes"] > 1.8 * packed


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("why", ["noise", "fits", "small rows", "fast storage", "chunks with a filter", "halves"])
def test_where_it_does_not_pay_samples_are_held_as_they_are(why: str, tmp_path: Path) -> None:
    values, options, share, more = counts("u2"), {}, 0.15, {}
    if why == "noise":
        values = np.random.default_rng(1).integers(0, 65536, values.shape).astype("u2")
    if why == "fits":
        share = 1.2
    if why == "small rows":
        values = values[:, :8]
    if why == "fast storage":
        more = {"storage": Storage(latency=1e-6, bandwidth=1e11, iops=1e8)}
    if why == "chunks with a filter":
        options = {"chunks": (1, 48, 80), "compression": "gzip"}
    if why == "halves":
        values = values.astype("f2")
    path = stored(tmp_path / "x.h5", values, **options)
    with loader_of(path, memory_of(path, share, **more), **more) as loader:
        ours = batches(loader)
        assert how(loader) is None
    assert same(ours, torchs(values))


def test_rows_that_do_not_fit_their_page_are_read_again(tmp_path: Path) -> None:
    values = counts("u2")
    tried = trial.trial_rows(solar.inspect(stored(tmp_path / "x.h5", values), "x"), SLOW)
    others = np.setdiff1d(np.arange(SAMPLES), tried)[::9]
    values[others] = np.random.default_rng(1).integers(0, 65536, (len(others), *values.shape[1:]))
    path = stored(tmp_path / "x.h5", values)
    with loader_of(path, memory_of(path, 0.15)) as loader:
        ours = batches(loader)
        ran, stats, plan = loader._buffered.running.counts(), loader.stats(), loader._buffered.planned
        assert how(loader) is not None
    assert same(ours, torchs(values))
    assert ran["reads"] == plan.reads
    assert ran["recovered"] == EPOCHS * len(others)
    assert ran["bytes"] >= plan.bytes + EPOCHS * len(others) * values[0].nbytes
    assert stats["bytes_decoded"] == EPOCHS * (SAMPLES - len(others)) * values[0].nbytes


def test_a_few_large_rows_may_be_left_out_for_smaller_pages() -> None:
    sizes = np.full(64, 1000)
    sizes[7] = 9000
    assert trial._page(sizes, 10_000, SLOW, 0.1) == (1088, 1 / 64)
    dear = Storage(latency=1e-3, bandwidth=1e9, iops=1)  # a request costs as much as 100,000 rows
    assert trial._page(sizes, 10_000, dear, 0.1) == (9600, 0)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("sampler", ["planned", "shuffle"])
def test_training_resumes_with_the_same_batches(sampler: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.h5", counts("u2"))
    memory = memory_of(path, 0.15)

    def made() -> Any:
        of = {} if sampler == "planned" else {"sampler": None, "shuffle": True, "generator": torch.Generator()}
        return loader_of(path, memory, **of)

    with made() as loader:
        whole = list(loader)
        assert how(loader) is not None
    with made() as loader:
        before = list(islice(loader, 11))
        state = loader.state_dict()
    with made() as loader:
        loader.load_state_dict(state)
        after = list(loader)
    assert same(before + after, whole)


def test_solar_plan_says_what_the_loader_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path / "x.h5", counts("u2"))
    memory = memory_of(path, 0.15)
    asked = ["plan", path, "x", "--memory", str(memory), "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
    asked += ["--seed", str(SEED), "--latency", "1ms", "--bandwidth", "10000000", "--iops", "250"]
    with loader_of(path, memory) as loader:
        batches(loader)
        ran, held, stats = loader._buffered.running.counts(), loader._buffered.held(), loader.stats()
    capsys.readouterr()
    assert main([*asked, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["packed"]
    assert table["packed"] in held
    for name in ("requests", "bytes"):
        assert table["first_epoch"][name] + (EPOCHS - 1) * table["policies"]["solar"][name] == ran[name]
    assert stats["peak_bytes"] <= table["policies"]["solar"]["peak_bytes"] <= memory
    assert main(asked) == 0
    assert f"solar's buffer holds samples {table['packed']}" in capsys.readouterr().out


def test_a_trial_is_small_and_the_same_each_time(tmp_path: Path) -> None:
    layout = solar.inspect(stored(tmp_path / "x.h5", counts("u2")), "x")
    found = [trial.try_packing(layout, SLOW, 0.1) for _ in range(2)]
    assert isinstance(found[0], RowPacking)
    assert found[0] == found[1]
    rows = trial.trial_rows(layout, SLOW)
    requests = 1 + np.count_nonzero(np.diff(rows) > 1)
    assert len(rows) <= requests * trial.NEIGHBOURS
    assert requests in trial.REQUESTS
    assert requests * SLOW.request_seconds <= trial.TRIAL_SHARE * layout.nbytes / SLOW.bandwidth
    quick = Storage(latency=1e-3, bandwidth=1e9, iops=500)  # all of it takes as long as one request
    assert trial.try_packing(layout, quick, 0.1) is None


def test_where_a_trial_fails_samples_are_held_as_they_are(tmp_path: Path) -> None:
    values = counts("u2")
    path = stored(tmp_path / "x.h5", values)
    layout = solar.inspect(path, "x")
    with injected(reads(5)):
        assert trial.try_packing(layout, SLOW, 0.1) is None


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("call", ["read", "memory"])
def test_a_failed_load_is_made_good(call: str, tmp_path: Path) -> None:
    values = counts("u2")
    path = stored(tmp_path / "x.h5", values)
    memory = memory_of(path, 0.15)
    with loader_of(path, memory) as loader:
        loader.set_epoch(0)
        of = iter(loader)
        ours = [next(of)]
        assert how(loader) is not None
        once = reads(5, times=1) if call == "read" else [fault("memory", times=1)]
        with injected(once):
            ours += list(of)
    assert same(ours, torchs(values, 1))


def test_all_samples_stay_where_they_fit_packed(tmp_path: Path) -> None:
    values = counts("u2")
    path = stored(tmp_path / "x.h5", values)
    with loader_of(path, memory_of(path, 0.6)) as loader:
        ours = batches(loader)
        ran = loader._buffered.running.counts()
        assert how(loader) is not None
    assert same(ours, torchs(values))
    assert ran["reads"] == SAMPLES
    assert values.nbytes <= ran["bytes"] <= 1.1 * values.nbytes  # the first batches come with holes


def test_windows_are_packed_row_by_row(tmp_path: Path) -> None:
    values = counts("u2")
    path = stored(tmp_path / "x.h5", values)

    def made(buffer: Any) -> Any:
        data = H5Dataset(path, {"x": Field("x", steps=range(-1, 2))}, samples=Windows(pad="edge"))
        order = {"sampler": PlanSampler(data, seed=SEED), "epochs": 1, "storage": SLOW}
        return DataLoader(data, BATCH, buffer=buffer, **order)

    memory = least_of(made) + int(0.3 * values.nbytes)
    with made(memory) as loader, made(0) as plain:
        ours, theirs = ([one["x"] for one in each] for each in (loader, plain))
        plan, ran = loader._buffered.planned, loader._buffered.running.counts()
        assert how(loader) is not None
    assert same(ours, theirs)
    assert (ran["reads"], ran["bytes"], plan.unpacked) == (plan.reads, plan.bytes, 3 * SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_pack_alike(nodes: int, tmp_path: Path) -> None:
    path, rng = tmp_path / "x.h5", np.random.default_rng(0)
    samples = 3600
    values = rng.poisson(0.4, (samples, 48, 80)).astype("u2")
    values[50:60] = rng.integers(0, 65536, (10, 48, 80))
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values)
        file.create_dataset("y", data=np.stack([np.arange(samples)] * 3, axis=1))
    settle(path)
    asked = case([str(path)], samples=samples, buffer=6 << 20, known=2, end=2, batch=16)
    [found] = run("torch", 2, tmp_path, [asked], nodes)
    check(asked, found, torchs=nodes == 1)
    assert all(one["planned"][-1] > 0 for one in found.values())  # samples to be encoded
    planned = [one["planned"][0] for one in found.values()]
    reads = sum(one["counts"]["reads"] for one in found.values())
    assert reads == (planned[0] if nodes == 1 else sum(planned))
    assert sum(one["counts"]["recovered"] for one in found.values()) == 2 * 10
