"""A slowed file system: a folder mounted again, read-only, that answers as a disk-based parallel file system would.

slowfs.cpp is the mount, model.hpp the model (read its first lines), replay.cpp the model without a mount. They are
compiled on demand with the system's compiler, and kept among the user's caches; the mount needs libfuse3 and its
headers (libfuse3-dev on Debian), /dev/fuse, and the right to mount.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import compiled

HERE = Path(__file__).parent
READY, GONE = 10.0, 10.0  # seconds until the mount is there, and until it is gone
LATENCY, BANDWIDTH, IOPS = 1e-3, 1e9, 500.0  # what issue and docs mean by "slowed"


@dataclass(frozen=True)
class Slowed:
    """A folder as a slow storage has it."""

    path: Path
    latency: float  # seconds
    bandwidth: float  # bytes a second
    iops: float  # requests a second
    rpc: int = 0  # bytes of a request at most; 0: a stretch is one, however long

    @property
    def costs(self) -> dict[str, float]:
        """As solar's Storage has them."""
        return {"latency": self.latency, "bandwidth": self.bandwidth, "iops": self.iops}

    def counts(self) -> dict[str, Any]:
        """What was asked of it so far: requests, pieces, bytes, late_seconds, most_late_seconds."""
        found: dict[str, Any] = json.loads((self.path / ".slowfs").read_text())
        return found


def lacking() -> str:
    """Why nothing can be mounted here; "" when it can."""
    if not compiler():
        return "there is no C++ compiler"
    if not fuse_flags():
        return "libfuse3 and its headers are not installed (libfuse3-dev)"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    if os.geteuid() and not shutil.which("fusermount3"):
        return "mounting without root needs fusermount3"
    with tempfile.TemporaryDirectory() as name:
        try:
            with mounted(name):
                return ""
        except RuntimeError as error:
            return str(error)


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")


@functools.cache
def fuse_flags() -> list[str]:
    """What the compiler needs for libfuse3; nothing: it is not there, or too old."""
    command = ["pkg-config", "--cflags", "--libs", "fuse3 >= 3.12"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []


def build(name: str, flags: Sequence[str] = ()) -> Path:
    """The program of `name`.cpp; compiled again only when a source has changed."""
    sources = b"".join((HERE / file).read_bytes() for file in ("model.hpp", f"{name}.cpp"))
    key = hashlib.sha256(sources + " ".join(flags).encode()).hexdigest()[:16]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [compiler() or "c++", "-std=c++20", "-O2", *warnings, HERE / f"{name}.cpp", *flags]
    return compiled.kept(f"{name}-{key}", command)


@contextlib.contextmanager
def mounted(
    source: str | os.PathLike[str],
    *,
    latency: float = LATENCY,
    bandwidth: float = BANDWIDTH,
    iops: float = IOPS,
    rpc: int = 0,
    cached: bool = False,
) -> Iterator[Slowed]:
    """The folder, slowed, in a new temporary place, until the end of the block. 0: without that limit.

    `cached`: the kernel's page cache keeps what was read, of which its readers' control groups are charged.
    """
    program = build("slowfs", fuse_flags())
    costs = f"latency={latency!r},bandwidth={bandwidth!r},iops={iops!r},rpc={rpc},cached={cached:d}"
    with tempfile.TemporaryDirectory(prefix="slowfs-") as name, tempfile.TemporaryFile("w+") as said:
        place = Path(name) / "mount"
        place.mkdir()
        command = [program, os.fspath(source), place, "-f", "-o", costs]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
        try:
            if not _until(lambda: os.path.ismount(place) or process.poll() is not None, READY) or process.poll():
                said.seek(0)
                raise RuntimeError(f"{source} cannot be mounted slowed: {said.read().strip() or 'no answer'}")
            yield Slowed(place, latency, bandwidth, iops, rpc)
        finally:
            _end(process, place)


def _until(holds: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def _end(process: subprocess.Popen[bytes], place: Path) -> None:
    """Ends it and sees that the mount is gone, also where files of it are still open."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GONE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if os.path.ismount(place):
        subprocess.run(["fusermount3", "-u", "-z", place], check=True)


Read = tuple[int, int, int, int, int]  # reader, nanoseconds of thought, file, offset, nbytes


def replay(
    reads: Sequence[Read],
    *,
    latency: float = LATENCY,
    bandwidth: float = BANDWIDTH,
    iops: float = IOPS,
    rpc: int = 0,
) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """When each read would be asked for and answered, in nanoseconds of the model's own time; and the counts."""
    told = "".join(f"{' '.join(map(str, read))}\n" for read in reads)
    command = [build("replay"), *map(repr, (latency, bandwidth, iops, rpc))]
    lines = subprocess.run(command, check=True, input=told, capture_output=True, text=True).stdout.splitlines()
    times = [tuple(map(int, line.split())) for line in lines]
    return [(asked, answered) for asked, answered in times[:-1]], dict(
        zip(("requests", "pieces", "bytes"), times[-1], strict=True)
    )
