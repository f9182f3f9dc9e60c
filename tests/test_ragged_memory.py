"""The memory that a process takes with a buffer of samples of unequal length: what the system says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import settle

# Python's own, what the allocator keeps, and what planning takes for a moment, whatever the number of samples.
BESIDE = 14 << 20
A_SAMPLE = 100  # bytes that the data set keeps of each, and planning takes of it for a moment

PROGRAM = """
import resource, sys
import torch
from solar import CSR, DataLoader, H5Dataset

torch.set_num_threads(1)
path, kind, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
dataset = H5Dataset(path, CSR("X"), page_cache=True) if kind == "csr" else H5Dataset(
    path, {"x": "x", "y": "y"}, samples="groups", page_cache=True
)
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for _ in DataLoader(dataset, 32, sampler=range(96), buffer=0):  # what any loader needs is there from now on
    pass
before, generator = most(), torch.Generator().manual_seed(0)
loader = DataLoader(dataset, 64, shuffle=True, generator=generator, buffer=nbytes, epochs=2)
for epoch in range(2):
    for values in loader:
        pass
assert loader.stats()["buffer_hits"] > 0
print(len(dataset), most() - before, loader.stats()["peak_bytes"])
"""


def matrix(path: Path, rows: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 250, rows)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        for name, values in (("data", np.ones(ends[-1], "f4")), ("indices", np.zeros(ends[-1], "i4"))):
            group.create_dataset(name, data=values, chunks=16384, compression=1)
        group["indptr"], group.attrs["encoding-type"], group.attrs["shape"] = ends, "csr_matrix", [rows, 2]


def molecules(path: Path, groups: int) -> None:
    atoms = np.random.default_rng(0).integers(50, 150, groups)
    with h5py.File(path, "w", libver="latest") as file:
        for number, rows in enumerate(atoms.tolist()):
            group = file.create_group(f"m{number}")
            group["x"], group["y"] = np.zeros((rows, 3), "f4"), np.float32(number)


CASES = {
    "csr": (matrix, 80_000, 100 << 20),
    "groups": (molecules, 20_000, 40 << 20),
    "a part of them": (molecules, 20_000, 16 << 20),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_process_grows_by_no_more_than_its_buffer(case: str, tmp_path: Path) -> None:
    make, samples, nbytes = CASES[case]
    make(tmp_path / "a.h5", samples)
    settle(tmp_path / "a.h5")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a.h5"), case, str(nbytes)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    there_are, grown, counted = map(int, run.stdout.split())
    assert there_are == samples and counted <= nbytes
    assert grown <= nbytes + BESIDE + A_SAMPLE * samples
