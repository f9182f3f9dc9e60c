"""Starts threads, or says that the system starts no more."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

from solar.errors import ReadError


def start_thread(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Starts a daemon thread. ReadError where the system starts no more of them.

    Hand work over, or say that the thread is there, only after this has returned.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:  # RuntimeError: can't start new thread
        what = f"the system starts no thread for reading ({name}): run fewer programs, or raise `ulimit -u`"
        raise ReadError(errno.EAGAIN, what) from error
    return thread
