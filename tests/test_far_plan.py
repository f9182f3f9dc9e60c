"""What `solar plan URL` says is what the server then writes down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from far_kit import Web, served
from stage_kit import written

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
    data = H5Dataset(url, {"x": Field("x", steps=range(-1, 3))}, samples=Windows(2))
    return data, ["--window", "x=-1:3", "--every", "2"]


@pytest.mark.parametrize("memory", [600_000, 1_000_000])
@pytest.mark.parametrize("layout", ["contiguous", "chunks", "gzip"])
@pytest.mark.parametrize("kind", [rows, windows])
def test_the_servers_log_has_the_bytes_of_the_plan(
    kind: Any, layout: str, memory: int, tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the last one, of a whole run. What the plan calls a request is a stretch: the engine may ask in pieces."""
    written(tmp_path / "one.h5", layout)
    url = web.url("one.h5")
    data, words = kind(url)
    assert main(["plan", url, *words, "--memory", str(memory), *WORDS]) == 0
    said = json.loads(capsys.readouterr().out)
    later = said["policies"]["solar"]
    first = said["first_epoch"] or later
    planned = {name: first[name] + (EPOCHS - 1) * later[name] for name in ("bytes", "requests")}
    begun, storage = len(web.data()), profile.stored_or_guessed(url)[0]
    order = PlanSampler(data, 1, 0, seed=0)
    with DataLoader(data, BATCH, sampler=order, buffer=memory, epochs=EPOCHS, storage=storage) as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            assert sum(len(batch["x"]) for batch in loader) == len(data)
        counts = loader.stats()
    sent = web.data()[begun:]
    assert sum(one.nbytes for one in sent) == planned["bytes"] == counts["bytes"]
    assert len(sent) == counts["requests"] >= planned["requests"]
