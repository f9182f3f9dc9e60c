"""A local copy of a remote object, for code that can only read files."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from solar import _native
from solar.errors import PlanError, SolarError
from solar.io.remote.fetch import Identity
from solar.io.remote.location import at_commit, ready
from solar.io.system.quantities import size
from solar.values import is_unversioned

COPIED_PIECE = 8 << 20  # bytes of a request
COPIED_TOGETHER = 16  # of them
NOT_ALONG = ("virtual", "external")  # storages whose values would not come along

ProgressCallback = Callable[[int, int], None]  # bytes that are here, of all


@contextmanager
def local_copy(url: str, beside: Path, progress: ProgressCallback) -> Iterator[Path]:
    """Yields the copy. Errors about it show the URL. It lies with `beside`, under a name made of the object's.

    If its use is interrupted, it stays there for the next time.
    """
    ready([url])
    url = at_commit(url)
    for one in _native.read_metadata(url)["datasets"]:
        if one["storage"] in NOT_ALONG:
            why = f"{url}: the values of {one['name']} lie in other files, which would not come along"
            raise PlanError(f"{why}: copy all of them to a local disk")
    was = _native.far_look(url)
    name = hashlib.blake2b(repr((url, was)).encode(), digest_size=8).hexdigest()
    path = beside.with_name(f".{beside.name[:180]}.solar-{name}.copy")
    for other in beside.parent.glob(f".{beside.name[:180]}.solar-*.copy*"):  # of another object, or cut short
        if other != path:
            other.unlink(missing_ok=True)
    if not _ours(path) or is_unversioned(url):
        path.unlink(missing_ok=True)
        _bring(url, was, path, progress)
    try:
        yield path
    except SolarError as error:
        path.unlink(missing_ok=True)
        raise type(error)(str(error).replace(str(path), url)) from None
    path.unlink(missing_ok=True)


def _ours(path: Path) -> bool:
    """Returns whether the file there can only have been written by us: the name of a copy can be foreseen."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077


def _bring(url: str, was: Identity, path: Path, progress: ProgressCallback) -> None:
    """Fetches the whole object, or raises an error and leaves nothing."""
    nbytes, free = was[0], shutil.disk_usage(path.parent).free
    if nbytes > free:
        raise PlanError(f"{url}: a copy of {size(nbytes)} is needed in {path.parent}, and {size(free)} are free there")
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # of a run that was ended
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def piece(begin: int) -> int:
        bytes_of_it = memoryview(_native.far_read(url, was, begin, min(COPIED_PIECE, nbytes - begin)))
        written = 0
        while written < len(bytes_of_it):
            written += os.pwrite(descriptor, bytes_of_it[written:], begin + written)
        return written

    threads = ThreadPoolExecutor(COPIED_TOGETHER, "solar-copy")
    try:
        here = 0
        for written in threads.map(piece, range(0, nbytes, COPIED_PIECE)):
            here += written
            progress(here, nbytes)
        part.rename(path)
    finally:
        threads.shutdown(cancel_futures=True)
        os.close(descriptor)
        part.unlink(missing_ok=True)
