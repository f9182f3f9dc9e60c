"""Chunks of many samples are decoded no more often than by a chunk cache of libhdf5 with the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import engine, settle

from solar import CodecError, DataLoader, H5Dataset, PlanSampler
from solar.io.system.profile import MEMORY
from solar.planning import torch_shuffles as orders
from solar.planning.budget import SampleBytes
from solar.planning.job import Job, plan_node
from solar.planning.planned_passes import Piece
from solar.planning.policies import _lru_misses
from solar.planning.regions import whole_region
from solar.planning.units import uniform
from solar.values import Storage, World

Order = Callable[[int], Any]  # of an epoch
RECENT = 8 << 20  # bytes of decoded chunks that a thread's engine keeps (native/src/read/recent.cpp)


def theirs(order: Order, epochs: int, per_chunk: int, batch: int, memory: int, chunk_nbytes: int) -> list[int]:
    """How many chunks an expert's libhdf5 decodes in each epoch: it forgets the chunk that was used longest ago, and a
    batch is read by one ascending selection."""
    batches = [order(epoch)[at : at + batch] for epoch in range(epochs) for at in range(0, len(order(0)), batch)]
    uses = [np.unique(one // per_chunk) for one in batches]
    chunks = np.concatenate(uses).astype(np.int64)
    misses, _ = _lru_misses(chunks, np.full(chunks.max() + 1, chunk_nbytes), memory)
    ends = np.cumsum([0, *map(len, uses)])[:: len(batches) // epochs]
    return [int(misses[begin:end].sum()) for begin, end in pairwise(ends)]


# --- with a buffer: what the plan counts, a run does (test_one_door.py) ----


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("share", [1 / 16, 1 / 4, 1])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("batch", [32, 64])
@pytest.mark.parametrize("per_chunk", [16, 64])
def test_a_buffer_decodes_no_more_than_a_cache_of_its_bytes(
    per_chunk: int, batch: int, shuffled: bool, share: float
) -> None:
    samples, nbytes, epochs = 16384, 4096, 4
    units = uniform(samples, nbytes, per_unit=per_chunk, stored=nbytes * per_chunk // 4)
    storage = Storage(MEMORY.latency, MEMORY.bandwidth, MEMORY.iops, decode=5e8)
    order = orders.distributed(samples, seed=1) if shuffled else orders.distributed(samples, shuffle=False)
    scratch, chunk = 2 * per_chunk * nbytes + units.stored_nbytes, per_chunk * nbytes
    memory = int(share * samples * nbytes)
    pieces, fields = [Piece(0, 0, whole_region(units))], [SampleBytes(nbytes)]
    job = Job(pieces, [storage], fields, scratch, order, World(0, 1), batch, memory, epochs, threads=2)
    ours = [counts[0].decoded / per_chunk for counts in plan_node(job).epochs]
    # Its process, too, has the batch that it reads, the one that the loop has, and the chunk that it decodes.
    beside = 2 * batch * nbytes + chunk if share == 1 else 0
    cached = theirs(order.of, epochs, per_chunk, batch, memory - beside, chunk)
    # What the first epoch reads for the second, the last has not to read.
    ours[0] -= ours[1] - ours[-1]
    assert all(one <= other for one, other in zip(ours, cached, strict=True)), (ours, cached)
    if shuffled and share < 1:
        assert sum(ours) <= sum(cached) / (4 if share == 1 / 4 else 1)


# --- without one: the chunks decoded last are kept ----


def written(folder: Path, samples: int, shape: tuple[int, ...], per_chunk: int) -> tuple[H5Dataset, Any]:
    values = np.arange(samples, dtype="f4").reshape(samples, *(1 for _ in shape)) + np.zeros(shape, "f4")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(per_chunk, *shape), compression="gzip", compression_opts=1)
    settle(folder / "a.h5")
    return H5Dataset(folder / "a.h5", "x"), values


@pytest.mark.parametrize("backend", ["pread", "auto"])
@pytest.mark.parametrize(("per_chunk", "batch"), [(16, 40), (64, 32), (64, 64), (64, 1), (64, 48), (100, 33)])
def test_in_order_each_chunk_is_decoded_once(per_chunk: int, batch: int, backend: str, tmp_path: Path) -> None:
    data, values = written(tmp_path, 2000, (8, 8), per_chunk)
    with engine(3, backend):
        loader = DataLoader(data, batch, buffer=0)
        found = np.concatenate([one.numpy() for one in loader])
    assert np.array_equal(found, values)
    assert loader.stats()["bytes_decoded"] == -(-2000 // per_chunk) * per_chunk * 8 * 8 * 4


def test_samples_asked_for_one_by_one_share_their_chunks(tmp_path: Path) -> None:
    data, values = written(tmp_path, 200, (4, 4), 16)
    with engine(2, "pread"):
        pending = [data.start_batch([index]) for index in range(200)]
        found = np.concatenate([one.wait() for one in pending])
        decoded = sum(one.counts()["bytes_decoded"] for one in pending)
    assert np.array_equal(found, values)
    assert decoded == 13 * 16 * 4 * 4 * 4


@pytest.mark.parametrize("per_chunk", [16, 64])
def test_shuffled_the_chunks_of_the_last_batches_are_kept(per_chunk: int, tmp_path: Path) -> None:
    samples, shape, batch = 2048, (32, 32), 32
    nbytes = 32 * 32 * 4
    data, values = written(tmp_path, samples, shape, per_chunk)
    sampler = PlanSampler(data, seed=2)
    with engine(1, "pread"):
        loader = DataLoader(data, batch, sampler=sampler, buffer=0, ahead=1)
        decoded = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert all((one.numpy() == values[one[:, 0, 0].int()]).all() for one in loader)
            decoded.append(loader.stats()["bytes_decoded"] / nbytes / per_chunk)
    order = orders.distributed(samples, seed=2)
    for memory in (RECENT, 0):
        cached = theirs(order.of, 3, per_chunk, batch, memory, per_chunk * nbytes)
        assert np.all(np.diff([0, *decoded]) <= np.array(cached))
    assert decoded[0] < cached[0]


def test_a_damaged_chunk_is_refused_each_time(tmp_path: Path) -> None:
    data, values = written(tmp_path, 64, (8, 8), 16)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["x"].id.write_direct_chunk((16, 0, 0), b"nothing that was deflated")
    settle(tmp_path / "a.h5")
    data = H5Dataset(tmp_path / "a.h5", "x")
    for _ in range(3):
        with pytest.raises(CodecError, match="sample 17"):
            data.read_batch([17])
        assert np.array_equal(data.read_batch([3, 40]), values[[3, 40]])
