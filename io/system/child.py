"""Child: a program in a process of its own, which may crash, hang or take too much memory without harm.

How it starts, and the messages to and from it, are in io/system/child_end.py.
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

from solar.io.system import child_end
from solar.io.system.child_end import ChildEnd
from solar.io.system.waiting import until

BURIAL_PATIENCE = 5.0  # seconds between the end of the conversation and that of the process
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class Lost(Exception):
    """A child that cannot be used any more. The text says why: "crashed (SIGSEGV)". `code`: its exit code, if any."""

    def __init__(self, how: str, code: int | None = None) -> None:
        super().__init__(how)
        self.code = code


class Silent(Lost):
    """The child hangs."""


def ending(code: int | None) -> str:
    """Describes how a process ended, by its exit code; None if it has not ended."""
    if code is None:
        return "closed its end of the conversation"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    if -code in CRASHES:
        return f"crashed ({name})"
    return f"was killed by {name}" + (" (for want of memory, perhaps)" if -code == signal.SIGKILL else "")


class Child:
    """The process, and our end of the conversation. It is started when needed, and again after it has ended.

    `program` is a module whose `main` child_end.py runs. Its output goes to `errors`. With `group` it heads its own
    process group, so that the processes it starts end with it. If it is `confined`, it can only read and answer.
    """

    def __init__(
        self,
        program: ModuleType,
        *arguments: str,
        errors: int | IO[str] = subprocess.DEVNULL,
        group: bool = False,
        confined: bool = False,
    ) -> None:
        mode = "confined" if confined else "free"
        self._command = [sys.executable, "-P", child_end.__file__, mode, str(program.__file__), *arguments]
        self._errors, self._group = errors, group
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The id of the process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it, unless it is running."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stdout=self._errors,
                stderr=self._errors,
                env=dict(os.environ, HDF5_USE_FILE_LOCKING="FALSE"),  # no child writes to files of HDF5
                process_group=0 if self._group else None,
            )

    @contextmanager
    def talk(self, seconds: float) -> Iterator[ChildEnd]:
        """Yields the conversation, for one thread at a time. Raises Lost if it ends, or if nothing arrives for
        `seconds`.

        An exception within the block ends the process, because the conversation would be out of step.
        """
        with self._lock:
            try:
                self.start()
                assert self._socket is not None
                self._socket.settimeout(seconds)
                yield ChildEnd(self._socket, self._waiting(self._socket, seconds))
            except BaseException as error:
                lost = self._lost(error, seconds)
                self.stop()
                if lost is None:
                    raise
                raise lost from None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; with `group`, to the whole group."""
        if (process := self._process) is not None:
            self._send(process, number)

    def _send(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if self._group:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)  # also where what it started has outlived it
        else:
            process.send_signal(number)

    def stop(self) -> None:
        """Ends the process. At the end of the program another thread may do the same at the same time."""
        end, self._socket = self._socket, None
        process, self._process = self._process, None
        if end is not None:
            end.close()
        if process is not None:
            self._send(process, signal.SIGKILL)
            process.wait()

    def forget(self) -> None:
        """Forgets the process in a forked process, which must neither talk to its parent's child nor end it."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.returncode = 0  # or its destructor would wait for a process that is not our child
        self._socket = self._process = None
        self._lock = threading.Lock()

    def _waiting(self, end: socket.socket, seconds: float) -> Callable[[], None]:
        """Returns a function that waits for bytes and checks that the process still lives."""
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
        """Returns how the process ended, if that caused the error."""
        if isinstance(error, TimeoutError):
            return Silent(f"gave no sign of life for {seconds:g} s")
        process, code = self._process, None
        if not isinstance(error, EOFError) or process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(BURIAL_PATIENCE)
        return Lost(ending(code), code)
