"""Where services are found: Unix sockets in a folder of the user's own, and who may come in."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from solar import __version__
from solar.errors import PlanError, ReadError
from solar.io.machine.late import asked, until
from solar.io.ranks.node import is_own, peer_of
from solar.io.serve.frames import OF_SERVICE, SPEAKS, Refused, close_all, receive, send
from solar.values import is_url

BACKLOG = 256
SO_PEERGROUPS = 59  # Linux: the groups of the other end; the socket module has no name for it
ENDS_WITHIN = 10.0  # seconds that one that ends, or begins, may hold its lock without a socket


def folder() -> Path:
    """Where this user's services listen. It need not be there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if Path(runtime).is_dir():
        return Path(runtime) / "solar"
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"solar-{os.geteuid()}"  # it must be the user's


def real(path: str) -> str:
    """The name by which jobs and service speak of a file: a URL is what it is."""
    return path if is_url(path) else os.path.realpath(path)


def socket_of(files: Sequence[str]) -> Path:
    """Where the service of these files listens."""
    key = b"".join(real(one).encode(errors="surrogateescape") + b"\0" for one in sorted(files))
    return folder() / f"serve-{hashlib.sha256(key).hexdigest()[:16]}.sock"


def found() -> list[Path]:
    """The sockets of this user's services, whether anybody listens or not."""
    with suppress(OSError):
        return sorted(folder().glob("serve-*.sock"))
    return []


def listen(path: Path, group: int | None = None) -> tuple[socket.socket, int]:
    """A socket there, for the user and a group, and the lock that says who listens. PlanError where somebody does."""
    private(path.parent, group)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _take(lock, path)
        with suppress(FileNotFoundError):
            path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path, -1, group, follow_symlinks=False)
            path.chmod(0o660)
        listener.listen(BACKLOG)
    except PlanError:
        os.close(lock)
        raise
    except OSError as error:
        os.close(lock)
        raise PlanError(f"{path}: nobody can listen there: {error.strerror or error}") from error
    return listener, lock


def _take(lock: int, path: Path) -> None:
    """Takes the lock. One that ends has taken its socket away before: it is waited for. PlanError where one listens."""

    def there() -> None:
        if path.exists():
            raise PlanError(f"{path}: a service is there: end it by `solar serve --stop`, or give another --socket")

    if not until(asked(lambda: locked(lock)), ENDS_WITHIN, there):
        raise PlanError(f"{path}: a service that neither listens nor ends holds {path.with_suffix('.lock')}")


def locked(file: int) -> bool:
    """Whether the lock on it is this process's now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def connect(path: Path, seconds: float) -> socket.socket:
    """A connection to the service there. ReadError where there is none, or one of another user."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(seconds)
        peer.connect(str(path))
        if not is_own(peer) and not _is_for_us(path, peer_of(peer)[1]):
            raise ReadError(f"{path}: a process of another user listens there, for none of your groups")
    except OSError as error:
        peer.close()
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"{path}: no service answers there: {error.strerror or error}") from None
    except BaseException:
        peer.close()
        raise
    return peer


def may_come(peer: socket.socket, group: int | None) -> bool:
    """Whether a process of the same user is at the other end, or one of this group."""
    if is_own(peer) or group is None:
        return is_own(peer)
    if peer_of(peer)[2] == group:
        return True
    with suppress(OSError):  # who is in more groups than these bytes tell comes by none of them
        told = peer.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
        return group in memoryview(told).cast("I").tolist()
    return False


def _is_for_us(path: Path, user: int) -> bool:
    """Whether that user listens there for a group of this process, where nobody else could have put a socket."""
    with suppress(OSError):
        own, where = path.lstat(), path.parent.stat()
        ours = own.st_gid in {os.getegid(), *os.getgroups()} and own.st_mode & 0o067 == 0o060
        return ours and own.st_uid == where.st_uid == user and not where.st_mode & 0o022
    return False


def greeted(path: Path, seconds: float, name: str) -> tuple[socket.socket, dict[str, Any]]:
    """A connection to the service there that has said hello, and its welcome."""
    peer = connect(path, seconds)
    try:
        hello = {"is": "hello", "speaks": list(SPEAKS), "solar": __version__, "pid": os.getpid(), "name": name}
        return peer, ask(peer, path, hello, "welcome")[0]
    except BaseException:
        peer.close()
        raise


def ask(
    peer: socket.socket, path: Path, message: dict[str, Any], wanted: str, descriptors: Sequence[int] = ()
) -> tuple[dict[str, Any], list[int]]:
    """The answer, and the descriptors that came with it. Refused, or ReadError where there is none."""
    try:
        send(peer, message, descriptors)
        came = receive(peer, OF_SERVICE)
    except OSError as error:
        raise ReadError(f"{path}: the service has gone: {error}") from None
    if came is None:
        raise ReadError(f"{path}: the service has gone")
    answer, found = came
    if answer["is"] != wanted:
        close_all(found)
        if answer["is"] == "refused":
            raise Refused(f"{path}: {answer['why']}", answer["again"])
        raise ReadError(f"{path}: the service answers {answer.get('why', answer['is'])}")
    return answer, found


def private(where: Path, group: int | None = None) -> None:
    """Makes the folder, which a group may enter. PlanError where it is another's, or open to others."""
    try:
        if not where.exists():
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
            if group is not None:
                os.chown(where, -1, group)
                where.chmod(0o750)
        facts = where.lstat()
    except OSError as error:
        raise PlanError(f"{where}: there is no folder for a service's socket: {error.strerror}") from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise PlanError(f"{where}: this folder is not yours: give --socket in one that is")
    if group is None and facts.st_mode & 0o077:
        raise PlanError(f"{where}: others may enter this folder: `chmod 700` it, or give --socket in one of your own")
    if group is not None and (facts.st_gid != group or facts.st_mode & 0o077 not in (0o010, 0o050)):
        raise PlanError(f"{where}: the group, and nobody else, must be able to enter: `chgrp` it, and `chmod 750`")
