"""Programs that the benchmarks compile and run: kept in a folder that only this user can write to."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


def kept(name: str, command: Sequence[str | os.PathLike[str]]) -> Path:
    """Returns the program of this name, which the command makes; `-o` and its place are added to that.

    It is made once: the name has to tell apart what comes of different sources. A folder or a program that somebody
    else could have made is an error.
    """
    folder = _folder()
    program = folder / name
    if not _is_own(folder, stat.S_ISDIR):
        raise RuntimeError(f"{folder}: programs in it are run, and others could have made them: `chmod 700` it")
    if not os.path.lexists(program):
        making = Path(tempfile.mkdtemp(dir=folder))
        try:
            subprocess.run([*command, "-o", making / name], check=True)
            (making / name).chmod(0o700)
            (making / name).replace(program)
        finally:
            shutil.rmtree(making)
    if not _is_own(program, stat.S_ISREG):
        raise RuntimeError(f"{program}: it is run, and somebody else could have made it: delete it")
    return program


def _folder() -> Path:
    """Returns a folder among the user's caches, made if it is not there; for this process alone if it cannot be."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "solar-bench"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return _of_this_process()
    return folder if os.access(folder, os.W_OK) else _of_this_process()


@functools.cache
def _of_this_process() -> Path:
    made = tempfile.mkdtemp(prefix="solar-bench-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether this user has it, nobody else may write to it, and it is no symbolic link."""
    facts = path.lstat()
    return kind(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
