"""Facts of the machine and the versions, the page cache, and the memory of a tree of processes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from bench import pread
from solar.io.system.memory import resident_nbytes

SHOWN = (
    "solar", "torch", "numpy", "h5py", "hdf5plugin", "ffcv", "tensorstore", "litdata", "webdataset",
    "mosaicml-streaming", "spdl", "grain", "h5torch", "pysz", "zfpy", "blosc2", "deflate", "lz4", "numcodecs",
)  # fmt: skip
LOOK = 0.2  # seconds between two looks at the memory: a look takes milliseconds
DROP = Path("/proc/sys/vm/drop_caches")


def facts(folder: Path) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "file_system": file_system(folder),
        "python": platform.python_version(),
    }


def described(folder: Path) -> dict[str, Any]:
    """What every record says of where it was measured."""
    return {"machine": facts(folder), "versions": versions()}


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def file_system(folder: Path) -> str:
    inside = [part for part in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(part.mountpoint)]
    return max(inside, key=lambda part: len(part.mountpoint)).fstype if inside else "unknown"


def versions() -> dict[str, str]:
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"].lower()
        if name in SHOWN or name.startswith("nvidia-dali"):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def fill_cache(folder: Path) -> None:
    """Reads every file below the folder once."""
    block = bytearray(2**22)
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def drop_cache(folder: Path) -> str:
    """Takes the folder's files out of the page cache; tells how. Reads still in flight are waited for."""
    for _ in range(20):
        how = drop_once(paths := list(files_of(folder)))
        left = max(pread.resident(path) for path in paths)
        if not left > 0.01:
            return how
        time.sleep(0.1)
    raise RuntimeError(f"{left:.0%} of a file stayed in the page cache after {how}")


def drop_once(paths: Iterable[Path]) -> str:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    try:
        DROP.write_text("1")
    except OSError:
        return "posix_fadvise DONTNEED"
    return "drop_caches"


def files_of(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def peak(work: Callable[[], Any], seconds: float = LOOK) -> int:
    """Runs `work`; the most memory of this process and all below it, looked at every so many seconds.

    Shared pages are divided among those who have them, pages of files are left aside: the same for all readers.
    """
    done, most, this = threading.Event(), 0, os.getpid()

    def look() -> None:
        nonlocal most
        while not done.wait(seconds):
            most = max(most, resident_nbytes(this))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return most
