"""The free memory of this machine or container, and the memory that processes use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

PLENTY = 1 << 62  # if no limit is known
SLURM_MEMORY = (  # megabytes; behind those of a processor or a GPU, how many of these the job has on this node
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
    "SLURM_CPUS_ON_NODE",
    "SLURM_MEM_PER_GPU",
    "SLURM_GPUS_ON_NODE",
)


MEMBERSHIP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")  # the process's control groups, and all


def free_nbytes() -> int:
    """Returns the memory that is available without swapping, including what the page cache would free."""
    return min(_of_machine("MemAvailable"), _group_free(MEMBERSHIP, GROUPS))


def memory_nbytes() -> int:
    """Returns all memory that the processes of this node, or of the container, may use together."""
    return min(_of_machine("MemTotal"), _group_limit(MEMBERSHIP, GROUPS), slurm_limit())


def _of_machine(name: str) -> int:
    """Returns a number of /proc/meminfo in bytes, or what the C library knows where that cannot be read."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:  # no descriptor is left, perhaps
        pages = os.sysconf("SC_AVPHYS_PAGES" if name == "MemAvailable" else "SC_PHYS_PAGES")
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else PLENTY
    return int(lines[name].split()[0]) * 1024 if name in lines else PLENTY


def slurm_limit() -> int:
    """Returns what Slurm gives a job of this node by `--mem`, `--mem-per-cpu` or `--mem-per-gpu`.

    Not every cluster enforces it by a control group. Of several, of which Slurm allows only one, the first counts.
    """
    said = [os.environ.get(name, "") for name in SLURM_MEMORY]
    of_node, of_cpu, cpus, of_gpu, gpus = (int(one) if one.isdecimal() else 0 for one in said)  # --mem=0: all
    return (of_node or of_cpu * cpus or of_gpu * gpus) << 20 or PLENTY


def page_cache_nbytes() -> int:
    """Returns the most that the page cache could hold of the files this process reads."""
    return min(free_nbytes(), _group_limit(MEMBERSHIP, GROUPS))


def _group_limit(membership: Path, root: Path) -> int:
    """Returns the smallest memory limit of the process's control groups."""
    limits = (
        number_in_file(folder / ("memory.limit_in_bytes" if first else "memory.max"), PLENTY)
        for folder, first in control_groups("memory", membership, root)
    )
    return min(limits, default=PLENTY)


def _group_free(membership: Path, root: Path) -> int:
    """Returns the smallest free memory of the process's control groups, including what cached files occupy."""
    left = [PLENTY]
    for folder, first in control_groups("memory", membership, root):
        limit, usage = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
        taken = number_in_file(folder / f"memory.{usage}", 0) - _cached_nbytes(folder / "memory.stat")
        left.append(number_in_file(folder / f"memory.{limit}", PLENTY) - max(0, taken))
    return max(0, min(left))


def control_groups(controller: str, membership: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """Yields the process's control groups of this controller and their parents, and whether each is of version 1."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        for parent in (group, *group.parents):
            yield (root / controller / parent, True) if controllers else (root / parent, False)


def _cached_nbytes(path: Path) -> int:
    """Returns the bytes of a group's memory that cache files, and could be freed."""
    try:
        facts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    except OSError:
        return 0
    kinds = ("inactive_file", "active_file")  # the first version counts the groups below apart, as total_...
    return sum(int(facts.get(f"total_{kind}", facts.get(kind, 0))) for kind in kinds)


def number_in_file(path: Path, otherwise: int) -> int:
    try:
        text = path.read_text().strip()
    except OSError:  # no such group is seen from here, or it is the root, which has no limit
        return otherwise
    return int(text) if text.isdigit() else otherwise  # "max"


# Measures the memory that processes use beside the page cache, and reads files into that cache.


SMAPS_PIECE = 4 << 20  # bytes read at a time
PROC = Path("/proc")
COUNTED = ("Pss_Anon", "Pss_Shmem")  # a shared page counts in each process by its share


def resident_nbytes(process: int) -> int:
    """Returns the bytes of memory of this process and its descendants; those that end meanwhile count as 0."""
    return sum(process_nbytes(one) for one in process_tree(process))


def process_tree(process: int) -> list[int]:
    found, waiting = [], [process]
    while waiting:
        one = waiting.pop()
        found.append(one)
        for thread in list_folder(PROC / str(one) / "task"):
            waiting += [int(child) for child in read_text(thread / "children").split()]
    return found


def process_nbytes(process: int) -> int:
    lines = (line.split() for line in read_text(PROC / str(process) / "smaps_rollup").splitlines()[1:])
    return sum(int(words[1]) * 1024 for words in lines if words[0].rstrip(":") in COUNTED)


def list_folder(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended, or is somebody else's
        return ""


def read_once(paths: Sequence[str]) -> None:
    """Reads the files from beginning to end, so that the page cache holds as much of them as it can."""
    memory = bytearray(SMAPS_PIECE)
    for path in paths:
        with Path(path).open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass
