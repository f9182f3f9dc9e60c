"""Waiting: the loop that polls until something is there, and the error for our own time limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

GLANCE = 0.2  # seconds between checks for Ctrl-C, and for whether waiting still makes sense
SHORTEST_NAP, LONGEST_NAP = 0.5e-3, 0.02  # seconds between two polls


class Late(TimeoutError):
    """Nothing came within the time limit; the text says what is missing."""

    @classmethod
    def values(cls, seconds: float | None, missing: str) -> Late:
        """The error for values that are being read."""
        return cls(f"no values after {seconds:g} s" + (f": still waiting for {missing}" if missing else ""))


def until(done: Callable[[float], T], seconds: float | None = None, look: Callable[[], object] | None = None) -> T:
    """Calls `done(nap)` until its result is true, or `seconds` are over; gives the last result.

    `done` itself waits, at most `nap` seconds; `asked` makes such a function from one that cannot wait. `look` is
    called in between, and raises if waiting is useless, for example because the other side is gone.

    >>> until(asked(iter([0, 0, 7]).__next__))
    7
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if (found := done(max(0.0, min(GLANCE, left)))) or left <= 0:
            return found
        if look is not None:
            look()


def asked(test: Callable[[], T], longest: float = LONGEST_NAP) -> Callable[[float], T]:
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
