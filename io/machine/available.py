"""What the memory of this machine, or of the container the process runs in, has room for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PLENTY = 1 << 62  # where nobody says


MEMBERSHIP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")  # the process's control groups, and all


def free_nbytes() -> int:
    """The memory that can be had without swapping, what the page cache would give back included."""
    with Path("/proc/meminfo").open() as facts:
        lines = dict(line.split(":", 1) for line in facts)
    free = int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else PLENTY
    return min(free, _group_free(MEMBERSHIP, GROUPS))


def memory_nbytes() -> int:
    """All memory that the processes of this node, or of the container, may take together."""
    with Path("/proc/meminfo").open() as facts:
        lines = dict(line.split(":", 1) for line in facts)
    total = int(lines["MemTotal"].split()[0]) * 1024 if "MemTotal" in lines else PLENTY
    return min(total, _group_limit(MEMBERSHIP, GROUPS))


def page_cache_nbytes() -> int:
    """The most that the page cache could hold of the files this process reads."""
    return min(free_nbytes(), _group_limit(MEMBERSHIP, GROUPS))


def _group_limit(membership: Path, root: Path) -> int:
    """The least of the memory limits of the control groups that the process is in."""
    return min((_number(folder / limit, PLENTY) for folder, limit, _ in _groups(membership, root)), default=PLENTY)


def _group_free(membership: Path, root: Path) -> int:
    """The least that is left in the control groups that the process is in, what files take of it included."""
    left = [PLENTY]
    for folder, limit, usage in _groups(membership, root):
        taken = _number(folder / usage, 0) - _cached_nbytes(folder / "memory.stat")
        left.append(_number(folder / limit, PLENTY) - max(0, taken))
    return max(0, min(left))


def _groups(membership: Path, root: Path) -> Iterator[tuple[Path, str, str]]:
    """The groups (of both versions) and those above them; the names of their files of what may be and is taken."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        for parent in (group, *group.parents):
            if controllers:
                yield root / "memory" / parent, "memory.limit_in_bytes", "memory.usage_in_bytes"
            else:
                yield root / parent, "memory.max", "memory.current"


def _cached_nbytes(path: Path) -> int:
    """What of a group's memory holds files, and would be given back."""
    try:
        facts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    except OSError:
        return 0
    kinds = ("inactive_file", "active_file")  # the first version counts the groups below apart, as total_...
    return sum(int(facts.get(f"total_{kind}", facts.get(kind, 0))) for kind in kinds)


def _number(path: Path, otherwise: int) -> int:
    try:
        text = path.read_text().strip()
    except OSError:  # no such group is seen from here, or it is the root, which has no limit
        return otherwise
    return int(text) if text.isdigit() else otherwise  # "max"
