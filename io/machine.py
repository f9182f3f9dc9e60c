"""What the memory of this machine, or of the container the process runs in, has room for."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

PLENTY = 1 << 62  # where nobody says


def free_nbytes() -> int:
    """The memory that can be had without swapping, what the page cache would give back included."""
    with Path("/proc/meminfo").open() as facts:
        lines = dict(line.split(":", 1) for line in facts)
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else PLENTY


def memory_nbytes() -> int:
    """All memory that the processes of this node, or of the container, may take together."""
    with Path("/proc/meminfo").open() as facts:
        lines = dict(line.split(":", 1) for line in facts)
    total = int(lines["MemTotal"].split()[0]) * 1024 if "MemTotal" in lines else PLENTY
    return min(total, _group_limit(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))


def page_cache_nbytes() -> int:
    """The most that the page cache could hold of the files this process reads."""
    return min(free_nbytes(), _group_limit(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))


def _group_limit(membership: Path, root: Path) -> int:
    """The least of the memory limits of the control groups (of both versions) that the process is in."""
    limits = [PLENTY]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return PLENTY
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = PurePosixPath(path.lstrip("/"))
        limits += [_limit(folder / parent / name) for parent in (group, *group.parents)]
    return min(limits)


def _limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:  # no such group is seen from here, or it is the root, which has no limit
        return PLENTY
    return int(text) if text.isdigit() else PLENTY  # "max"
