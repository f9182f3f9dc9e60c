"""Of a first batch, whoever looks on sees how much is there. A server lets one piece go at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import pytest
from far_kit import Asked, served
from kit import engine, settle

from solar import DataLoader, H5Dataset
from solar.io.channels import progress as module
from solar.io.channels.progress import Phase
from solar.io.remote import location
from solar.loader.iterator import percent

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")

BATCH, APART = 4, 64  # samples, and rows between two that are read: 4 MiB, so that none comes along with another
LONG = 120.0  # seconds after which the test fails


class Gate:
    """Holds every request for data until it is let go by its offset. Requests come in any order."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._changed = threading.Condition()
        self._held: set[int] = set()
        self._free: set[int] = set()
        self._open = False

    def __call__(self, asked: Asked, before: int) -> bool:
        first, _ = asked.range(1 << 60)
        with self._changed:
            if first >= self._begin:  # else it is metadata
                self._held.add(first)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._open or first in self._free, LONG)
        return False

    def holds(self, offsets: Iterable[int]) -> bool:
        """Whether the requests at all of these offsets come."""
        with self._changed:
            return self._changed.wait_for(lambda: self._held.issuperset(offsets), LONG)

    def let_go(self, offset: int) -> None:
        """Answers the request at this offset."""
        with self._changed:
            self._free.add(offset)
            self._changed.notify_all()

    def open(self) -> None:
        """Answers all requests, also those to come."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


def until(there: Callable[[], bool]) -> bool:
    """Whether it comes true."""
    end = time.monotonic() + LONG
    while not (came := there()) and time.monotonic() < end:
        time.sleep(0.001)  # between two questions
    return came


@pytest.mark.parametrize("buffer", [0, "1GiB"])
def test_it_is_told_how_much_of_it_is_there(
    buffer: Any, tmp_path: Path, phases: list[Phase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_watched", lambda: True)
    monkeypatch.setattr(module, "PATIENCE", LONG)  # nothing is drawn
    monkeypatch.setattr(location, "TIMEOUT", f"{LONG:.0f}s")  # a request that is held is not given up
    rows = range(0, 3 * BATCH * APART, APART)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        x = file.create_dataset("x", (3 * BATCH * APART, 1 << 14), "f4")
        for row in rows:
            x[row] = row
        begin, nbytes = x.id.get_offset(), x.id.get_storage_size() // len(x)
    settle(tmp_path / "scan.h5")
    offsets = [begin + row * nbytes for row in rows[:BATCH]]
    seen: list[int | None] = []

    def look() -> None:
        """Lets a request of the first batch go when what went before is told of."""
        try:
            assert gate.holds(offsets) and until(lambda: bool(named()))
            [reading] = named()
            assert reading.done is not None and reading.unit == "%"
            for offset in offsets:
                until(lambda: reading.done() not in (None, *seen))
                seen.append(reading.done())
                gate.let_go(offset)
        finally:
            gate.open()

    def named() -> list[Phase]:
        return [one for one in phases if one.what == "reading the first batch"]

    # An engine of its own: of the common one, what tests before have left on its way would count along.
    with engine(2, "pread"), served(tmp_path) as web:
        data = H5Dataset(web.url("scan.h5"), "x", cache=None)
        web.fault = gate = Gate(begin)
        looking = threading.Thread(target=look)
        looking.start()
        with DataLoader(data, BATCH, sampler=rows, buffer=buffer) as loader:
            first = next(iter(loader))
        looking.join()
    assert first[:, 0].tolist() == list(rows[:BATCH])
    assert seen == [0, 25, 50, 75]


def test_where_nothing_is_asked_of_the_engine_nobody_knows() -> None:
    assert percent(lambda: 0)() is None
