"""Runs scripts, each in a process of its own with a deadline; and makes one that fails shorter while it still fails."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from .drawn import Program, simpler, text_of

SECONDS = 60.0  # that a program may take, on a loaded machine too
LAST_WORDS = 3.0  # before that, in which it says where its threads are
LOOK = 0.005  # seconds between two looks at those that run


@dataclass
class Outcome:
    """How a script ended: "passed", "failed", "crashed" or "hung"; and what it said."""

    name: str
    text: str
    how: str = "passed"
    said: str = ""


@dataclass
class Running:
    outcome: Outcome
    folder: Path
    end: float


def run(scripts: Iterable[tuple[str, str]], workers: int = 1, seconds: float = SECONDS) -> Iterator[Outcome]:
    """Runs scripts, by their names, each in a fork of this process, which must not have read anything by solar."""
    prepare()
    running: dict[int, Running] = {}
    left = iter(scripts)
    try:
        while True:
            while len(running) < workers and (script := next(left, None)) is not None:
                pid, one = begin(*script, seconds)
                running[pid] = one
            if not running:
                return
            yield from ended(running)
            time.sleep(LOOK)
    finally:
        for pid, one in running.items():
            finish(pid, one)


def prepare() -> None:
    """Imports what every program does."""
    import hdf5plugin  # noqa: F401
    import torch

    import solar.loader.loader

    from . import oracle, pair  # noqa: F401

    assert solar.loader.loader.DataLoader
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is imported stays: no collection of a program looks through it, and no fork copies it


def begin(name: str, text: str, seconds: float) -> tuple[int, Running]:
    folder = Path(tempfile.mkdtemp(prefix="solar-program-"))
    sys.stdout.flush()
    sys.stderr.flush()
    if "write_zarr(" in text:
        import zarr  # noqa: F401 - once, not in each process
    pid = os.fork()
    if pid == 0:
        be(text, folder, seconds)
    return pid, Running(Outcome(name, text), folder, time.monotonic() + seconds)


def be(text: str, folder: Path, seconds: float) -> Never:
    """Is the program, in a session of its own, and ends as Python does."""
    status = 1
    try:
        os.setsid()
        with (folder / "said").open("wb") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        atexit._clear()
        faulthandler.enable(sys.__stderr__)
        faulthandler.dump_traceback_later(max(1.0, seconds - LAST_WORDS), file=sys.__stderr__)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "files").mkdir()
        os.chdir(folder / "files")
        exec(compile(text, "program", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        finally:
            os._exit(status)
    raise AssertionError("unreachable")


def ended(running: dict[int, Running]) -> Iterator[Outcome]:
    """Those that have ended, or should have."""
    for pid, one in list(running.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found and time.monotonic() < one.end:
            continue
        del running[pid]
        if not found:
            one.outcome.how = "hung"
            finish(pid, one)
        elif os.WIFSIGNALED(status):
            one.outcome.how, one.outcome.said = "crashed", f"by {signal.Signals(os.WTERMSIG(status)).name}\n"
        elif status:
            one.outcome.how = "failed"
        with_children_killed(pid)
        one.outcome.said += (one.folder / "said").read_text(errors="replace")
        shutil.rmtree(one.folder, ignore_errors=True)
        yield one.outcome


def finish(pid: int, one: Running) -> None:
    with_children_killed(pid)
    os.waitpid(pid, 0)


def with_children_killed(pid: int) -> None:
    """Kills all of its session that runs."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def shrunk(program: Program, name: str, seconds: float = SECONDS) -> Program:
    """The program with as little as still fails."""
    while True:
        for one in simpler(program):
            [outcome] = run([(name, text_of(one, name))], seconds=seconds)
            if outcome.how != "passed":
                program = one
                break
        else:
            return program
