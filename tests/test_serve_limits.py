"""A service that is killed at twenty moments, two hundred jobs at once, a thousand that come and go."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from serve_kit import FIELDS, Process, alone, job, scan, serving, soon

from solar import DataLoader, H5Dataset, PlanSampler

_ = scan  # a fixture

JOBS = 200
MOMENTS = [random.Random(7).uniform(0, 1.5) for _ in range(20)]  # a job takes 2 s


@pytest.mark.slow(but=["0"])
@pytest.mark.parametrize("number", range(len(MOMENTS)))
def test_the_service_is_killed_at_some_moment(number: int, scan: Path, tmp_path: Path) -> None:
    """Two services, one after another, at the same socket: jobs go on by themselves, then with the second one."""
    data = [H5Dataset(scan, FIELDS) for _ in range(3)]
    found: dict[int, Any] = {}
    with Process(scan, tmp_path) as first:
        jobs = [
            threading.Thread(target=job, args=(one, seed, 8 + 3 * seed, str(first.socket), found, 0.004))
            for seed, one in enumerate(data)
        ]
        for one in jobs:
            one.start()
        jobs[0].join(MOMENTS[number])
        first.process.kill()
        first.process.wait()
        with Process(scan, tmp_path):
            for one in jobs:
                one.join(60)
                assert not one.is_alive()
    for seed, one in enumerate(data):
        assert found[seed][0] == alone(one, seed, 8 + 3 * seed)


@pytest.mark.slow(but=["40"])
@pytest.mark.parametrize("cycles", [40, 1000])
def test_cycles_leave_nothing_behind(cycles: int, scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, "y")
    with serving(scan, where=tmp_path) as service:

        def cycle() -> None:
            with DataLoader(data, 8, service=str(service.path)) as loader:
                next(iter(loader))

        def left() -> tuple[int, int]:
            assert soon(lambda: service.status()["connections"] == 0)
            return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

        for _ in range(3):
            cycle()
        before = left()
        for _ in range(cycles):
            cycle()

        def gone() -> bool:
            now = left()
            # What was announced to the last ones stays until the next step: three descriptors for each.
            return now[0] <= before[0] + 12 and now[1] <= before[1]

        assert soon(gone)


@pytest.mark.slow
def test_two_hundred_jobs_at_once(scan: Path, tmp_path: Path) -> None:
    """Each has its own batches; a job more than may come is refused, and reads alone."""
    data, there = H5Dataset(scan, "y"), list[int]()
    with serving(scan, where=tmp_path, memory=64 << 20, jobs=JOBS) as service:
        found: dict[int, list[int]] = {}
        done = threading.Barrier(JOBS + 1, lambda: there.append(service.status()["connections"]))

        def run(seed: int) -> None:
            order = PlanSampler(data, seed=seed)
            with DataLoader(data, 40, sampler=order, service=str(service.path), epochs=1) as loader:
                found[seed] = [int(one) for batch in loader for one in batch]
                done.wait(60)

        jobs = [threading.Thread(target=run, args=(seed,)) for seed in range(JOBS + 1)]
        for one in jobs:
            one.start()
        for one in jobs:
            one.join(60)
    assert found == {seed: [*PlanSampler(data, seed=seed)] for seed in range(JOBS + 1)}
    assert there == [JOBS]
