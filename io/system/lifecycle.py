"""What happens when the process forks or exits: one hook for each, which calls functions of modules in order.

A forked process has the objects of its parent but none of its threads, and must not use its parent's sockets: a module
with such things registers how to forget them. At the exit, whatever uses another thing ends before it: exchanges before
the runs that they read from, runs before the engine, all of them before the fetching of remote files. The order is
written here, so that it does not depend on which module was imported first.
"""

from __future__ import annotations

import atexit
import os
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import IntEnum
from typing import Any

Act = Callable[[], Any]


class Ends(IntEnum):
    """The order in which things end at the exit of the interpreter, the lowest first."""

    EXCHANGES = 1
    RUNS = 2
    ENGINE = 3
    MPI_FILES = 4
    GUARDED_READS = 5
    GUARDED_PROCESS = 6
    FETCHES = 7
    MPI = 8


_forgetting: list[Act] = []
_ending: list[tuple[Ends, Act]] = []
_locks: list[Any] = []


def after_fork(forget: Act) -> None:
    """Registers a function to be called in each process that is forked from this one."""
    _forgetting.append(forget)


def at_exit(when: Ends, end: Act) -> None:
    """Registers a function to be called when the interpreter exits, after those that end earlier."""
    _ending.append((when, end))


def before_threads_end(stop: Act) -> None:
    """Registers a function to be called when the main thread has ended, before Python waits for other threads."""
    threading._register_atexit(stop)  # type: ignore[attr-defined]


def hold_over_fork(lock: Any) -> None:
    """Holds a lock while this process forks, so that no thread holds it in the child."""
    _locks.append(lock)


def _call(functions: Iterable[Act]) -> None:
    for function in functions:
        try:
            function()
        except Exception:  # as the interpreter does: it is shown, and the others are called
            with suppress(Exception):
                traceback.print_exc()


def _end_all() -> None:
    _call(end for _, end in sorted(_ending, key=lambda one: one[0]))


os.register_at_fork(
    before=lambda: _call(lock.acquire for lock in _locks),
    after_in_parent=lambda: _call(lock.release for lock in reversed(_locks)),
    after_in_child=lambda: _call([*(lock.release for lock in reversed(_locks)), *_forgetting]),
)
atexit.register(_end_all)
