"""The progress of a long command: a bar on a terminal, else a line now and then; and a clean end on signals."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from solar.io.channels.progress import Phase, showing
from solar.io.codec.preparation import Progress
from solar.io.system.local_copy import local_copy
from solar.values import is_url

WORDS = {"range": "looking for the range", "sample": "trying", "copy": "copying", "encode": "compressing"}
WORDS |= {"verify": "comparing", "check": "decoding", "stage": "staging", "fetch": "fetching"}
Become = Callable[[Phase], None]


@contextlib.contextmanager
def doing(quiet: bool = False) -> Iterator[Become]:
    """Yields a function that shows a Phase on stderr; `quiet` shows nothing."""
    if quiet:
        yield lambda phase: None
        return
    with showing(Phase("getting ready")) as become:
        yield become


def counted(become: Become, what: str, unit: str) -> Callable[[int, int], None]:
    """Returns a function that shows a count out of a total as one Phase."""
    last: list[int] = []

    def count(done: int, of: int) -> None:
        begins, last[:] = not last, [done]
        if begins:
            become(Phase(what, lambda: last[0], of, unit))

    return count


@contextlib.contextmanager
def shown(quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Yields a function that shows Progress as `doing` does."""
    with doing(quiet) as become:
        yield progress_by(become)


def progress_by(become: Become) -> Callable[[Progress], None]:
    """Returns a function that takes Progress, and makes a Phase of each new kind of it."""
    newest: list[Progress] = []  # of the kind that is shown

    def show(progress: Progress) -> None:
        nonlocal newest
        if newest and newest[0].doing == progress.doing:
            newest[0] = progress
        else:
            newest = [progress]
            become(_phase(newest))

    return show


def _phase(newest: list[Progress]) -> Phase:
    what = WORDS[newest[0].doing]
    if newest[0].doing == "sample":  # it takes a moment, and nobody knows how far it is
        return Phase(what)

    def ratio() -> str:
        now = newest[0]
        return f"{now.done / now.stored:.3g}:1" if now.stored else ""

    return Phase(what, lambda: newest[0].done, newest[0].all, "B", before=lambda: newest[0].again, more=ratio)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Makes SIGTERM and a lost terminal end the program as Ctrl-C does, so that it can say how to continue."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Files by URL for commands that read files alone: a copy here, for as long as the command runs.


@contextmanager
def nearby(given: str, quiet: bool, beside: str | None = None) -> Iterator[str]:
    """Yields a path, or the path of a local copy, which lies beside a file that is written or among temporary ones."""
    if not is_url(given):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="solar-") as folder:  # empty where it lies beside
        to = Path(folder, "copy.h5") if beside is None else Path(beside).absolute()
        with ExitStack() as left:
            with shown(quiet) as progress:
                fetched = local_copy(given, to, lambda done, of: progress(Progress("fetch", given, done, of)))
                path = left.enter_context(fetched)
            yield str(path)
