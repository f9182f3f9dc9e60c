"""Checks whether known processes still live: those of this machine by their ids, others by a Lifeline."""

from __future__ import annotations

import hashlib
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solar import _native
from solar.errors import ReadError
from solar.io.channels.world import mpi_module
from solar.io.system import lifecycle

if TYPE_CHECKING:
    from solar.io.channels.lifeline import Lifeline

LOOK_EVERY = 0.2  # seconds between two looks
BURIAL = 1.0  # seconds between the end of a process's connections and its own, at most

Process = list[Any]  # JSON: where its number counts, its number, and when it began


@contextmanager
def meeting_others(what: str = "this rank cannot meet the others") -> Iterator[None]:
    """Raises ReadError that says `what`, and what to do, where the system gives nothing by which ranks meet."""
    try:
        yield
    except ReadError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise ReadError(error.errno, f"{what}: {why}; see `ulimit -n`") from error


def machine_id() -> list[Any]:
    """Returns a value that is equal for two processes exactly if they can share memory and abstract sockets."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The name, too: virtual machines that began as copies of one snapshot have its boot id.
    return [boot, os.uname().nodename, Path("/proc/self/ns/net").stat().st_ino, os.getuid()]


def own_process() -> Process | None:
    """Returns an identity for this process; None if /proc belongs to another namespace, where it cannot be checked."""
    pid = os.getpid()
    if str(Path("/proc/self").readlink()) != str(pid):
        return None
    facts = [*machine_id(), Path("/proc/self/ns/pid").stat().st_ino]
    return [hashlib.sha256(repr(facts).encode()).hexdigest()[:16], pid, start_ticks(pid)]


def has_ended(process: Process) -> bool:
    """Returns whether this process, of the same machine and namespace, has ended. A zombie counts as ended."""
    _, pid, begun = process
    try:
        os.kill(pid, 0)  # where /proc hides processes, it still tells
    except ProcessLookupError:
        return True
    except PermissionError:
        return True  # another user's: the number has a new owner
    with suppress(OSError):
        return bool(start_ticks(pid) != begun)
    return False


def start_ticks(pid: int) -> int | None:
    """Returns when a process began, in ticks since the machine did; None if it has ended and was reaped."""
    facts = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return None if facts[0] in (b"Z", b"X") else int(facts[19])


def gone(ranks: Iterable[int], of: int) -> ReadError:
    """Returns the error for ranks whose processes have ended."""
    names = [f"rank {rank} of {of}" for rank in ranks]
    head = f"{', '.join(names[:8])} and {len(names) - 8} more" if len(names) > 8 else ", ".join(names)
    one = len(names) == 1
    return ReadError(
        f"{head} {'is' if one else 'are'} gone: {'its process has' if one else 'their processes have'} ended; what "
        f"{'it' if one else 'they'} wrote last, or the system's log, says why"
    )


class Watch:
    """Watches the ranks that this one has met. Checking costs a few system calls per process of this machine."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        with meeting_others():
            self._own = own_process()
        self.line: Lifeline | None = None  # where ranks are on several machines
        self._known: dict[int, Process] = {}
        self._looked = 0.0
        _watches.add(self)

    @property
    def own(self) -> Process | None:
        """Returns what others need to watch this process."""
        return self._own

    def meet(self, processes: Mapping[int, Process | None]) -> None:
        """Watches these ranks, too, as far as they are on this machine."""
        for rank, process in processes.items():
            if rank != self._rank and process is not None and self._own is not None and process[0] == self._own[0]:
                self._known[rank] = process

    def extend(self, ranks: int) -> Lifeline:
        """Returns the line to ranks on other machines, made when it is first needed."""
        if self.line is None:
            from solar.io.channels.lifeline import Lifeline  # only where there are several machines

            with meeting_others():
                self.line = Lifeline(self._rank, ranks, machine_id())
        return self.line

    def ended(self, *, now: bool = False) -> list[int]:
        """Returns the ranks whose processes have ended. Unless asked `now`, it checks only from time to time."""
        far, begun = [] if self.line is None else self.line.gone(), time.monotonic()
        if not now and begun - self._looked < LOOK_EVERY:
            return far
        self._looked = begun
        near = [rank for rank, process in self._known.items() if has_ended(process)]
        if near and self.line is not None:
            self.line.note(near)
        return [*far, *sorted({*near} - {*far})]  # the first ones first: others end because of them


# --- the end of the process ----

_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


def leave_without_mpi() -> None:
    """Ends the process with status 1 at its exit, instead of waiting in MPI for a rank that has ended."""
    if mpi_module() is not None and any(watch.ended(now=True) for watch in _watches):
        _native.exit_after_python()


lifecycle.at_exit(lifecycle.Ends.MPI, leave_without_mpi)
