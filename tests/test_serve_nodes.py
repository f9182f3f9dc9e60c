"""Services of several nodes, which read as one: jobs on each have the batches that they would have alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serve_kit import FIELDS, SAMPLES, alone, check, job, scan, soon
from serve_nodes_kit import Services
from torch.utils.data import ConcatDataset, Subset

from solar import DataLoader, Field, H5Dataset, PlanSampler, Windows

_ = scan  # a fixture

# Jobs are threads of one process, and on a busy machine one may rest for long.
PATIENT = "import solar.serve.hall as hall\nhall.PATIENCE = hall.IN_TURN = hall.LONGEST = 100.0\n"
KINDS: dict[str, Callable[[Path], Any]] = {
    "several fields": lambda path: H5Dataset(path, FIELDS),
    "gzip, other byte order": lambda path: H5Dataset(path, "z"),
    "windows": lambda path: H5Dataset(path, Field("x", steps=range(4)), samples=Windows()),
    "two, and a part": lambda path: ConcatDataset(
        [H5Dataset(path, "x"), Subset(H5Dataset(path, "x"), [*range(9, 900)])]
    ),
}


def on_nodes(data: list[Any], services: Services, pause: float = 0) -> dict[int, Any]:
    """Jobs that take part in the services in turn."""
    found: dict[int, Any] = {}
    jobs = [
        threading.Thread(target=job, args=(one, seed, 8 + 3 * seed, services.socket(seed), found, pause))
        for seed, one in enumerate(data)
    ]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join(90)
        assert not one.is_alive(), services.said()
    return found


def _travelled(services: Services) -> bool:
    """Whether all that one of two has sent has come to the other: steps that were told come, wanted or not."""
    one, other = services.status()
    pairs = (one["sent_samples"], other["received_samples"]), (other["sent_samples"], one["received_samples"])
    return all(sent == received for sent, received in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_two_nodes_have_the_batches_that_they_would_have_alone(kind: str, scan: Path, tmp_path: Path) -> None:
    data = [KINDS[kind](scan) for _ in range(4)]
    with Services(scan, where=tmp_path / "s", memory="4MiB", before=PATIENT) as services:
        found = on_nodes(data, services)
        assert soon(lambda: _travelled(services)), services.status()
        status = services.status()
    check(data, found)
    assert sum(counts["alone"] for _, counts in found.values()) <= 2  # who comes first to a node reads one by itself
    assert [one["nodes"] for one in status] == [2, 2] and [one["node"] for one in status] == [0, 1]
    assert all(one["read_bytes"] > 0 for one in status)
    assert all(one["sent_samples"] > 0 for one in status)


def test_three_nodes_of_which_one_has_no_job(scan: Path, tmp_path: Path) -> None:
    data = [H5Dataset(scan, "x") for _ in range(2)]
    with Services(scan, where=tmp_path / "s", nodes=3, before=PATIENT) as services:
        found = on_nodes(data, services)
        status = services.status()
    check(data, found)
    third = SAMPLES * 1024 // 3
    assert status[2]["handed_bytes"] == 0 and status[2]["sent_samples"] > SAMPLES and status[2]["read_bytes"] >= third


def test_jobs_come_and_go_at_different_times(scan: Path, tmp_path: Path) -> None:
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with Services(scan, where=tmp_path / "s", memory="1MiB", before=PATIENT) as services:
        stays = threading.Thread(target=job, args=(data, 0, 8, services.socket(0), found, 0.004))
        stays.start()
        assert soon(lambda: any(one["batches"] > 3 for one in services.status()[0]["jobs"]))
        job(data, 1, 11, services.socket(1), found)  # comes, and goes
        with DataLoader(data, 16, sampler=PlanSampler(data, seed=9), service=services.socket(1), buffer=0) as leaves:
            for number, _batch in enumerate(leaves):
                if number == 20:
                    break
        job(data, 2, 14, services.socket(1), found)
        stays.join(60)
        job(data, 3, 17, services.socket(0), found)  # when all have gone
    for seed, batch in ((0, 8), (1, 11), (2, 14), (3, 17)):
        assert found[seed][0] == alone(data, seed, batch)
        assert found[seed][1]["served"] > 100
