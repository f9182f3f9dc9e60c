"""How the ranks of a command meet and exchange small JSON values: alone, or by MPI. By torch: solar/torch/gather.py."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError
from solar.io.ranks.world import detect
from solar.values import World

Bytes = NDArray[np.uint8]

ABORT_GRACE = 1.0  # seconds in which others may say what went wrong with them, before MPI ends them


class Ranks:
    """All ranks of the command, and which of them this is. This one is alone; ByMpi and ByTorch have others."""

    by = "alone"

    def __init__(self, world: World) -> None:
        self.rank, self.ranks = world.rank, world.ranks

    @property
    def name(self) -> str:
        """This rank in a message; empty where there is no other."""
        return f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""

    def gather(self, value: Any) -> list[Any]:
        """What each rank gave, on rank 0; on the others nothing. All wait until all have come."""
        row = np.frombuffer(json.dumps(value).encode(), np.uint8)
        padded = np.full(self._largest(len(row)), ord(" "), np.uint8)
        padded[: len(row)] = row
        return [json.loads(one.tobytes()) for one in self._collect(padded)]

    def tell(self, value: Any) -> Any:
        """What rank 0 gave, on every rank."""
        row = np.frombuffer(json.dumps(value).encode(), np.uint8) if self.rank == 0 else np.empty(0, np.uint8)
        told = np.empty(self._largest(len(row)), np.uint8)
        if self.rank == 0:
            told[:] = row
        self._spread(told)
        return json.loads(told.tobytes())

    def give_up(self) -> None:
        """Ends the other ranks, which would wait for this one; its error is said already."""

    def close(self) -> None:
        """Parts from the others."""

    def _largest(self, number: int) -> int:
        return number

    def _collect(self, row: Bytes) -> Bytes:
        return row[None]

    def _spread(self, row: Bytes) -> None:
        pass


class ByMpi(Ranks):
    """Ranks that mpiexec or srun started. They sleep while they wait, for MPI's own waiting keeps a core busy."""

    by = "MPI"

    def __init__(self, world: World) -> None:
        self._mpi = _started(world)
        super().__init__(detect())  # asked again: what MPI says must be what the launcher said
        self._comm = self._mpi.COMM_WORLD.Dup()

    def give_up(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(ABORT_GRACE)
        self._comm.Abort(1)

    def close(self) -> None:
        self._comm.Free()

    def _largest(self, number: int) -> int:
        mine, most = np.array([number], np.int64), np.empty(1, np.int64)
        wait(self._comm.Iallreduce(mine, most, self._mpi.MAX).Test)
        return int(most[0])

    def _collect(self, row: Bytes) -> Bytes:
        rows = np.empty((self.ranks if self.rank == 0 else 0, len(row)), np.uint8)
        wait(self._comm.Igather(row, rows if self.rank == 0 else None, 0).Test)
        return rows

    def _spread(self, row: Bytes) -> None:
        wait(self._comm.Ibcast(row, 0).Test)


def wait(done: Any) -> None:
    """Waits in short sleeps, which Ctrl-C can interrupt."""
    pause = 1e-5
    while not done():
        time.sleep(pause)
        pause = min(pause * 2, 2e-3)


def _started(world: World) -> Any:
    """MPI, which its import starts: only where a launcher has started several ranks."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise PlanError(
            f"rank {world.rank} of {world.ranks} cannot meet the others: mpi4py cannot be imported ({error}). "
            "Install it (pip install 'solar[mpi]', or 'solar[site-mpi]' for the cluster's MPI), or start with torchrun"
        ) from error
    return MPI
