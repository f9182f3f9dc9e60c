"""DataLoader(buffer=...): torch's batches to the bit, in hard memory, by exactly the reads that were planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from buffer_kit import (
    DISK,
    LAYOUTS,
    MANY,
    NEAR,
    ORDERS,
    SAMPLES,
    counted,
    dataset_of,
    equal,
    least_of,
    loader_of,
    passes,
    plain_runs,
    run_of,
)
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, PlanError
from solar.buffer import buffer_size

EPOCHS = 3
FEW = ("shuffled", "by a generator", "weighted", "distributed")
CASES = [
    *((layout, order) for layout in ("chunks of four samples", "concatenated") for order in ORDERS),
    *((layout, order) for layout in [*LAYOUTS, *MANY] for order in FEW),
]


@pytest.mark.slow(every=4)
@pytest.mark.parametrize(("layout", "order"), sorted(set(CASES)), ids=lambda name: name)
def test_batches_and_draws_are_torchs_and_counts_the_plans(layout: str, order: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, layout)
    ours = order == "planned, exact"  # which torch's loader cannot cut
    torch.manual_seed(1)
    expected = passes((DataLoader if ours else TorchLoader)(dataset, **ORDERS[order](dataset)), EPOCHS)
    state = torch.get_rng_state()
    least = least_of(lambda nbytes: loader_of(dataset, order, buffer=nbytes))
    for nbytes in (least, least + 1_000, least + 4_000, least + 60_000):
        torch.manual_seed(1)
        with loader_of(dataset, order, buffer=nbytes, epochs=EPOCHS) as loader:
            assert equal(passes(loader, EPOCHS), expected), nbytes
            assert torch.equal(torch.get_rng_state(), state)
            planned = loader._buffered.planned
            reads, requests, read_nbytes, _, peak = counted(loader)
            assert (reads, requests, read_nbytes) == (planned.reads, planned.requests, planned.bytes), nbytes
            pages = [part.pages * part.page for part in run_of(loader).parts]
            assert peak <= sum(pages)
            if len(pages) == 1 and not run_of(loader).parts[0].direct:
                assert peak == planned.peak
            assert loader.stats()["peak_bytes"] <= nbytes


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("layout", ["rows of chunks", "chunks of four samples", "tiles in a sample", "two fields"])
@pytest.mark.parametrize("order", ["shuffled", "with replacement"])
def test_the_native_run_does_what_a_plain_one_does(
    layout: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for native in (True, False):
        if not native:
            plain_runs(monkeypatch)
        dataset = dataset_of(tmp_path, layout)
        least = least_of(lambda nbytes: loader_of(dataset, order, buffer=nbytes))  # noqa: B023
        for nbytes in (least, least + 2_500, least + 60_000):
            torch.manual_seed(1)
            with loader_of(dataset, order, buffer=nbytes, epochs=2) as loader:
                batches = passes(loader, 2)
                found.append((native, batches, counted(loader)[:4]))
    for (_, batches, counts), (_, others, plain) in zip(found[:3], found[3:], strict=True):
        assert equal(batches, others)
        assert counts == plain


@pytest.mark.parametrize("order", ["by a generator", "odd batches"])
def test_one_byte_less_than_the_least_is_an_error_every_time_it_is_asked_for(order: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "contiguous")
    least = least_of(lambda nbytes: loader_of(dataset, order, buffer=nbytes))
    assert len(list(loader_of(dataset, order, buffer=least))) > 1
    loader = loader_of(dataset, order, buffer=least - 1)
    for _ in range(2):
        with pytest.raises(PlanError, match=f"give at least buffer={least}, or buffer=0 to read without one"):
            next(iter(loader))


@pytest.mark.parametrize("nothing", [0, "0", "0%", 0.0])
def test_no_buffer_is_the_plain_reader(nothing: Any, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "contiguous")
    loader = loader_of(dataset, "by a generator", buffer=nothing)
    assert equal(passes(loader, 2), passes(loader_of(dataset, "by a generator", buffer="1MiB"), 2))
    assert loader._buffered.running is None
    assert loader.stats()["buffer_hits"] == 0


def test_with_room_for_all_of_it_everything_is_read_once(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "chunks of four samples")
    with loader_of(dataset, "by a generator", buffer="1MiB") as loader:
        passes(loader, 4)
        assert run_of(loader).counts()["reads"] == SAMPLES
        stats = loader.stats()
        assert stats["buffer_hits"] >= 3 * SAMPLES
        assert stats["bytes"] <= 2 * sum(layout.stored_nbytes for layout in [dataset.layouts])
        assert stats["resident_bytes"] == run_of(loader).nbytes
    assert loader.stats()["resident_bytes"] == 0


def test_a_shuffle_that_nobody_can_foresee_keeps_what_stays_in_memory(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "contiguous")
    with loader_of(dataset, "shuffled", buffer="1MiB") as loader:
        passes(loader, 4)
        assert run_of(loader).counts()["reads"] == SAMPLES


def test_a_storage_near_by_reads_batch_by_batch_what_has_no_room(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, "contiguous")
    expected = passes(loader_of(dataset, "by a generator", buffer=0), 2)
    with DataLoader(dataset, **ORDERS["by a generator"](dataset), buffer=24_000, storage=NEAR) as loader:
        assert equal(passes(loader, 2), expected)
    with DataLoader(dataset, **ORDERS["by a generator"](dataset), buffer=24_000, storage=DISK) as far:
        passes(far, 2)
        assert far.stats()["requests"] < loader.stats()["requests"]


def test_the_ranks_of_a_node_share_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of(tmp_path, "contiguous")
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    assert buffer_size.ranks_here() == 2
    with loader_of(dataset, "distributed", buffer=48_000) as loader:
        expected = passes(loader_of(dataset, "distributed", buffer=0), 2)
        assert equal(passes(loader, 2), expected)
        assert loader.stats()["peak_bytes"] <= 24_000
