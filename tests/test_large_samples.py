"""Samples so large that bandwidth decides, on several nodes: as much is held as by a fixed part of the same memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import mpi_kit
import numpy as np
import pytest
from kit import settle
from torch.utils.data import DistributedSampler

from solar.cli.compare import PlannedData, job_of, scratch_of
from solar.planning import policies
from solar.planning.job import plan_node
from solar.planning.units import uniform
from solar.values import Storage, World

WORLD, STORAGE, DATA, EPOCHS = World(0, 32, 0, 4), Storage(2e-3, 1e10, 10_000), 321e9, 6
SIZES = {"3 MB": (3 << 20, 16), "17 MB": (17_000_000, 4)}  # and the batch of a rank


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(("share", "least"), [(0.25, 0.95), (0.5, 0.95), (0.9, 0.85)])
def test_a_plan_reads_hardly_more_than_a_fixed_part_of_the_same_memory(name: str, share: float, least: float) -> None:
    """The fixed part leaves room for as many batches, but for nothing that nodes send each other."""
    nbytes, batch = SIZES[name]
    samples = int(DATA / nbytes)
    units, memory = uniform(samples, nbytes), int(share * samples * nbytes / 8)
    case = PlannedData("", units, WORLD, batch, memory, STORAGE, 0, EPOCHS, scratch_of(units))
    job = job_of([case], memory)
    made = plan_node(job)
    assert made.peak_nbytes <= memory
    others = policies.pinned(job.order, units, WORLD, batch=batch, memory=memory, storage=STORAGE, ready=made.ready)
    ours = made.outcome(range(1, EPOCHS - 1))
    assert others.bytes / 8 >= least * ours.bytes
    held = made.budget.parts // nbytes  # as a fixed part, were all of its own memory one
    assert ours.reads <= 1.03 * (made.windows[0].pieces[0].region.items - held)
    assert made.batches_nbytes <= 2 * (1 + made.ready) * 4 * batch * nbytes


PROGRAM = """
import json, sys, threading
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler
from solar import DataLoader, H5Dataset, _native
from solar.buffer import buffered_pass

asked = []
needs = buffered_pass.BufferedPass._needs
buffered_pass.BufferedPass._needs = lambda self, segment: asked.append(needs(self, segment)) or asked[-1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
path, nbytes, keeps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dataset = H5Dataset(path, "x")
sampler = DistributedSampler(dataset, seed=1)
loader = DataLoader(dataset, 4, sampler=sampler, buffer=nbytes, epochs=3, exchange="torch")
most, over, sums, kept = 0, threading.Event(), [], []

def look():
    global most
    while not over.wait(0.0005):
        most = max(most, _native.pool_stats()["in_use"])

watch = threading.Thread(target=look)
watch.start()
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        sums.append(batch[:, 0, 0].tolist())
        kept.append(batch)
        del kept[: max(0, len(kept) - keeps)]
    del batch
    kept.clear()
over.set()
watch.join()
own, budget = asked[0], loader._buffered.planned_run.budget
found = {"sums": sums, "most": most, "batches": own.beside + budget.staged * own.waiting, "each": own.waiting}
print(json.dumps(found | {"staged": budget.staged, "peak": loader.stats()["peak_bytes"]}))
loader.close()
dist.barrier()
dist.destroy_process_group()
"""


def of_step(samples: int, ranks: int, epoch: int, step: int) -> list[int]:
    """What all ranks together use in a step, as torch has it."""
    taken = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(samples), ranks, rank, seed=1)  # type: ignore[arg-type]
        sampler.set_epoch(epoch)
        taken += [*sampler][4 * step : 4 * step + 4]
    return taken


@pytest.mark.parametrize(("share", "keeps"), [(0.9, 0), (0.5, 0), (0.5, 6)])
def test_batches_that_travel_take_no_more_than_the_plan_says(share: float, keeps: int, tmp_path: Path) -> None:
    samples, ranks = 640, 4
    with h5py.File(tmp_path / "x.h5", "w") as file:
        values = np.broadcast_to(np.arange(samples, dtype="f4")[:, None, None], (samples, 128, 128))
        file.create_dataset("x", data=values)
    settle(tmp_path / "x.h5")
    buffer = int(share * values.nbytes / ranks) + (3 << 20)
    apart = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # each is a node
    found: list[Any] = mpi_kit.under_gloo(ranks, PROGRAM, tmp_path / "x.h5", buffer, keeps, env=apart)

    for epoch, begin in enumerate(range(0, 120, 40)):
        for step in range(40):
            taken = [value for one in found for value in one["sums"][begin + step]]
            assert sorted(taken) == sorted(of_step(samples, ranks, epoch, step))
    for one in found:
        assert one["peak"] <= buffer
        assert one["most"] <= one["batches"] + (1 + keeps) * one["each"]  # one may just be coming back
