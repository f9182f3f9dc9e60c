"""What `solar plan URL` says is what the server then writes down: requests and bytes, epoch by epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from far_kit import Web, served
from stage_kit import SAMPLES, written

from solar import DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.cli import main
from solar.io.machine import profile

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")

EPOCHS, BATCH = 3, 8
WORDS = ["--batch-size", str(BATCH), "--epochs", str(EPOCHS), "--json"]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with served(tmp_path) as one:
        yield one


def rows(url: str) -> tuple[Any, list[str]]:
    return H5Dataset(url, {"x": "x"}), ["x"]


def windows(url: str) -> tuple[Any, list[str]]:
    return H5Dataset(url, {"x": Field("x", steps=range(-1, 3))}, samples=Windows(2)), ["--window", "x=-1:3", "--every", "2"]


@pytest.mark.parametrize("memory", [0, 400_000, 1_000_000])
@pytest.mark.parametrize("layout", ["contiguous", "chunks", "gzip"])
@pytest.mark.parametrize("kind", [rows, windows])
def test_the_servers_log_is_the_plan(
    kind: Any, layout: str, memory: int, tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "one.h5", layout)
    data, words = kind(web.url("one.h5"))
    asked = ["plan", web.url("one.h5"), *words, "--memory", str(memory), *WORDS]
    assert main(asked) == 0
    said = json.loads(capsys.readouterr().out)
    later = said["policies"]["solar"]
    planned = [said["first_epoch"] or later, *[later] * (EPOCHS - 1)]
    sent: list[tuple[int, int]] = []
    storage = profile.stored_or_guessed(web.url("one.h5"))[0]
    with DataLoader(
        data, BATCH, sampler=PlanSampler(data, 1, 0, seed=0), buffer=memory, epochs=EPOCHS, storage=storage
    ) as loader:
        for epoch in range(EPOCHS):
            begun = len(web.data())
            loader.set_epoch(epoch)
            assert sum(len(batch["x"]) for batch in loader) == len(data)
            new = web.data()[begun:]
            sent.append((len(new), sum(one.nbytes for one in new)))
    print(kind.__name__, layout, memory, "planned", [(p["requests"], p["bytes"]) for p in planned], "sent", sent)
    assert SAMPLES
