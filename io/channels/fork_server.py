"""Starts the fork server of multiprocessing early, because its imports take seconds.

No public function tells whether it runs and what it imports, or ends it, so this module uses its private object.
"""

from __future__ import annotations

import os
import signal
import weakref
from contextlib import suppress
from multiprocessing import current_process, forkserver, parent_process
from pathlib import Path
from typing import Any

from solar.io.system import lifecycle

_server: Any = forkserver._forkserver
_expecting: set[int] = set()  # who may want processes of it
_unused: int | None = None  # the process that was begun for them, while none of them has taken any


def expected(owner: Any, module: str) -> None:
    """Starts the server if it does not run, and makes it import a module, without waiting for that.

    If no process was started from it when its last owner is gone, the server ends.
    """
    global _unused
    if parent_process() is not None or getattr(current_process(), "_inheriting", False):
        return  # in a process of somebody's, or while one imports the main module, it is begun when it is needed
    if _server._forkserver_pid is None:
        _import_first(module)
        with suppress(OSError):  # who needs it begins it then, and is told why it cannot be
            forkserver.ensure_running()
        _unused = _server._forkserver_pid
    number = id(owner)
    _expecting.add(number)
    weakref.finalize(owner, _left, number, os.getpid())  # at the interpreter's end, too


def taken(module: str) -> None:
    """Called before processes are started from it: from now on it stays until the program ends."""
    global _unused
    if _server._forkserver_pid is None:
        _import_first(module)
    _unused = None


def _import_first(module: str) -> None:
    """Makes it import a module, of which each process is then a copy, unless the program chose its imports."""
    if _server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload([module])


def _left(number: int, process: int) -> None:
    global _unused
    _expecting.discard(number)
    if os.getpid() != process or _expecting or _unused is None or _unused != _server._forkserver_pid:
        return
    if not _server._lock.acquire(blocking=False):  # it is in use, perhaps further up in this very thread
        return
    try:
        if not _children(_unused):  # others' processes need it
            with suppress(ProcessLookupError):
                os.kill(_unused, signal.SIGKILL)  # it is importing, and would see only later that it should end
            _server._stop_unlocked()
            _unused = None
    finally:
        _server._lock.release()


def _children(pid: int) -> bool:
    """Returns whether a process has children; True if the system does not tell."""
    try:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    except OSError:
        return True


def forget_server() -> None:
    """Forgets the server in a forked process, which cannot wait for its parent's although multiprocessing tries."""
    global _unused
    _server._forkserver_address = _server._forkserver_alive_fd = _server._forkserver_pid = _unused = None
    _expecting.clear()


lifecycle.after_fork(forget_server)
