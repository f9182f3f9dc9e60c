"""The tables of trust in SECURITY.md, tried as another user of the machine: with a group in common, and without."""

from __future__ import annotations

import fcntl
import grp
import json
import logging
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from limits_kit import in_a_fork
from serve_kit import FIELDS, HELLO, SAMPLES, Process, alone, epochs_of, job, memory_of, piece_of, scan, soon

from solar import DataLoader, H5Dataset, PlanSampler
from solar.errors import PlanError, ReadError
from solar.io.channels import frames, service_sockets

_ = scan  # a fixture

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

ME, OTHER, MINE, OTHERS = 65496, 65497, 65498, 65502  # users and their groups: numbers that nobody has
COMMON = next((one for one in grp.getgrall() if one.gr_gid not in (0, MINE, OTHERS)), None)
IN_COMMON = pytest.mark.parametrize("in_common", [False, True], ids=["no group in common", "a group in common"])
PLACES = 200 + 64  # of jobs, and of connections beside them
SLACK_NBYTES = 8 << 20  # that a service's memory may differ by, whoever comes and goes
STACK_NBYTES = 128 << 10  # of a thread, as far as it is used


def number_of_common() -> int:
    if COMMON is None:
        pytest.skip("this machine has no group")
    return COMMON.gr_gid


def as_user(work: Callable[[], Any], user: int, in_common: bool) -> Any:
    """What this gives in a process of this user."""
    group = {ME: MINE, OTHER: OTHERS}[user]
    groups = [number_of_common()] if in_common else []

    def there() -> Any:
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        return work()

    return in_a_fork(there)


@pytest.fixture
def place(scan: Path) -> Iterator[Path]:
    """A file that everybody may read, in a folder that everybody may write to."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        path = Path(shutil.copy(scan, name))
        path.chmod(0o644)
        yield path


def is_auto(folder: Path) -> None:
    """Has "auto" look for services below this folder."""
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.environ["TMPDIR"] = str(folder)


def trained(path: Path, service: str) -> tuple[str, Any, list[str]]:
    """What a job's batches are, what it counts of a service, and what it warns of."""
    words, found = list[str](), dict[int, Any]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("solar").addHandler(handler)
    job(H5Dataset(path, FIELDS), 1, 64, service, found)
    return *found[1], words


def usage(process: int) -> tuple[int, int]:
    """The descriptors of a process, and its resident memory in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return len(list(Path(f"/proc/{process}/fd").iterdir())), int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10  # type: ignore[index]


# --- a job, and who wants to be taken for its service ----


@pytest.mark.parametrize("service", ["auto", pytest.param("auto:4MiB", marks=pytest.mark.slow(every=4))])
@pytest.mark.parametrize(
    ("trap", "words"),
    [
        ("a folder of another", f"belongs to {OTHER}, not to you"),
        ("a folder that a group may write to", "others may enter this folder"),
        ("a link to a folder", "no symbolic link"),
        ("a socket of another", f"belongs to {OTHER}, not to you"),
        ("a socket that is open", "mode 600"),
        ("a link to a socket", "no socket"),
        ("a listener of another", f"a process of another user listens there ({OTHER})"),
    ],
)
@IN_COMMON
def test_a_trap_where_auto_looks_is_told_nothing(
    in_common: bool, trap: str, words: str, service: str, place: Path
) -> None:
    """Set by another user, as far as he can, and by a careless one else. The job reads its batches by itself."""
    where = place.parent / f"solar-{ME}"
    where.mkdir(mode=0o700)
    name = service_sockets.socket_of([str(place)]).name
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(where / name))
        os.chown(where / name, ME, MINE)
        (where / name).chmod(0o600)
        os.chown(where, OTHER if trap == "a folder of another" else ME, number_of_common())
        if trap == "a folder that a group may write to":
            where.chmod(0o770)
        elif trap == "a link to a folder":
            where.rename(place.parent / "behind")
            where.symlink_to(place.parent / "behind")
        elif trap == "a socket of another":
            os.chown(where / name, OTHER, OTHERS)
            (where / name).chmod(0o666)
        elif trap == "a socket that is open":
            (where / name).chmod(0o666)
        elif trap == "a link to a socket":
            (where / name).rename(where / "behind")
            (where / name).symlink_to(where / "behind")
        os.seteuid(OTHER)  # whom the kernel tells of
        try:
            listener.listen(8)
        finally:
            os.seteuid(0)

        def there() -> Any:
            is_auto(place.parent)
            return trained(place, service)

        had, counts, said = as_user(there, ME, in_common)
        listener.settimeout(0)
        with suppress(BlockingIOError):
            peer, _ = listener.accept()
            peer.settimeout(20)
            assert trap == "a listener of another", "nobody else is connected to"
            assert peer.recv(1) == b"", "he is told nothing"
            peer.close()
    assert had == alone(H5Dataset(place, FIELDS), 1, 64)
    assert not counts, "it has read by itself"
    assert len(said) == 1 and words in said[0] and "reads by itself" in said[0]


BEGINS = f"""
import json, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_serve_trust import is_auto, service_sockets, trained
path = Path(sys.argv[1])
is_auto(path.parent)
served = trained(path, "auto:4MiB")[1]["served"]
[where] = service_sockets.found()
peer, _ = service_sockets.greeted(where, 20, "test")
with peer:
    told = service_sockets.ask(peer, where, {{"is": "status"}}, "status")[0]["told"]
facts = dict(line.split(":", 1) for line in Path(f"/proc/{{told['pid']}}/status").read_text().splitlines())
modes = [(one.stat().st_mode & 0o777, one.stat().st_uid) for one in (where.parent, where)]
print(json.dumps([str(where), served, modes, [facts[one].split() for one in ("Uid", "Gid", "Groups")]]))
"""


@pytest.mark.slow(every=2)
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="this machine has no setpriv")
@IN_COMMON
def test_a_service_that_auto_begins_is_its_users_alone(in_common: bool, place: Path) -> None:
    """It runs as that user, and is closed to members of his groups, by the file system and by itself."""
    groups = f"--groups={number_of_common()}" if in_common else "--clear-groups"
    # It may read all files, for the interpreter may lie in a folder that is root's alone.
    rights = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    mine = ["setpriv", f"--reuid={ME}", f"--regid={MINE}", groups, *rights, sys.executable, "-P"]
    environment = {key: value for key, value in os.environ.items() if key != "XDG_RUNTIME_DIR"}
    environment |= {"TMPDIR": str(place.parent), "HOME": str(place.parent), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str) -> str:
        ended = subprocess.run(
            [*mine, *words], env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    where = place.parent / f"solar-{ME}"
    try:
        path, served, modes, ids = json.loads(run("-c", BEGINS, str(place)))
        assert served > 0
        assert modes == [[0o700, ME], [0o600, ME]]
        assert ids == [[str(ME)] * 4, [str(MINE)] * 4, [str(number_of_common())] if in_common else []]
        assert as_user(lambda: said(Path(path)), OTHER, in_common) == "PermissionError"
        where.chmod(0o755)
        Path(path).chmod(0o666)
        assert as_user(lambda: said(Path(path)), OTHER, in_common) == "b''"
    finally:
        where.chmod(0o700)
        for one in where.glob("*.sock"):
            one.chmod(0o600)
        run("-m", "solar", "serve", "--stop")


def said(path: Path) -> str:
    """What comes of connecting: no bytes are a connection that was closed without a word."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        try:
            peer.connect(str(path))
            return repr(peer.recv(100))
        except OSError as error:
            return type(error).__name__


@pytest.mark.parametrize(
    ("folder", "group", "words"),
    [
        ("of another", False, "not yours"),
        ("of another", True, "not yours"),
        ("that a group may write to", False, "others may enter"),
        ("that a group may write to", True, "nobody else"),
        ("a link", False, "not yours"),
    ],
)
@IN_COMMON
def test_a_service_does_not_listen_in_a_folder_that_is_not_its_users(
    in_common: bool, folder: str, group: bool, words: str, place: Path
) -> None:
    where = place.parent / "s"
    where.mkdir()
    os.chown(where, OTHER if folder == "of another" else ME, number_of_common())
    where.chmod(0o777 if folder == "of another" else 0o770 if folder != "a link" else 0o700)
    if folder == "a link":
        where.rename(place.parent / "behind")
        where.symlink_to(place.parent / "behind")

    def tried() -> str:
        try:
            listener, lock = service_sockets.listen(where / "s.sock", number_of_common() if group else None)
        except PlanError as error:
            return str(error)
        listener.close()
        os.close(lock)
        return ""

    assert words in as_user(tried, ME, in_common)
    assert list(where.iterdir()) == []


# --- a service, and whoever comes ----


@pytest.fixture
def service(place: Path) -> Iterator[Process]:
    """One that is root's, for the common group."""
    number = number_of_common()
    where = place.parent / "s"
    where.mkdir()
    os.chown(where, -1, number)
    with Process(place, where, "--group", COMMON.gr_name, mode=0o750) as of:  # type: ignore[union-attr]
        yield of


def opened(service: Process) -> None:
    """Takes away what the file system keeps others out by: the rest is the service's own."""
    service.socket.parent.chmod(0o755)
    service.socket.chmod(0o666)


def status(service: Process) -> dict[str, Any]:
    peer, _ = service_sockets.greeted(service.socket, 20, "test", 0)
    with peer:
        told = service_sockets.ask(peer, service.socket, {"is": "status"}, "status")[0]["told"]
    assert isinstance(told, dict)
    return told


def unharmed(service: Process, before: tuple[int, int], slack: int = SLACK_NBYTES) -> None:
    """Its descriptors are those that it had, and its memory nearly so; nobody is there."""
    assert soon(lambda: usage(service.process.pid)[0] <= before[0])
    assert usage(service.process.pid)[1] <= before[1] + slack
    assert soon(lambda: status(service)["connections"] == 1)
    assert status(service)["jobs"] == []


class Caller:
    """A member of the group who tells a service what he likes."""

    def __init__(self, path: Path) -> None:
        self.peer = service_sockets.connect(path, 20, 0)
        self.tell(HELLO)

    def tell(self, message: dict[str, Any], *made: int) -> dict[str, Any]:
        frames.send(self.peer, message, made)
        came = frames.receive(self.peer, frames.OF_SERVICE)
        frames.close_all([*made, *(came[1] if came else [])])
        return came[0] if came else {"is": "closed", "why": ""}


def sent(path: Path, body: bytes, descriptors: list[int]) -> str:
    """What a service answers to these bytes, until it closes."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect(str(path))
        came = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(peer, [body], descriptors) if descriptors else peer.sendall(body)
            peer.shutdown(socket.SHUT_WR)
            while more := peer.recv(1 << 16):
                came += more
        return repr(came)


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@IN_COMMON
def test_frames_and_descriptors_of_others_take_nothing(in_common: bool, service: Process) -> None:
    """Who is in no named group is closed before a byte is read; who is in it is told what is wrong, or closed."""
    opened(service)
    status(service)
    before = usage(service.process.pid)
    hello = framed(json.dumps(HELLO).encode())
    bodies = [
        b"", b"\x01", struct.pack("<I", 1 << 31), framed(b"{{{{"), framed(b'{"is":' + b"[" * 9000 + b"}"),
        framed(b'{"is": "hello", "is": "hello"}'), framed(b'{"is": "status"}'), hello,
        hello + framed(b'{"is": "leave", "job": 3}'), hello + framed(b'{"is": "join", "data": 7, "batch": 1}'),
    ]  # fmt: skip

    def there() -> list[str]:
        found = [sent(service.socket, body, []) for body in bodies]
        for many in (1, 16, 17, 250):
            files = [os.memfd_create("none") for _ in range(many)]
            found += [sent(service.socket, body, files) for body in (hello, framed(b'{"is": "data"}'))]
            found.append(sent(service.socket, hello + framed(b'{"is": "data"}'), files))
            frames.close_all(files)
        return found

    answers = as_user(there, OTHER, in_common)
    assert len(answers) == len(bodies) + 12
    if in_common:
        assert "welcome" in answers[7] and "status" not in "".join(answers)
    else:
        assert set(answers) == {"b''"}
    unharmed(service, before)


def test_a_member_is_refused_what_is_not_his_to_have(service: Process, place: Path) -> None:
    """Other files, the end of the service, orders that no training has, and texts that are too long."""
    other = place.parent / "other.h5"
    shutil.copy(place, other)
    mine = piece_of(place)
    before = usage(service.process.pid)
    rows = np.tile(np.arange(SAMPLES, dtype=np.int32), 4000)
    text = b"[" + b"0," * (1 << 20) + b"0] " + b" " * 4
    long_text = frames.HANDED_HEAD.pack(len(text), 0) + text
    asks: dict[str, Callable[[Caller], dict[str, Any]]] = {
        "other files": lambda one: one.tell({"is": "data"}, frames.hand([{**mine, "files": [str(other)]}], [])),
        "another digest": lambda one: one.tell({"is": "data"}, frames.hand([{**mine, "digest": "0" * 32}], [])),
        "a file twice": lambda one: one.tell({"is": "data"}, frames.hand([{**mine, "files": mine["files"] * 2}], [])),
        "a long text": lambda one: one.tell({"is": "data"}, memory_of(long_text, len(long_text))),
        "no memory": lambda one: one.tell({"is": "data"}, os.open("/dev/null", os.O_RDONLY)),
        "its end": lambda one: one.tell({"is": "stop"}),
        "a long order": lambda one: (
            one.tell({"is": "data"}, frames.hand([mine], [])),
            one.tell(
                {"is": "join", "data": 0, "batch": 8},
                frames.hand(None, [rows, np.arange(0, len(rows) + 1, 8)]),
            ),
        )[1],
    }

    def there() -> dict[str, str]:
        found = {}
        for name, ask in asks.items():
            try:
                one = Caller(service.socket)
                answer = ask(one)
                one.peer.close()
                found[name] = f"{answer['is']}: {answer.get('why')}"
            except (OSError, ReadError) as error:
                found[name] = f"error: {error}"
        return found

    answers = as_user(there, OTHER, True)
    for name, words in {
        "other files": "does not serve that file",
        "another digest": "the job inspected another file",
        "a file twice": "told twice",
        "a long text": "at most 1,048,576",
        "no memory": "what was handed over is no memory",
        "its end": "ended by the user who began it",
        "a long order": "64 times",
    }.items():
        assert answers[name].startswith(("refused: ", "fault: ")) and words in answers[name], (name, answers[name])
    unharmed(service, before)


def look(process: int, found: list[tuple[int, int]], ended: threading.Event) -> None:
    while not ended.wait(0.01):
        found.append(usage(process))


@IN_COMMON
def test_a_flood_of_connections_leaves_the_service_as_it_was(in_common: bool, service: Process) -> None:
    """A member's have 64 places beside those of 200 jobs; the others are closed. Another user has none."""
    opened(service)
    status(service)
    before = usage(service.process.pid)

    def flooded() -> int:
        peers = []
        for _ in range(400):
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(str(service.socket))
            peer.settimeout(60)
            peers.append(peer)
        hello = framed(json.dumps(HELLO).encode())
        welcome = 0
        for peer in peers:
            with suppress(OSError):
                peer.sendall(hello)
                welcome += b"welcome" in peer.recv(1000)
        for peer in peers:
            peer.close()
        return welcome

    more = PLACES * STACK_NBYTES + SLACK_NBYTES
    settled = before
    for flood in range(2):
        peaks, ended = [before], threading.Event()
        looking = threading.Thread(target=look, args=(service.process.pid, peaks, ended))
        looking.start()
        try:
            welcome = as_user(flooded, OTHER, in_common)
        finally:
            ended.set()
            looking.join()
        assert welcome == (PLACES if in_common else 0)
        files, nbytes = (max(each) for each in zip(*peaks, strict=True))
        assert files <= before[0] + PLACES + 16, "those that are accepted, and closed at once"
        assert nbytes <= before[1] + more
        unharmed(service, before, more)  # what its threads have taken stays for the next ones
        if flood:
            unharmed(service, settled)
        settled = usage(service.process.pid)


@IN_COMMON
def test_the_page_tells_other_users_numbers_and_nothing_else(in_common: bool, place: Path, tmp_path: Path) -> None:
    where = place.parent / "s"
    where.mkdir(mode=0o700)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Process(place, where, "--page", str(port)):

        def asked(line: str, host: str) -> tuple[int, str]:
            with socket.socket() as peer:
                peer.settimeout(60)
                peer.connect(("127.0.0.1", port))
                peer.sendall(f"{line} / HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                text = ""
                while more := peer.recv(1 << 16):
                    text += more.decode()
            return int(text.split()[1]), text

        def there() -> list[tuple[int, str]]:
            here = [asked(line, "localhost") for line in ("GET", "POST", "DELETE")]
            return [*here, asked("GET", "evil.example")]

        (shown, text), *refused = as_user(there, OTHER, in_common)
    assert shown == 200 and place.name not in text and str(where) not in text
    assert all(code >= 400 for code, _ in refused)


# --- a job, and a service of a user whom it has named, who lies ----


class Real(NamedTuple):
    """What a service answers to `y` of the file and to an order; and the memory that it hands over."""

    opened: dict[str, Any]
    joined: dict[str, Any]
    memory: list[bytes | str]


def body_of(descriptor: int) -> bytes | str:
    """The bytes of memory, of which the ring's are nobody's yet; or the word for what wakes whoever waits."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(size, 1 << 20), 0).ljust(size, b"\0") if size else "wakes"


def of_memory(real: Real, change: Callable[[bytes], bytes]) -> list[Any]:
    return joined(real, [change(one) if isinstance(one, bytes) else one for one in real.memory])


def real_answers(service: Process, path: Path) -> Real:
    rows = np.arange(SAMPLES, dtype=np.int32)
    one = Caller(service.socket)
    opened = one.tell({"is": "data"}, frames.hand([piece_of(path)], []))
    made = frames.hand(None, [rows, np.r_[0:SAMPLES:64, SAMPLES]])
    frames.send(one.peer, {"is": "join", "data": 0, "batch": 64}, [made])
    os.close(made)
    came = frames.receive(one.peer, frames.OF_SERVICE)
    assert came is not None and came[0]["is"] == "joined"
    memory = [body_of(each) for each in came[1]]
    frames.close_all(came[1])
    one.peer.close()
    return Real(opened, came[0], memory)


def sealed(body: bytes, seals: int = frames.SEALS) -> int:
    made = os.memfd_create("handed", os.MFD_ALLOW_SEALING)
    os.truncate(made, len(body))
    os.pwrite(made, body, 0)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


def noise(length: int) -> bytes:
    return np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()


WELCOME = {"is": "welcome", "speaks": list(frames.SPEAKS), "solar": "0", "memory": 1 << 21}
# What is sent in turn: frames with the memory that comes with them, or bytes.
LIES: dict[str, Callable[[Real], list[Any]]] = {
    "closes at once": lambda _: [],
    "noise": lambda _: [noise(300)],
    "a long frame": lambda _: [struct.pack("<I", 1 << 31)],
    "other types": lambda _: [(WELCOME | {"memory": "much"}, [])],
    "deep": lambda _: [framed(b'{"is":' + b"[" * 9000 + b"]" * 9000 + b"}")],
    "too much memory": lambda real: [(WELCOME | {"memory": 1 << 62}, []), (real.opened | {"fields": [[1 << 60]]}, [])],
    "noise later": lambda _: [(WELCOME, []), noise(300)],
    "no memory": lambda real: joined(real, []),
    "other files": lambda real: joined(real, ["/dev/zero"] * len(real.memory)),
    "many descriptors": lambda real: joined(real, [bytes(4096)] * 16),
    "memory that is not sealed": lambda real: joined(real, [None, *real.memory[1:]]),
    "short memory": lambda real: of_memory(real, lambda one: one[:4096]),
    "zeros": lambda real: of_memory(real, lambda one: bytes(len(one))),
    "noise as memory": lambda real: of_memory(real, lambda one: noise(len(one))),
    "its own memory, and no word more": lambda real: joined(real, real.memory),
}


TEN_SECONDS = ("no memory", "many descriptors")  # for the answer to a last message, of each pass


def joined(real: Real, memory: Sequence[bytes | str | None]) -> list[Any]:
    """All answers, with this memory: bytes, a file's name, or None for some that is not sealed."""
    return [(WELCOME, []), (real.opened, []), (real.joined, memory)]


def handed(one: bytes | str | None) -> int:
    if isinstance(one, str):
        return os.eventfd(0) if one == "wakes" else os.open(one, os.O_RDWR)
    return sealed(bytes(4096), 0) if one is None else sealed(one)


def lie(peer: socket.socket, answers: list[Any], given: list[Any]) -> None:
    """Answers what comes in turn, and then nothing more. What was answered is added to `given`."""
    peer.settimeout(60)
    with suppress(OSError):
        for answer in answers:
            if not peer.recv(1 << 16):
                break
            given.append(answer)
            if isinstance(answer, bytes):
                peer.sendall(answer)
                continue
            message, memory = answer
            made = [handed(one) for one in memory]
            frames.send(peer, message, made)
            frames.close_all(made)
        if len(answers) > 2:
            while peer.recv(1 << 16):
                pass
    peer.close()


@pytest.fixture(scope="module")
def real(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Real:
    where = tmp_path_factory.mktemp("s")
    with Process(scan, where) as service:
        return real_answers(service, scan)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] if one in TEN_SECONDS else []) for one in LIES]
)
@IN_COMMON
def test_a_named_service_of_another_user_that_lies_costs_a_job_nothing(
    in_common: bool, name: str, real: Real, place: Path
) -> None:
    """Its batches are the file's, and its descriptors and memory those of a job that reads by itself."""
    where = place.parent / "s"
    where.mkdir()
    os.chown(where, OTHER, OTHERS)
    where.chmod(0o755)
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(where / "s.sock"))
        os.chown(where / "s.sock", OTHER, OTHERS)
        (where / "s.sock").chmod(0o666)
        os.seteuid(OTHER)
        try:
            listener.listen(8)
        finally:
            os.seteuid(0)
        listener.settimeout(0.1)
        callers, given, lies = list[threading.Thread](), list[Any](), LIES[name](real)

        def serve() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    peer, _ = listener.accept()
                    callers.append(threading.Thread(target=lie, args=(peer, lies, given)))
                    callers[-1].start()

        def there() -> Any:
            with DataLoader(data, 64, sampler=PlanSampler(data, seed=1), buffer=0) as loader:
                first, before = epochs_of(loader), usage(os.getpid())
            found: dict[int, Any] = {}
            job(data, 1, 64, f"user:{OTHER}:{where / 's.sock'}", found)
            return [first, *found[1], before, usage(os.getpid())]

        data = H5Dataset(place, "y")
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            first, had, counts, before, after = as_user(there, ME, in_common)
        finally:
            ended.set()
            serving.join()
        for one in callers:
            one.join()
    assert callers and all(one in given for one in lies), "it was asked, and told all of it"
    assert had == first and (counts is None or counts["served"] == 0)
    assert after[0] <= before[0] + 4
    assert after[1] <= before[1] + SLACK_NBYTES
