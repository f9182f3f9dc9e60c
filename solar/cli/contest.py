"""The readers of `solar bench` as its main process has them: each in a process group of its own, one in turn."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from solar.errors import ReadError
from solar.io.machine.resident import resident_nbytes

CONTEST_PATIENCE = 1800.0  # seconds without an answer
MEMORY_LOOK = 0.05  # seconds between two looks at the memory


class Failed(Exception):
    """This reader cannot read the file; the text says why."""


class Reader:
    """A contestant. While it is not its turn, it and its workers are stopped, so that they take nobody's time.

    Its group is in this process's session: if this process dies, the system ends the stopped ones by SIGHUP.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self.name = str(job["reader"])
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        line = [sys.executable, "-P", "-m", "solar.cli.contestant", json.dumps(job)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=self._errors, process_group=0)
        self._stopped = False

    def answer(self) -> Any:
        """The next line it says. Failed if there is none."""
        assert self._process.stdout is not None
        said, end = b"", time.monotonic() + CONTEST_PATIENCE
        while not said.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise ReadError(f"{self.name} gave no batch for {CONTEST_PATIENCE:g} s: try a smaller --batch-size")
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                raise Failed(self._last_words())
            said += piece
        return json.loads(said)

    def ask(self, **question: Any) -> Any:
        """What it answers, now that it is its turn."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        return self.answer()

    def rest(self) -> None:
        """Stops it until it is asked again."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"its process ended with status {code}"

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[int]]:
        """The most memory that its processes took within the block, in a list of one."""
        peak, done = [0], threading.Event()

        def look() -> None:
            looking = True
            while looking:
                looking = not done.wait(MEMORY_LOOK)
                peak[0] = max(peak[0], resident_nbytes(self._process.pid))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield peak
        finally:
            done.set()
            watcher.join()
