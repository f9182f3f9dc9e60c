"""A thread that plans while batches are taken, and ends with the program."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from solar.io.system import lifecycle
from solar.io.system.waiting import until

Made = TypeVar("Made")
Stopping = threading.Event  # set when nobody wants any more what a thread makes


class PlanningStopped(Exception):
    """The result of a thread is no longer needed."""


class Background(threading.Thread):
    """A thread that does one thing, and can be told to stop."""

    def __init__(self, do: Callable[[Stopping], None]) -> None:
        super().__init__(name="solar-planning")
        self._do: Callable[[Stopping], None] | None = do
        self._stopped = Stopping()
        # A thread is waited for by this, and never joined: the garbage collector may wait for one amid threading's own
        # code, whose lock the end of a thread that is joined needs.
        self._done, self._process = threading.Event(), os.getpid()
        self._error: Exception | None = None
        _running.add(self)
        self.start()

    def run(self) -> None:
        assert self._do is not None
        try:
            self._error, self._do = failed(self._do, self._stopped), None
        finally:
            self._done.set()

    def error(self, look: Callable[[], object] | None = None) -> Exception | None:
        """Returns the error after the thread has ended, once: an error keeps its frames alive.

        `look` is called now and then meanwhile, and raises if waiting is useless.
        """
        self.wait(look)
        error, self._error = self._error, None
        return error

    def stop(self, wait: bool = True) -> None:
        """Asks the thread to stop the next time it checks."""
        self._stopped.set()
        if wait and threading.current_thread() is not self:
            self.wait()

    def wait(self, look: Callable[[], object] | None = None) -> None:
        """Waits until the thread has ended; see `error`."""
        if self._process == os.getpid():  # else it is not here: it stayed where this process was forked from
            until(self._done.wait, look=look)

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopped.is_set()


def failed(do: Callable[[Stopping], None], stopped: Stopping | None = None) -> Exception | None:
    """Calls a function. Returns the error that it raised."""
    try:
        do(stopped or Stopping())
    except PlanningStopped:
        pass
    except Exception as error:
        return error
    return None


def in_background(do: Callable[[Stopping], None]) -> Background | None:
    """Starts a thread that does this; returns None if no thread can be had."""
    try:
        return Background(do)
    except RuntimeError:
        return None


def check_wanted() -> None:
    """Raises PlanningStopped in a thread that was asked to stop."""
    thread = threading.current_thread()
    if isinstance(thread, Background) and thread.stopped:
        raise PlanningStopped


def apart(make: Callable[[Stopping], Made], look: Callable[[], object] | None = None) -> Made:
    """Runs in a thread of its own, so that a traceback does not keep the caller's frames alive.

    `look` is called now and then meanwhile, and raises if waiting is useless.
    """
    made: list[Made] = []
    work = in_background(lambda stopped: made.append(make(stopped)))
    if work is None:
        return make(Stopping())
    try:
        error = work.error(look)
    except BaseException:  # Ctrl-C
        work.stop(wait=False)
        raise
    try:
        if error is not None:
            raise error
    finally:
        del error  # or it and this frame, which its traceback keeps, would keep each other alive
    if not made:
        raise PlanningStopped
    return made[0]


def unless(stopped: Stopping, make: Callable[[], Made]) -> Callable[[], Made]:
    """Calls a function, unless its result is no longer needed."""

    def made() -> Made:
        if stopped.is_set():
            raise PlanningStopped
        return make()

    return made


# The interpreter joins threads at its end, before anything else: they must not plan to their end.
_running: weakref.WeakSet[Background] = weakref.WeakSet()


def stop_planning() -> None:
    for work in list(_running):
        work.stop(wait=False)


lifecycle.before_threads_end(stop_planning)
