"""ControlChannel: short messages between ranks, over MPI or the store of torch.distributed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from solar.errors import PlanError, SolarError
from solar.io.channels.alive import LOOK_EVERY, Watch, gone
from solar.io.channels.world import detect, distributed_module, mpi_module, place_on_node
from solar.io.system.waiting import LONGEST_NAP, polling, until, until_others
from solar.values import World

LETTER_TAG = 1  # of the letters, on a communicator that has no others
LETTER_GRACE = 5.0  # seconds that a letter may travel


class ControlChannel(Protocol):
    """Carries messages between this rank and others; those of one rank arrive in the order in which it sent them.

    It raises RuntimeError if the other side, or the connection, is gone.
    """

    def ready(self) -> bool:
        """Returns whether messages can be sent and received. Call it until it returns True."""

    def send(self, rank: int, letter: bytes) -> None:
        """Sends a message without waiting for its arrival."""

    def poll(self, rank: int) -> bytes | None:
        """Returns the next message from that rank, if it has arrived."""

    def needed(self, rank: int) -> bool:
        """Returns whether a message to that rank would be lost if this process, as rank 0, ended now."""


def longest_nap(ranks: int) -> float:
    """Returns the longest pause between two polls, in seconds; with more ranks it is longer."""
    return min(LONGEST_NAP * max(1.0, ranks / 50), 0.5)


class MpiControlChannel:
    """Messages over a communicator that all ranks make together: it is ready when the last of them has come."""

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
        """Returns whether a message would be lost: MPI ends with this process, and its messages with it."""
        self._sweep()
        return any(to == rank for _, to, _ in self._leaving)

    def _sweep(self) -> None:
        self._leaving = [sent for sent in self._leaving if not sent[0].Test()]


class StoreControlChannel:
    """Messages over the store by which the ranks of a process group found each other, whatever its backend.

    `group` numbers the groups that a process has had, because a new one may have the store of the last.
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
        """Returns whether a message would be lost: rank 0's process holds the store."""
        last = f"{self._rank}>{rank}:{self._sent[rank] - 1}"
        return self._sent[rank] > 0 and bool(self._store().check([last]))

    def _store(self) -> Any:
        """Returns the store, looked up each time: keeping it would keep its group's port in use."""
        distributed = distributed_module()
        store = None if distributed is None else default_store(distributed)
        if store is None:
            raise RuntimeError("the process group has been destroyed")
        return distributed.PrefixStore(self._prefix, store)


def default_store(distributed: Any) -> Any:
    """Returns the store of the default process group; None if there is none, as with the MPI backend.

    torch has no public way to it. This one is the same from 2.4 to 2.13, and torch's own checkpoints use it.
    """
    return distributed.distributed_c10d._get_default_store()


def posted(by: str, rank: int, group: int) -> ControlChannel:
    """Returns the control channel of this process by "mpi" or "torch"."""
    if by == "torch":
        return StoreControlChannel(rank, group)
    mpi = mpi_module()
    if mpi is None:
        raise PlanError(f"MPI is not there for process {os.getpid()}: import mpi4py.MPI, and do not finalise it before")
    return MpiControlChannel(mpi)


# How the ranks of a command exchange small JSON values: by letters over MPI or torch's store, or alone.


ABORT_GRACE = 1.0  # seconds in which others may report their errors, before MPI ends them
GATHER_PATIENCE = 24 * 3600.0  # seconds for the slowest: others wait while rank 0 writes a file of any size


class Ranks:
    """All ranks of a command, and the number of this one. Without a ControlChannel there is only this one."""

    def __init__(self, world: World, by: str = "alone", post: ControlChannel | None = None) -> None:
        self.rank, self.ranks, self.by = world.rank, world.ranks, by
        self._post, self._watch = post, Watch(world.rank)
        self._others = () if post is None else range(1, world.ranks) if world.rank == 0 else (0,)

    def connect(self) -> None:
        """Lets all ranks learn whose process ends, on any machine. All call it once, before they need it."""
        line = None
        place = place_on_node(self.rank, self.ranks)
        if place is None or place[1] < self.ranks:  # they may not be on one machine
            line = self._watch.extend(self.ranks)
        if self.rank:
            self._send({"value": None if line is None else line.address()})
            above = self._receive(0)
            if line is not None and above is not None:
                line.join(above)
            return
        for rank in self._others:
            address = self._receive(rank)
            found = None if line is None or address is None else line.above(rank, address)
            self._send({"value": found}, [rank])

    @property
    def name(self) -> str:
        """This rank in a message; empty if it is the only one."""
        return f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""

    def gather(self, value: Any) -> list[Any]:
        """Waits on rank 0 for the values of all ranks and returns them; returns nothing on the others."""
        if self.rank:
            self._send({"value": value})
            return []
        return [json.loads(json.dumps(value)), *map(self._receive, self._others)]

    def tell(self, value: Any) -> Any:
        """Returns rank 0's value, on every rank."""
        if self.rank:
            return self._receive(0)
        self._send({"value": value})
        return json.loads(json.dumps(value))

    def give_up(self) -> None:
        """Ends the other ranks, which would wait for this one. Its error has been printed already."""
        with contextlib.suppress(SolarError):
            self._send({"left": True})
            self.close()

    def close(self) -> None:
        """Closes, once the others have received all messages that would be lost with this process."""
        if self.rank == 0 and self._post is not None:
            needed = self._post.needed
            with reached():
                until(polling(lambda: not any(map(needed, self._others))), LETTER_GRACE)

    def _send(self, letter: dict[str, Any], to: Iterable[int] | None = None) -> None:
        """Sends to all others if this is rank 0, else to rank 0; not to ranks that are gone, where MPI would block."""
        for rank in {*(self._others if to is None else to)} - {*self._watch.ended()}:
            assert self._post is not None
            with reached():
                self._post.send(rank, json.dumps({**letter, "process": self._watch.own}).encode())

    def _receive(self, rank: int) -> Any:
        done, whom = polling(partial(self._next, rank), longest_nap(self.ranks) / 10), f"rank {rank} of {self.ranks}"
        what = f"rank {self.rank} of {self.ranks}"
        letter = until_others(done, what, lambda: whom, GATHER_PATIENCE, level=logging.INFO)  # it may have much to do
        assert letter is not None
        if "left" in letter:
            ended = until(polling(self._watch.ended), LOOK_EVERY)
            if ended and ended[0] != rank:  # because of which it has given up
                raise gone(ended, self.ranks)
            raise SolarError(f"the other ranks cannot be reached: rank {rank} of {self.ranks} has given up")
        self._watch.meet({rank: letter["process"]})
        return letter["value"]

    def _next(self, rank: int) -> dict[str, Any] | None:
        ended = self._watch.ended()  # before the last letter of the dead is looked for
        with reached():
            text = None if self._post is None else self._post.poll(rank)
        if text is None and ended:
            raise gone(ended, self.ranks)
        return None if text is None else json.loads(text)


class MpiRanks(Ranks):
    """Ranks that mpiexec or srun started."""

    def __init__(self, world: World) -> None:
        self._mpi = start_mpi(world)
        post = MpiControlChannel(self._mpi)
        super().__init__(detect(), "MPI", post)  # asked again: what MPI says must be what the launcher said
        until_others(polling(post.ready), f"{self.name}the command", str)
        self.connect()

    def give_up(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(ABORT_GRACE)
        self._mpi.COMM_WORLD.Abort(1)


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """Turns errors of MPI and torch into one line: another rank ended, or cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0].rpartition("] ")[2].partition(". ")[0]  # without source lines and jokes
        raise SolarError(f"the other ranks cannot be reached; one of them may have ended ({said})") from error


def start_mpi(world: World) -> Any:
    """Returns the MPI module. Importing it starts MPI, so it is imported only if a launcher started several ranks."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise PlanError(
            f"rank {world.rank} of {world.ranks} cannot meet the others: mpi4py cannot be imported ({error}). "
            "Install it (pip install 'solar[mpi]', or 'solar[site-mpi]' for the cluster's MPI), or start with torchrun"
        ) from error
    return MPI
