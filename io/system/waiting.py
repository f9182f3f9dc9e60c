"""The loop that polls until something happens, the error for time limits, and threads."""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from solar.errors import ReadError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


def start_thread(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Starts a daemon thread. Raises ReadError if the system has no more of them.

    Hand work over, or say that the thread is there, only after this has returned.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:  # RuntimeError: can't start new thread
        raise _no_thread(name) from error
    return thread


def submitted(pool: Executor, act: Callable[..., Any], *args: Any) -> Future[Any]:
    """Has a pool call a function. Raises ReadError if the system has no more threads for it."""
    try:
        return pool.submit(act, *args)
    except RuntimeError as error:
        if "thread" not in str(error):  # the pool is closed
            raise
        raise _no_thread("a pool's") from error


def _no_thread(name: str) -> ReadError:
    what = f"the system starts no thread for reading ({name}): run fewer programs, or raise `ulimit -u`"
    return ReadError(errno.EAGAIN, what)


log = logging.getLogger("solar")

T = TypeVar("T")

GLANCE = 0.2  # seconds between checks for Ctrl-C, and for whether waiting still makes sense
OTHERS = "other ranks"
SAID_AFTER = 5.0  # seconds after which a wait for other ranks is said
RANKS_PATIENCE = 1800.0  # seconds that ranks, and services of several nodes, wait for each other
SHORTEST_NAP, LONGEST_NAP = 0.5e-3, 0.02  # seconds between two polls


class WaitTimeout(TimeoutError):
    """Nothing arrived within the time limit; the text says what is missing."""

    @classmethod
    def values(cls, seconds: float | None, missing: str) -> WaitTimeout:
        """Returns the error for values that are being read."""
        return cls(f"no values after {seconds:g} s" + (f": still waiting for {missing}" if missing else ""))


def until(done: Callable[[float], T], seconds: float | None = None, look: Callable[[], object] | None = None) -> T:
    """Calls `done(nap)` until its result is true, or `seconds` are over; gives the last result.

    `done` itself waits, at most `nap` seconds; `polling` makes such a function from one that cannot wait. `look` is
    called in between, and raises if waiting is useless, for example because the other side is gone.

    >>> until(polling(iter([0, 0, 7]).__next__))
    7
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if (found := done(max(0.0, min(GLANCE, left)))) or left <= 0:
            return found
        if look is not None:
            look()


def polling(test: Callable[[], T], longest: float = LONGEST_NAP) -> Callable[[float], T]:
    """Makes a function for `until` from a test that does not wait. It sleeps between tests, at first shortly."""
    pause = SHORTEST_NAP

    def done(nap: float) -> T:
        nonlocal pause
        found = test()
        if not found and nap:
            time.sleep(min(pause, nap))
            pause = min(2 * pause, longest)
        return found

    return done


def until_others(
    done: Callable[[float], T],
    what: str,
    whom: Callable[[], str],
    seconds: float = RANKS_PATIENCE,
    look: Callable[[], object] | None = None,
    level: int = logging.WARNING,
) -> T:
    """Does what `until` does, for what other ranks have to do. After SAID_AFTER seconds it logs once whom it waits for.

    `what` describes what is waited for, and `whom` returns those who have to do something, as far as that is known.
    Raises ReadError with the same words after `seconds`.
    """
    begun, said = time.monotonic(), False

    def looked() -> None:
        nonlocal said
        if look is not None:
            look()
        if not said and time.monotonic() - begun >= SAID_AFTER:
            said = True
            log.log(level, "%s waits for %s; it gives up after %g s", what, whom() or OTHERS, seconds)

    found = until(done, seconds, looked)
    if not found:
        raise ReadError(
            f"{what} has waited for {whom() or OTHERS} for {seconds:g} s, and gives up: look whether those processes "
            "are stopped, or wait for something themselves"
        )
    return found


def within(seconds: float, work: Callable[[], T], doing: str) -> T:
    """Runs `work` in a thread of its own. Raises WaitTimeout after `seconds`, saying what it was `doing`.

    A system call on a file system that hangs does not return, and no signal interrupts it. So the thread is abandoned.
    """
    done = threading.Event()
    found: list[tuple[Any, BaseException | None]] = []

    def act() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))
        done.set()

    start_thread("solar-look", act)
    if not until(done.wait, seconds):
        raise WaitTimeout(f"no answer after {seconds:g} s: {doing}")
    [(result, error)] = found
    if error is not None:
        raise error
    made: T = result
    return made
