"""Two ranks of one training over gloo: this process, which meets the faults, and another one, which does not."""

from __future__ import annotations

import contextlib
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

MATES = 2  # the second one takes part when the first has ended after an error
ANSWERS = 20.0  # seconds that the other rank has, when this one is done
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Pair:
    """`make` makes a loader of each rank, and `epoch` gives the batches of both, or the error of one.

    When this rank has an error it closes its loader; then the other one must end, too, or it is killed as a launcher
    does it. The next epoch is one of a training that begins anew.
    """

    def __init__(self, folder: Path, make: Callable[[int], Any], batches: Callable[[Any], list[Any]]) -> None:
        self._folder, self._make, self._batches = folder, make, batches
        self._mates: list[tuple[Any, Any]] = []  # processes that wait until they are needed, and their pipes
        self._mate: tuple[Any, Any] | None = None
        self._asked = 0  # answers of the other rank that were not read
        self._loader: Any = None

    def begin(self) -> None:
        """Has both ranks meet. Processes are forked before any thread is there."""
        if self._mate is None and not self._mates:
            self._mates = [self._fork() for _ in range(MATES)]
        self.end()
        self._mate = self._mates.pop()
        store = f"{self._folder}/ranks-{os.getpid()}-{len(self._mates)}"
        self._ask("begin", store)
        meet(0, store)

    def _fork(self) -> tuple[Any, Any]:
        here, there = multiprocessing.Pipe()
        how = (there, here, self._make, self._batches)
        process = multiprocessing.get_context("fork").Process(target=serve, args=how, daemon=True)
        process.start()
        there.close()
        return process, here

    def end(self) -> None:
        if self._mate is not None:
            process, pipe = self._mate
            process.kill()
            process.join()
            pipe.close()
            self._mate, self._asked, self._loader = None, 0, None
            distributed.destroy_process_group()

    def _ask(self, *what: Any) -> None:
        assert self._mate is not None
        self._mate[1].send(what)
        self._asked += 1

    def make(self) -> Any:
        if self._mate is None:
            self.begin()
        self._ask("make")
        self._loader = self._make(0)
        return self._loader

    def epoch(self, loader: Any) -> list[Any]:
        if self._mate is None or loader is not self._loader:  # of a training that has ended
            loader = self.make()
        self._ask("epoch")
        try:
            own = self._batches(loader)
        except BaseException:
            loader.close()
            with contextlib.suppress(SolarError):
                self._answers()
            self.end()
            raise
        try:
            found = self._answers()
            assert found is not None, f"the other rank has no end {ANSWERS:g} s after this one"
        except BaseException:
            self.end()
            raise
        return own + found

    def _answers(self) -> list[Any] | None:
        """Returns the batches of the other rank; None if it does not end. Raises its error."""
        assert self._mate is not None
        found: Any = None
        while self._asked:
            if not self._mate[1].poll(ANSWERS):
                return None
            kind, found = self._mate[1].recv()
            self._asked -= 1
            if kind == "SolarError":
                raise SolarError(f"the other rank: {found}")
            if kind == "other":
                raise AssertionError(f"the other rank: {found}")
        return cast("list[Any]", found)


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
                meet(1, *more)
            elif what == "make":
                loader = make(1)
            else:
                found = batches(loader)
            pipe.send(("here", found))
        except SolarError as error:
            pipe.send(("SolarError", str(error)))
        except BaseException:
            pipe.send(("other", traceback.format_exc()))
