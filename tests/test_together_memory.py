"""The memory of a node whose ranks share a buffer: what the system says of all of them, not what we count."""

from __future__ import annotations

from pathlib import Path

import h5py
import mpi_kit
import numpy as np
import pytest
from kit import settle

SAMPLES, BUFFER = 5120, 256 << 20  # of 64 KiB each, 320 MiB
PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler
from solar import DataLoader, H5Dataset

def share():
    "What of the memory of this process is its own, and its part of what it has in common with others."
    with open("/proc/self/smaps_rollup") as facts:
        return next(int(line.split()[1]) << 10 for line in facts if line.startswith("Pss:"))

torch.set_num_threads(1)
dist.init_process_group("gloo")
ranks, path, nbytes = dist.get_world_size(), sys.argv[1], int(sys.argv[2])
dataset = H5Dataset(path, "x", page_cache=True)
for _ in DataLoader(dataset, 16, sampler=range(64), buffer=0, exchange="off"):  # what any loader needs stays
    pass
dist.barrier()
before = most = share()
dist.barrier()
loader = DataLoader(dataset, 64 // ranks, sampler=DistributedSampler(dataset), buffer=nbytes, epochs=2)
steps = 0
for epoch in range(2):
    loader.set_epoch(epoch)
    for batch in loader:
        steps += 1
        if steps % 20 == 0:
            most = max(most, share())
dist.barrier()
print(json.dumps([most - before, loader.stats()["peak_bytes"], loader.stats()["buffer_hits"]]))
loader.close()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_four_ranks_of_a_node_take_the_memory_of_one(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (SAMPLES, 128, 128), "f4")
        for first in range(0, SAMPLES, 512):
            made[first : first + 512] = np.float32(first)
    settle(path)
    grown = {}
    for ranks in (1, 4):
        said = mpi_kit.under_gloo(ranks, PROGRAM, path, BUFFER, seconds=300, fresh=True)
        assert sum(hits for _, _, hits in said) > 0
        grown[ranks] = sum(most for most, _, _ in said)
        print(ranks, said, grown)
    assert grown[1] > BUFFER // 2
    assert grown[4] <= 1.1 * grown[1]
