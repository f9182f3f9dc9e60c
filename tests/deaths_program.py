"""A training of which one rank is killed: what the others say, and when they have ended, is written to files.

    deaths_program.py mpi|torch MOMENT VICTIM WORKERS FOLDER

MOMENT is "epoch" (after some batches), "meeting" (others wait for the victim at one) or "planning" (of a new run).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

SAMPLES, BATCH, KILLED_AT = 4096, 8, 5


def rank_and_ranks(by: str) -> tuple[int, int]:
    """This process's, once MPI or a process group has begun."""
    if by == "mpi":
        from mpi4py import MPI

        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    from torch import distributed

    names = [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")]
    rank, ranks = next((int(os.environ[r]), int(os.environ[n])) for r, n in names if r in os.environ)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    return rank, ranks


def double(sample: Any) -> Any:
    """A transform, which transform processes run."""
    return sample * 2


def main() -> None:
    by, moment, victim, workers, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    rank, ranks = rank_and_ranks(by)
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.buffer.planned_run import PlannedRun
    from solar.io.channels.meeting import Peers

    def die(after: float = 0.0) -> None:
        time.sleep(after)
        Path(folder, "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == victim and moment == "meeting":
        meet, met = Peers.meet, [0]

        def dying(self: Peers, *args: Any, **named: Any) -> Any:
            met[0] += 1
            if met[0] == 2:
                die(0.5)
            return meet(self, *args, **named)

        Peers.meet = dying  # type: ignore[method-assign]
    if rank == victim and moment == "planning":
        PlannedRun._plan = lambda *args, **named: die(0.5)  # type: ignore[assignment, method-assign]
    data = H5Dataset(Path(folder, "scan.h5"), "x", transform=double if workers else None)
    sampler = PlanSampler(data, ranks, rank, seed=1)
    loader = DataLoader(data, BATCH, sampler=sampler, buffer=1 << 20, num_workers=workers, epochs=3)
    try:
        for epoch in range(3):
            loader.set_epoch(epoch)
            for number, _ in enumerate(loader):
                time.sleep(0.01)
                if (rank, moment, epoch, number) == (victim, "epoch", 0, KILLED_AT):
                    die()
    except Exception as error:
        text = json.dumps({"rank": rank, "error": str(error), "seconds": time.time()})
        # torchrun may kill this process at any moment: the file is whole, or is not there.
        being_written = Path(folder, f"being-written.{rank}")
        being_written.write_text(text)
        being_written.rename(Path(folder, f"said.{rank}"))
        raise


if __name__ == "__main__":
    main()
