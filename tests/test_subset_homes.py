"""Ranks of four nodes and a Subset of a file: each reads a quarter of what is used, and holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import mpi_kit
import numpy as np
import pytest

SAMPLES, NBYTES, RANKS = 20_000, 1024, 4
PROGRAM = """
import json, sys
import mpi4py.MPI as MPI
import numpy as np
from torch.utils.data import Subset
from solar import DataLoader, H5Dataset, PlanSampler
begin, end, step = map(int, sys.argv[2:])
chosen = range(begin, end, step)
data = Subset(H5Dataset(sys.argv[1], "x"), chosen)
rank, ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
seen, counts = [], []
with DataLoader(data, 64, sampler=PlanSampler(data, ranks, rank, seed=1), buffer="16MiB", epochs=2) as loader:
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            seen.append(batch[:, 0].numpy())
        counts.append(loader.stats())
every = np.concatenate(MPI.COMM_WORLD.allgather(np.concatenate(seen)))
assert np.array_equal(np.unique(every), np.array(chosen)), "samples are missing"
first, second = counts
more = {name: second[name] - first[name] for name in ("bytes", "buffer_hits", "samples")}
print(json.dumps({
    "rank": rank, "read": first["bytes"], "exchanged": first["exchanged_bytes"],
    "samples": first["samples"], "again": more,
}))
"""


@pytest.mark.parametrize("chosen", [(0, 16_000, 1), (10_000, 20_000, 1), (0, 20_000, 4)])
def test_each_node_reads_a_quarter_of_what_a_subset_uses(chosen: tuple[int, int, int], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["x"] = np.repeat(np.arange(SAMPLES, dtype="i4"), NBYTES // 4).reshape(SAMPLES, -1)
    hosts = ["-launcher", "fork", "-hosts", "n0,n1,n2,n3"]
    said: list[dict[str, Any]] = mpi_kit.under_mpi(RANKS, PROGRAM, tmp_path / "scan.h5", *chosen, options=hosts)
    assert len(said) == RANKS
    mean = sum(one["read"] for one in said) / RANKS
    for one in said:
        assert abs(one["read"] - mean) <= 0.1 * mean, said
        assert one["exchanged"] <= 0.06 * one["samples"] * NBYTES, said  # .4 / sqrt(64) = .05
        # What it reads in the second epoch is nothing: all of its quarter is in its node's memory.
        assert one["again"]["bytes"] == 0, said
