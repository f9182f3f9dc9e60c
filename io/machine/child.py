"""A guarded child: a program in a process of its own, which crashes, hangs or eats memory in our stead.

What it begins with, and the conversation with it: io/machine/child_end.py.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import IO

from solar.io.machine import child_end
from solar.io.machine.child_end import End
from solar.io.machine.late import until

BURIAL_PATIENCE = 5.0  # seconds between the end of the conversation and that of the process
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class Lost(Exception):
    """A child is of no use any more. The text says why: "crashed (SIGSEGV)". `code` is its exit code, if it has one."""

    def __init__(self, how: str, code: int | None = None) -> None:
        super().__init__(how)
        self.code = code


class Silent(Lost):
    """It hangs."""


def ending(code: int | None) -> str:
    """How a process ended, in words, by its exit code; None: it has not."""
    if code is None:
        return "closed its end of the conversation"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    if -code in CRASHES:
        return f"crashed ({name})"
    return f"was killed by {name}" + (" (for want of memory, perhaps)" if -code == signal.SIGKILL else "")


class Child:
    """The process, and our end of the conversation with it. It is started when first needed, and after its end again.

    `program` is a module with what child_end.py runs. What it writes goes to `errors`. With `group` it heads a process
    group of its own: what it starts ends with it.
    """

    def __init__(
        self, program: ModuleType, *arguments: str, errors: int | IO[str] = subprocess.DEVNULL, group: bool = False
    ) -> None:
        self._program, self._arguments, self._errors, self._group = program, arguments, errors, group
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The process, which has been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it, if it is not there."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", child_end.__file__, str(self._program.__file__), *self._arguments],
                stdin=theirs.fileno(),
                stdout=self._errors,
                stderr=self._errors,
                env=dict(os.environ, HDF5_USE_FILE_LOCKING="FALSE"),  # no child writes to files of HDF5
                process_group=0 if self._group else None,
            )

    @contextmanager
    def talk(self, seconds: float) -> Iterator[End]:
        """The conversation, one thread's at a time. Lost if it ends, or nothing comes for so long.

        Whatever is raised within ends the process: the conversation is out of step.
        """
        with self._lock:
            try:
                self.start()
                assert self._socket is not None
                self._socket.settimeout(seconds)
                yield End(self._socket, self._waiting(self._socket, seconds))
            except BaseException as error:
                lost = self._lost(error, seconds)
                self.stop()
                if lost is None:
                    raise
                raise lost from None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal: with `group` to all of it."""
        if self._process is not None and self._group:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)  # also where what it started has outlived it
        elif self._process is not None:
            self._process.send_signal(number)

    def stop(self) -> None:
        """Ends the process."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
        self._socket = self._process = None

    def forget(self) -> None:
        """In a forked process: the parent's child is not ours to talk to, nor to end."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.returncode = 0  # or its destructor would wait for a process that is not our child
        self._socket = self._process = None
        self._lock = threading.Lock()

    def _waiting(self, end: socket.socket, seconds: float) -> Callable[[], None]:
        """What waits for the next bytes, and looks whether the process lives: one of its own may hold the socket."""
        process, events = self._process, select.poll()  # select() takes no descriptor beyond 1023
        assert process is not None
        events.register(end, select.POLLIN)

        def look() -> None:
            if process.poll() is not None and not events.poll(0):
                raise EOFError

        def wait() -> None:
            if not until(lambda nap: events.poll(1000 * nap), seconds, look):
                raise TimeoutError

        return wait

    def _lost(self, error: BaseException, seconds: float) -> Lost | None:
        """What became of the process, if that is what is wrong."""
        if isinstance(error, TimeoutError):
            return Silent(f"gave no sign of life for {seconds:g} s")
        if not isinstance(error, EOFError) or self._process is None:
            return None
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(BURIAL_PATIENCE)
        return Lost(ending(code), code)
