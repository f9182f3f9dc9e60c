"""Processes that run the Python work of a loader: transforms and collate functions.

multiprocessing's forkserver starts them, from a process without threads, MPI or open files. The present process is
never forked, unless the caller's context says so. Messages, and the shared memory for arrays, are in worker_child.py.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import select
import socket
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from solar.errors import SolarError
from solar.io.channels import pickles, worker_child
from solar.io.channels.pickles import Reducers
from solar.io.channels.worker_child import Channel, Letter
from solar.io.system import lifecycle
from solar.io.system.child import ending
from solar.io.system.waiting import WaitTimeout, polling, until

SERVER_ENDS_WITHIN = 30.0  # seconds from when it no longer listens
CLOSING_PATIENCE = 1.0  # seconds that processes at work have to end when they are closed


class Processes:
    """`count` processes that each call `work(payload)`, one payload after another.

    `work`, payloads and results must be picklable; large numpy arrays in them are copied once on their way. Those of a
    result lie in shared memory that is used again when they are gone; they may be kept as long as one likes.
    `init(number)` is called once in each process before its first work. `reducers` are as in `copyreg`: for a type,
    what makes (callable, arguments) of its objects; with arrays among the arguments, the type travels as arrays do.
    `context` is a start method's name or a context of multiprocessing; None is "forkserver".

    A process imports the main module only when it needs something of it. So a work that is defined in a module runs
    from a script without `if __name__ == "__main__":`, too; one that is defined in such a script, or at a prompt, is a
    SolarError that says so. (multiprocessing itself always imports the main module first.)
    """

    def __init__(
        self,
        count: int,
        work: Callable[[Any], Any],
        *,
        context: Any = None,
        init: Callable[[int], None] | None = None,
        reducers: Reducers | None = None,
    ) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        if not callable(work):
            raise TypeError(f"work must be callable, not a {type(work).__name__}")
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context or "forkserver")
        reducers = dict(reducers or {})
        main = {} if context.get_start_method() == "fork" else _main_module()
        start = pickles.Sealed((work, init, reducers), main, reducers)
        self._numbers = itertools.count()
        self._last = -1
        self._children: list[_Child] = []
        self._end = weakref.finalize(self, _end, self._children, os.getpid())  # at the interpreter's exit, too
        try:
            for number in range(count):
                self._children.append(_start_child(number, context, start, reducers))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, by number; none when closed."""
        return [child.pid for child in self._children]

    def submit(self, payload: Any) -> Task:
        """Sends a payload to the process with the fewest tasks, without waiting. The caller limits their number."""
        if not self._end.alive:
            raise RuntimeError("these transform processes are closed")
        for child in self._children:
            child.look()
        count = len(self._children)
        child = min(self._children, key=lambda child: (child.tasks, (child.number - self._last - 1) % count))
        task = Task(self, child, next(self._numbers))
        child.submit(task, payload)
        self._last = child.number
        return task

    def close(self) -> None:
        """Ends the processes, also those at work. Results that were received stay valid."""
        self._end()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Task:
    """A payload that was sent, and its result. It may be dropped."""

    def __init__(self, processes: Processes, child: _Child, number: int) -> None:
        self.number = number
        self.letter: Letter | None = None
        self._processes = processes  # they stay while somebody may wait for them
        self._child = child

    def done(self) -> bool:
        """Returns whether `wait` would return at once."""
        return self._child.has_answered(self)

    def wait(self, seconds: float | None = None) -> Any:
        """Returns the result, once; or raises what the work raised, of the same type, with the traceback in its text.

        Raises TimeoutError if it did not come in time (one may wait again), and SolarError if the process has ended.
        """
        letter = self._child.wait_for(self, seconds)
        try:
            value = letter.open()
        except Exception as error:
            error.add_note(f"(while unpickling the result of task {self.number} of {self._child})")
            raise
        if letter.kind == worker_child.ERROR:
            raise pickles.rebuild_error(value, self._child.number)
        return value


# --- one process ----


class _Child:
    """A process, our end of its channel, and its tasks. Any thread may submit and wait.

    One thread at a time reads the socket, and hands out what arrives for the others.
    """

    def __init__(self, number: int, process: Any, end: socket.socket, reducers: Reducers) -> None:
        self.number = number
        self.pid: int = process.pid
        self._owner = os.getpid()
        self._process = process
        self._sentinel: int = process.sentinel
        self._channel = Channel(end, reducers)
        self._tasks: dict[int, weakref.ref[Task]] = {}
        self._turn = threading.Condition()
        self._looking = False
        self._lost = ""  # why nothing more is to be expected
        self._events = select.poll()
        self._events.register(end, select.POLLIN)
        self._events.register(self._sentinel, select.POLLIN)  # the socket may be held open by a process that it forked

    def __str__(self) -> str:
        return f"transform process {self.number} (pid {self.pid})"

    @property
    def tasks(self) -> int:
        return len(self._tasks)

    def submit(self, task: Task, payload: Any) -> None:
        with self._turn:
            packed = self._channel.pack(payload, f"the payload of task {task.number}")
            with self._in_step():
                self._tasks[task.number] = weakref.ref(task)
                self._channel.post(worker_child.TASK, task.number, packed)

    def look(self) -> None:
        """Receives what has arrived. Raises if the process has ended."""
        with self._turn_here():
            self._receive()
            if self._lost:
                raise SolarError(self._lost)

    def has_answered(self, task: Task) -> bool:
        with self._turn_here():
            self._receive()
            return task.letter is not None or bool(self._lost)

    def wait_for(self, task: Task, seconds: float | None) -> Letter:
        """Returns the answer to a task."""

        def answer(nap: float) -> Letter | None:
            if task.letter is None and nap:
                self._pause(nap)
            letter, task.letter = task.letter, None
            if letter is None and self._lost:
                raise SolarError(self._lost)
            if letter is None and task.number not in self._tasks:
                raise RuntimeError(f"the result of task {task.number} was handed out before")
            return letter

        with self._turn_here():
            self._receive()
            if letter := answer(0.0) or until(answer, seconds):
                return letter
            raise WaitTimeout(self._too_late(task, seconds))

    def hang_up(self) -> None:
        """Tells the process that it may end."""
        with self._turn:
            self._lost = self._lost or f"{self} was closed before its result was waited for"
            with suppress(OSError):
                self._channel.end.shutdown(socket.SHUT_RDWR)  # also wakes the thread that looks at it
            self._turn.notify_all()
            self._turn.wait_for(lambda: not self._looking, CLOSING_PATIENCE)
            self._channel.close()

    def end(self, seconds: float) -> None:
        """Waits for the end of the process, and kills it after `seconds`."""
        self._process.join(max(0.0, seconds))
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()

    @contextmanager
    def _turn_here(self) -> Iterator[None]:
        if os.getpid() != self._owner:
            raise RuntimeError(f"{self} belongs to process {self._owner}, of which this one was forked; make your own")
        with self._turn:
            yield

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Gives the channel up if the block is interrupted in the middle of a message, say by Ctrl-C."""
        try:
            yield
        except BaseException as error:
            self._lost = f"the conversation with {self} was broken off: {type(error).__name__} {error}"
            raise

    def _pause(self, seconds: float) -> None:
        """Waits until something may have arrived on the socket, or from the thread that reads it."""
        if self._looking:
            self._turn.wait(seconds)
            return
        self._looking = True
        self._turn.release()
        try:
            events = self._events.poll(math.ceil(seconds * 1000))
        finally:
            self._turn.acquire()
            self._looking = False
            self._turn.notify_all()
        self._receive()
        if not self._lost and any(descriptor == self._sentinel for descriptor, _ in events):
            self._lose()

    def _receive(self) -> None:
        """Hands out what has arrived, and sends what had to wait."""
        if self._lost or self._looking:  # taking what a thread is about to look for would let it look in vain
            return
        with self._in_step():
            try:
                while (letters := self._channel.receive()) is not None:
                    for letter in letters:
                        if task := self._tasks.pop(letter.task)():
                            task.letter = letter
                self._channel.flush()
            except EOFError:
                self._lose()

    def _lose(self) -> None:
        """Finds out how the process ended."""
        self._process.join(CLOSING_PATIENCE)
        how = ending(self._process.exitcode)
        self._lost = f"{self} {how}, {len(self._tasks)} of its tasks unfinished; what it wrote on stderr may say more"

    def _too_late(self, task: Task, seconds: float | None) -> str:
        current = min(self._tasks)
        doing = "is at work on it" if current == task.number else f"is still at work on task {current}"
        return f"no result of task {task.number} within {seconds:g} s: {self} {doing}"


# --- start and end ----


def _start_child(number: int, context: Any, start: pickles.Sealed, reducers: Reducers) -> _Child:
    ours = None
    try:
        ours, theirs = socket.socketpair()
        _ends.add(ours)
        with theirs:  # a socket among the arguments: multiprocessing passes its descriptor, by inheritance or message
            process = context.Process(
                target=worker_child.main,
                args=(theirs, start, number),
                name=f"solar transform process {number}",
                daemon=True,
            )
            _start(process, context.get_start_method() == "fork")
            ours.setblocking(False)
            return _Child(number, process, ours, reducers)
    except BaseException as error:
        if ours is not None:
            ours.close()
        if not isinstance(error, (OSError, EOFError)):
            raise
        what = f"transform process {number} cannot be started: {error}"
        raise SolarError(f"{what}; raise the limits (`ulimit -n`, `ulimit -u`), or give fewer num_workers") from error


def _start(process: Any, forks: bool) -> None:
    """Starts a process. Where the server that forks it is ending, multiprocessing begins another once it has ended."""
    errors: list[Exception] = []

    def started() -> bool:
        try:
            with nullcontext() if forks else _main_module_unsent():
                process.start()
            return True
        except ConnectionRefusedError as error:
            errors.append(error.with_traceback(None))
        except EOFError as error:  # it ended after it had listened; or the process did, and will again
            if any(isinstance(one, EOFError) for one in errors):
                raise
            errors.append(error.with_traceback(None))
        return False

    if not until(polling(started), SERVER_ENDS_WITHIN):
        raise errors[-1]


def _end(children: list[_Child], owner: int) -> None:
    """Ends processes, all at the same time."""
    if os.getpid() != owner:
        return  # a forked process has no say in the life of its parent's children
    deadline = time.monotonic() + CLOSING_PATIENCE
    for child in children:
        child.hang_up()
    while children:
        children.pop().end(deadline - time.monotonic())


def unsendable(value: Any, reducers: Reducers) -> str:
    """Returns why processes that are not forked cannot be started with this value; empty if they can.

    Raises in a process that is importing the main module, where none may be started.
    """
    main = _main_module()
    try:
        pickles.sealed(value, main, reducers)
    except pickles.Unsendable as error:
        return str(error)
    except Exception as error:  # whatever the value's own code raises
        return str(error.__cause__ or error)
    return ""


def _main_module() -> dict[str, str]:
    """Returns how a process would import our main module; nothing if it cannot. Raises if this process is doing so."""
    try:
        data: dict[str, Any] = spawn.get_preparation_data("")
    except RuntimeError:
        raise pickles.Unsendable(pickles.UNGUARDED) from None
    path = data.get("init_main_from_path")
    if path and not Path(path).exists():
        return {}  # <stdin>, say, which nobody can import
    return {key: data[key] for key in ("init_main_from_name", "init_main_from_path") if key in data}


class _NameOnly(types.ModuleType):
    """Looks like the main module, except that it does not say where it came from."""

    def __init__(self, real: types.ModuleType) -> None:
        super().__init__("__main__")
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(self._real, name)


@contextmanager
def _main_module_unsent() -> Iterator[None]:
    """Keeps multiprocessing from telling the processes that it starts about the main module, which they would import
    first.

    There is no switch for that. Other threads that look the main module up meanwhile, as pickle does, find all it has.
    """
    with _starting:
        real = sys.modules["__main__"]
        sys.modules["__main__"] = _NameOnly(real)
        try:
            yield
        finally:
            sys.modules["__main__"] = real


def forget_processes() -> None:
    """Closes our ends in a forked process, whose copies would keep the processes alive when we are gone."""
    global _starting
    _starting = threading.Lock()
    for end in list(_ends):
        end.close()


_starting = threading.Lock()
_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()
lifecycle.after_fork(forget_processes)
