"""Which way bytes come: past the page cache, through it, or copied from where it holds them. Counted, not timed."""

from __future__ import annotations

import ctypes
import platform
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import BACKENDS, engine, forgotten, resident, settle

from solar import DataLoader, H5Dataset, _native
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
from solar.io.system import memory as machine

SAMPLES, NBYTES, BATCH = 96, 64 << 10, 8
VALUES = np.random.default_rng(5).integers(0, 256, (SAMPLES, NBYTES)).astype("u1")
KERNEL = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
ROOMS = {"much": 1 << 40, "half": SAMPLES * NBYTES // 2, "none": 0}  # bytes that the page cache could hold


@pytest.fixture(params=BACKENDS)
def _backend(request: pytest.FixtureRequest) -> Iterator[None]:
    with engine(2, request.param):
        yield


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda name: monkeypatch.setattr(machine, "page_cache_nbytes", lambda: ROOMS[name])


@pytest.fixture
def path(make: Callable[..., str]) -> str:
    path = make("a.h5", plain=VALUES, packed=(VALUES, {"chunks": (2, NBYTES), "compression": "lzf"}))
    settle(path)
    return path


def warmed(path: str) -> None:
    """Has the page cache hold the whole file."""
    assert Path(path).read_bytes()


def epoch(data: H5Dataset, **options: Any) -> dict[str, Any]:
    """The counts of an epoch, whose samples are those that were written."""
    order = np.random.default_rng(6).permutation(SAMPLES).tolist()
    with DataLoader(data, BATCH, sampler=order, **options) as loader:
        got = np.concatenate([batch.numpy() for batch in loader])
        assert np.array_equal(got, VALUES[order])
        return loader.stats()


def warm(path: str, page_cache: bool | None, **wanted: int) -> dict[str, Any]:
    """The counts of an epoch with a warm cache: the first that has what is wanted, for a system may drop pages."""
    for _ in range(20):
        warmed(path)
        stats = epoch(H5Dataset(path, "plain", page_cache=page_cache), buffer=0)
        if all(stats[name] == value for name, value in wanted.items()):
            break
    return stats


def bus_errors_are_ours() -> bool:
    """Whether the handler of SIGBUS is the engine's: its address lies in the extension."""
    now = (ctypes.c_uint64 * 32)()  # struct sigaction, which begins with the handler
    assert ctypes.CDLL(None).sigaction(signal.SIGBUS, None, now) == 0
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".so")]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in lines if line[-1] == _native.__file__]
    return any(begin <= now[0] < end for begin, end in spans)


def cold(path: str, name: str, page_cache: bool | None) -> H5Dataset:
    """A data set that is open, so that its index is known, and of which the page cache holds nothing."""
    data = H5Dataset(path, name, page_cache=page_cache)
    assert len(data) == SAMPLES
    if refused := forgotten(path):
        pytest.skip(refused)
    return data


@pytest.mark.slow(every=7)
@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("name", ["plain", "packed"])
@pytest.mark.parametrize("buffer", [0, "3MiB"])
@pytest.mark.parametrize(("page_cache", "left"), [(False, "much"), (None, "none")])
def test_what_the_cache_is_not_to_hold_or_has_no_room_for_is_read_past_it(
    path: str, name: str, buffer: Any, page_cache: bool | None, left: str, room: Callable[[str], None]
) -> None:
    room(left)
    data = cold(path, name, page_cache)
    stats = epoch(data, buffer=buffer)
    assert stats["bypassed"] == stats["requests"] > 0
    assert stats["bytes_mapped"] == 0
    assert resident(path) == 0  # and so says the system


@pytest.mark.slow(every=7)
@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("name", ["plain", "packed"])
@pytest.mark.parametrize("buffer", [0, "3MiB"])
@pytest.mark.parametrize(("page_cache", "left"), [(True, "none"), (None, "much")])
def test_what_the_cache_has_room_for_is_left_in_it(
    path: str, name: str, buffer: Any, page_cache: bool | None, left: str, room: Callable[[str], None]
) -> None:
    room(left)
    data = cold(path, name, page_cache)
    stats = epoch(data, buffer=buffer)
    assert stats["bypassed"] == 0 < stats["requests"]
    assert resident(path) > 0


@pytest.mark.usefixtures("_backend")
def test_where_a_part_has_room_the_rest_is_read_past_it(path: str, room: Callable[[str], None]) -> None:
    room("half")
    stats = epoch(cold(path, "plain", None), buffer=0)
    assert 0 < stats["bypassed"] < stats["requests"]
    assert resident(path) > 0


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("page_cache", [None, True])
def test_what_the_cache_holds_is_copied_from_there_without_a_request(
    path: str, page_cache: bool | None, room: Callable[[str], None]
) -> None:
    room("much")
    stats = warm(path, page_cache, bytes_mapped=VALUES.nbytes, requests=0)
    if not stats["bytes_mapped"] and not bus_errors_are_ours():
        pytest.skip("another library has taken SIGBUS in this process: nothing is copied from mapped files then")
    assert (stats["bytes_mapped"], stats["requests"]) == (VALUES.nbytes, 0)


@pytest.mark.skipif(KERNEL < (6, 5), reason="before Linux 6.5 nobody can ask what the page cache holds (cachestat)")
@pytest.mark.usefixtures("_backend")
def test_what_the_cache_holds_is_not_read_past_it(path: str, room: Callable[[str], None]) -> None:
    room("none")
    stats = warm(path, False, bypassed=0, bytes_mapped=0)
    assert (stats["bypassed"], stats["bytes_mapped"]) == (0, 0)
    assert stats["requests"] > 0


@pytest.mark.usefixtures("_backend")
def test_a_file_that_is_not_in_the_cache_is_not_copied_from_its_mapping(path: str) -> None:
    rows = Rows(inspect(path, "plain"), page_cache=True)
    if refused := forgotten(path):
        pytest.skip(refused)
    pending = rows.start(np.array([90]))  # one: the system reads ahead, so a second may find its bytes in the cache
    assert np.array_equal(pending.wait(), VALUES[[90]])
    assert pending.counts["bytes_mapped"] == 0 < pending.counts["requests"]
