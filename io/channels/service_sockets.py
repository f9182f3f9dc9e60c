"""Finds the sockets of services, checks who may connect, and starts a service if there is none."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from solar import __version__
from solar.errors import PlanError, ReadError
from solar.io.channels.frames import OF_SERVICE, SPEAKS, Refused, close_all, receive, send
from solar.io.channels.node_memory import is_own, peer_of
from solar.io.system.waiting import polling, until, until_others
from solar.values import is_url

BACKLOG = 256
SO_PEERGROUPS = 59  # Linux: the groups of the other end; the socket module has no name for it
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ENDS_WITHIN = 10.0  # seconds that one that ends, or begins, may hold its lock without a socket


def folder() -> Path:
    """Returns the folder of this user's services. It need not exist; whoever enters it checks its owner."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if os.path.isdir(runtime):  # noqa: PTH112  # which takes what cannot be looked at for none
        return Path(runtime) / "solar"
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"solar-{os.geteuid()}"


def real(path: str) -> str:
    """Returns the name by which jobs and service call a file. A URL stays as it is."""
    return path if is_url(path) else os.path.realpath(path)


def socket_of(files: Sequence[str]) -> Path:
    """Returns the path of the socket of the service for these files."""
    key = b"".join(real(one).encode(errors="surrogateescape") + b"\0" for one in sorted(files))
    return folder() / f"serve-{hashlib.sha256(key).hexdigest()[:16]}.sock"


def found() -> list[Path]:
    """Returns the sockets in the folder of this user's services, whether anybody listens there or not.

    Raises PlanError if the folder is not this user's, or if others may enter it.
    """
    where = folder()
    try:
        os.close(open_folder(where, None))
    except FileNotFoundError:
        return []
    return sorted(where.glob("serve-*.sock"))


def named_service(service: str) -> tuple[Path, int]:
    """Returns the socket of a service that is given by name, and the user it must belong to: you, or a user you name.

    >>> named_service("/run/lab/scan.sock") == (Path("/run/lab/scan.sock"), os.geteuid())
    True
    >>> named_service("user:root:/run/scan.sock")
    (PosixPath('/run/scan.sock'), 0)
    """
    if not service.startswith("user:"):
        return Path(service), os.geteuid()
    _, name, path = [*service.split(":", 2), ""][:3]
    if not name or not path:
        raise PlanError(f"service={service!r}: the service of another user is given as user:NAME:PATH")
    try:
        return Path(path), pwd.getpwnam(name).pw_uid
    except KeyError:
        if name.isascii() and name.isdecimal() and int(name) < 1 << 32:
            return Path(path), int(name)
        raise PlanError(f"service={service!r}: there is no user {name!r} on this machine") from None


def listen(path: Path, group: int | None = None) -> tuple[socket.socket, int]:
    """Returns a listening socket for the user and a group, and the lock of the one that listens.

    Raises PlanError if another service listens there. All names are looked up in the folder that was checked, so it
    does not matter if somebody replaces that folder meanwhile.
    """
    where = private(path.parent, group)
    lock = -1
    try:
        lock = os.open(path.with_suffix(".lock").name, LOCK_FLAGS, 0o600, dir_fd=where)
        _take(lock, path)
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=where)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(path_within(where, path.name))
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path.name, -1, group, dir_fd=where, follow_symlinks=False)
            os.chmod(path.name, 0o660, dir_fd=where)
        listener.listen(BACKLOG)
    except PlanError:
        os.close(lock)
        raise
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        raise PlanError(f"{path}: nobody can listen there: {error.strerror or error}") from error
    finally:
        os.close(where)
    return listener, lock


def _take(lock: int, path: Path) -> None:
    """Takes the lock, waiting for a service that is ending. Raises PlanError if one listens."""

    def there() -> None:
        if path.exists():
            raise PlanError(f"{path}: a service is there: end it by `solar serve --stop`, or give another --socket")

    if not until(polling(lambda: locked(lock)), ENDS_WITHIN, there):
        raise PlanError(f"{path}: a service that neither listens nor ends holds {path.with_suffix('.lock')}")


def locked(file: int) -> bool:
    """Returns whether this process now has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def connect(path: Path, seconds: float, owner: int | None = None) -> socket.socket:
    """Returns a connection to the service there. `owner` is the user who must own it, if the path was given.

    Without `owner` the path was found: folder and socket must be this user's, and closed to all others. Both are
    checked before it connects, and the socket is looked up in the folder that was checked. Raises PlanError if they are
    another user's, or if somebody else could have put a socket there, and ReadError if no service answers.
    """
    user = os.geteuid() if owner is None else owner
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        where = open_folder(path.parent, owner)
        try:
            _check_socket(path, where, owner)
            peer.settimeout(seconds)
            peer.connect(path_within(where, path.name))
        finally:
            os.close(where)
        if peer_of(peer)[1] != user:
            raise PlanError(f"{path}: a process of another user listens there ({_whose(peer_of(peer)[1])})")
    except OSError as error:
        peer.close()
        raise ReadError(f"{path}: no service answers there: {error.strerror or error}") from None
    except BaseException:
        peer.close()
        raise
    return peer


def open_folder(where: Path, owner: int | None) -> int:
    """Returns a descriptor of a folder that is the owner's, or this user's own. Raises OSError if there is none."""
    user = os.geteuid() if owner is None else owner
    try:
        opened = os.open(where, FOLDER_FLAGS | os.O_PATH)  # O_PATH: a group may enter, and perhaps not list it
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise PlanError(f"{where}: a service's folder must be a folder, and no symbolic link to one") from None
        raise
    try:
        facts = os.fstat(opened)
        if facts.st_uid != user:
            raise PlanError(_of_another(where, "folder", facts.st_uid, owner))
        if facts.st_mode & (0o077 if owner is None else 0o022):
            may = "enter" if owner is None else "write to"
            raise PlanError(f"{where}: others may {may} this folder, so nothing in it is trusted: `chmod 700` it")
    except BaseException:
        os.close(opened)
        raise
    return opened


def _check_socket(path: Path, where: int, owner: int | None) -> None:
    """Raises PlanError unless this is a socket of the owner's, or of this user's own; OSError if nothing is there."""
    facts = os.stat(path.name, dir_fd=where, follow_symlinks=False)
    if not stat.S_ISSOCK(facts.st_mode):
        raise PlanError(f"{path}: this is no socket, and a symbolic link to one is not followed")
    if facts.st_uid != (os.geteuid() if owner is None else owner):
        raise PlanError(_of_another(path, "socket", facts.st_uid, owner))
    if owner is None and facts.st_mode & 0o077:
        raise PlanError(f"{path}: others may connect to this socket, so it is not trusted: it must have mode 600")


def _of_another(path: Path, what: str, found: int, owner: int | None) -> str:
    """Returns the error for a folder or socket with another owner, with what to do about it."""
    if owner is None:
        do = "set XDG_RUNTIME_DIR to a folder of your own"
    else:
        do = f"if you trust that user's numbers, give service='user:{_whose(found)}:PATH'"
    wanted = "not to you" if owner in (None, os.geteuid()) else f"not to {_whose(owner or 0)}"
    return f"{path}: this {what} belongs to {_whose(found)}, {wanted}, so nothing in it is trusted: {do}"


def _whose(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


def path_within(folder: int, name: str) -> str:
    """Returns a path of this name in an open folder, whatever has become of the folder's own name."""
    return f"/proc/self/fd/{folder}/{name}"


def may_come(peer: socket.socket, group: int | None) -> bool:
    """Returns whether the process at the other end is of the same user, or of this group."""
    if is_own(peer) or group is None:
        return is_own(peer)
    if peer_of(peer)[2] == group:
        return True
    with suppress(OSError):  # who is in more groups than these bytes tell comes by none of them
        groups = peer.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
        return group in memoryview(groups).cast("I").tolist()
    return False


def greeted(path: Path, seconds: float, name: str, owner: int | None = None) -> tuple[socket.socket, dict[str, Any]]:
    """Returns a connection to the service there after its greeting, and the service's welcome: see `connect`."""
    peer = connect(path, seconds, owner)
    try:
        hello = {"is": "hello", "speaks": list(SPEAKS), "solar": __version__, "pid": os.getpid(), "name": name}
        return peer, ask(peer, path, hello, "welcome")[0]
    except BaseException:
        peer.close()
        raise


def ask(
    peer: socket.socket, path: Path, message: dict[str, Any], wanted: str, descriptors: Sequence[int] = ()
) -> tuple[dict[str, Any], list[int]]:
    """Returns the answer, and its descriptors. Raises Refused, or ReadError if there is none."""
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


def private(where: Path, group: int | None = None) -> int:
    """Makes the folder, which a group may enter, and returns a descriptor of it.

    Raises PlanError if the folder is another user's, if it is a symbolic link, or if it is open to others.
    """
    try:
        made = not where.exists()
        if made:
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(where, FOLDER_FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):  # of a link, a file; of what another closed
            raise PlanError(f"{where}: this folder is not yours: give --socket in one that is") from error
        raise PlanError(f"{where}: there is no folder for a service's socket: {error.strerror}") from error
    try:
        facts = os.fstat(opened)
        if facts.st_uid != os.geteuid():
            raise PlanError(f"{where}: this folder is not yours: give --socket in one that is")
        if made and group is not None:
            os.fchown(opened, -1, group)
            os.fchmod(opened, 0o750)
            facts = os.fstat(opened)
        if group is None and facts.st_mode & 0o077:
            raise PlanError(
                f"{where}: others may enter this folder: `chmod 700` it, or give --socket in one of your own"
            )
        if group is not None and (facts.st_gid != group or facts.st_mode & 0o077 not in (0o010, 0o050)):
            raise PlanError(f"{where}: the group, and nobody else, must be able to enter: `chgrp` it, and `chmod 750`")
    except BaseException as error:
        os.close(opened)
        if isinstance(error, OSError) and not isinstance(error, PlanError):
            raise PlanError(f"{where}: the group cannot be let into this folder: {error.strerror}") from error
        raise
    return opened


# A service that a job begins, for itself and for the others that come: a process of its own, which ends after them.


BEGINS_WITHIN = 30.0  # seconds
LINGERS = 60.0  # seconds that it stays when nobody is there


def begin(path: Path, files: Sequence[str], memory: str) -> None:
    """Starts a service for these files; several jobs start only one. Raises PlanError if it cannot."""
    where = private(path.parent)
    try:
        turn = os.open(path.with_suffix(".begin").name, LOCK_FLAGS, 0o600, dir_fd=where)
    except OSError as error:
        raise PlanError(f"{path}: no service can be started there: {error.strerror}") from error
    finally:
        os.close(where)
    try:
        try:
            whom = f"another job, which starts a service at {path}"
            until_others(polling(lambda: locked(turn)), "this training", lambda: whom, BEGINS_WITHIN)
        except ReadError:
            raise PlanError(f"{path}: another job has tried to start a service for {BEGINS_WITHIN:g} s") from None
        if not _listens(path):
            run_service(path, files, memory)
    finally:
        os.close(turn)


def _listens(path: Path) -> bool:
    try:
        connect(path, BEGINS_WITHIN).close()
    except ReadError:
        return False
    return True


def run_service(path: Path, files: Sequence[str], memory: str) -> None:
    served = [real(one) for one in files]
    terms = ["--memory", memory, "--idle", f"{LINGERS:g}", "--socket", str(path), "--background"]
    command = [sys.executable, "-P", "-m", "solar", "serve", *served, *terms]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BEGINS_WITHIN, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PlanError(f"{path}: no service could be started: {error}") from None
    if ended.returncode:
        raise PlanError(f"{path}: no service could be started: {ended.stderr.strip()[-1000:] or ended.returncode}")
