"""A file that is replaced under ranks that read together: an error on each, also if one alone sees it."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import mpi_kit
import numpy as np
import pytest
from kit import settle

PROGRAM = Path(__file__).with_name("replaced_program.py")
SAMPLES, RANKS = 96, 2
SEEN_BY = ["all", [0], [1]]
FORESEEN, JUMPING = [0, 1, 2, 3], [0, 5, 9, 2]  # epochs: those that the run goes on to, and those that take a new one


def written(path: Path) -> str:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(SAMPLES * 256, dtype="f4").reshape(SAMPLES, 256)
    settle(path)
    return str(path)


def run(by: str, folder: Path, nodes: int, **given: Any) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """What each rank said, of each case."""
    cases = [
        {"seen_by": seen_by, "replaced": replaced, "epochs": epochs, "together": False, "buffer": 1 << 20,
         "exchange": "auto", "path": written(folder / f"{number}.h5"), **given}
        for number, (seen_by, replaced, epochs) in enumerate(product(SEEN_BY, (0, 1, 2), (FORESEEN, JUMPING)))
    ]  # fmt: skip
    (folder / "cases.json").write_text(json.dumps(cases))
    if by == "mpi":
        hosts = ["-launcher", "fork", "-hosts", ",".join(f"n{node}" for node in range(nodes))] if nodes > 1 else []
        said = mpi_kit.under_mpi(RANKS, PROGRAM, by, folder / "cases.json", options=hosts)
    else:
        apart = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if nodes > 1 else {}
        said = mpi_kit.under_gloo(RANKS, PROGRAM, by, folder / "cases.json", env=apart)
    found = [sorted((one for one in said if one["case"] == k), key=lambda one: one["rank"]) for k in range(len(cases))]
    assert all(len(each) == RANKS for each in found)
    return list(zip(cases, found, strict=True))


def check(case: dict[str, Any], found: list[dict[str, Any]]) -> None:
    batches = SAMPLES // RANKS // 4
    for one in found:
        assert one["batches"][:-1] == [batches] * case["replaced"], (case, found)
        assert len(one["batches"]) == case["replaced"] + 1, (case, found)
        assert "changed since it was inspected" in one["error"], (case, found)
        if case["seen_by"] in ("all", [one["rank"]]):  # its own files' error, and no batch of another file
            assert one["batches"][-1] == 0
            assert one["error"].startswith("ReadError"), (case, found)
        else:
            assert f"rank {case['seen_by'][0]}" in one["error"], (case, found)


@pytest.mark.slow(but=["torch-2"])
@pytest.mark.parametrize(("by", "nodes"), [("mpi", 1), ("torch", 1), ("mpi", 2), ("torch", 2)])
def test_all_ranks_are_told_whoever_sees_it(by: str, nodes: int, tmp_path: Path) -> None:
    for case, found in run(by, tmp_path, nodes):
        check(case, found)


@pytest.mark.parametrize("shared", [False, True])  # whether one rank plans for all
def test_metadata_that_rank_0_has_read_for_all_tells_the_file_too(tmp_path: Path, shared: bool) -> None:
    for case, found in run("torch", tmp_path, 1, together=True, shared=shared):
        check(case, found)


def test_what_ranks_read_in_one_go_they_look_at_in_one_go(tmp_path: Path) -> None:
    """Or one would raise alone, and the others wait for ever in a read over MPI that takes all of them."""
    program = """
import json, sys
import replaced_program, solar
from mpi4py import MPI
from solar import _native
from solar.io.hdf5.mpio import unchanged_for_all
layout, rank = solar.inspect(sys.argv[1], "x"), MPI.COMM_WORLD.rank
assert unchanged_for_all(layout) == sys.argv[1]
if rank == 1:
    _native.check_unchanged = replaced_program.refuse
try:
    unchanged_for_all(layout)
except solar.ReadError as error:
    print(json.dumps(str(error)))
"""
    path = written(tmp_path / "a.h5")
    said = mpi_kit.under_mpi(3, program, path)
    own = f"{path}: changed since it was inspected: as this rank sees it; make the H5Dataset again"
    assert said == [f"rank 1 of 3: {own}", own, f"rank 1 of 3: {own}"]
