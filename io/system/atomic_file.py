"""Writes files that exist whole or not at all, however the program ends."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = ".new-"  # of names that nobody can foresee
STALE = 3600  # seconds after which such a file's writer must be gone


@contextmanager
def write_file(target: Path, mode: int = 0o600, sync: bool = True) -> Iterator[BinaryIO]:
    """Yields a new file beside `target`, which gets its name once all is written, and is removed if that fails.

    `sync` waits until its bytes are on the disk. A file that is checked when it is read does not need that.
    """
    temporary = target.with_name(f"{PREFIX}{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(temporary, "wb", opener=lambda name, _: os.open(name, flags, mode)) as file:
        try:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def sweep(folder: Path) -> None:
    """Removes files of killed writers from a folder that only we use."""
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > STALE:
                path.unlink()
