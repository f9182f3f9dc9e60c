"""One rank of several whose file is replaced between two epochs, as all of them see it, or one alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from solar import DataLoader, H5Dataset, PlanSampler, ReadError, SolarError, _native
from solar.buffer import shared_plans
from solar.io.channels import detect

look = _native.check_unchanged


def barrier(by: str) -> None:
    if by == "mpi":
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
    else:
        torch.distributed.barrier()


def replace(path: str) -> None:
    new = Path(path + ".new")
    new.write_bytes(b"?" * Path(path).stat().st_size)
    new.replace(path)


def refuse(paths: list[str], *facts: Any) -> None:
    """What a look at a file says to a rank whose file system tells sooner than the others'."""
    raise ReadError(f"{paths[0]}: changed since it was inspected: as this rank sees it; make the H5Dataset again")


def carried_out(case: dict[str, Any], by: str, rank: int, ranks: int) -> dict[str, Any]:
    shared_plans.SHARED_SAMPLES = 1 if case.get("shared") else 1 << 20
    data = H5Dataset(case["path"], "x", collective_open=case["together"])
    sampler = PlanSampler(data, ranks, rank, seed=2)
    loader: Any = DataLoader(data, 4, sampler=sampler, buffer=case["buffer"], exchange=case["exchange"])
    said: dict[str, Any] = {"rank": rank, "batches": [], "error": ""}
    try:
        for epoch in case["epochs"]:
            said["batches"].append(0)
            if len(said["batches"]) > case["replaced"]:
                barrier(by)
                if case["seen_by"] != "all" and rank in case["seen_by"]:
                    _native.check_unchanged = refuse
                elif case["seen_by"] == "all" and rank == 0:
                    replace(case["path"])
                barrier(by)
            loader.set_epoch(epoch)
            for _ in loader:
                said["batches"][-1] += 1
    except SolarError as error:
        said["error"] = f"{type(error).__name__}: {error}"
    _native.check_unchanged = look
    loader.close()
    barrier(by)
    return said


def main() -> None:
    by, cases = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    if by == "mpi":
        import mpi4py.MPI  # noqa: F401 - which starts MPI
    else:
        torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    world = detect()
    for number, case in enumerate(cases):
        print(json.dumps({"case": number, **carried_out(case, by, world.rank, world.ranks)}), flush=True)


if __name__ == "__main__":
    main()
