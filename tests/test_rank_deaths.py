"""A rank is killed, on one of several hosts, by each launcher: all others end within seconds, and name it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from deaths_program import BATCH, SAMPLES
from hosts_kit import NETWORK, ON_HOST, asked_for, on_hosts
from mpi_kit import mpiexec

_ = asked_for  # a fixture

PROGRAM = str(Path(__file__).with_name("deaths_program.py"))
SOON = 10.0  # seconds after the kill
RANKS, HOSTS = 4, 2
VICTIM = 3  # on the second host
MOMENTS = ["epoch", "meeting", "planning"]


@pytest.fixture(name="place")
def folder(tmp_path: Path) -> Path:
    """A folder with a file of samples."""
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["x"] = np.arange(SAMPLES * 256, dtype="f4").reshape(SAMPLES, 256)
    assert SAMPLES % (BATCH * RANKS) == 0
    return tmp_path


def by_mpiexec(place: Path, words: list[str]) -> str:
    ssh = ["-launcher", "ssh", "-launcher-exec", str(ON_HOST), "-hosts", "h1,h2", "-ppn", "2"]
    return on_hosts(
        place, mpiexec(), *ssh, "-n", str(RANKS), *words, hosts=HOSTS, ends_well=False, seconds=60, **NETWORK
    )


def by_srun(place: Path, words: list[str]) -> str:
    srun = ["srun", "--mpi=pmi2", "--kill-on-bad-exit=0", "--nodes", str(HOSTS), "--ntasks", str(RANKS), *words]
    store = {"MASTER_ADDR": "h1", "MASTER_PORT": "21000"}
    return on_hosts(place, *srun, hosts=HOSTS, slurm=True, ends_well=False, seconds=60, **NETWORK, **store)


def by_torchrun(place: Path, words: list[str]) -> str:
    run = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(HOSTS),
        "--nproc-per-node",
        "2",
        "--no-python",
    ]
    line = shlex.join([*run, "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.78.0.1:21000", *words])
    both = " & ".join(shlex.join([str(ON_HOST), f"h{host + 1}", line]) for host in range(HOSTS))
    return on_hosts(place, "sh", "-c", f"{both} & wait", hosts=HOSTS, ends_well=False, seconds=60)


def check(
    place: Path, start: Callable[[Path, list[str]], str], by: str, moment: str, workers: int, victim: int
) -> None:
    """All others have said that this one is gone, or MPI has ended them for it, and have ended with their launcher."""
    printed = start(place, [sys.executable, PROGRAM, by, moment, str(victim), str(workers), str(place)])
    ended, killed = time.time(), float((place / "killed").read_text())
    said = {one["rank"]: one for one in (json.loads(file.read_text()) for file in place.glob("said.*"))}
    # A launcher may end others before they can say anything: mpiexec all of them, torchrun those of the same host.
    host = victim // 2 * 2
    mute = {by_mpiexec: {*range(RANKS)}, by_torchrun: {host, host + 1}, by_srun: {victim}}[start]
    # MPICH ends a process that finds its connection to the victim broken before it is told, whatever its error handler.
    ended_by_mpi = printed.count("Fatal error in internal_")
    mute_by_mpi = {*range(RANKS)} - mute - {*said}
    assert len(mute_by_mpi) <= ended_by_mpi, (said, printed)
    assert {*said} <= {*range(RANKS)} - {victim}, said
    assert said or by_mpiexec is start, printed
    for rank, one in said.items():  # it names the victim, or one that the launcher ended with it and whom it met first
        gone = {victim, *mute, *mute_by_mpi} - {rank, *said}
        assert any(f"rank {other} of {RANKS} " in one["error"] for other in gone), said
        assert one["seconds"] - killed < SOON, said
    assert ended - killed < SOON, ended - killed


@pytest.mark.slow(but=["epoch"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.usefixtures("hosts")
def test_mpiexec_ends_all_others(moment: str, place: Path) -> None:
    check(place, by_mpiexec, "mpi", moment, 0, VICTIM)


@pytest.mark.slow(but=["epoch-mpi-3", "meeting-mpi-0", "planning-torch-3"])
@pytest.mark.parametrize(("by", "victim"), [("mpi", VICTIM), ("mpi", 0), ("torch", VICTIM), ("torch", 0)])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.usefixtures("hosts")
def test_under_srun_all_others_say_who_is_gone_and_end(moment: str, by: str, victim: int, place: Path) -> None:
    check(place, by_srun, by, moment, 2 if (moment, victim) == ("epoch", VICTIM) else 0, victim)


@pytest.mark.slow(but=["epoch-3"])
@pytest.mark.parametrize("victim", [0, VICTIM])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.usefixtures("hosts")
def test_under_torchrun_those_of_other_hosts_say_who_is_gone(moment: str, victim: int, place: Path) -> None:
    check(place, by_torchrun, "torch", moment, 0, victim)
