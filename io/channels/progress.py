"""Shows the progress of anything that takes longer than two seconds.

It is shown where stderr is a terminal or in a notebook, and only by the first process of rank 0: as a bar of tqdm if
that is installed (in a notebook with ipywidgets, its widget), else as one line that changes and finally disappears.
Anywhere else nothing is shown and no thread begins, unless a command asks for it: then a line is written every ten
seconds. `awaited` may be called in any thread; only the main thread's is shown. Of nested ones the inner one is shown
while it lasts.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from solar.errors import PlanError
from solar.io.channels.world import detect
from solar.io.system import quantities

Made = TypeVar("Made")

PATIENCE = 2.0  # seconds before anything is shown
EVERY = 0.5  # seconds between two looks
LINE_EVERY = 10.0  # seconds between lines, where nobody looks on


@dataclass(frozen=True, eq=False)
class Phase:
    """Something that a person waits for."""

    what: str
    done: Callable[[], int | None] | None = None  # how many of `all` there are, at any time; None: nobody knows
    all: int = 0
    unit: str = ""  # "B": they are bytes; "%": `all` is 100
    about: float = 0.0  # the seconds that it may take, a guess; 0: nobody knows
    before: Callable[[], int] = int  # how many were there already: the others' rate is that of the rest
    more: Callable[[], str] = str  # what else is to be said
    began: float = field(default_factory=time.monotonic)

    @property
    def counted(self) -> bool:
        """Whether its progress is counted. That of a single item is not."""
        return self.done is not None and self.all > 1 and self.done() is not None

    @property
    def guessed(self) -> str:
        """How long it may take."""
        return f", about {quantities.duration(round(self.about))} in all" if self.about > PATIENCE else ""

    def text(self, seconds: float) -> str:
        """Returns its line after this many seconds."""
        done = self.done() if self.done is not None and self.all > 1 else None
        if done is None:
            return f"{self.what}: {quantities.duration(round(seconds))}{self.guessed}"
        done = min(done, self.all)
        rate = (done - self.before()) / max(seconds, 1e-9)
        parts = [f"{done:,} of {self.all:,} {self.unit}".rstrip()]
        if self.unit in ("B", "%"):
            parts = [f"{done / self.all:.0%}", quantities.rate(rate) if self.unit == "B" else ""]
        parts += [self.more()]
        if rate > 0 and done < self.all:
            parts.append(f"{quantities.duration(round((self.all - done) / rate) or 1)} left")
        return f"{self.what}: {', '.join(one for one in parts if one)}"


_phases: list[Phase] = []  # of the main thread; the last one is shown


@contextmanager
def awaited(
    what: str, done: Callable[[], int | None] | None = None, of: int = 0, unit: str = "", *, about: float = 0.0
) -> Iterator[None]:
    """Shows `what` is done here once it has taken two seconds, and by `done` how far it is. `done` must be quick.

    Where nobody can know how far it is, `about` is how many seconds it may take.

    >>> with awaited("sorting"):
    ...     [3, 1, 2].sort()
    """
    if not _is_shown():
        yield
        return
    with showing(Phase(what, done, of, unit, about)):
        yield


@contextmanager
def showing(phase: Phase) -> Iterator[Callable[[Phase], None]]:
    """Shows a phase, and then those that replace it, until all end: on a terminal, or line by line."""
    place = len(_phases)
    _phases.append(_printable(phase))

    def become(other: Phase) -> None:
        _phases[place] = _printable(other)

    ended, shower = threading.Event(), None
    if place == 0:
        how = (bar, PATIENCE, EVERY) if is_watched() else (Lines, LINE_EVERY, LINE_EVERY)
        shower = threading.Thread(target=show, args=(ended.wait, _now, *how), name="solar-awaited", daemon=True)
    try:
        if shower is not None:
            shower.start()
        yield become
    finally:
        _phases.pop()
        ended.set()
        if shower is not None and shower.ident is not None:
            shower.join()


def _printable(phase: Phase) -> Phase:
    what = "".join(one if one.isprintable() else "?" for one in phase.what)
    return phase if what == phase.what else replace(phase, what=what)


def waiting(
    what: str, make: Callable[[], Made], done: Callable[[], int | None] | None = None, of: int = 0, unit: str = ""
) -> Made:
    """Returns what `make` returns, showing its progress. If nobody watches, it only makes the call."""
    if not _is_shown():
        return make()
    with awaited(what, done, of, unit):
        return make()


def _is_shown() -> bool:
    return threading.current_thread() is threading.main_thread() and (bool(_phases) or is_watched())


def is_watched() -> bool:
    """Returns whether a person watches: on a terminal or in a notebook, at the first process of rank 0."""
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
    """Returns whether this runs in a notebook's kernel, whose stderr is a page."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def show(
    wait: Callable[[float], bool],
    now: Callable[[], Phase | None],
    make: Callable[[Phase], Any],
    patience: float = PATIENCE,
    every: float = EVERY,
) -> None:
    """Shows the current phases until `wait` says that all have ended."""
    ended, shown, of = wait(patience), None, None
    while not ended:
        phase = now()
        if phase is not of:
            if shown is not None:
                shown.close()
            shown, of = None if phase is None else make(phase), phase
        if shown is not None and phase is not None:
            if phase.done is not None:
                shown.n = min(phase.done() or 0, phase.all)
            shown.initial, shown.postfix = phase.before(), phase.more()
            shown.refresh()
        ended = wait(every)
    if shown is not None:
        shown.close()


def _now() -> Phase | None:
    return _phases[-1] if _phases else None


def bar(phase: Phase) -> Any:
    """Returns a bar of tqdm, or a Line. Both have `n`, `initial`, `postfix`, `refresh` and `close`."""
    if find_spec("tqdm") is None:
        return Line(phase)
    made = tqdm_bar()
    known: dict[str, Any] = {"bar_format": "{desc}: {elapsed}" + phase.guessed}
    if phase.counted:
        known = {"total": phase.all}
        known |= {"unit": "B", "unit_scale": True} if phase.unit == "B" else {"unit": f" {phase.unit}"}
    if phase.counted and phase.unit == "%":
        known["bar_format"] = "{desc}: {percentage:.0f}%|{bar}| {elapsed}<{remaining}"
    shown = made(desc=phase.what, leave=False, **known)
    shown.start_t -= time.monotonic() - phase.began
    return shown


def tqdm_bar() -> Any:
    """Returns tqdm's bar: a widget in a notebook with ipywidgets. (tqdm.auto writes a warning into those without.)"""
    widgets = in_notebook() and find_spec("ipywidgets") is not None
    return import_module("tqdm.notebook" if widgets else "tqdm.std").tqdm  # only here: it need not be installed


class Lines:
    """Writes a line each time, for a log."""

    def __init__(self, phase: Phase, clock: Callable[[], float] = time.monotonic) -> None:
        self.n = self.initial = 0
        self.postfix, self._phase, self._clock = "", phase, clock

    def refresh(self) -> None:
        """Writes the line."""
        self._put(self._phase.text(self._clock() - self._phase.began) + "\n")

    def close(self) -> None:
        """Leaves the lines."""

    def _put(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # it is gone: nobody looks on any more
            pass


class Line(Lines):
    """One line on a terminal, which changes."""

    def refresh(self) -> None:
        """Writes the line anew."""
        self._put("\r" + self._phase.text(self._clock() - self._phase.began) + "\033[K")

    def close(self) -> None:
        """Removes the line."""
        self._put("\r\033[K")
