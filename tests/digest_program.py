"""Run under mpiexec by test_digest.py: rank 0 prints the digest of an epoch for each way of reading it together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
from mpi4py import MPI

from solar import DataLoader, H5Dataset, PlanSampler
from solar.cli.digest import Digest

WORLD = MPI.COMM_WORLD
WAYS: dict[str, dict[str, Any]] = {
    "each by itself": {"buffer": 0, "exchange": "off"},
    "a buffer of each": {"buffer": "400kB", "exchange": "off"},
    "one buffer": {"buffer": "400kB", "exchange": "auto", "epochs": 2},
    **({"libhdf5's parallel driver": {"reader": "mpio"}} if h5py.get_config().mpi else {}),
}


def loader_of(path: str, step: int, **options: Any) -> Any:
    data = H5Dataset(path, {"x": "x", "label": "label"})
    return DataLoader(data, step // WORLD.size, sampler=PlanSampler(data, WORLD.size, WORLD.rank, seed=5), **options)


def add(digest: Digest, batch: Any) -> None:
    """A step of all ranks, on rank 0."""
    together = WORLD.gather(batch, 0)
    if together is not None:
        digest.add(together)


def main(path: str, state: str, step: int, stop: int) -> None:
    """Each way; and the rest of an epoch that others left in the file `state`, to which it leaves one of its own."""
    found = {}
    for name, options in WAYS.items():
        loader, digest = loader_of(path, step, **options), Digest()
        for batch in loader:
            add(digest, batch)
        found[name] = digest.found()["digest"]
        loader.close()
    resumed, digest = loader_of(path, step, buffer="400kB"), Digest()
    resumed.load_state_dict(json.loads(Path(state).read_text()))
    for batch in resumed:
        add(digest, batch)
    found["the rest"] = digest.found()["digest"]
    resumed.close()
    begun = loader_of(path, step, buffer="400kB")
    for _ in zip(range(stop), begun, strict=False):
        pass
    begun.close()
    if WORLD.rank == 0:
        print(json.dumps(found))
        Path(state).write_text(json.dumps(begun.state_dict()))


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
