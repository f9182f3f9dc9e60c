"""How the ranks of a command exchange small JSON values: by letters over MPI or torch's store, or alone."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from solar.errors import PlanError, SolarError
from solar.io.machine.late import asked, until, until_others
from solar.io.ranks.alive import Watch, gone
from solar.io.ranks.letters import LETTER_GRACE, MpiPost, Post, longest_nap
from solar.io.ranks.world import detect
from solar.values import World

ABORT_GRACE = 1.0  # seconds in which others may report their errors, before MPI ends them
GATHER_PATIENCE = 24 * 3600.0  # seconds for the slowest: others wait while rank 0 writes a file of any size


class Ranks:
    """All ranks of the command, and this rank's number. Without a Post there is only this one."""

    def __init__(self, world: World, by: str = "alone", post: Post | None = None) -> None:
        self.rank, self.ranks, self.by = world.rank, world.ranks, by
        self._post, self._watch = post, Watch(world.rank)
        self._others = () if post is None else range(1, world.ranks) if world.rank == 0 else (0,)

    @property
    def name(self) -> str:
        """This rank in a message; empty where there is no other."""
        return f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""

    def gather(self, value: Any) -> list[Any]:
        """On rank 0, the values of all ranks, for which it waits; on the others nothing."""
        if self.rank:
            self._send({"value": value})
            return []
        return [json.loads(json.dumps(value)), *map(self._received, self._others)]

    def tell(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.rank:
            return self._received(0)
        self._send({"value": value})
        return json.loads(json.dumps(value))

    def give_up(self) -> None:
        """Ends the other ranks, which would wait for this one. Its error was printed already."""
        with contextlib.suppress(SolarError):
            self._send({"left": True})
            self.close()

    def close(self) -> None:
        """Closes, once the others have all letters that would be lost with this process."""
        if self.rank == 0 and self._post is not None:
            needed = self._post.needed
            with reached():
                until(asked(lambda: not any(map(needed, self._others))), LETTER_GRACE)

    def _send(self, letter: dict[str, Any]) -> None:
        """Sends to all others if this is rank 0, else to rank 0."""
        for rank in self._others:
            assert self._post is not None
            with reached():
                self._post.send(rank, json.dumps({**letter, "process": self._watch.own}).encode())

    def _received(self, rank: int) -> Any:
        done, whom = asked(partial(self._next, rank), longest_nap(self.ranks) / 10), f"rank {rank} of {self.ranks}"
        what = f"rank {self.rank} of {self.ranks}"
        letter = until_others(done, what, lambda: whom, GATHER_PATIENCE, level=logging.INFO)  # it may have much to do
        assert letter is not None
        if "left" in letter:
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


class ByMpi(Ranks):
    """Ranks that mpiexec or srun started."""

    def __init__(self, world: World) -> None:
        self._mpi = started(world)
        post = MpiPost(self._mpi)
        super().__init__(detect(), "MPI", post)  # asked again: what MPI says must be what the launcher said
        until_others(asked(post.ready), f"{self.name}the command", str)

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


def started(world: World) -> Any:
    """The MPI module. Its import starts MPI, so only if a launcher started several ranks."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise PlanError(
            f"rank {world.rank} of {world.ranks} cannot meet the others: mpi4py cannot be imported ({error}). "
            "Install it (pip install 'solar[mpi]', or 'solar[site-mpi]' for the cluster's MPI), or start with torchrun"
        ) from error
    return MPI
