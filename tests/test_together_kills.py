"""Ranks of which one is killed at any time: the others soon end with an error that names it, whatever they wait for."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle

PROGRAM = Path(__file__).with_name("together_kills_program.py")
TRIALS = int(os.environ.get("SOLAR_KILLS", "6"))
BESIDE = 2  # trials at a time
SOON = 30.0  # seconds after the kill, or after the next batch is asked for
MOMENTS = {  # when the victim dies: at most how many such moments pass before, and seconds after the last of them
    "meeting": (5, 0.03),
    "met": (6, 0.03),
    "batch": (25, 0.02),
    "closing": (2, 0.05),
}


def trials(path: Path, count: int) -> list[dict[str, Any]]:
    """Each moment on one node and on several, with a store that dies with rank 0 and with one that does not."""
    draw, ports = random.Random(count), free_ports(count)
    found = []
    for number, port in enumerate(ports):
        moment = [*MOMENTS][number % len(MOMENTS)]
        most, seconds = MOMENTS[moment]
        ranks = 4 if number % 5 == 4 else 3
        found.append({
            "path": str(path), "seed": number, "ranks": ranks, "victim": draw.randrange(ranks),
            "apart": (number + number // len(MOMENTS)) % 2 == 1,
            "store": f"tcp://127.0.0.1:{port}" if draw.random() < 0.5 else f"file://{path}.{number}",
            "moment": moment, "count": draw.randint(1, most), "delay": draw.uniform(0, seconds),
        })  # fmt: skip
    return found


def free_ports(count: int) -> list[int]:
    """So many at once: one after the other might be the same."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def try_all(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, PROGRAM], input=json.dumps([specs, BESIDE]), capture_output=True, text=True,
        timeout=90 + 120 * len(specs), env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [{**one, "stderr": done.stderr} for one in json.loads(done.stdout)]


def check(spec: dict[str, Any], trial: dict[str, Any]) -> float:
    """Every survivor got an error that names the victim and has ended; gives the seconds that the last error took."""
    killed = [one["killed"] for one in trial["said"] if "killed" in one]
    ends = {one["rank"]: one for one in trial["said"] if "killed" not in one}
    case = f"{spec}: {trial}"
    assert len(killed) == 1, case
    assert sorted(ends) == [rank for rank in range(spec["ranks"]) if rank != spec["victim"]], case
    for one in ends.values():
        assert f"rank {spec['victim']} of {spec['ranks']}" in one["error"], case
        assert one["ended"] - max(killed[0], one["asked"]) < SOON, case
    assert trial["status"].pop(spec["victim"]) == -signal.SIGKILL, case
    # Python up to 3.13 aborts in the end where a thread comes back from torch, which still waited for the dead.
    assert {*trial["status"]} <= {0, -signal.SIGABRT}, case
    return max(one["ended"] - max(killed[0], one["asked"]) for one in ends.values())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(96 * 32, dtype="f4").reshape(96, 32), chunks=(5, 32))
    settle(tmp_path / "a.h5")
    return tmp_path / "a.h5"


@pytest.mark.slow
@pytest.mark.alone
def test_when_a_rank_is_killed_at_any_time_the_others_end_with_an_error_that_names_it(path: Path) -> None:
    specs = trials(path, TRIALS)
    for spec, trial in zip(specs, try_all(specs), strict=True):
        check(spec, trial)
