"""How the ranks that torchrun started meet and exchange small JSON values: by a process group of gloo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed

from solar.errors import SolarError
from solar.io.ranks.gather import Bytes, Ranks, wait
from solar.values import World

GATHER_PATIENCE = timedelta(hours=1)  # that torch's ranks wait for the slowest; one that has died is noticed at once


class ByTorch(Ranks):
    """Ranks with a process group of gloo: those of torchrun, or of any launcher where MASTER_ADDR is set."""

    by = "torch.distributed"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        with self._lost():
            distributed.init_process_group("gloo", rank=world.rank, world_size=world.ranks, timeout=GATHER_PATIENCE)

    def close(self) -> None:
        distributed.destroy_process_group()

    def _largest(self, number: int) -> int:
        most = torch.tensor([number])
        self._do("all_reduce", most, op=distributed.ReduceOp.MAX)
        return int(most[0])

    def _collect(self, row: Bytes) -> Bytes:
        rows = np.empty((self.ranks if self.rank == 0 else 0, len(row)), np.uint8)
        into = [torch.from_numpy(one) for one in rows] or None
        self._do("gather", torch.from_numpy(row), into)
        return rows

    def _spread(self, row: Bytes) -> None:
        self._do("broadcast", torch.from_numpy(row), 0)

    def _do(self, what: str, *arguments: Any, **options: Any) -> None:
        with self._lost():
            work = getattr(distributed, what)(*arguments, **options, async_op=True)
            wait(work.is_completed)
            work.wait()  # throws what went wrong

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Makes gloo's errors one line: another rank ended, or cannot be reached."""
        try:
            yield
        except RuntimeError as error:
            said = str(error).rpartition("] ")[2].partition(". ")[0]  # without gloo's source line and its jokes
            raise SolarError(f"the other ranks cannot be reached; one of them may have ended ({said})") from error
