"""How many native threads read: by affinity, control groups, the ranks of a node, and a variable."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from solar import PlanError, set_num_threads
from solar.io.system import cores

LAUNCHED = {"RANK": "1", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of 64 cores, whatever this one has; nobody has launched anything."""
    for name in (*LAUNCHED, cores.THREADS_VARIABLE, "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    cores.reading_threads.cache_clear()
    yield
    cores.reading_threads.cache_clear()


def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)


def test_one_process_has_all_cores_and_at_most_32_threads() -> None:
    assert (cores.usable_cores(), cores.own_cores(), cores.reading_threads()) == (64, 64, 32)


def test_ranks_of_a_node_divide_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    assert (cores.own_cores(), cores.reading_threads()) == (8, 8)


def test_ranks_that_were_given_cores_of_their_own_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8, 16)))
    assert (cores.own_cores(), cores.reading_threads()) == (8, 8)


def test_a_plan_has_the_threads_that_its_ranks_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [cores.planned_threads(ranks) for ranks in (1, 4, 8, 100)] == [32, 16, 8, 1]
    launched(monkeypatch)
    assert cores.planned_threads(8) == cores.reading_threads() == 8


@pytest.mark.parametrize(("named", "threads"), [("3", 3), ("1024", 1024)])
def test_a_variable_decides(named: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    monkeypatch.setenv(cores.THREADS_VARIABLE, named)
    assert (cores.reading_threads(), cores.planned_threads(2)) == (threads, threads)


@pytest.mark.parametrize("named", ["0", "-1", "many", "1025", "2.5"])
def test_a_variable_that_is_no_number_is_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cores.THREADS_VARIABLE, named)
    with pytest.raises(PlanError, match="is no number of threads from 1 to 1024"):
        cores.reading_threads()


def test_a_program_names_them_before_it_reads() -> None:
    code = """
import os, sys, time, h5py, numpy as np, solar
from solar.io.reading.engine import Engine
with h5py.File(sys.argv[1], "w") as file:
    file["x"] = np.arange(5)
solar.set_num_threads(7)
assert solar.get_num_threads() == 7 and os.environ["SOLAR_THREADS"] == "7"
assert solar.read(sys.argv[1], "x").tolist() == [0, 1, 2, 3, 4]
def named():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return names.count("solar-read\\n")
end = time.monotonic() + 30  # each thread names itself
while named() < 7 and time.monotonic() < end:
    time.sleep(0.01)
assert named() == 7
solar.set_num_threads(7)
try:
    solar.set_num_threads(3)
except solar.PlanError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, f"{folder}/a.h5"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    told = "set_num_threads(3): 7 threads of this process have read already: call it first\n"
    assert done.stdout == told, done.stderr


@pytest.mark.parametrize("threads", [0, 1025, 2.0, "4"])
def test_what_is_no_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(PlanError, match="is an integer from 1 to 1024"):
        set_num_threads(threads)


def groups(folder: Path, lines: str, **files: str) -> tuple[Path, Path]:
    (folder / "cgroup").write_text(lines)
    for name, text in files.items():
        path = folder / "groups" / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "cgroup", folder / "groups"


@pytest.mark.parametrize(
    ("lines", "files", "cores_"),
    [
        ("0::/a/b\n", {"a__b__cpuDOTmax": "250000 100000\n", "a__cpuDOTmax": "max 100000\n"}, 3),
        ("0::/a/b\n", {"a__b__cpuDOTmax": "max 100000\n", "a__cpuDOTmax": "150000 100000\n"}, 2),
        ("0::/a\n", {"a__cpuDOTmax": "max 100000\n"}, 64),
        ("0::/a\n", {"a__cpuDOTmax": "1000 100000\n"}, 1),
        ("0::/a\n", {"a__cpuDOTmax": "what is that\n"}, 64),
        ("4:cpu,cpuacct:/x\n", {"cpu__x__cpuDOTcfs_quota_us": "400000", "cpu__x__cpuDOTcfs_period_us": "100000"}, 4),
        ("4:cpu,cpuacct:/x\n", {"cpu__x__cpuDOTcfs_quota_us": "-1", "cpu__x__cpuDOTcfs_period_us": "100000"}, 64),
        ("3:memory:/x\n", {}, 64),
    ],
)
def test_control_groups_limit_them(tmp_path: Path, lines: str, files: dict[str, str], cores_: int) -> None:
    assert cores.usable_cores(*groups(tmp_path, lines, **files)) == cores_


def test_a_system_without_control_groups_limits_nothing(tmp_path: Path) -> None:
    assert cores.usable_cores(tmp_path / "none", tmp_path) == 64
