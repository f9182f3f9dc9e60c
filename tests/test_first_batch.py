"""Of a first batch, whoever looks on sees how much is there. A server lets one piece go at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import h5py
import pytest
from far_kit import Asked, served
from kit import settle

from solar import DataLoader, H5Dataset
from solar.io.ranks import awaited as module
from solar.io.ranks.awaited import Phase
from solar.io.read.engine import Engine
from solar.torch.epoch.first import percent

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")

BATCH, APART = 4, 64  # samples, and rows between two that are read: 4 MiB, so that none comes along with another
LONG = 60.0  # seconds after which it hangs


class Gate:
    """Holds what is asked for of the data, and lets go one request after another, in the order of the file."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._changed = threading.Condition()
        self._held: set[int] = set()
        self._open = False

    def __call__(self, asked: Asked, before: int) -> bool:
        first, _ = asked.range(1 << 60)
        with self._changed:
            if first >= self._begin and not self._open:  # else it is metadata
                self._held.add(first)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._open or first not in self._held, LONG)
        return False

    def wait(self) -> bool:
        """Whether any is held, or soon is."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._held), LONG)

    def let_go(self, all_: bool = False) -> None:
        with self._changed:
            self._open = all_
            self._held.discard(min(self._held, default=0))
            self._changed.notify_all()


@pytest.mark.parametrize("buffer", [0, "1GiB"])
def test_it_is_told_how_much_of_it_is_there(
    buffer: Any, tmp_path: Path, phases: list[Phase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "looked_at", lambda: True)
    monkeypatch.setattr(module, "PATIENCE", LONG)  # nothing is drawn
    rows = range(0, 3 * BATCH * APART, APART)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        x = file.create_dataset("x", (3 * BATCH * APART, 1 << 14), "f4")
        for row in rows:
            x[row] = row
        begin = x.id.get_offset()
    settle(tmp_path / "scan.h5")
    seen: list[int | None] = []
    over, end = threading.Event(), time.monotonic() + LONG
    while len(set(Engine.progress(1 << 63))) > 1 and time.monotonic() < end:  # what others have left: it would count
        over.wait(0.001)

    def look() -> None:
        """Lets a request go when what went before is told of."""
        try:
            while len(seen) < BATCH and gate.wait():
                [reading] = [one for one in phases if one.what == "reading the first batch"]
                assert reading.done is not None and reading.unit == "%"
                end = time.monotonic() + LONG
                while (told := reading.done()) in (None, *seen) and time.monotonic() < end:
                    over.wait(0.001)
                seen.append(told)
                gate.let_go()
        finally:
            gate.let_go(all_=True)

    with served(tmp_path) as web:
        data = H5Dataset(web.url("scan.h5"), "x", cache=None)
        web.fault = gate = Gate(begin)
        over, looking = threading.Event(), threading.Thread(target=look)
        looking.start()
        with DataLoader(data, BATCH, sampler=rows, buffer=buffer) as loader:
            first = next(iter(loader))
        looking.join()
    assert first[:, 0].tolist() == list(rows[:BATCH])
    assert seen == [0, 25, 50, 75]


def test_where_nothing_is_asked_of_the_engine_nobody_knows() -> None:
    assert percent(lambda: 0)() is None
