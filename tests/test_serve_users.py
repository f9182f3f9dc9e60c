"""Who may come to a service: its user, and a group that he names. Tried as root, who can be anybody."""

from __future__ import annotations

import grp
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from limits_kit import in_a_fork
from serve_kit import FIELDS, Process, alone, job, scan

from solar import DataLoader, H5Dataset
from solar.cli import main
from solar.cli import serve as _serve_command  # imported here: a process of another user may not read its modules
from solar.errors import PlanError, ReadError
from solar.io.channels import service_sockets
from solar.io.channels.frames import Refused

_ = scan, _serve_command  # a fixture

USER, MAIN, OTHER = 65499, 65500, 65501  # numbers that nobody has
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


def as_user(work: Callable[[], Any], groups: list[int] | None = None) -> Any:
    """What this gives in a process of another user, of these groups beside his own."""

    def there() -> Any:
        os.setgroups(groups or [])
        os.setresgid(MAIN, MAIN, MAIN)
        os.setresuid(USER, USER, USER)
        return work()

    return in_a_fork(there)


@pytest.fixture
def place(scan: Path) -> Iterator[tuple[Path, Path]]:
    """A file that everybody may read, and a folder beside it: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        path = Path(shutil.copy(scan, name))
        path.chmod(0o644)
        (Path(name) / "s").mkdir(mode=0o700)
        yield path, Path(name) / "s"


def opened(service: Process) -> None:
    """Takes away what the file system keeps others out by: the rest is the service's own."""
    service.socket.parent.chmod(0o755)
    service.socket.chmod(0o666)


def said(path: Path) -> str:
    """What comes of connecting, whoever listens there: no bytes are a door that was closed without a word."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        try:
            peer.connect(str(path))
            return repr(peer.recv(100))
        except OSError as error:
            return type(error).__name__


def asked(path: Path, what: str, owner: int | None = 0) -> str:
    try:
        peer, _ = service_sockets.greeted(path, 20, "test", owner)
        with peer:
            return str(
                service_sockets.ask(peer, path, {"is": what}, {"status": "status", "stop": "stopping"}[what])[0]["is"]
            )
    except (Refused, ReadError, PlanError) as error:
        return str(error)


@needs_root
def test_another_user_is_kept_out_twice(place: tuple[Path, Path]) -> None:
    with Process(*place) as service:
        assert as_user(lambda: said(service.socket)) == "PermissionError"
        opened(service)
        assert as_user(lambda: said(service.socket)) == "b''"
        assert asked(service.socket, "status") == "status"


@needs_root
def test_a_job_speaks_to_no_other_users_service(place: tuple[Path, Path]) -> None:
    """Whoever put it there: somebody who wants to be asked what a job reads, and to give it wrong numbers."""
    with Process(*place) as service:
        opened(service)
        for owner in (None, USER):  # as found, and as named without a user
            assert "belongs to root" in as_user(lambda owner=owner: asked(service.socket, "status", owner))


@needs_root
def test_members_of_a_group_that_is_named_have_their_batches(place: tuple[Path, Path]) -> None:
    path, where = place
    named, _, number, _ = next(one for one in grp.getgrall() if one.gr_gid not in (0, MAIN, OTHER))
    os.chown(where, -1, number)
    data = H5Dataset(path, FIELDS)
    digest = alone(data, 1, 8)
    found: dict[int, Any] = {}
    with Process(path, where, "--group", named, mode=0o750) as service:
        facts = service.socket.stat()
        assert (facts.st_mode & 0o777, facts.st_gid) == (0o660, number)

        def trained() -> Any:
            job(H5Dataset(path, FIELDS), 1, 8, f"user:root:{service.socket}", found)
            return found[1]

        had, counts = as_user(trained, [OTHER, number])
        assert had == digest and counts["alone"] == 1 and counts["served"] >= 299  # its first, while others may come
        assert as_user(lambda: asked(service.socket, "status"), [number]) == "status"
        assert "ended by the user who began it" in as_user(lambda: asked(service.socket, "stop"), [number])
        # Who is in another group is kept out by the file system, and where that is open by the service and the job.
        assert as_user(lambda: said(service.socket), [OTHER]) == "PermissionError"
        opened(service)
        assert as_user(lambda: said(service.socket), [OTHER]) == "b''"
        assert asked(service.socket, "stop") == "stopping"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o700])
def test_a_folder_that_is_not_for_that_group_is_refused(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PlanError, match="the group, and nobody else, must be able to enter"):
        service_sockets.listen(tmp_path / "s.sock", tmp_path.stat().st_gid)


def test_a_group_needs_a_name_and_a_place(scan: Path, tmp_path: Path) -> None:
    solar = [sys.executable, "-m", "solar", "serve", str(scan), "--memory", "1MiB", "--group"]
    for more, words in (
        (["root"], "only you may enter your runtime folder"),
        (["no such", "--socket", str(tmp_path / "s.sock")], "there is no such group"),
    ):
        ended = subprocess.run([*solar, *more], capture_output=True, text=True, check=False)
        assert ended.returncode == 1 and words in ended.stderr


# --- a service that somebody else has put where this user's would be ----


def in_temporary_folder(folder: Path) -> None:
    """Has services be found in a folder for temporary files that everybody may write to."""
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.environ["TMPDIR"] = str(folder)


@pytest.mark.slow(every=3)
@needs_root
@pytest.mark.parametrize("service", ["auto", "auto:4MiB", None])
def test_a_service_that_another_user_has_put_there_is_not_asked(
    service: str | None, place: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one for a group that the job's user is in: the first has numbers of its own, nobody knows which."""
    path, _ = place
    named, _, number, _ = next(one for one in grp.getgrall() if one.gr_gid not in (0, MAIN, OTHER))
    where = path.parent / f"solar-{USER}"
    where.mkdir()
    os.chown(where, -1, number)
    digest = alone(H5Dataset(path, FIELDS), 1, 8)
    trap = where / service_sockets.socket_of([str(path)]).name

    def trained() -> Any:
        in_temporary_folder(path.parent)
        monkeypatch.setenv("SOLAR_SERVICE", "auto")
        words, found = list[str](), dict[int, Any]()
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("solar").addHandler(handler)
        job(H5Dataset(path, FIELDS), 1, 8, service, found)
        return found[1], words

    with Process(path, where, "--group", named, "--socket", str(trap), mode=0o750):
        (had, counts), words = as_user(trained, [number])
    assert had == digest and not counts, "it has read by itself"
    [said] = words
    assert "belongs to root, not to you" in said and "XDG_RUNTIME_DIR" in said and "reads by itself" in said


@pytest.fixture
def mine() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("listener", ["a socket", "a link to a socket", "a file", "an open socket"])
@pytest.mark.parametrize("folder", ["own", "of another", "open", "a link"])
def test_nothing_is_connected_before_folder_and_socket_have_been_looked_at(
    folder: str, listener: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = mine / "real"
    where.mkdir(mode=0o700)
    path = where / "serve-0.sock"
    with socket.socket(socket.AF_UNIX) as trap:
        trap.bind(str(path))
        trap.listen(1)
        trap.settimeout(0)
        path.chmod(0o666 if listener == "an open socket" else 0o600)
        if listener in ("a link to a socket", "a file"):
            path.rename(where / "other")
            (path.symlink_to(where / "other") if listener == "a link to a socket" else path.write_text(""))
        words = {"a socket": None, "a link to a socket": "no socket", "a file": "no socket"}.get(listener, "mode 600")
        if folder == "a link":
            (mine / "link").symlink_to(where)
            path, words = mine / "link" / path.name, "no symbolic link"
        elif folder == "open":
            where.chmod(0o750)
            words = "others may enter this folder"
        elif folder == "of another":
            user = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: user)
            words = "not to you"
        if words is None:
            service_sockets.connect(path, 5).close()
            trap.accept()[0].close()
            return
        with pytest.raises(PlanError, match=words):
            service_sockets.connect(path, 5)
        with pytest.raises(BlockingIOError):
            trap.accept()


@needs_root
def test_who_listens_must_be_whose_socket_it_is(mine: Path) -> None:
    """A socket may be given away, and whoever has bound it goes on listening."""
    path = mine / "serve-0.sock"
    with socket.socket(socket.AF_UNIX) as trap:
        trap.bind(str(path))
        trap.listen(1)
        for one in (mine, path):
            os.chown(one, USER, MAIN)
        mine.chmod(0o700)
        path.chmod(0o600)

        def tried() -> str:
            try:
                service_sockets.connect(path, 5).close()
            except PlanError as error:
                return str(error)
            return ""

        assert "a process of another user listens there (root)" in as_user(tried)
        os.chown(mine, 0, 0)


@pytest.mark.parametrize(
    ("service", "words"),
    [("user:", "user:NAME:PATH"), ("user:root:", "user:NAME:PATH"), ("user:no such:/s.sock", "no user 'no such'")],
)
def test_a_user_who_is_none_is_said_when_the_loader_is_made(service: str, words: str, scan: Path) -> None:
    with pytest.raises(PlanError, match=words):
        DataLoader(H5Dataset(scan, FIELDS), 8, service=service)


@needs_root
def test_a_named_service_of_another_user_is_refused_with_words_that_say_how_to_ask_for_it(
    place: tuple[Path, Path],
) -> None:
    path, where = place
    named, _, number, _ = next(one for one in grp.getgrall() if one.gr_gid not in (0, MAIN, OTHER))
    os.chown(where, -1, number)
    with Process(path, where, "--group", named, mode=0o750) as service:

        def tried() -> str:
            try:
                job(H5Dataset(path, FIELDS), 1, 8, str(service.socket), {})
            except PlanError as error:
                return str(error)
            return ""

        assert "belongs to root" in (said := as_user(tried, [number])) and "service='user:root:PATH'" in said
        where.chmod(0o770)  # members could put a socket of their own there
        assert "others may write to this folder" in as_user(lambda: asked(service.socket, "status"), [number])
        where.chmod(0o750)
        told = as_user(lambda: main(["serve", "--status", "--socket", f"user:root:{service.socket}"]), [number])
        assert told == 0


def test_a_service_listens_in_the_folder_that_was_looked_at(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to the folder above can exchange it meanwhile: nothing is made in what comes then."""
    where = mine / "s"
    where.mkdir(mode=0o700)
    take = service_sockets._take

    def exchanged(lock: int, path: Path) -> None:
        where.rename(mine / "looked at")
        where.mkdir()
        take(lock, path)

    monkeypatch.setattr(service_sockets, "_take", exchanged)
    listener, lock = service_sockets.listen(where / "s.sock")
    listener.close()
    os.close(lock)
    assert list(where.iterdir()) == [] and (mine / "looked at" / "s.sock").is_socket()
