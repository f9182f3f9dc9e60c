"""Ranks of a node of which one makes the plans of all: batches and reads are the same as if each made its own.

Small data sets are planned by each rank; here the limit is one sample.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import mpi_kit
import numpy as np
import pytest
from test_together import case, check, check_counts, run, written

SHARED = {"shared": True, "known": 3}


def cases_of(folder: Path, buffer: int) -> list[dict[str, Any]]:
    """Samples in chunks, of several files, an exact end, an end that is dropped, and epochs of an unknown number."""
    one = written(folder / "a.h5", 900, {"chunks": (5, 6, 8), "compression": "gzip"})
    two = [one, written(folder / "b.h5", 30, {}, first=900)]
    some = {**SHARED, "samples": 900, "buffer": buffer}
    return [
        case([one], **some),
        case([one], tail="exact", **some),
        case([one], tail="drop", **{**some, "known": None}),
        case(two, **{**some, "samples": 930}),
        case([one], shuffle=False, **some),
    ]


@pytest.mark.slow(but=["mpi-3"])
@pytest.mark.parametrize(("by", "ranks"), [("mpi", 3), ("torch", 3), ("torch", 4)])
def test_ranks_that_share_plans_have_torchs_batches_and_one_plan(by: str, ranks: int, tmp_path: Path) -> None:
    cases = cases_of(tmp_path, 40_000 * ranks)
    apart = [{**one, "shared": False} for one in cases]
    found = run(by, ranks, tmp_path, [*cases, *apart])
    for one, shared, alone in zip(cases, found, found[len(cases) :], strict=False):
        check(one, shared, torchs=True)
        if one["known"]:
            check_counts(shared)
            assert [shared[rank]["planned"] for rank in shared] == [alone[rank]["planned"] for rank in alone]
        assert [shared[rank]["state"] for rank in shared] == [alone[rank]["state"] for rank in alone]


@pytest.mark.slow(but=["equal"])
@pytest.mark.parametrize("balance", ["torch", "equal", "uneven"])
def test_ranks_of_two_nodes_share_what_each_node_plans(balance: str, tmp_path: Path) -> None:
    one = case([written(tmp_path / "a.h5", 900, {})], samples=900, balance=balance, buffer=100_000, **SHARED)
    [shared, alone] = run("mpi", 4, tmp_path, [one, {**one, "shared": False}], nodes=2)
    assert {tuple(each["node"]) for each in shared.values()} == {(0, 2), (1, 3)}
    check(one, shared, torchs=balance == "torch")
    check_counts(shared)
    assert [shared[rank]["epochs"] for rank in shared] == [alone[rank]["epochs"] for rank in alone]
    assert [shared[rank]["planned"] for rank in shared] == [alone[rank]["planned"] for rank in alone]


def test_a_shared_pass_is_resumed_and_left_before_its_end(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", 96, {"chunks": (4, 6, 8)})
    left = case([path], samples=96, buffer=200_000, end=2, **{**SHARED, "break": [1, 3]})
    [found] = run("mpi", 3, tmp_path, [left])
    check(left, found, torchs=True)
    states = {json.dumps(found[rank]["state"]) for rank in found}
    assert len(states) == 1
    again = case([path], samples=96, buffer=200_000, **{**SHARED, "state": json.loads(*states), "begin": 1, "end": 3})
    [found] = run("mpi", 2, tmp_path, [again])
    done = [number for rank in (0, 1) for step in found[rank]["epochs"][0] for number in step]
    assert len(done) == 96 - 4 * 3 * 4
    assert sorted(number for rank in (0, 1) for step in found[rank]["epochs"][1] for number in step) == [*range(96)]


DIES = """
import os, signal, sys, time, json
import torch
torch.distributed.init_process_group("gloo")
from solar import DataLoader, H5Dataset, PlanSampler
from solar.buffer import shared_plans
from solar.buffer.thread import check_wanted
from solar.errors import SolarError
from solar.planning import planned_passes
shared_plans.SHARED_SAMPLES = 1
rank, victim, path = torch.distributed.get_rank(), int(sys.argv[1]), sys.argv[2]
if rank == 0:  # which alone plans: for long enough that the victim dies meanwhile
    plan = planned_passes._plan
    def slow(*args):
        if victim == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(600):  # as planning does, it looks whether it is wanted
            time.sleep(0.1)
            check_wanted()
        return plan(*args)
    planned_passes._plan = slow
elif rank == victim:
    wait = shared_plans.SharedPlans._look
    def dying(self):
        os.kill(os.getpid(), signal.SIGKILL)
    shared_plans.SharedPlans._look = dying
data = H5Dataset(path, "x")
begin = time.monotonic()
try:
    next(iter(DataLoader(data, 4, sampler=PlanSampler(data), buffer=100_000)))
    print(json.dumps("no error"), flush=True)
except SolarError as error:
    print(json.dumps([str(error), time.monotonic() - begin]), flush=True)
sys.stdout.flush()
"""


def test_small_passes_are_made_by_each_rank() -> None:
    from solar.buffer.shared_plans import SharedPlans

    plans = SharedPlans.__new__(SharedPlans)
    plans._several = True
    assert not plans.shares({"samples": (1 << 20) - 1})
    assert plans.shares({"samples": 1 << 20})
    assert not plans.shares(None)  # whose order nobody knows by its facts


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_rank_dies_while_one_plans_for_all_the_others_name_it_soon(victim: int, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((4096, 64), "f4")
    said = mpi_kit.under_gloo(3, DIES, victim, tmp_path / "a.h5", seconds=60, fresh=True, dying=[victim])
    assert len(said) == 2
    for text, seconds in said:
        assert f"rank {victim} of 3" in text
        assert seconds < 30  # where planning takes 60, and however busy the machine is


MEMORY = """
import os, sys, json, tracemalloc
import torch
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
from itertools import islice
from solar import DataLoader, H5Dataset, PlanSampler
from solar.io.channels import node_notes
path, rank = sys.argv[1], torch.distributed.get_rank()
data = H5Dataset(path, "x")
list(islice(DataLoader(data, 64, buffer=0, exchange="off"), 2))
wrote = []
write = node_notes.NodeNotes._write
def written(self, *args):
    found = write(self, *args)
    wrote.append(os.fstat(self._descriptor).st_blocks * 512)
    return found
node_notes.NodeNotes._write = written
tracemalloc.start()
loader = DataLoader(data, 4096, sampler=PlanSampler(data, seed=1), buffer=len(data) * 2, epochs=2)
for epoch in range(2):
    loader.set_epoch(epoch)
    for _ in loader:
        pass
print(json.dumps([rank, tracemalloc.get_traced_memory()[1], max(wrote, default=0)]), flush=True)
loader.close()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_of_four_ranks_three_keep_nothing_that_grows_with_the_samples(tmp_path: Path) -> None:
    """Memory of numpy by allocation, the file of notes by the system. Native code has 4 bytes a sample and rank."""
    found: dict[int, dict[int, list[int]]] = {}
    sizes = 1 << 20, 1 << 22
    for samples in sizes:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", (samples, 8), "u1")[samples - 1] = 1
        said = mpi_kit.under_gloo(4, MEMORY, tmp_path / "a.h5", seconds=120, fresh=True)
        found[samples] = {rank: [own, notes] for rank, own, notes in said}
    more = sizes[1] - sizes[0]
    grown = {rank: (found[sizes[1]][rank][0] - found[sizes[0]][rank][0]) / more for rank in range(4)}
    assert max(grown[rank] for rank in (1, 2, 3)) < 1, grown  # 36 where each made its own
    assert grown[0] < 16, grown
    notes = (found[sizes[1]][0][1] - found[sizes[0]][0][1]) / more
    # Two passes with an order of 4 bytes, up to 4 of loads and 1 of what is dropped, and what is about to be freed.
    assert notes < 24, notes
