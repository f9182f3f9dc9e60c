"""A control group in which a reader's page cache has so much memory and no more."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LIMITS = ("memory.limit_in_bytes", "memory.max")  # of both versions
OWN = 16 << 20  # bytes beside the cache: batches, stacks, page tables; what was there before is not counted


@contextlib.contextmanager
def made() -> Iterator[Path | None]:
    """A group below this process's own, gone afterwards; None where none can be made that limits anything."""
    found = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = ROOT / ("memory" if controllers else "") / path.lstrip("/") / f"solar-bench-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if any((folder / name).exists() for name in LIMITS):
                found = folder
                break
            folder.rmdir()
    try:
        yield found
    finally:
        for _ in range(1000 if found else 0):  # what was in it may be about to go
            try:
                found.rmdir()
                break
            except OSError:
                time.sleep(0.01)


def killed(group: Path) -> int:
    """How many of its processes were ended because it had no memory left."""
    for name in ("memory.oom_control", "memory.events"):  # of both versions
        with contextlib.suppress(OSError, KeyError):
            return int(dict(line.split() for line in (group / name).read_text().splitlines())["oom_kill"])
    return 0


def enter(group: Path, nbytes: int) -> None:
    """From now on this process has so much memory, with the page cache of what it reads, or less."""
    [limit] = [group / name for name in LIMITS if (group / name).exists()]
    limit.write_text(str(nbytes))
    with contextlib.suppress(OSError):  # where there is no swap, there is nothing to limit
        (group / "memory.swap.max").write_text("0")
    (group / "cgroup.procs").write_text(str(os.getpid()))
