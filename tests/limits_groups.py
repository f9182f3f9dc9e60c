"""Control groups in which processes may have so much memory and no more: the kernel ends one that takes more."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LIMITS = {"memory.limit_in_bytes": "memory.oom_control", "memory.max": "memory.events"}  # of both versions; counts


def _own() -> Iterator[Path]:
    """The memory groups that this process is in, as it sees them."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield ROOT / "memory" / path.lstrip("/")
        elif not controllers:
            yield ROOT / path.lstrip("/")


@contextlib.contextmanager
def made() -> Iterator[Path | None]:
    """A group below this process's own, gone afterwards; None where none can be made that limits anything."""
    found = None
    for own in _own():
        folder = own / f"solar-test-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if any((folder / name).exists() for name in LIMITS):
                found = folder
                break
            folder.rmdir()
    try:
        yield found
    finally:
        end = time.monotonic() + 60
        while found is not None and found.exists():  # what was in it may be about to go
            try:
                found.rmdir()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)


def enter(group: Path, nbytes: int) -> None:
    """From now on this process and all others of the group take so much memory together, or are killed."""
    [limit] = [group / name for name in LIMITS if (group / name).exists()]
    limit.write_text(str(nbytes))
    with contextlib.suppress(OSError):  # where there is no swap, there is nothing to limit
        (group / "memory.swap.max").write_text("0")
    (group / "cgroup.procs").write_text(str(os.getpid()))


def killed(group: Path) -> int:
    """How many of its processes were killed for their memory."""
    [counts] = [group / name for name in LIMITS.values() if (group / name).exists()]
    facts = dict(line.split() for line in counts.read_text().splitlines())
    return int(facts.get("oom_kill", 0))
