"""Checks whether known processes of this machine still live."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from solar.errors import ReadError

LOOK_EVERY = 0.2  # seconds between two looks
BURIAL = 1.0  # seconds between the end of a process's connections and its own, at most

Process = list[Any]  # JSON: where its number counts, its number, and when it began


def machine_id() -> list[Any]:
    """A value that is equal for two processes exactly if they can share memory and abstract sockets."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The name, too: virtual machines that began as copies of one snapshot have its boot id.
    return [boot, os.uname().nodename, Path("/proc/self/ns/net").stat().st_ino, os.getuid()]


def own_process() -> Process | None:
    """An identity for this process. None if /proc is of another namespace, where nobody can check it."""
    pid = os.getpid()
    if str(Path("/proc/self").readlink()) != str(pid):
        return None
    facts = [*machine_id(), Path("/proc/self/ns/pid").stat().st_ino]
    return [hashlib.sha256(repr(facts).encode()).hexdigest()[:16], pid, start_ticks(pid)]


def has_ended(process: Process) -> bool:
    """Whether this process, of the same machine and namespace, has ended. A zombie counts as ended."""
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
    """When a process began, in ticks since the machine did; None if it has ended and nobody has asked how."""
    facts = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return None if facts[0] in (b"Z", b"X") else int(facts[19])


def gone(ranks: Iterable[int], of: int) -> ReadError:
    """The error for ranks whose processes have ended."""
    names = [f"rank {rank} of {of}" for rank in ranks]
    head = f"{', '.join(names[:8])} and {len(names) - 8} more" if len(names) > 8 else ", ".join(names)
    one = len(names) == 1
    return ReadError(
        f"{head} {'is' if one else 'are'} gone: {'its process has' if one else 'their processes have'} ended; what "
        f"{'it' if one else 'they'} wrote last, or the system's log, says why"
    )


class Watch:
    """The processes of this machine that a rank has met. Looking costs a few system calls for each."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._own = own_process()
        self._known: dict[int, Process] = {}
        self._looked = 0.0

    @property
    def own(self) -> Process | None:
        """What others watch this one by."""
        return self._own

    def meet(self, processes: Mapping[int, Process | None]) -> None:
        """Looks after these ranks, too, as far as they are on this machine."""
        for rank, process in processes.items():
            if rank != self._rank and process is not None and self._own is not None and process[0] == self._own[0]:
                self._known[rank] = process

    def ended(self, *, now: bool = False) -> list[int]:
        """The ranks whose processes have ended; looks only now and then, unless it is asked for now."""
        begun = time.monotonic()
        if not now and begun - self._looked < LOOK_EVERY:
            return []
        self._looked = begun
        return sorted(rank for rank, process in self._known.items() if has_ended(process))
