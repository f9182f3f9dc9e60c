"""How many processor cores this process may use, and its share of them among the ranks of its node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path

from solar.errors import PlanError
from solar.io.channels.world import detect
from solar.io.system.memory import GROUPS, MEMBERSHIP, control_groups

THREADS_VARIABLE = "SOLAR_THREADS"  # the variable that names how many native threads read
THREADS_LIMIT = 1024  # that it may name
MOST_THREADS = 32  # that read where nobody says how many: more wait for the same storage


def usable_cores(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> int:
    """Returns how many cores this process may run on, limited by the time that its control groups allow."""
    quota = min(quotas(membership, groups), default=float("inf"))
    return max(1, ceil(min(len(os.sched_getaffinity(0)), quota)))


def own_cores() -> int:
    """Returns this process's share of the cores, if other ranks of this node may use the same ones."""
    return _part(usable_cores(), _ranks_launched_here())


@cache
def reading_threads() -> int:
    """Returns how many native threads read in this process."""
    return _named() or min(MOST_THREADS, own_cores())


def planned_threads(ranks: int) -> int:
    """Returns how many threads would read in each of this many ranks of the node."""
    return (
        reading_threads() if _ranks_launched_here() > 1 else _named() or min(MOST_THREADS, _part(usable_cores(), ranks))
    )


def _part(cores: int, ranks: int) -> int:
    bound = len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)  # by the launcher, or whoever started that
    return cores if bound else max(1, cores // ranks)


def _ranks_launched_here() -> int:
    with suppress(PlanError):  # variables that contradict each other: whoever relies on them says so
        return detect().ranks_per_node
    return 1


def _named() -> int:
    named = os.environ.get(THREADS_VARIABLE, "")
    if named and not (named.isdecimal() and 1 <= int(named) <= THREADS_LIMIT):
        wrong = f"{THREADS_VARIABLE}={named!r} is no number of threads from 1 to {THREADS_LIMIT}"
        raise PlanError(f"{wrong}: correct it, or unset it")
    return int(named or 0)


def quotas(membership: Path, groups: Path) -> Iterator[float]:
    """Yields the limit of each control group of this process that has one, in cores."""
    for folder, first in control_groups("cpu", membership, groups):
        with suppress(OSError, ValueError, ZeroDivisionError):
            if first:
                quota, period = (int((folder / f"cpu.cfs_{one}_us").read_text()) for one in ("quota", "period"))
            else:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            if quota > 0:
                yield quota / period
