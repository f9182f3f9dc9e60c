"""Reading threads run near the device that they read for, on a host with several NUMA nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from solar.io.reading.near import cores_near, parse_cores, read_near

CORES = sorted(os.sched_getaffinity(0))
ADDRESS = "0000:3b:00.0"


def system(folder: Path, node: int, *lists: str) -> Path:
    device = folder / "bus/pci/devices" / ADDRESS
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    for number, cores in enumerate(lists):
        (folder / f"devices/system/node/node{number}").mkdir(parents=True)
        (folder / f"devices/system/node/node{number}/cpulist").write_text(cores + "\n")
    return folder


def test_lists_of_cores() -> None:
    assert parse_cores("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cores("")


@pytest.fixture
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: len(CORES))


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.usefixtures("unbound")
def test_the_cores_of_the_devices_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = system(tmp_path, 1, str(CORES[0]), f"{CORES[1]},4096")
    assert cores_near(ADDRESS, found) == {CORES[1]}
    assert cores_near("0000:FF:00.0", found) == set()  # no such device
    monkeypatch.setattr(os, "cpu_count", lambda: len(CORES) + 1)  # somebody has bound the process
    assert cores_near(ADDRESS, found) == set()


@pytest.mark.usefixtures("unbound")
@pytest.mark.parametrize(("node", "lists"), [(-1, ["0"]), (0, ["garbage"]), (7, []), (0, [",".join(map(str, CORES))])])
def test_nothing_is_chosen_where_all_is_equally_near_or_unknown(tmp_path: Path, node: int, lists: list[str]) -> None:
    assert cores_near(ADDRESS, system(tmp_path, node, *lists)) == set()


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.usefixtures("unbound")
def test_threads_stay_where_they_are_if_there_are_more_than_cores_near(tmp_path: Path) -> None:
    assert read_near(ADDRESS, system(tmp_path, 0, str(CORES[0]), str(CORES[1]))) == set()


PROGRAM = """
import os, sys
from pathlib import Path
from solar.io.reading.engine import Engine
from solar.io.reading.near import read_near
os.cpu_count = lambda: len(os.sched_getaffinity(0))
for folder, core in zip(sys.argv[2::2], map(int, sys.argv[3::2])):
    assert read_near(sys.argv[1], Path(folder)) == {core}
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "solar-read\\n"]
    print([sorted(os.sched_getaffinity(int(task.name))) for task in tasks])
print(len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_only_reading_threads_are_moved_and_those_of_two_devices_run_near_both(tmp_path: Path) -> None:
    one = system(tmp_path / "one", 1, str(CORES[0]), str(CORES[1]))
    two = system(tmp_path / "two", 0, str(CORES[0]), str(CORES[1]))
    words = [ADDRESS, str(one), str(CORES[1]), str(two), str(CORES[0])]
    environment = {**os.environ, "SOLAR_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines() == [str([[CORES[1]]]), str([CORES[:2]]), str(len(CORES))]
