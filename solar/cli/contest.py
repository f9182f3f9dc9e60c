"""Runs the readers of `solar bench` from its main process: each in a process group of its own, one at a time."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from solar.cli import contestant
from solar.errors import ReadError
from solar.io.system.child import Child, Lost, Silent
from solar.io.system.memory import resident_nbytes

CONTEST_PATIENCE = 1800.0  # seconds without an answer
MEMORY_LOOK = 0.05  # seconds between two looks at the memory


class Failed(Exception):
    """This reader cannot read the file; the text says why."""


class RefusedFile(Failed):
    """The reader itself refused the file, in a sentence that names it."""


class Reader:
    """A contestant. Outside its turn, it and its workers are stopped, so that they take no time from others.

    Its group is in this process's session: if this process dies, the system ends the stopped ones by SIGHUP.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self.name = str(job["reader"])
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._child = Child(contestant, json.dumps(job), errors=self._errors, group=True)
        self._child.start()

    def answer(self) -> Any:
        """Returns the reader's next answer. Raises Failed if there is none."""
        return self._said([])

    def ask(self, **question: Any) -> Any:
        """Asks the reader, whose turn it is, and returns its answer."""
        self._child.signal(signal.SIGCONT)
        return self._said([question])

    def _said(self, questions: list[dict[str, Any]]) -> Any:
        try:
            with self._child.talk(CONTEST_PATIENCE) as end:
                for question in questions:
                    end.send(question)
                said = end.receive()
        except Silent:
            why = f"{self.name} gave no batch for {CONTEST_PATIENCE:g} s: try a smaller --batch-size"
            raise ReadError(why) from None
        except Lost as lost:
            self._errors.seek(0)
            lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
            raise Failed(lines[-1][:300] if lines else f"its process {lost}") from None
        if "refused" in said:
            raise RefusedFile(said["refused"])
        return said

    def rest(self) -> None:
        """Stops the reader until it is asked again."""
        self._child.signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends the reader, and everything that it started."""
        self._child.stop()
        self._errors.close()

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[int]]:
        """Yields a list with the most memory that its processes took inside the block."""
        peak, done, pid = [0], threading.Event(), self._child.pid  # it is the child's as long as it lives

        def look() -> None:
            looking = True
            while looking:
                looking = not done.wait(MEMORY_LOOK)
                peak[0] = max(peak[0], resident_nbytes(pid))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield peak
        finally:
            done.set()
            watcher.join()
