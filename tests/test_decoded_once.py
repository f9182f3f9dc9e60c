"""Chunks of one sample that are encoded: held decoded where that pays and has room, and then decoded once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle

from solar import DataLoader, H5Dataset, PlanSampler
from solar.buffer import buffer_size
from solar.cli import main
from solar.io.system import memory as machine
from solar.io.system.profile import MEMORY
from solar.planning.plan import Plan, plan_rows
from solar.planning.torch_shuffles import random
from solar.planning.units import uniform
from solar.values import Storage

SAMPLES, SHAPE = 600, (16, 32)
NBYTES = SAMPLES * 16 * 32 * 4
CHUNKS = {"one sample": (1, *SHAPE), "tiles": (1, 5, 32)}


@pytest.fixture(autouse=True)
def small_data_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_size, "LEAST_EPOCH_SECONDS", 0.0)


def written(folder: Path, chunks: str = "one sample") -> tuple[H5Dataset, Any]:
    values = np.random.default_rng(0).integers(0, 90, (SAMPLES, *SHAPE)).astype("f4")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=CHUNKS[chunks], compression="gzip")
    settle(folder / "a.h5")
    return H5Dataset(folder / "a.h5", "x"), values


def loader_of(data: H5Dataset, order: str, **options: Any) -> DataLoader:
    orders: dict[str, dict[str, Any]] = {
        "shuffled": {"shuffle": True},
        "by a generator": {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        "planned": {"sampler": PlanSampler(data, seed=3)},
        "in order": {},
    }
    torch.manual_seed(5)
    return DataLoader(data, 32, **orders[order], **options)


def passes(loader: Any, epochs: int) -> list[Any]:
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found += [batch.numpy().copy() for batch in loader]
    return found


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("order", ["shuffled", "by a generator", "planned", "in order"])
def test_what_fits_into_the_page_cache_is_decoded_once(order: str, chunks: str, tmp_path: Path) -> None:
    data, values = written(tmp_path, chunks)
    expected = passes(loader_of(data, order, buffer=0), 4)
    with loader_of(data, order) as loader:
        found = passes(loader, 4)
        decoded = loader.stats()["bytes_decoded"]
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert np.array_equal(np.sort(np.concatenate(found[:19]), axis=0), np.sort(values, axis=0))
    padded = -(-SHAPE[0] // CHUNKS[chunks][1]) * CHUNKS[chunks][1]  # rows of a sample's chunks
    assert decoded == NBYTES // SHAPE[0] * padded


def test_what_is_taken_is_never_more_than_may_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = written(tmp_path)
    expected = passes(loader_of(data, "planned", buffer=0), 3)
    decoded = []
    for allowed in (NBYTES // 2, NBYTES, 4 * NBYTES):
        monkeypatch.setattr(machine, "free_nbytes", lambda allowed=allowed: buffer_size.FREE * allowed)
        with loader_of(data, "planned", epochs=3) as loader:
            found = passes(loader, 3)
            assert loader.stats()["peak_bytes"] <= allowed
            decoded.append(loader.stats()["bytes_decoded"])
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert 3 * NBYTES > decoded[0] > decoded[1] > decoded[2] == NBYTES


def test_of_one_epoch_nothing_would_be_decoded_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "solar")
    data, _ = written(tmp_path)
    for epochs, taken in ((1, False), (2, True), (None, True)):
        caplog.clear()
        with loader_of(data, "planned", epochs=epochs) as loader:
            passes(loader, 1)
            assert (loader._buffered.running is not None) == taken
        said = " ".join(caplog.messages)
        assert ("all samples stay, kept decoded" in said) == ("chunks are decoded less often" in said) == taken


def test_of_fields_that_are_kept_alike_is_told_once_and_hits_are_counted_for_each_field(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "solar")
    written(tmp_path)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["label"] = np.arange(SAMPLES)
    settle(tmp_path / "a.h5")
    data = H5Dataset(tmp_path / "a.h5", {"x": "x", "label": "label"})
    with DataLoader(data, 32, sampler=PlanSampler(data, seed=3), epochs=3) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert sum(len(batch["x"]) for batch in loader) == SAMPLES
        hits = loader.stats()["buffer_hits"]
        assert hits > 2 * SAMPLES  # more than there are samples in two epochs
        assert f"{hits:,} fields of samples found in the buffer" in str(loader.report())
    [said] = [line for line in caplog.messages if line.startswith("a buffer of ")]
    assert said.count("all samples stay") == said.count("all samples stay, kept decoded") == 1


def test_the_report_advises_a_buffer_for_what_is_decoded_at_each_use(tmp_path: Path) -> None:
    data, _ = written(tmp_path)
    with loader_of(data, "planned", buffer=0) as loader:
        passes(loader, 2)
        assert "would help: chunks are decoded less often" in loader._buffered.advice()


# --- the plan ----


def planned(storage: Storage, share: float, ratio: int = 4) -> Plan:
    """The plan with room for this share of the samples, decoded, which are stored in so much less."""
    units, order = uniform(2000, 4096, stored=4096 // ratio), random(2000)

    def of(epoch: int) -> tuple[Any, Any]:
        return order.of(epoch), np.append(np.arange(0, 2000, 16), 2000)

    memory = int(share * 2000 * 4096)
    return plan_rows(of, units, memory=memory, storage=storage, epochs=range(6), ahead=2, facts=())


@pytest.mark.parametrize(
    ("bandwidth", "decode", "share", "kept"),
    [
        (1e8, 1e11, 0.5, "stored"),  # read slowly, decoded fast: as many as possible
        (1e8, 1e11, 0.1, "stored"),
        (5e9, 1e8, 0.5, "rows"),  # the other way round
        (5e9, 1e8, 0.1, "rows"),
        (1e8, 1e8, 1.1, "rows"),  # room for all
    ],
)
def test_the_plan_takes_what_costs_less(bandwidth: float, decode: float, share: float, kept: str) -> None:
    made = planned(Storage(0, bandwidth, 1e6, decode=decode), share)
    assert made.kept == kept
    decoded = [one.decoded for one in made.counts]
    if kept == "stored":
        assert decoded == [2000] * 6
    elif share > 1:
        assert decoded == [0] * 6
        assert made.start_counts.decoded == 2000
    else:
        assert max(decoded[1:4]) < 2000 * (1 - 0.9 * share)


def test_what_is_only_decoded_is_had_in_the_order_of_its_use() -> None:
    """Else the first epoch would stand still, after a few steps, until all is decoded."""
    warm, disk = (planned(storage, 1.1).script(0) for storage in (
        Storage(MEMORY.latency, MEMORY.bandwidth, MEMORY.iops, decode=2e8), Storage(1e-3, 1e8, 500, decode=2e8)
    ))  # fmt: skip
    ends = [0, *warm.start_ends.tolist()]
    assert warm.start_due.tolist() == [0, 1, 3, 7, 15, 31, 63]
    for due, begin, end in zip(warm.start_due.tolist(), ends, ends[1:], strict=False):
        used = warm.rows[16 * due : 16 * (2 * due + 1)]
        assert sorted(warm.start[begin:end].tolist()) == sorted(used.tolist())
    assert disk.start_due.tolist() == [0, 1]


def test_solar_plan_says_what_decoding_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path)
    asking = ["plan", str(tmp_path / "a.h5"), "--memory", "4MiB", "--batch-size", "8", "--decode", "1MB/s"]
    assert main(asking) == 0
    shown = capsys.readouterr().out
    assert "decoding: 1 MB/s out of chunks (--decode" in shown
    rows = {line.split("  ")[0]: line for line in shown.splitlines()}
    assert " 1.2" in rows["PyTorch"]
