"""What takes longer than two seconds says so, where a person looks on: what it is, how far it is, how long it takes.

A person looks on where stderr is a terminal, or in a notebook, and only at the first process of rank 0. Anywhere else
nothing is shown and no thread begins. It is a bar of tqdm's, if that is installed: in a notebook its widget. Else it is
one line on the terminal that changes, and goes away in the end.

`awaited` may be called in any thread; only the main thread's is shown. One may lie within another: then the inner one
is shown while it lasts.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from solar.errors import PlanError
from solar.io.machine import figures
from solar.io.ranks.world import detect

Made = TypeVar("Made")

PATIENCE = 2.0  # seconds before anything is shown
EVERY = 0.5  # seconds between two looks


@dataclass(frozen=True, eq=False)
class Phase:
    """Something that a person waits for."""

    what: str
    done: Callable[[], int] | None = None  # how many of `all` there are, at any time; None: nobody knows
    all: int = 0
    unit: str = ""
    began: float = field(default_factory=time.monotonic)


_phases: list[Phase] = []  # of the main thread; the last one is shown


@contextmanager
def awaited(what: str, done: Callable[[], int] | None = None, of: int = 0, unit: str = "") -> Iterator[None]:
    """Shows `what` is done here once it has taken two seconds, and by `done` how far it is. `done` must be quick.

    >>> with awaited("sorting"):
    ...     [3, 1, 2].sort()
    """
    if not _is_shown():
        yield
        return
    _phases.append(Phase("".join(one if one.isprintable() else "?" for one in what), done, of, unit))
    ended, shower = threading.Event(), None
    if len(_phases) == 1:
        shower = threading.Thread(target=show, args=(ended.wait, _now, bar), name="solar-awaited", daemon=True)
    try:
        if shower is not None:
            shower.start()
        yield
    finally:
        _phases.pop()
        ended.set()
        if shower is not None and shower.ident is not None:
            shower.join()


def waiting(what: str, make: Callable[[], Made]) -> Made:
    """What is made, awaited. Where nobody looks on it is this call and no more."""
    if not _is_shown():
        return make()
    with awaited(what):
        return make()


def _is_shown() -> bool:
    return threading.current_thread() is threading.main_thread() and (bool(_phases) or looked_at())


def looked_at() -> bool:
    """Whether a person looks on: a terminal or a notebook, at the first process of rank 0."""
    if multiprocessing.parent_process() is not None or not (in_notebook() or _on_terminal()):
        return False
    try:
        return detect().rank == 0
    except PlanError:  # a launcher that makes no sense: what needs it will say so
        return False


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel, whose stderr is a page."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def show(wait: Callable[[float], bool], now: Callable[[], Phase | None], make: Callable[[Phase], Any]) -> None:
    """Shows the phases that there are `now`, until `wait` says that all have ended."""
    ended, shown, of = wait(PATIENCE), None, None
    while not ended:
        phase = now()
        if phase is not of:
            if shown is not None:
                shown.close()
            shown, of = None if phase is None else make(phase), phase
        if shown is not None and phase is not None:
            if phase.done is not None:
                shown.n = min(phase.done(), phase.all)
            shown.refresh()
        ended = wait(EVERY)
    if shown is not None:
        shown.close()


def _now() -> Phase | None:
    return _phases[-1] if _phases else None


def bar(phase: Phase) -> Any:
    """A bar of tqdm's, or else a Line. Both have `n`, `refresh` and `close`."""
    if find_spec("tqdm") is None:
        return Line(phase)
    made = import_module("tqdm.auto").tqdm  # only here: it takes its time, and need not be installed
    known = {"total": phase.all} if phase.done is not None else {"bar_format": "{desc}: {elapsed}"}
    shown = made(desc=phase.what, unit=f" {phase.unit}", leave=False, **known)
    shown.start_t -= time.monotonic() - phase.began
    return shown


class Line:
    """One line on a terminal, which changes."""

    def __init__(self, phase: Phase, clock: Callable[[], float] = time.monotonic) -> None:
        self.n, self._phase, self._clock = 0, phase, clock

    def text(self) -> str:
        """What it says now."""
        phase = self._phase
        seconds = self._clock() - phase.began
        if phase.done is None:
            return f"{phase.what}: {figures.duration(round(seconds))}"
        parts = [f"{phase.what}: {self.n:,} of {phase.all:,} {phase.unit}"]
        if 0 < self.n < phase.all and seconds > 0:
            parts.append(f"{figures.duration(round(seconds * (phase.all - self.n) / self.n) or 1)} left")
        return ", ".join(parts)

    def refresh(self) -> None:
        """Writes it anew."""
        self._put("\r" + self.text() + "\033[K")

    def close(self) -> None:
        """Takes it away."""
        self._put("\r\033[K")

    def _put(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # the terminal is gone: nobody looks on any more
            pass
