"""What `solar plan URL` says is what the server then writes down: its requests, and their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from far_kit import Sent, Web, served
from kit import settle
from stage_kit import written

from solar import DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.cli import main
from solar.io.reading.reader import Rows
from solar.io.reading.run import requests_of
from solar.io.reading.trial import try_packing
from solar.io.system import profile
from solar.planning.planned_passes import STEPS_AHEAD, steps_ahead
from solar.values import Storage

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")

EPOCHS, BATCH = 3, 8
WORDS = ["--batch-size", str(BATCH), "--epochs", str(EPOCHS), "--json"]
LARGE = 96 << 10  # bytes of a row, so that a stretch takes several requests


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with served(tmp_path) as one:
        yield one


def rows(url: str) -> tuple[Any, list[str]]:
    return H5Dataset(url, {"x": "x"}), ["x"]


def windows(url: str) -> tuple[Any, list[str]]:
    data = H5Dataset(url, {"x": Field("x", steps=range(-1, 3))}, samples=Windows(2))
    return data, ["--window", "x=-1:3", "--every", "2"]


def planned(url: str, words: list[str], memory: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """The requests and bytes of a run, as the command says."""
    assert main(["plan", url, *words, "--memory", str(memory), *WORDS]) == 0
    said = json.loads(capsys.readouterr().out)
    later = said["policies"]["solar"]
    first = said["first_epoch"] or later
    requests, nbytes = (first[name] + (EPOCHS - 1) * later[name] for name in ("requests", "bytes"))
    return round(requests), round(nbytes)


def carried_out(data: Any, url: str, memory: int, web: Web, **more: Any) -> tuple[int, int]:
    """Those that the server wrote down while it was carried out, which are those that the loader counted."""
    begun, storage = len(web.data()), profile.stored_or_guessed(url)[0]
    order = PlanSampler(data, 1, 0, seed=0, **more)
    ahead = 4 if more else None
    with DataLoader(data, BATCH, sampler=order, buffer=memory, epochs=EPOCHS, storage=storage, ahead=ahead) as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            assert sum(len(batch["x"]) for batch in loader) == len(data)
        counts = loader.stats()
    found = logged(web.data()[begun:])
    assert found == (counts["requests"], counts["bytes"])
    return found


def logged(sent: list[Sent]) -> tuple[int, int]:
    return len(sent), sum(one.nbytes for one in sent)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("memory", [600_000, 1_000_000])
@pytest.mark.parametrize("layout", ["contiguous", "chunks", "gzip"])
@pytest.mark.parametrize("kind", [rows, windows])
def test_the_servers_log_is_the_plan(
    kind: Any, layout: str, memory: int, tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the last byte and request, of a whole run."""
    written(tmp_path / "one.h5", layout)
    url = web.url("one.h5")
    data, words = kind(url)
    said = planned(url, words, memory, capsys)
    assert carried_out(data, url, memory, web) == said


@pytest.mark.slow(but=["contiguous"])
@pytest.mark.parametrize("layout", ["contiguous", "gzip"])
def test_the_servers_log_is_the_plan_of_a_mixed_order_too_and_is_shorter(
    layout: str, tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in ("solar.io.reading.trial", "solar.cli.plan"):  # no rows are read to try how they are packed
        monkeypatch.setattr(f"{user}.try_packing", lambda *_: None)
    options = {"chunks": (4, 4096), "compression": "gzip"} if layout == "gzip" else {}
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file.create_dataset("x", data=np.random.default_rng(0).random((1024, 4096)), **options)
    settle(tmp_path / "one.h5")
    url, memory = web.url("one.h5"), 6_000_000  # for a tenth of the data, and batches
    mixed: dict[str, Any] = {"order": "mixed", "block": 32, "window": 64}
    words = [word for name, value in mixed.items() for word in (f"--{name}", str(value))]
    data = H5Dataset(url, {"x": "x"})
    said = planned(url, ["x", "--ahead", "4", *words], memory, capsys)
    assert carried_out(data, url, memory, web, **mixed) == said
    exact = carried_out(data, url, memory, web)
    assert 1.5 * said[0] < exact[0]
    assert 1.8 * said[1] < exact[1]


def large(path: Path, samples: int, **options: Any) -> None:
    values = np.random.default_rng(0).random((samples, LARGE // 8))
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, **options)
    settle(path)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("memory", [0, 8 << 20, 64 << 20])
@pytest.mark.parametrize("layout", ["contiguous", "chunks"])
def test_so_is_that_of_stretches_longer_than_a_request(
    layout: str, memory: int, tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a buffer, in a part of the memory, and with all of it held."""
    large(tmp_path / "one.h5", 300, **({"chunks": (3, LARGE // 8)} if layout == "chunks" else {}))
    url = web.url("one.h5")
    said = planned(url, ["x"], memory, capsys)
    assert carried_out(H5Dataset(url, {"x": "x"}), url, memory, web) == said


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("memory", [0, 8 << 20])
def test_so_is_that_of_a_virtual_dataset(
    memory: int, tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = 90, 130, 80
    layout = h5py.VirtualLayout((sum(counts), LARGE // 8), "f8")
    first = 0
    for number, count in enumerate(counts):
        large(tmp_path / f"s{number}.h5", count)
        layout[first : first + count] = h5py.VirtualSource(f"s{number}.h5", "x", (count, LARGE // 8))
        first += count
    with h5py.File(tmp_path / "all.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("x", layout)
    settle(tmp_path / "all.h5")
    url = web.url("all.h5")
    said = planned(url, ["x"], memory, capsys)
    assert carried_out(H5Dataset(url, {"x": "x"}), url, memory, web) == said


def test_in_order_each_byte_is_asked_for_once_in_long_requests(tmp_path: Path, web: Web) -> None:
    large(tmp_path / "one.h5", 300)
    url = web.url("one.h5")
    data = H5Dataset(url, {"x": "x"})
    begun = len(web.data())
    for _ in DataLoader(data, BATCH, buffer=0):
        pass
    batches = [np.arange(begin, min(begin + BATCH, 300)) for begin in range(0, 300, BATCH)]
    layout = data.layouts["x"]
    asked = requests_of(Rows(layout, native_order=True, mapped=False), batches)
    assert logged(web.data()[begun:]) == asked
    assert asked[1] == 300 * LARGE
    assert asked[0] <= 2 * len(batches)


def test_whether_rows_are_worth_packing_is_asked_in_two_round_trips(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(tmp_path / "one.h5", 300)
    url = web.url("one.h5")
    layout, asked = H5Dataset(url, {"x": "x"}).layouts["x"], []
    start = Rows.start

    def noted(self: Rows, wanted: Any, *others: Any, **more: Any) -> Any:
        asked.append(len(wanted))
        return start(self, wanted, *others, **more)

    monkeypatch.setattr(Rows, "start", noted)
    begun = len(web.data())
    storage = Storage(latency=1e-3, bandwidth=1e7, iops=1e4)  # so slow that a trial is little beside a scan
    try_packing(layout, storage, 0.9)
    assert len(asked) == 2
    assert len(web.data()) - begun > 8  # of rows from all over the file


def test_a_storage_that_answers_late_is_read_further_ahead_if_it_takes_many_requests() -> None:
    assert steps_ahead(profile.ELSEWHERE) == 60
    assert {steps_ahead(one) for one in (profile.NETWORK, profile.DISK, profile.FLASH, profile.MEMORY)} == {STEPS_AHEAD}
