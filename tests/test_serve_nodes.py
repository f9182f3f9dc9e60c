"""Services of several nodes, which read as one: jobs on each have the batches that they would have alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from serve_kit import FIELDS, SAMPLES, alone, check, job, scan
from serve_nodes_kit import Services

from solar import H5Dataset

_ = scan  # a fixture


def on_nodes(data: list[Any], services: Services, pause: float = 0) -> dict[int, Any]:
    """Jobs that take part in the services in turn."""
    found: dict[int, Any] = {}
    jobs = [
        threading.Thread(
            target=job,
            args=(one, seed, 8 + 3 * seed, str(services.sockets[seed % len(services.sockets)]), found, pause),
        )
        for seed, one in enumerate(data)
    ]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join(90)
        assert not one.is_alive(), services.said()
    return found


def test_jobs_of_two_nodes_have_the_batches_that_they_would_have_alone(scan: Path, tmp_path: Path) -> None:
    data = [H5Dataset(scan, FIELDS) for _ in range(4)]
    with Services(scan, where=tmp_path / "s") as services:
        found = on_nodes(data, services)
        print(services.status())
    print(services.said())
    check(data, found)
    print([f[1] for f in found.values()])
