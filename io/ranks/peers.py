"""Peers: the ranks that share a loader's samples, if they can send each other messages."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from solar.errors import PlanError, ReadError
from solar.io.machine.late import asked, until
from solar.io.ranks.alive import BURIAL, Watch, gone
from solar.io.ranks.letters import Post, default_store, longest_nap, posted
from solar.io.ranks.meeting import Meeting, Met, late, letter_of
from solar.io.ranks.world import detect, distributed_module, launched_ranks, mpi_module, place_on_node
from solar.values import World

log = logging.getLogger("solar")

EXCHANGES = ("auto", "mpi", "torch", "read", "off")


class Peers:
    """The ranks that meet, from the view of one of them. Made by `peers`."""

    def __init__(self, rank: int, ranks: int, by: str, group: int = 0) -> None:
        self.rank = rank
        self.ranks = ranks
        self.by = by  # "mpi" or "torch"
        self._group = group
        self.pid = os.getpid()
        self._one = threading.Lock()  # one meeting at a time
        self._post: Post | None = None
        self._watch = Watch(rank)
        self._number = 0  # of the meetings so far: the same letter must not be taken for the next one's

    def __repr__(self) -> str:
        return f"Peers(rank {self.rank} of {self.ranks}, by {self.by})"

    def meet(
        self,
        what: str,
        same: Mapping[str, Any],
        own: Mapping[str, Any],
        least: Mapping[str, int],
        seconds: float = 300,
        tell: Any = None,
    ) -> Met:
        """What all ranks have in common, when all have come for `what`, which names it in messages.

        Values are what JSON has. PlanError on every rank if `same` differs anywhere, if one comes for something else,
        or one does not come within `seconds` of the others; ReadError if one is gone that was met before, or has come.
        `tell` counts at rank 0: what all are told.
        """
        if os.getpid() != self.pid:
            raise PlanError(self.forked())
        place, process = place_on_node(self.rank, self.ranks), self._watch.own
        told = letter_of(what, same, own, least, place, process, tell if self.rank == 0 else None)
        with self._one:
            try:
                answer = self._met(told, seconds)
            except RuntimeError as error:
                raise self._cut_off(what, error) from error
        if "error" in answer:
            raise (ReadError if answer["kind"] == "ReadError" else PlanError)(answer["error"])
        self._watch.meet({int(rank): process for rank, process in answer["processes"].items()})
        mates = {int(rank): own for rank, own in answer["mates"].items()}
        return Met(tuple(answer["node_of"]), mates, answer["least"], answer["told"])

    def check(self) -> None:
        """ReadError if a process is gone that this one has met, as far as it can be seen from here: on this machine."""
        ended = self._watch.ended()
        if ended:
            raise gone(ended, self.ranks)

    def _cut_off(self, what: str, error: RuntimeError) -> PlanError:
        """What is wrong where no letter can be sent."""
        head = f"rank {self.rank} of {self.ranks} cannot reach the others for {what}, by {self.by} ({error})"
        if ended := until(asked(partial(self._watch.ended, now=True)), BURIAL):
            return PlanError(f"{head}: {gone(ended, self.ranks)}")
        where = "rank 0" if self.by == "torch" else "a rank"
        return PlanError(f"{head}: {where} of {self.ranks}, or what started them all, has ended")

    def forked(self) -> str:
        """What is wrong in a process that has these Peers from its parent."""
        return f"process {os.getpid()} was forked from rank {self.rank}: only that one can meet the others"

    def _met(self, told: dict[str, Any], seconds: float) -> dict[str, Any]:
        if self._post is None:
            self._post = posted(self.by, self.rank, self._group)
        if not until(asked(self._post.ready, longest_nap(self.ranks)), seconds):
            raise PlanError(late(f"some of the {self.ranks} ranks", told["what"], f"rank {self.rank}", seconds))
        self._number += 1
        meeting = Meeting(self._post, self._watch, self._number, self.ranks, told, seconds)
        return meeting.lead() if self.rank == 0 else meeting.report(self.rank)


# --- who they are ----

_made: dict[str, tuple[Peers, Callable[[], Any]]] = {}  # by kind, with what gives the group they were made of
_groups = 0  # process groups of torch that this process has met in
_said: set[str] = set()


def peers(exchange: str = "auto") -> Peers | None:
    """The ranks that this process meets; None if it is alone, if ranks cannot talk, or if exchange is "off".

    "auto" and "read": by torch.distributed if it is initialised, else by MPI if the program has imported mpi4py.MPI:
    in the order in which `detect` takes the rank from them, so that one numbering counts. "mpi" and "torch": by that
    one, PlanError if it is not there. Every process makes them once, and no message is sent before they meet.
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange={exchange!r}: one of {', '.join(map(repr, EXCHANGES))}")
    if exchange == "off":
        return None
    world = detect()
    by = exchange if exchange in ("mpi", "torch") else _voice(world)
    if by is None:
        return None
    if by == "torch":
        _check_torch()
    else:
        _check_mpi(world)
    if world.ranks == 1:
        return None
    found = _kept(by, world)
    if found.pid != os.getpid():
        if exchange == by:
            raise PlanError(found.forked())
        _say_once("this process was forked from a rank: it reads on its own, others share")
        return None
    return found


def _voice(world: World) -> str | None:
    """The means by which ranks can talk; None if there is none, or only one rank."""
    distributed = distributed_module()
    if distributed is not None and (world.ranks == 1 or default_store(distributed) is not None):
        return "torch"
    if mpi_module() is not None:
        return "mpi"
    by, ranks = launched_ranks()
    if distributed is not None:
        _say_once("torch.distributed has no store, and MPI is not there: each rank reads on its own, nothing is shared")
    elif ranks > 1:
        _say_once(
            f"{by} says that there are {ranks} ranks, but neither is torch.distributed initialised nor mpi4py.MPI "
            "imported: each rank reads on its own, and nothing is shared"
        )
    return None


def _check_torch() -> None:
    distributed = distributed_module()
    if distributed is None:
        raise PlanError(
            'exchange="torch", but torch.distributed is not initialised: call torch.distributed.init_process_group '
            'before the loader is iterated, or leave exchange="auto"'
        )
    if distributed.get_world_size() > 1 and default_store(distributed) is None:
        raise PlanError(
            'exchange="torch", but the process group has no store, as with the backend "mpi": import mpi4py.MPI and '
            'use exchange="mpi"'
        )


def _check_mpi(world: World) -> None:
    mpi = mpi_module()
    if mpi is None:
        raise PlanError(
            'exchange="mpi", but MPI has not begun: import mpi4py.MPI before the loader is iterated '
            '(pip install solar[mpi], or mpi4py built for the cluster\'s MPI), or leave exchange="auto"'
        )
    rank, ranks = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    if (rank, ranks) != (world.rank, world.ranks):
        raise PlanError(
            f'exchange="mpi", but MPI says rank {rank} of {ranks} and torch.distributed, which counts, rank '
            f'{world.rank} of {world.ranks}: use exchange="torch", or initialise the process group with MPI\'s ranks'
        )


def _kept(by: str, world: World) -> Peers:
    """The Peers of this process by this means; made if there are none yet, or the process group is another one."""
    global _groups
    group = distributed_module().group.WORLD if by == "torch" else mpi_module()
    kept = _made.get(by)
    if kept is not None and kept[1]() is group:
        return kept[0]
    _groups += by == "torch"
    found = Peers(world.rank, world.ranks, by, _groups)
    _made[by] = found, weakref.ref(group)
    return found


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.info(text)
