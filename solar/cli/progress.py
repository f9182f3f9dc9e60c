"""The progress of a long command: a bar on a terminal, else a line now and then; and a clean end on signals."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Any

from solar.cli import words
from solar.io.compress.preparation import Progress
from solar.io.machine import figures

LINE_EVERY = 10.0  # seconds between lines
WORDS = {"range": "looking for the range", "sample": "trying", "copy": "copying", "encode": "compressing"}
WORDS |= {"verify": "comparing", "check": "decoding", "stage": "staging", "fetch": "fetching"}


class Doing:
    """Says on stderr what is done: over one line where somebody looks on, else in a line now and then."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._last = time.monotonic()

    def __call__(self, what: str, done: int | None = None, of: int = 0) -> None:
        """`done` of so many are done; without, it has just begun. Nothing is done any more where `what` is empty."""
        if self._quiet:
            return
        now = time.monotonic()
        text = words.printable(what) + ("" if done is None else f": {done} of {of}")
        if sys.stderr.isatty():
            print("\r" + text, end="\033[K", file=sys.stderr, flush=True)
        elif what and now - self._last >= LINE_EVERY:
            self._last = now
            print(text, file=sys.stderr, flush=True)


class Shown:
    """Takes Progress, and shows it on stderr; `quiet` shows nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._doing = ""
        self._begin = self._last = time.monotonic()
        self._again = 0

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        if progress.doing != self._doing:
            self.close()
            self._doing = progress.doing
            self._begin = self._last = time.monotonic()  # a line in its first moment would know no rate
            self._again = progress.again
        if progress.all == 0 or progress.doing == "sample":
            return
        if sys.stderr.isatty():
            self._draw(progress)
        elif time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            print(self._line(progress), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:
            if find_spec("tqdm") is None:
                print("\r" + self._line(progress), end="\033[K", file=sys.stderr, flush=True)
                if progress.done >= progress.all:
                    print(file=sys.stderr)
                return
            bar = import_module("tqdm").tqdm  # only here: it takes its time, and need not be installed
            self._bar = bar(total=progress.all, unit="B", unit_scale=True, desc=WORDS[progress.doing], leave=False)
            self._bar.initial = progress.again  # its rate is ours, not an earlier run's
        if progress.stored:
            self._bar.set_postfix_str(f"{progress.done / progress.stored:.3g}:1", refresh=False)
        self._bar.update(max(0, progress.done - self._bar.n))

    def _line(self, progress: Progress) -> str:
        seconds = max(1e-9, time.monotonic() - self._begin)
        rate = (progress.done - max(self._again, progress.again)) / seconds
        parts = [f"{WORDS[progress.doing]} {progress.done / progress.all:.0%}", figures.rate(rate)]
        if progress.stored:
            parts.append(f"{progress.done / progress.stored:.3g}:1")
        if rate > 0:
            parts.append(f"{figures.duration((progress.all - progress.done) / rate)} left")
        return " · ".join(parts)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Has SIGTERM and a lost terminal end the program as Ctrl-C does, so that it can say how to go on."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
