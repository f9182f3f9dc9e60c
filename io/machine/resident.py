"""Measures the memory that processes use beside the page cache, and reads files into that cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SMAPS_PIECE = 4 << 20  # bytes read at a time
PROC = Path("/proc")
COUNTED = ("Pss_Anon", "Pss_Shmem")  # a shared page counts in each process by its share


def resident_nbytes(process: int) -> int:
    """Bytes of memory of this process and its descendants; those that end meanwhile count as 0."""
    return sum(_nbytes(one) for one in _tree(process))


def _tree(process: int) -> list[int]:
    found, waiting = [], [process]
    while waiting:
        one = waiting.pop()
        found.append(one)
        for thread in _listed(PROC / str(one) / "task"):
            waiting += [int(child) for child in _text(thread / "children").split()]
    return found


def _nbytes(process: int) -> int:
    lines = (line.split() for line in _text(PROC / str(process) / "smaps_rollup").splitlines()[1:])
    return sum(int(words[1]) * 1024 for words in lines if words[0].rstrip(":") in COUNTED)


def _listed(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended, or is somebody else's
        return ""


def read_once(paths: Sequence[str]) -> None:
    """Reads the files from beginning to end, so that the page cache holds as much as it can."""
    memory = bytearray(SMAPS_PIECE)
    for path in paths:
        with Path(path).open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass
