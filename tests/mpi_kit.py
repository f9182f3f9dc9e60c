"""What starts a program on several ranks: under a real mpiexec, or as processes that talk by gloo.

A program is Python text (or a file). It may import what lies in this folder, and prints JSON, one value in a line.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

from ready_kit import python

TORN = "terminate called without an active exception\n"
SECONDS = 240.0  # after which all is killed, and the test has failed
_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK")  # who started it knows
_LAUNCHERS = ("PMI_", "PMIX_", "MPI_", "MPIR_", "OMPI_", "HYDRA_", "SLURM_", "LOCAL_", "GROUP_", "TORCHELASTIC_")
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ROLE_RANK", "ROLE_WORLD_SIZE")


def mpiexec() -> str:
    """The mpiexec beside this Python or on the path. Where there is none, or no mpi4py, the test is skipped."""
    if importlib.util.find_spec("mpi4py") is None:
        _skip("mpi4py is not installed: pip install solar[mpi]")
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        _skip("there is no mpiexec beside this Python or on the path: pip install solar[mpi]")
    return found


def _skip(why: str) -> Never:
    import pytest  # ranks, which begin with this file too, need none

    pytest.skip(why)


def _skip_without_hosts(launcher: str) -> None:
    """Only Hydra, MPICH's launcher, makes several hosts of one: Open MPI's asks each by ssh."""
    if b"HYDRA" not in subprocess.run([launcher, "--version"], capture_output=True, check=True).stdout:
        _skip("several hosts on one machine need MPICH's mpiexec: pip install solar[mpi]")


def under_mpi(
    ranks: int,
    program: str | Path,
    *args: object,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    dying: Collection[int] = (),
    seconds: float = SECONDS,
    fresh: bool = False,
) -> list[Any]:
    """What the ranks printed, those of rank 0 first. The ranks in `dying` may end with any status.

    Under MPI the launcher may kill all when one dies: then all are in `dying`.
    """
    command = [mpiexec(), *options, "-n", str(ranks)]
    if "-hosts" in options:
        _skip_without_hosts(command[0])
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    root |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    with tempfile.TemporaryDirectory() as folder:
        started = [_started([*command, *_words(program, args, folder, fresh)], _environment(root, env))]
        return _printed(started, ranks, Path(folder), dying, seconds)


def under_gloo(
    ranks: int,
    program: str | Path,
    *args: object,
    env: Mapping[str, str] | None = None,
    dying: Collection[int] = (),
    seconds: float = SECONDS,
    fresh: bool = False,
) -> list[Any]:
    """What the ranks printed, those of rank 0 first. The program calls torch.distributed.init_process_group itself.

    The ranks in `dying` may end with any status.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command = _words(program, args, folder, fresh)
        each = [_environment(shared | {"RANK": str(rank)}, env) for rank in range(ranks)]
        return _printed([_started(command, one) for one in each], ranks, Path(folder), dying, seconds)


def _words(program: str | Path, args: Sequence[object], folder: str, fresh: bool) -> list[str]:
    if isinstance(program, str):
        text, program = program, Path(folder, "program.py")
        program.write_text(text)
    return [*python(fresh=fresh), __file__, folder, str(program), *map(str, args)]


def _environment(more: Mapping[str, str], given: Mapping[str, str] | None) -> dict[str, str]:
    """This process's, without what a launcher of its own has said, and with one thread for each rank's arithmetic."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(_LAUNCHERS) and n not in _NAMES}
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more, **(given or {})}


def _started(command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def _printed(
    started: list[subprocess.Popen[bytes]], ranks: int, folder: Path, dying: Collection[int], seconds: float
) -> list[Any]:
    end, late, said = time.monotonic() + seconds, False, []
    try:
        for one in started:
            try:
                said.append(one.communicate(timeout=max(0.1, end - time.monotonic()))[0])
            except subprocess.TimeoutExpired:
                late = True
    finally:
        _kill(started, folder)
    texts = {kind: [_text(folder / f"{rank}.{kind}") for rank in range(ranks)] for kind in ("out", "err")}
    lived = [rank for rank in range(ranks) if rank not in dying]
    wrong = [
        rank for rank in lived if not _went_well(started[rank % len(started)], folder / f"{rank}.ended", texts, rank)
    ]
    if late or wrong:
        errors = "".join(f"\n--- rank {rank}:\n{text}" for rank, text in enumerate(texts["err"]) if text)
        what = f"not over after {seconds:g} s" if late else f"ranks {wrong} failed"
        raise AssertionError(f"{what}{errors}\n--- launcher:\n{b''.join(said).decode(errors='replace')}")
    return [json.loads(line) for text in texts["out"] for line in text.splitlines()]


def _went_well(one: subprocess.Popen[bytes], ended: Path, texts: Mapping[str, list[str]], rank: int) -> bool:
    """Torch's own threads at times abort a gloo process that has done all (2 of 18 runs of plain torch did)."""
    torn = one.returncode == -signal.SIGABRT and texts["err"][rank].endswith(TORN)
    return ended.exists() and (not one.returncode or torn)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _kill(started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Ends what was started, and what that started: a launcher's processes may be in groups of their own."""
    running = [one for one in started if one.poll() is None]
    ranks = [int(path.read_text() or 0) for path in folder.glob("*.pid")] if running else []
    for group in [one.pid for one in running]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for pid in filter(None, ranks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for one in started:
        one.communicate()
    for pid in map(_text, folder.glob("*.pid")):  # what stood in for a rank may be gone before the rank is
        while pid and Path("/proc", pid).exists():
            time.sleep(0.01)


def _run(folder: Path, program: str) -> None:
    """Runs the program in this process, one rank of several. What it prints goes to files, lest ranks' lines mix."""
    rank = next(os.environ[name] for name in _RANK if name in os.environ)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    for number, kind in ((1, "out"), (2, "err")):
        with (folder / f"{rank}.{kind}").open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.argv = [program, *sys.argv[3:]]
    runpy.run_path(program, run_name="__main__")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():  # without this torch itself aborts at times
        distributed.destroy_process_group()
    sys.stdout.flush()
    (folder / f"{rank}.ended").touch()


if __name__ == "__main__":
    _run(Path(sys.argv[1]), sys.argv[2])
