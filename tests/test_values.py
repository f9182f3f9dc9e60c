"""Storage: what requests and bytes cost, against the model of a file system that answers them one by one."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
from test_slowfs import slowfs

import solar
from solar.errors import PlanError
from solar.values import Storage

PIECE = 1 << 20  # what the kernel makes of a read


def test_the_slower_of_requests_and_bytes_decides() -> None:
    disks = Storage(latency=1e-3, bandwidth=1e9, iops=500)
    assert disks.seconds(84, 932e6) == pytest.approx(0.932)
    assert disks.seconds(255, 584e6) == pytest.approx(0.584)
    assert disks.seconds(1000, 584e6) == pytest.approx(2)
    assert Storage(1e-3, 1e9, 500, decode=1e8).seconds(255, 584e6, 1e8) == pytest.approx(1.584)


def test_a_stream_that_blocks_pays_for_both() -> None:
    alone = Storage(latency=8e-3, bandwidth=1e8, depth=1)
    assert alone.seconds(10, 1e8) == pytest.approx(1.08)
    assert Storage(latency=8e-3, bandwidth=1e8, depth=4).seconds(1000, 1e8) == pytest.approx(9 / 4)


@pytest.mark.slow(every=5)
@pytest.mark.skipif(not slowfs.compiler(), reason="there is no C++ compiler for the model of the slowed file system")
@pytest.mark.parametrize("flight", [2, 8])
@pytest.mark.parametrize(
    ("requests", "nbytes"), [(1000, 65_536), (500, 1 << 20), (250, 2_290_632), (250, 4 << 20), (50, 32 << 20)]
)
def test_it_takes_what_the_slowed_file_system_takes(requests: int, nbytes: int, flight: int) -> None:
    places = [(7919 * request % requests) * (nbytes + (64 << 20)) for request in range(requests)]  # none beside another
    reads = [
        (request % flight, 0, 1, place + begin, min(PIECE, nbytes - begin))
        for request, place in enumerate(places)
        for begin in range(0, nbytes, PIECE)
    ]
    times, counts = slowfs.replay(reads, latency=1e-3, bandwidth=1e9, iops=500.0)
    assert counts["requests"] == requests
    took = max(answered for _, answered in times) / 1e9
    assert Storage(latency=1e-3, bandwidth=1e9, iops=500).seconds(requests, requests * nbytes) == pytest.approx(
        took, rel=0.03
    )


def test_what_no_storage_can_be_is_refused() -> None:
    for wrong in ({"bandwidth": 0.0}, {"iops": -1.0}, {"depth": 0}, {"latency": float("inf")}):
        with pytest.raises(PlanError, match="must be"):
            Storage(**{"latency": 1e-3, "bandwidth": 1e9} | wrong)  # type: ignore[arg-type]


def test_a_layout_says_in_short_where_samples_are_and_why_h5py_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = [[1, 2], [3, 4]]
        file["words"] = ["a", "b"]
    assert repr(solar.inspect(path, "x")) == f"Layout('/x' in {path}: (2, 2) int64, contiguous, direct)"
    assert "contiguous, h5py: " in repr(solar.inspect(path, "words"))
