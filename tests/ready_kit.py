"""A Python that has imported torch already: `python()` stands for sys.executable where a test begins a program.

Importing torch, h5py and solar takes a processor two seconds, and the tests begin hundreds of programs. Here one
process imports them, and each program is a fork of it: with its own words, environment, folder and descriptors, in a
session of its own, and it ends as any Python does. In the program's place waits a process that takes next to nothing:
it hands signals on, ends as the program does, and when it is killed, so is the program. SOLAR_TESTS_FRESH=1 does
without.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from typing import Any, Never

PLUGINS = "HDF5_PLUGIN_PATH"
HELD = (  # torch._dynamo: whoever makes an optimizer imports it, and 800 modules with it
    "h5py", "torch", "torch._dynamo", "torch.distributed", "torch.utils.data", "mpi4py", "solar.loader.loader",
    "solar.cli",
)  # fmt: skip
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
# Read when a process begins or a library is loaded: a program for which one of these is another is begun anew.
EARLY = ("LD_", "PYTHON", "OMP_", "OMPI_", "PMIX_", "MKL_", "OPENBLAS_", "MALLOC_", "HDF5_", "MPI4PY_", "COVERAGE_")
NOT_EARLY = ("PYTHONPATH", "OMP_NUM_THREADS", "OMPI_ALLOW", "OMPI_MCA_rmaps_base_oversubscribe", PLUGINS)
SHARED = "SOLAR_TESTS_SERVER"  # its variable
HIGH = 512  # descriptors from here on are out of the way of those that a program is given
Asked = tuple[list[str], dict[str, str], str, list[int]]  # words, environment, folder, descriptors


def python(*, fresh: bool = False) -> list[str]:
    """The words that begin a Python program, before `-c code`, `-m module` or a file.

    `fresh` for those that look at their memory, that stop, or that are given limits before they begin.
    """
    counted = "COVERAGE_PROCESS_START" in os.environ
    if fresh or counted or "SOLAR_TESTS_FRESH" in os.environ or not sys.platform.startswith("linux"):
        return [sys.executable]
    return [sys.executable, "-I", "-S", __file__, _server(os.getpid())]


def torchrun(processes: int) -> list[str]:
    """The words before those that begin a program, by which torchrun begins it so many times, on free ports."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--no-python", f"--nproc-per-node={processes}"]
    return [*python(), *launcher]


@cache
def _server(pid: int) -> str:
    """The name of the socket at which this process's programs begin: of its own, or one for all processes of a run."""
    return os.environ.get(SHARED) or begin()


def begin() -> str:
    """Begins such a process, which ends with this one, and gives the name of its socket."""
    pid = os.getpid()
    name = f"solar-tests-{pid}-{os.urandom(8).hex()}"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    begun = subprocess.Popen(
        [sys.executable, __file__, "serve", name], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert begun.stdin is not None and begun.stdout is not None
    atexit.register(_end, pid, begun)
    said = begun.stdout.readline()
    assert said == b"ready\n", f"the process that has torch for others did not begin: it ended with {begun.wait()}"
    return name


def _end(pid: int, begun: subprocess.Popen[bytes]) -> None:
    if os.getpid() == pid:  # not in a process forked from this one
        with begun:
            pass  # it ends with its standard input


# --- the process in the program's place ----


def _stand_in(name: str, words: list[str]) -> Never:
    """Has the program run by the server, and ends as it did."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # for when the program is there
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("\0" + name)
        descriptors = [int(one.name) for one in os.scandir("/proc/self/fd") if int(one.name) != server.fileno()]
        descriptors = [one for one in descriptors if _is_open(one)]
        asked: Asked = (words, dict(os.environ), os.getcwd(), descriptors)  # noqa: PTH109
        text = json.dumps(asked).encode()
        socket.send_fds(server, [len(text).to_bytes(8, "little")], descriptors)
        server.sendall(text)
        pid = _number(server)
        if pid:
            for one in HANDED_ON:
                signal.signal(one, lambda number, _: _hand_on(pid, number))
            for one in descriptors[3:]:
                os.close(one)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _end_with(_number(server))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.execv(sys.executable, [sys.executable, *words])


def _is_open(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return fcntl.fcntl(descriptor, fcntl.F_GETFD) >= 0
    return False  # it was the listing's own


def _hand_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_with(status: int) -> Never:
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _number(connection: socket.socket) -> int:
    return int.from_bytes(_all(connection, 8), "little", signed=True)


def _all(connection: socket.socket, nbytes: int) -> bytes:
    got = b""
    while len(got) < nbytes:
        more = connection.recv(nbytes - len(got))
        if not more:
            raise ConnectionError("the other side is gone")
        got += more
    return got


# --- the process that has imported all ----


class _Server:
    """Forks a process for each program, and tells who stands in for it how it ended."""

    def __init__(self, name: str) -> None:
        import selectors  # a stand-in, which is to begin at once, needs none

        self._own = dict(os.environ)
        self._running: dict[int, socket.socket] = {}  # processes, and who stands in for them
        self._events = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind("\0" + name)
        self._door.listen(64)
        self._read = selectors.EVENT_READ
        self._events.register(self._door, self._read, self._begin)
        self._events.register(0, self._read)

    def serve(self) -> Asked | None:
        """In a process forked for a program: what was asked for. In this one: None, when the tests are over."""
        while True:
            for key, _ in self._events.select():
                if key.data is None:  # the end of the standard input
                    for pid in self._running:
                        _kill(pid)
                    return None
                if (asked := key.data()) is not None:
                    return asked

    def _begin(self) -> Asked | None:
        connection, descriptors = self._door.accept()[0], []
        try:
            length, descriptors, *_ = socket.recv_fds(connection, 8, 250)
            asked = json.loads(_all(connection, int.from_bytes(length, "little")))
            if not _is_possible(self._own, asked[1]):
                connection.sendall(bytes(8))  # no process
            elif pid := os.fork():
                self._watch(pid, connection)
            else:
                connection.detach()
                self._leave()
                _become(asked, descriptors)
                return asked
        except ConnectionError:  # who asked was killed
            connection.close()
        for one in descriptors:
            os.close(one)
        return None

    def _leave(self) -> None:
        """Lets go of all sockets, lest their numbers be closed with them: these are the program's from now on."""
        self._events.close()
        for one in (self._door, *self._running.values()):
            one.detach()

    def _watch(self, pid: int, connection: socket.socket) -> None:
        ended = os.pidfd_open(pid)
        self._running[pid] = connection

        def reap() -> None:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            del self._running[pid]
            self._events.unregister(ended)
            os.close(ended)
            if connection in self._events.get_map():
                self._events.unregister(connection)
            with contextlib.suppress(ConnectionError):
                connection.sendall(status.to_bytes(8, "little", signed=True))
            connection.close()

        def end() -> None:  # who stood in for it is gone
            if pid in self._running:
                self._events.unregister(connection)
                _kill(pid)

        self._events.register(ended, self._read, reap)
        self._events.register(connection, self._read, end)
        with contextlib.suppress(ConnectionError):
            connection.sendall(pid.to_bytes(8, "little", signed=True))


def _is_possible(own: dict[str, str], asked: dict[str, str]) -> bool:
    """Whether what is read early is as this process has read it."""
    early = {name for name in own.keys() | asked.keys() if name.startswith(EARLY) and not name.startswith(NOT_EARLY)}
    return all(own.get(name) == asked.get(name) for name in early)


def _kill(pid: int) -> None:
    """Ends the program and what it has begun; a moment after its beginning it may not lead a session yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _become(asked: Asked, got: list[int]) -> None:
    """Makes this process the one that was asked for."""
    _, environment, folder, descriptors = asked
    os.setsid()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, HIGH) for one in got]
    os.closerange(0, HIGH)
    for one, number in zip(high, descriptors, strict=True):
        os.dup2(one, number)
    os.closerange(HIGH, max(high, default=HIGH) + 1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    h5pl = sys.modules["h5py"].h5pl  # libhdf5 has read its variable already
    while h5pl.size():
        h5pl.remove(0)
    for one in os.environ.get(PLUGINS, "/usr/local/hdf5/lib/plugin").split(os.pathsep):
        h5pl.append(one.encode())


def _run(words: list[str], path: list[str]) -> None:
    """Runs a program as `python *words` would."""
    import runpy  # as above
    import types
    from pathlib import Path

    what, *more = words
    first = {"-c": "", "-m": str(Path.cwd())}.get(what, str(Path(what).absolute().parent))
    said = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, said), *path]
    sys.argv = [what, *more[1:]] if what in ("-c", "-m") else words
    if what == "-m":
        runpy.run_module(more[0], run_name="__main__", alter_sys=True)
        return
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    if what == "-c":
        code = compile(more[0], "<string>", "exec")
    else:
        main.__file__ = what
        code = compile(Path(what).read_bytes(), what, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _main() -> None:
    import gc
    import importlib

    path = sys.path[1:]
    for name in HELD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert sys.modules["solar"].DataLoader, "what is imported when it is asked for"
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for who began this
    server = _Server(sys.argv[2])
    os.write(1, b"ready\n")
    asked = server.serve()
    if asked is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _run(asked[0], path)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _main()
    else:
        _stand_in(sys.argv[1], sys.argv[2:])
