"""How much memory there is to be had, by the files in which the kernel says so."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import solar
from solar.io.reading import engine, reader
from solar.io.system import memory as machine


def group(root: Path, path: str, name: str, text: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    (root / path / name).write_text(text + "\n")


def limit_of(tmp_path: Path, membership: str) -> int:
    (tmp_path / "cgroup").write_text(membership)
    return machine._group_limit(tmp_path / "cgroup", tmp_path / "fs")


def test_free_memory_is_some_and_the_page_cache_gets_no_more() -> None:
    assert 0 < machine.page_cache_nbytes() <= machine.PLENTY
    assert machine.free_nbytes() > 1 << 20


def test_the_least_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    group(tmp_path / "fs", "job/step", "memory.max", "max")
    group(tmp_path / "fs", "job", "memory.max", "5000")
    group(tmp_path / "fs", ".", "memory.max", "9000")
    assert limit_of(tmp_path, "0::/job/step\n") == 5000
    assert limit_of(tmp_path, "0::/\n") == 9000
    assert limit_of(tmp_path, "0::/elsewhere/out/of/sight\n") == 9000


def test_control_groups_of_the_first_version_are_asked_too(tmp_path: Path) -> None:
    group(tmp_path / "fs/memory", "job", "memory.limit_in_bytes", "7000")
    assert limit_of(tmp_path, "5:cpu:/job\n4:hugetlb,memory:/job\n0::/\n") == 7000
    assert limit_of(tmp_path, "5:cpu:/job\n") == machine.PLENTY


FACTS = {
    0: ("job", "memory.max", "memory.current", "active_file 1000\ninactive_file 500\nfile 9999"),
    1: (
        "memory/job",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_active_file 1000\ntotal_inactive_file 500",
    ),
}


@pytest.mark.parametrize("version", FACTS)
def test_what_a_group_has_left_is_free_and_what_files_take_of_it(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, limit, usage, facts = FACTS[version]
    group(tmp_path / "fs", path, limit, "9000")
    group(tmp_path / "fs", path, usage, "4000")
    (tmp_path / "cgroup").write_text("0::/job\n" if version == 0 else "4:memory:/job\n")
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "fs")
    assert machine.free_nbytes() == 5000
    group(tmp_path / "fs", path, "memory.stat", facts)
    assert machine.free_nbytes() == machine.page_cache_nbytes() == 6500
    assert machine.memory_nbytes() == 9000
    group(tmp_path / "fs", path, usage, "20000")
    assert machine.free_nbytes() == 0


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert machine._group_limit(tmp_path / "nothing", tmp_path) == machine.PLENTY


def test_what_is_on_its_way_takes_little_where_there_is_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for room, threads, wanted in ((400 << 20, 2, 25 << 18), (1 << 40, 2, 64 << 20), (8 << 20, 16, 1 << 20)):
        monkeypatch.setattr(machine, "page_cache_nbytes", lambda room=room: room)
        assert engine.beside_nbytes(threads) == wanted


def test_what_the_page_cache_has_no_room_for_is_read_past_it_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(100_000, dtype="f8").reshape(1000, 100)
    layout = solar.inspect(tmp_path / "a.h5", "x")
    for room, asked, wanted in [
        (1_000_000, None, 0.0),
        (500_000, None, 0.5),
        (0, None, 1.0),
        (0, True, 0.0),
        (1_000_000, False, 1.0),
    ]:
        monkeypatch.setattr(machine, "page_cache_nbytes", lambda room=room: room)
        assert reader.bypassed_share(layout, asked) == wanted
        rows = reader.Rows(layout, page_cache=asked)
        np.testing.assert_array_equal(
            rows.start(np.array([7, 999])).wait(), np.arange(100_000).reshape(1000, 100)[[7, 999]]
        )


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        ({"SLURM_MEM_PER_NODE": "40"}, 40 << 20),
        ({"SLURM_MEM_PER_CPU": "10", "SLURM_CPUS_ON_NODE": "3"}, 30 << 20),
        ({"SLURM_MEM_PER_GPU": "20", "SLURM_GPUS_ON_NODE": "4"}, 80 << 20),
        ({"SLURM_MEM_PER_GPU": "20"}, machine.PLENTY),  # of how many is not said
        ({"SLURM_MEM_PER_NODE": "0"}, machine.PLENTY),  # all there is
        ({"SLURM_MEM_PER_NODE": "much", "SLURM_MEM_PER_CPU": "10"}, machine.PLENTY),
        ({}, machine.PLENTY),
    ],
)
def test_what_slurm_gives_a_job_is_its_memory_without_a_control_group(
    said: dict[str, str], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in machine.SLURM_MEMORY:
        monkeypatch.delenv(name, raising=False)
    everything = machine.memory_nbytes()
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert machine.slurm_limit() == limit
    assert machine.memory_nbytes() == min(everything, limit)
