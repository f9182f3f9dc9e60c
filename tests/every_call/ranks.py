"""Two ranks of one training over gloo: this process, which meets the faults, and another one, which does not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch.distributed as distributed

from solar import SolarError

ANSWERS = 20.0  # seconds that the other rank has, when this one is done
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Mate:
    """A rank in a process of its own, which does what it is asked for. It is forked before any thread is there."""

    def __init__(self, make: Callable[[int], Any], batches: Callable[[Any], list[Any]]) -> None:
        self._pipe, there = multiprocessing.Pipe()
        how = (there, self._pipe, make, batches)
        self._process = multiprocessing.get_context("fork").Process(target=serve, args=how, daemon=True)
        self._process.start()
        there.close()
        if "SOLAR_STANDING" in os.environ:  # what is asked for here is no call of the program's
            ctypes.CDLL(os.environ["LD_PRELOAD"]).stand_apart(self._pipe.fileno())
        self._asked = 0  # answers that were not read

    def ask(self, *what: Any) -> None:
        self._pipe.send(what)
        self._asked += 1

    def answer(self) -> list[Any]:
        """Returns the batches of the epoch that it was asked for. Raises its error."""
        found: Any = None
        while self._asked:
            assert self._pipe.poll(ANSWERS), f"another rank has no end {ANSWERS:g} s after this one"
            kind, found = self._pipe.recv()
            self._asked -= 1
            if kind == "SolarError":
                raise SolarError(f"another rank: {found}")
            assert kind == "here", f"another rank: {found}"
        return cast("list[Any]", found)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Pair:
    """`make` makes a loader of each rank, and `epoch` gives the batches of both, or the error of one.

    After an error of one the training is over, and the other rank is killed as launchers do it: tests/hosts and
    tests/test_rank_deaths.py show that it ends by itself where this process does. What comes next is a training that
    begins anew, in two other processes.
    """

    def __init__(self, folder: Path, make: Callable[[int], Any], batches: Callable[[Any], list[Any]]) -> None:
        self._folder, self._make, self._batches = folder, make, batches
        self._mates: list[Mate] = []
        self._anew = False  # the training is that of the second and the third process

    def begin(self) -> None:
        """Has both ranks meet."""
        if not self._mates:
            self._mates = [Mate(self._make, self._batches) for _ in range(3)]
            self._mates[0].ask("begin", 1, self._store())
            meet(0, self._store())

    def _store(self) -> str:
        return f"{self._folder}/ranks-{os.getpid()}-{self._anew}"

    def _begin_anew(self) -> None:
        self._mates[0].kill()
        self._anew = True
        for rank, mate in enumerate(self._mates[1:]):
            mate.ask("begin", rank, self._store())

    def make(self) -> Any:
        if self._anew:
            return None
        self._mates[0].ask("make", 1)
        try:
            return self._make(0)
        except BaseException:
            self._begin_anew()
            raise

    def epoch(self, loader: Any) -> list[Any]:
        if self._anew:
            for rank, mate in enumerate(self._mates[1:]):
                mate.ask("make", rank)
                mate.ask("epoch")
            return [batch for mate in self._mates[1:] for batch in mate.answer()]
        self._mates[0].ask("epoch")
        try:
            return self._batches(loader) + self._mates[0].answer()
        except BaseException:
            self._begin_anew()
            raise


def meet(rank: int, store: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def serve(pipe: Any, others: Any, make: Callable[[int], Any], batches: Callable[[Any], list[Any]]) -> None:
    """What the other rank does: what it is asked for."""
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    others.close()
    loader: Any = None
    while True:
        try:
            what, *more = pipe.recv()
        except EOFError:
            os._exit(0)
        found: Any = None
        try:
            if what == "begin":
                meet(*more)
            elif what == "make":
                loader = make(*more)
            else:
                found = batches(loader)
            pipe.send(("here", found))
        except SolarError as error:
            pipe.send(("SolarError", str(error)))
        except BaseException:
            pipe.send(("other", traceback.format_exc()))
