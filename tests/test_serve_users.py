"""Who may come to a service: its user, and a group that he names. Tried as root, who can be anybody."""

from __future__ import annotations

import grp
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

from solar import H5Dataset
from solar.errors import PlanError, ReadError
from solar.io.serve import doors
from solar.io.serve.frames import Refused

_ = scan  # a fixture

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
        Path(name).chmod(0o755)
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


def asked(path: Path, what: str) -> str:
    try:
        peer, _ = doors.greeted(path, 20, "test")
        with peer:
            return str(doors.ask(peer, path, {"is": what}, {"status": "status", "stop": "stopping"}[what])[0]["is"])
    except (Refused, ReadError) as error:
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
        assert "a process of another user listens there" in as_user(lambda: asked(service.socket, "status"))


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
            job(H5Dataset(path, FIELDS), 1, 8, str(service.socket), found)
            return found[1]

        had, counts = as_user(trained, [OTHER, number])
        assert had == digest and counts["alone"] == 1 and counts["served"] >= 299  # its first, while others may come
        assert as_user(lambda: asked(service.socket, "status"), [number]) == "status"
        assert "ended by the user who began it" in as_user(lambda: asked(service.socket, "stop"), [number])
        # Who is in another group is kept out by the file system, and where that is open by the service and the job.
        assert as_user(lambda: said(service.socket), [OTHER]) == "PermissionError"
        opened(service)
        assert as_user(lambda: said(service.socket), [OTHER]) == "b''"
        assert "for none of your groups" in as_user(lambda: asked(service.socket, "status"), [number])
        assert asked(service.socket, "stop") == "stopping"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o700])
def test_a_folder_that_is_not_for_that_group_is_refused(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PlanError, match="the group, and nobody else, must be able to enter"):
        doors.listen(tmp_path / "s.sock", tmp_path.stat().st_gid)


def test_a_group_needs_a_name_and_a_place(scan: Path, tmp_path: Path) -> None:
    solar = [sys.executable, "-m", "solar", "serve", str(scan), "--memory", "1MiB", "--group"]
    for more, words in (
        (["root"], "only you may enter your runtime folder"),
        (["no such", "--socket", str(tmp_path / "s.sock")], "there is no such group"),
    ):
        ended = subprocess.run([*solar, *more], capture_output=True, text=True, check=False)
        assert ended.returncode == 1 and words in ended.stderr
