"""Waiting: the loop that asks again until something is there, and what tells our own time limits from others'."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

GLANCE = 0.2  # seconds between looks at whether Ctrl-C was pressed, or waiting has become vain
SHORTEST_NAP, LONGEST_NAP = 0.5e-3, 0.02  # seconds between two questions


class Late(TimeoutError):
    """What was waited for did not come in the time given; the text says what is missing."""

    @classmethod
    def values(cls, seconds: float | None, missing: str) -> Late:
        """Late, of values that are read."""
        return cls(f"no values after {seconds:g} s" + (f": still waiting for {missing}" if missing else ""))


def until(done: Callable[[float], T], seconds: float | None = None, look: Callable[[], object] | None = None) -> T:
    """What `done(nap)` gives as soon as that is something; what it gave last where `seconds` are over first.

    `done` waits by itself, `nap` seconds at most; `asked` makes one of what cannot wait. `look` is called in between,
    and raises where waiting is vain: the other side is gone, say.

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
    """What `until` takes, of a test that does not wait: it is asked after naps, short ones first."""
    pause = SHORTEST_NAP

    def done(nap: float) -> T:
        nonlocal pause
        found = test()
        if not found and nap:
            time.sleep(min(pause, nap))
            pause = min(2 * pause, longest)
        return found

    return done
