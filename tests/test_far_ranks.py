"""Ranks read a file by its URL together: batches are those of the file here, and the counts are the server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import mpi_kit
import numpy as np
import pytest
from far_kit import Web, served
from kit import settle

from solar import DataLoader, H5Dataset, PlanSampler

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")

SAMPLES, STEP, STOP, SEED = 640, 16, 9, 5
PROGRAM = Path(__file__).with_name("digest_program.py")
READS = """
import json, sys
from mpi4py import MPI
from solar import DataLoader, H5Dataset, PlanSampler
world = MPI.COMM_WORLD
data = H5Dataset(sys.argv[1], "x")
order = PlanSampler(data, world.size, world.rank, seed=5)
with DataLoader(data, 8, sampler=order, buffer=sys.argv[2], epochs=2) as loader:
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            pass
    found = loader.stats()
    print(json.dumps([found["requests"], found["bytes"]]))
"""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    values = np.random.default_rng(1).integers(0, 99, (SAMPLES, 6, 64)).astype("f4")
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(5, 3, 64), compression="gzip")
        file["label"] = np.arange(SAMPLES)
    settle(tmp_path / "one.h5")
    with served(tmp_path) as one:
        yield one


def test_digests_are_those_of_the_file_here(web: Web) -> None:
    path = str(web.folder / "one.h5")
    data = H5Dataset(path, {"x": "x", "label": "label"})
    with DataLoader(data, STEP, sampler=PlanSampler(data, seed=SEED)) as loader:
        for _ in zip(range(STOP), loader, strict=False):
            pass
        state = json.dumps(loader.state_dict())
    found = []
    for place in (path, web.url(path)):
        (web.folder / "state").write_text(state)
        found += mpi_kit.under_mpi(2, PROGRAM, place, web.folder / "state", STEP, STOP)
    assert found[0] == found[1]
    assert len(found[0]) >= 4


def test_what_ranks_count_is_what_the_server_sent(web: Web) -> None:
    begun = len(web.data())
    counts = mpi_kit.under_mpi(2, READS, web.url("one.h5"), "8MB")
    sent = [one for one in web.data()[begun:] if one.first or one.nbytes < 1 << 18]
    assert sum(requests for requests, _ in counts) == len(sent)
    assert sum(nbytes for _, nbytes in counts) == sum(one.nbytes for one in sent)
