"""Runs a scene in a process of its own while one call fails, is late or hangs, and tells what became of it."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import gc
import importlib
import json
import mmap  # noqa: F401  # it is there before its calls are counted
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from limits_kit import descriptors, forked

from solar import SolarError, _native
from solar.io.codec import chunk_values
from solar.io.reading import h5py_calls
from solar.loader import held_blocks
from solar.service import served_passes

from . import scenes
from .scenes import Scene

SOURCE = Path(__file__).parent / "stand_between.c"
EVER = 1 << 40
SPARE = 2  # files that stay open: each of the two threads opens one if it comes to read anything

# What each call answers when it fails: the likeliest error of a system that is broken, full or busy.
CODES = {
    "stat": errno.EIO, "lstat": errno.EIO, "fstat": errno.EIO, "fstatat": errno.EIO, "stat64": errno.EIO,
    "lstat64": errno.EIO, "fstat64": errno.EIO, "fstatat64": errno.EIO, "statx": errno.EIO, "fstatvfs": errno.EIO,
    "open": errno.EMFILE, "open64": errno.EMFILE, "read": errno.EIO, "write": errno.ENOSPC, "pread": errno.EIO,
    "pwrite": errno.ENOSPC, "pread64": errno.EIO, "pwrite64": errno.ENOSPC, "preadv": errno.EIO, "preadv2": errno.EIO,
    "ftruncate": errno.ENOSPC, "ftruncate64": errno.ENOSPC, "fsync": errno.EIO, "fdatasync": errno.EIO,
    "flock": errno.ENOLCK, "rename": errno.EIO, "unlink": errno.EIO, "mkdir": errno.ENOSPC, "mmap": errno.ENOMEM,
    "mmap64": errno.ENOMEM, "madvise": errno.ENOMEM, "memfd_create": errno.EMFILE, "eventfd": errno.EMFILE,
    "pipe2": errno.EMFILE, "socket": errno.EMFILE, "socketpair": errno.EMFILE, "connect": errno.ECONNREFUSED,
    "send": errno.EPIPE, "sendmsg": errno.EPIPE, "recv": errno.ECONNRESET, "recvmsg": errno.ECONNRESET,
"fork": errno.EAGAIN, "dlopen": errno.ENOMEM, "posix_fadvise": errno.EIO,
    "pthread_create": errno.EAGAIN, "io_uring_setup": errno.ENOMEM, "io_uring_enter": errno.EBUSY,
    "io_uring_register": errno.ENOMEM, "cachestat": errno.ENOSYS, "clock_gettime": errno.EINVAL,
}  # fmt: skip
# Those that wait for storage, a server or another process. The others the kernel answers by itself.
HANG = re.compile(
    r"f?l?stat.*|statx|open.*|f?(data)?sync|p?(read|write).*|ftruncate.*|rename|unlink|mkdir|flock|connect|"
    r"(send|recv)(msg)?|io_uring_enter"
)
CLOCK, JUMPS = "clock_gettime", ("forward", "back")  # of a clock only the time of day changes, by an hour
MODES = {"nothing": 0, "fails": 1, "late": 2, "hangs": 3, "forward": 4, "back": 5}
FROM_THE_BEGINNING = ("fails", *JUMPS)  # also while a loader is made


class Trial(NamedTuple):
    """From the `nth` call of this name on, `times` calls fail, are late, or hang; or the clock jumps at it."""

    call: str
    nth: int
    mode: str = "fails"
    times: int = 1

    def __str__(self) -> str:
        for_ever = " and all after it" if self.times == EVER else ""
        verbs = {"fails": "fails", "late": "is late", "hangs": "hangs"}
        if self.mode in JUMPS:
            return f"{self.call} number {self.nth} finds the clock an hour {self.mode}"
        return f"{self.call} number {self.nth}{for_ever} {verbs[self.mode]}"


@dataclass
class Outcome:
    """What became of a trial: `what` is batches, an error's type, or how the process ended."""

    what: str = ""
    words: str = ""
    later: str = ""
    seconds: float = 0.0
    met: int = 0
    files: int = 0
    threads: int = 0


def built(folder: Path) -> Path:
    """The library that stands between, compiled."""
    library = folder / "stand_between.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-pthread"]
    subprocess.run(command, check=True)
    return library


def standing() -> ctypes.CDLL:
    """The library of this process, which it was begun with, set up to count what solar's code and Python call."""
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.stand_calls.restype = library.stand_met.restype = ctypes.c_long
    library.stand_begin.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    names = (ctypes.c_char_p * (len(CODES) + 1))(*map(str.encode, CODES), None)
    interpreter = code_of("libpython", Path(sys.executable).resolve().name)
    others = code_of(Path(_native.__file__).name, "libstdc++.so", "_socket.", "mmap.", "select.", "_posix")
    bounds = [bound for pair in interpreter + others for bound in pair]
    library.stand_for(names, (ctypes.c_size_t * len(bounds))(*bounds), len(bounds) // 2, len(interpreter))
    return library


def code_of(*names: str) -> list[tuple[int, int]]:
    """Where the code of the files lies whose names begin so."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, rights, *rest = line.split()
        if "x" in rights and Path(rest[-1]).name.startswith(names):
            first, last = where.split("-")
            found.append((int(first, 16), int(last, 16)))
    return found


def begin(library: ctypes.CDLL, trial: Trial | None) -> None:
    if trial is None:
        library.stand_begin(b"", 0, 0, 0, 0)
    else:
        how = (trial.nth, trial.times, MODES[trial.mode], CODES[trial.call])
        library.stand_begin(trial.call.encode(), *how)


def in_child(act: Any, limit: float) -> dict[str, Any] | str:
    """What `act` returned in a process of its own, or how that ended."""
    stacks = tempfile.TemporaryFile("w+")  # noqa: SIM115  # the child writes where its threads are, if it has to be killed

    def acts() -> Any:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        return act()

    child, ours = forked(acts)
    said, until, ended = b"", time.monotonic() + limit, False
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0, until - time.monotonic()))[0]:
            if not (more := pipe.read(1 << 16)):
                break
            said += more
        else:
            ended = True
            os.kill(child, signal.SIGUSR1)
            time.sleep(0.3)  # until that is written, by which it may crash
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said and status == 0:
        return dict(json.loads(said))
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        stacks.seek(0)
        return f"no end\n{stacks.read()}" if ended else f"killed by {signal.Signals(number).name}"
    return f"ended with {os.WEXITSTATUS(status)}"


def threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def close(loader: Any) -> None:
    getattr(loader, "close", lambda: None)()
    gc.collect()


class Trials:
    """All trials of a scene."""

    def __init__(self, library: ctypes.CDLL, scene: Scene) -> None:
        self.library, self.scene = library, scene
        for _ in range(2):  # the second time with all modules there, which are imported here and inherited
            found = in_child(self._reference, 60)
            if isinstance(found, str):
                raise RuntimeError(f"{scene.name}: without a fault it {found}")
            for name in found["modules"]:
                if name not in sys.modules and not name.startswith("__"):
                    importlib.import_module(name)
        self.calls: dict[str, dict[str, int]] = found["calls"]
        self.files, self.threads = found["files"], found["threads"]

    def _reference(self) -> dict[str, Any]:
        """What a run without a fault calls, and leaves behind."""
        calls = {}
        for part in ("all", "epoch"):
            self.scene.before()
            begin(self.library, None)
            loader = self.scene.make()
            if part == "epoch":
                begin(self.library, None)
            first = self.scene.epoch(loader)
            calls[part] = {name: n for name in CODES if (n := self.library.stand_calls(name.encode()))}
            self.library.stand_end()
            if not first or not same(first, self.scene.epoch(loader)):
                raise AssertionError("two epochs differ")
            close(loader)
        return {"calls": calls, "files": descriptors(), "threads": threads(), "modules": sorted(sys.modules)}

    def all(self, most: int, modes: Sequence[str]) -> Iterator[Trial]:
        """Each call fails once, and with all after it; in the epoch each is late, and hangs. At each look at the clock
        the time of day jumps. `most` of each name.
        """
        for mode in modes:
            for name, count in self.calls["all" if mode in FROM_THE_BEGINNING else "epoch"].items():
                if (mode in JUMPS) != (name == CLOCK):
                    continue
                if mode == "hangs" and (not HANG.fullmatch(name) or name in self.scene.unlimited):
                    continue
                for nth in spread(count, most):
                    yield Trial(name, nth, mode)
                    if mode == "fails":
                        yield Trial(name, nth, mode, times=EVER)

    def run(self, trial: Trial) -> Outcome:
        found = in_child(lambda: asdict(self._outcome(trial)), self.scene.limit)
        what, _, words = found.partition("\n") if isinstance(found, str) else ("", "", "")
        return Outcome(what, words) if isinstance(found, str) else Outcome(**found)

    def _outcome(self, trial: Trial) -> Outcome:
        whole, out = trial.mode in FROM_THE_BEGINNING, Outcome()
        seconds = 3.0 if trial.mode == "hangs" else 10.0
        scenes.patience = h5py_calls.FILE_PATIENCE = held_blocks.WAIT = seconds
        served_passes.FIND_WITHIN = chunk_values.READ_WITHIN = seconds
        self.scene.before()
        began, loader, first = time.monotonic(), None, []
        if whole:
            begin(self.library, trial)
        try:
            loader = self.scene.make()
            if not whole:
                begin(self.library, trial)
            first = self.scene.epoch(loader)
            out.what = "batches"
        except Exception as error:
            out.what = "SolarError" if isinstance(error, SolarError) else type(error).__name__
            out.words = str(error) if isinstance(error, SolarError) else traceback.format_exc()
            error.__traceback__ = None
        out.seconds, out.met = time.monotonic() - began, self.library.stand_met()
        self.library.stand_end()
        try:
            loader = loader or self.scene.make()
            second = self.scene.epoch(loader)
            out.later = "batches" if not first or same(first, second) else "other batches"
            close(loader)
        except Exception:
            out.later = traceback.format_exc()
        expected = self.scene.epoch(other := self.scene.make())
        if first and not same(first, expected):
            out.what = "wrong batches"
        elif out.later == "batches" and not same(second, expected):
            out.later = "wrong batches"
        close(other)
        if self.scene.pooled:
            return out
        until = time.monotonic() + 3
        while time.monotonic() < until and (threads() > self.threads or descriptors() > self.files + SPARE):
            time.sleep(0.02)  # what hung is on its way out
        out.files, out.threads = max(0, descriptors() - self.files - SPARE), max(0, threads() - self.threads)
        return out


def spread(count: int, most: int) -> list[int]:
    """Of the numbers 1 to `count` so many, evenly, with the first and the last."""
    return (
        sorted({1 + at * (count - 1) // max(1, most - 1) for at in range(most)})
        if count > most
        else list(range(1, count + 1))
    )


def fault_of(outcome: Outcome, mode: str) -> str:
    """What is wrong with an outcome; nothing if it is as it has to be."""
    if mode in JUMPS and outcome.what == "SolarError":
        return f"a clock that jumps is an error: {outcome.words}"
    if outcome.what not in ("batches", "SolarError", "MemoryError"):
        return f"{outcome.what}, {place(outcome.words) if outcome.what != 'no end' else main_place(outcome.words)}"
    if outcome.later != "batches":
        return f"the next epoch: {place(outcome.later)}"
    if outcome.files or outcome.threads:
        return f"{outcome.files} files and {outcome.threads} threads more than without a fault"
    return ""


def place(words: str) -> str:
    """The innermost line of ours in a traceback, and what was said."""
    lines = words.strip().splitlines() or [""]
    ours = [line.split("/solar/")[-1] for line in lines if 'File "' in line and "/solar/" in line]
    return " ".join([*ours[-1:], lines[-1]])


def main_place(stacks: str) -> str:
    """The innermost line of ours where the main thread was, which is told last."""
    last = stacks.strip().split("\n\n")[-1].splitlines()
    return " < ".join(
        line.split("/solar/")[-1].strip() for line in last if 'File "' in line and "every_call" not in line
    )[:400]
