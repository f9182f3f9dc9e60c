"""What a slowed mount really gives, by plain reads, beside what the model promises."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.slowfs import Slowed

KB, MB = 1 << 10, 1 << 20
THREADS = (1, 32)
READS = (("4 KB, random", 4 * KB, True), ("64 KB, random", 64 * KB, True), ("8 MiB, in order", 8 * MB, False))
FILE = "calibrate.bin"
FILE_NBYTES = 512 * MB


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder with a file to be mounted: all of it a hole, which takes no room, but already in the page cache."""
    with tempfile.TemporaryDirectory(prefix="slowfs-calibrate-") as name:
        path = Path(name)
        with (path / FILE).open("wb") as file:
            file.truncate(FILE_NBYTES)
        with (path / FILE).open("rb", buffering=0) as file:
            block = bytearray(4 * MB)
            while file.readinto(block):
                pass
        yield path


def measure(mount: Slowed, seconds: float = 2.0) -> Iterator[dict[str, Any]]:
    """For each way of reading: reads and bytes a second, beside the model's, and what the mount counted."""
    for (title, nbytes, at_random), threads in itertools.product(READS, THREADS):
        before = mount.counts()
        reads, passed = _read(mount.path / FILE, nbytes, at_random, threads, seconds)
        after = mount.counts()
        yield {
            "title": title,
            "threads": threads,
            "reads_per_second": reads / passed,
            "bytes_per_second": reads * nbytes / passed,
            "modelled_reads_per_second": _modelled(mount, nbytes, at_random, threads),
            **{name: after[name] - before[name] for name in ("requests", "pieces", "bytes", "late_seconds")},
        }


def line(found: dict[str, Any]) -> str:
    """One measurement for people."""
    off = found["reads_per_second"] / found["modelled_reads_per_second"] - 1
    return (
        f"{found['title']:16} {found['threads']:>2} threads: {found['reads_per_second']:7,.1f} reads/s, "
        f"{found['bytes_per_second'] / 1e6:6,.1f} MB/s ({off:+.1%} of the model); "
        f"{found['requests']:,} requests, {found['pieces']:,} pieces, "
        f"{found['late_seconds'] / max(1, found['pieces']) * 1e6:,.0f} us late each"
    )


def _modelled(mount: Slowed, nbytes: int, at_random: bool, threads: int) -> float:
    by_link = mount.bandwidth / nbytes if mount.bandwidth else float("inf")
    if not at_random:
        return by_link
    by_latency = threads / (mount.latency + 1 / by_link)
    return min(by_link, by_latency, mount.iops or float("inf"))


def _read(path: Path, nbytes: int, at_random: bool, threads: int, seconds: float) -> tuple[int, float]:
    """Reads of so many threads until the time is up, and how long it took to the last answer."""
    file = os.open(path, os.O_RDONLY)
    places, lock = _places(nbytes, at_random), threading.Lock()
    answered: list[float] = []
    begin = time.perf_counter()

    def work(_: int) -> None:
        memory = mmap.mmap(-1, nbytes)
        while time.perf_counter() < begin + seconds:
            with lock:
                offset = next(places)
            if os.preadv(file, [memory], offset) != nbytes:
                raise OSError(f"{path}: a read at {offset} came short")
            answered.append(time.perf_counter())

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    finally:
        os.close(file)
    return len(answered), max(answered) - begin


def _places(nbytes: int, at_random: bool) -> Iterator[int]:
    """Where to read: one after another, or at random so that no two are neighbours."""
    blocks = FILE_NBYTES // nbytes
    if not at_random:
        return itertools.cycle(range(0, blocks * nbytes, nbytes))
    rng = random.Random(5)
    return iter(lambda: 2 * rng.randrange(blocks // 2) * nbytes, -1)
