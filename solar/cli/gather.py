"""How the ranks of a command come together: alone, by MPI, or by torch.distributed. They exchange small JSON values."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError, SolarError
from solar.io.ranks import detect
from solar.values import World

Bytes = NDArray[np.uint8]

PATIENCE = timedelta(hours=1)  # that torch's ranks wait for the slowest; one that has died is noticed at once
GRACE = 1.0  # seconds in which others may say what went wrong with them, before MPI ends them


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

    def __init__(self, mpi: Any) -> None:
        super().__init__(detect())
        self._mpi, self._comm = mpi, mpi.COMM_WORLD.Dup()

    def give_up(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(GRACE)
        self._comm.Abort(1)

    def close(self) -> None:
        self._comm.Free()

    def _largest(self, number: int) -> int:
        mine, most = np.array([number], np.int64), np.empty(1, np.int64)
        _wait(self._comm.Iallreduce(mine, most, self._mpi.MAX).Test)
        return int(most[0])

    def _collect(self, row: Bytes) -> Bytes:
        rows = np.empty((self.ranks if self.rank == 0 else 0, len(row)), np.uint8)
        _wait(self._comm.Igather(row, rows if self.rank == 0 else None, 0).Test)
        return rows

    def _spread(self, row: Bytes) -> None:
        _wait(self._comm.Ibcast(row, 0).Test)


class ByTorch(Ranks):
    """Ranks with a process group of gloo: those of torchrun, or of any launcher where MASTER_ADDR is set."""

    by = "torch.distributed"

    def __init__(self, distributed: Any, world: World) -> None:
        super().__init__(world)
        self._distributed, self._torch = distributed, import_module("torch")
        with self._lost():
            distributed.init_process_group("gloo", rank=world.rank, world_size=world.ranks, timeout=PATIENCE)

    def close(self) -> None:
        self._distributed.destroy_process_group()

    def _largest(self, number: int) -> int:
        most = self._torch.tensor([number])
        self._do("all_reduce", most, op=self._distributed.ReduceOp.MAX)
        return int(most[0])

    def _collect(self, row: Bytes) -> Bytes:
        rows = np.empty((self.ranks if self.rank == 0 else 0, len(row)), np.uint8)
        into = [self._torch.from_numpy(one) for one in rows] or None
        self._do("gather", self._torch.from_numpy(row), into)
        return rows

    def _spread(self, row: Bytes) -> None:
        self._do("broadcast", self._torch.from_numpy(row), 0)

    def _do(self, what: str, *arguments: Any, **options: Any) -> None:
        with self._lost():
            work = getattr(self._distributed, what)(*arguments, **options, async_op=True)
            _wait(work.is_completed)
            work.wait()  # throws what went wrong

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Makes gloo's errors one line: another rank ended, or cannot be reached."""
        try:
            yield
        except RuntimeError as error:
            said = str(error).rpartition("] ")[2].partition(". ")[0]  # without gloo's source line and its jokes
            raise SolarError(f"the other ranks cannot be reached; one of them may have ended ({said})") from error


def _wait(done: Any) -> None:
    """Waits in short sleeps, which Ctrl-C can interrupt."""
    pause = 1e-5
    while not done():
        time.sleep(pause)
        pause = min(pause * 2, 2e-3)


@contextlib.contextmanager
def together(exchange: str | None = None) -> Iterator[Ranks]:
    """The ranks that the launcher started, met in the way that `exchange` needs; alone where there is one process."""
    ranks = _met(exchange)
    try:
        yield ranks
    except SystemExit:
        raise
    except BaseException as error:  # of whatever kind: the others would wait for ever
        if not isinstance(error, KeyboardInterrupt):
            sys.excepthook(*sys.exc_info())
        ranks.give_up()
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None
    ranks.close()


def _met(exchange: str | None) -> Ranks:
    world = detect()
    if world.ranks == 1:
        return Ranks(world)
    by_torch = "MASTER_ADDR" in os.environ if exchange in (None, "auto", "read", "off") else exchange == "torch"
    if by_torch:
        if "MASTER_ADDR" not in os.environ:
            raise PlanError(
                f"rank {world.rank} of {world.ranks}: --exchange torch, but MASTER_ADDR is not set: start with "
                "torchrun, or set MASTER_ADDR and MASTER_PORT to a free port of the node of rank 0"
            )
        return ByTorch(import_module("torch.distributed"), world)
    try:
        mpi = import_module("mpi4py.MPI")  # which starts MPI: only where a launcher has started several ranks
    except ImportError as error:
        raise PlanError(
            f"rank {world.rank} of {world.ranks} cannot meet the others: mpi4py cannot be imported ({error}). Install "
            "it (pip install 'solar[mpi]', or 'solar[site-mpi]' for the cluster's MPI), or start with torchrun"
        ) from error
    return ByMpi(mpi)
