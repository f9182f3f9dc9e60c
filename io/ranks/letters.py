"""Post: short messages (letters) between ranks, over MPI or the store of torch.distributed. Nothing here waits."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Protocol

from solar.errors import PlanError
from solar.io.machine.late import LONGEST_NAP
from solar.io.ranks.world import distributed_module, mpi_module

LETTER_TAG = 1  # of the letters, on a communicator that has no others
LETTER_GRACE = 5.0  # seconds that a letter may travel


class Post(Protocol):
    """Letters between this rank and others; two from the same rank come in the order in which they were sent.

    RuntimeError where the other side, or what lies between, is gone.
    """

    def ready(self) -> bool:
        """Whether letters can be sent and received. Call it until it is true."""

    def send(self, rank: int, letter: bytes) -> None:
        """Sends a letter without waiting for its arrival."""

    def poll(self, rank: int) -> bytes | None:
        """The next letter from that rank, if it is there."""

    def needed(self, rank: int) -> bool:
        """Whether a letter to that rank would be lost if this process, as rank 0, ended now."""


def longest_nap(ranks: int) -> float:
    """The longest seconds between two looks for letters; more ranks look less often."""
    return min(LONGEST_NAP * max(1.0, ranks / 50), 0.5)


class MpiPost:
    """Over a communicator of its own, which all ranks make together: it is ready when the last of them has come."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm, self._made = mpi.COMM_WORLD.Idup()
        self._is_made = False
        self._leaving: list[tuple[Any, int, bytes]] = []  # MPI reads the letters until they have left
        self._coming: dict[int, tuple[Any, bytearray]] = {}

    def ready(self) -> bool:
        self._is_made = self._is_made or self._made.Test()
        return self._is_made

    def send(self, rank: int, letter: bytes) -> None:
        self._sweep()
        request = self._comm.Isend([letter, self._mpi.BYTE], rank, LETTER_TAG)
        self._leaving.append((request, rank, letter))

    def poll(self, rank: int) -> bytes | None:
        if rank not in self._coming:
            status = self._mpi.Status()
            message = self._comm.Improbe(rank, LETTER_TAG, status)
            if message is None:
                return None
            letter = bytearray(status.Get_count(self._mpi.BYTE))
            self._coming[rank] = message.Irecv([letter, self._mpi.BYTE]), letter
        request, letter = self._coming[rank]
        if not request.Test():
            return None
        del self._coming[rank]
        return bytes(letter)

    def needed(self, rank: int) -> bool:
        """Whether a letter would be lost: MPI ends with this process, and its letters with it."""
        self._sweep()
        return any(to == rank for _, to, _ in self._leaving)

    def _sweep(self) -> None:
        self._leaving = [sent for sent in self._leaving if not sent[0].Test()]


class StorePost:
    """Letters over the store by which a process group's ranks found each other; it exists with almost any backend.

    `group` numbers the groups that a process has had: one that is made anew may have its store from the last one.
    """

    def __init__(self, rank: int, group: int) -> None:
        self._rank = rank
        self._prefix = f"solar/{group}"
        self._sent: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()

    def ready(self) -> bool:
        return True

    def send(self, rank: int, letter: bytes) -> None:
        self._store().set(f"{self._rank}>{rank}:{self._sent[rank]}", letter)
        self._sent[rank] += 1

    def poll(self, rank: int) -> bytes | None:
        store = self._store()
        key = f"{rank}>{self._rank}:{self._taken[rank]}"
        if not store.check([key]):
            return None
        letter: bytes = store.get(key)
        store.delete_key(key)
        self._taken[rank] += 1
        return letter

    def needed(self, rank: int) -> bool:
        """Whether a letter would be lost: rank 0's process holds the store, and a letter is deleted when taken."""
        last = f"{self._rank}>{rank}:{self._sent[rank] - 1}"
        return self._sent[rank] > 0 and bool(self._store().check([last]))

    def _store(self) -> Any:
        """The store, looked up each time: keeping it would keep its group's port in use."""
        distributed = distributed_module()
        store = None if distributed is None else default_store(distributed)
        if store is None:
            raise RuntimeError("the process group has been destroyed")
        return distributed.PrefixStore(self._prefix, store)


def default_store(distributed: Any) -> Any:
    """The store of the default process group; None where there is none, as with the MPI backend.

    torch has no public way to it. This one is the same from 2.4 to 2.13, and is what torch's own checkpoints use.
    """
    return distributed.distributed_c10d._get_default_store()


def posted(by: str, rank: int, group: int) -> Post:
    """The post of this process by "mpi" or "torch"."""
    if by == "torch":
        return StorePost(rank, group)
    mpi = mpi_module()
    if mpi is None:
        raise PlanError(f"MPI is not there for process {os.getpid()}: import mpi4py.MPI, and do not finalise it before")
    return MpiPost(mpi)
