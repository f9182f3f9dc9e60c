"""What batches cost of a buffer: two where nothing is made of them, counted in the plan, the run and the pool."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from solar import DataLoader, H5Dataset, PlanSampler, _native
from solar.planning import torch_shuffles
from solar.planning.budget import AheadSpec, SampleBytes, divide_memory, needs, pooled_nbytes
from solar.planning.job import Job, plan_node
from solar.planning.planned_passes import Piece
from solar.planning.regions import whole_region
from solar.planning.units import uniform
from solar.values import Storage, World

SLOWED = Storage(latency=1e-3, bandwidth=1e9, iops=500)
SAMPLES, EACH, BATCH = 240, 64 << 10, 8
VALUES = np.random.default_rng(0).integers(0, 256, (SAMPLES, EACH)).astype("u1")
ENOUGH = 60.0  # seconds until a thread has surely done what it was going to do; nothing waits so long


@pytest.mark.parametrize(("share", "law"), [(0.5, 1.0), (0.25, 2.0), (0.1, 5.0)])
def test_large_batches_leave_a_buffer_nearly_what_it_is_for(share: float, law: float) -> None:
    """512 MiB of samples of 64 KiB, 64 a batch, epochs known; all memory is charged."""
    samples, units = 8192, uniform(8192, EACH)
    of = torch_shuffles.distributed(samples, seed=3)
    memory = int(share * units.total_nbytes)
    made = plan_node(
        Job(
            [Piece(0, 0, whole_region(units))],
            [SLOWED],
            [SampleBytes(EACH)],
            EACH,
            of,
            World(0, 1),
            64,
            memory,
            12,
            threads=2,
        )
    )
    assert made.peak_nbytes <= memory
    steady = made.outcome(range(3, 8))
    assert steady.bytes <= 1.1 * law * units.total_nbytes
    assert steady.scans <= 1.1 * law


def test_without_anything_made_of_them_two_batches_are_the_least() -> None:
    one = pooled_nbytes(64 * EACH)
    plain = needs([SampleBytes(EACH)], AheadSpec(4, 0), 64, scratch=EACH, threads=2)
    assert plain.least == 2 * one + 2 * EACH
    assert not plain.decodes
    converted = needs([SampleBytes(EACH, EACH)], AheadSpec(4, 0), 64, scratch=EACH, threads=2)
    assert converted.least == 4 * one + 2 * EACH  # waiting, read for the loop, made of it, and the user's
    assert divide_memory(1 << 30, 64, [plain]).lends == 1
    assert divide_memory(1 << 30, 64, [plain, converted]).lends == 0


@pytest.mark.parametrize("nbytes", [20 << 20, 64 << 20, 1 << 30])
def test_batches_that_wait_take_no_more_than_a_sixteenth(nbytes: int) -> None:
    plain = needs([SampleBytes(EACH)], AheadSpec(4, 0), 64, scratch=EACH, threads=2)
    made = divide_memory(nbytes, 64, [plain])
    batches = made.staged * plain.waiting + plain.beside
    assert batches == 2 * plain.waiting or batches <= nbytes // 16
    assert made.staged == (4 if nbytes == 1 << 30 else 1)


# --- the run ----


@pytest.fixture
def dataset(make: Callable[..., str]) -> H5Dataset:
    return H5Dataset(make("x.h5", x=VALUES), "x")


def loader_of(dataset: H5Dataset, **options: Any) -> Any:
    nbytes = 2 * pooled_nbytes(BATCH * EACH) + (2 << 20)
    how: dict[str, Any] = {"buffer": nbytes, "epochs": 2, "storage": SLOWED} | options
    return DataLoader(dataset, BATCH, sampler=PlanSampler(dataset, seed=1), **how)


def comes(holds: Callable[[], bool]) -> bool:
    """Whether it holds, once threads had time to get there."""
    end = time.monotonic() + ENOUGH
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    return holds()


def test_a_loop_has_one_batch_while_the_next_is_made_and_there_are_no_others(dataset: H5Dataset) -> None:
    gc.collect()  # batches that tests before have left in rings of references
    before, one = _native.pool_stats()["in_use"], pooled_nbytes(BATCH * EACH)
    with loader_of(dataset) as loader:
        steps = 0
        for epoch in range(2):
            loader.set_epoch(epoch)
            rows = list(order_of(dataset, epoch))
            for batch in loader:
                run = loader._buffered.running
                made = min(steps + 2, 2 * len(loader))
                assert comes(lambda r=run, n=made: r.counts()["steps"] == n)  # the next one is made meanwhile
                assert _native.pool_stats()["in_use"] - before <= 2 * one
                assert np.array_equal(batch.numpy(), VALUES[rows[steps % len(loader) * BATCH :][:BATCH]])
                steps += 1
        assert loader.stats()["peak_bytes"] <= loader.buffer
    del batch
    assert _native.pool_stats()["in_use"] <= before


def order_of(dataset: H5Dataset, epoch: int) -> Any:
    sampler = PlanSampler(dataset, seed=1)
    sampler.set_epoch(epoch)
    return sampler


def test_none_is_begun_until_the_one_before_came_back_or_is_asked_for_all_the_same(dataset: H5Dataset) -> None:
    with loader_of(dataset) as loader:
        batches = iter(loader)
        one = next(batches)
        steps = loader._buffered.running.counts
        assert comes(lambda: steps()["steps"] == 2)
        two = next(batches)
        time.sleep(0.05)  # a thread that does not wait would have begun by now
        assert steps()["steps"] == 2
        one = None
        assert comes(lambda: steps()["steps"] == 3)
        three = next(batches)  # who keeps two goes on having two
        assert steps()["steps"] == 3
        four = next(batches)
        assert one is None
        assert len({two.data_ptr(), three.data_ptr(), four.data_ptr()}) == 3
        assert steps()["steps"] == 4
        del two
        assert comes(lambda: steps()["steps"] == 5)


def test_a_loop_may_keep_every_batch(dataset: H5Dataset) -> None:
    with loader_of(dataset, epochs=1) as loader:
        kept = list(loader)
    assert np.array_equal(torch.cat(kept).numpy(), VALUES[list(order_of(dataset, 0))])


def test_what_is_decoded_keeps_its_sixteenth_and_what_is_read_takes_little(tmp_path: Path) -> None:
    found = {}
    for name, options in {"plain": {}, "deflate": {"compression": "gzip", "chunks": (1, 64, 64)}}.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=np.zeros((512, 64, 64), "f4"), **options)
        data = H5Dataset(tmp_path / f"{name}.h5", "x")
        with DataLoader(data, 4, buffer="6MiB", sampler=PlanSampler(data), epochs=1, storage=SLOWED) as loader:
            assert sum(map(len, loader)) == 512
            budget = loader._buffered.planned_run.budget
            used = (budget.nbytes - budget.parts) - (budget.staged + 1) * pooled_nbytes(4 * 16384)
            found[name] = used / budget.nbytes
    assert found["plain"] <= 1 / 100
    assert 1 / 20 <= found["deflate"] <= 1 / 15


# --- the first batch ----


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
def test_the_first_batch_waits_for_no_more_than_without_a_buffer(share: float) -> None:
    """What is read first is what the first step uses, joined where that takes no longer than a request of its own."""
    units, of = uniform(8192, EACH), torch_shuffles.distributed(8192, seed=3)
    memory = int(share * units.total_nbytes)
    made = plan_node(
        Job(
            [Piece(0, 0, whole_region(units))],
            [SLOWED],
            [SampleBytes(EACH)],
            EACH,
            of,
            World(0, 1),
            64,
            memory,
            3,
            threads=2,
        )
    )
    script = made.windows[0].plans[0].script(0)
    first = script.start[: script.start_ends[0]]
    assert script.start_due[0] == 0
    assert all(due > 0 for due in script.start_due[1:])
    assert sorted(first.tolist()) == sorted(of.of(0)[:64].tolist())
    requests = 1 + int((np.diff(np.sort(first)) * EACH - EACH >= SLOWED.gap).sum())
    nbytes = 64 * EACH + sum(hole for hole in (np.diff(np.sort(first)) * EACH - EACH).tolist() if hole < SLOWED.gap)
    assert SLOWED.seconds(requests, nbytes) <= SLOWED.seconds(64, 64 * EACH)
