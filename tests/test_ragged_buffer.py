"""Samples of unequal length in a buffer: it changes no batch, and what it reads is what the plan counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffer_kit import DISK, ORDERS, counted, equal, least_of, loader_of, passes
from hypothesis import assume, given, settings
from ragged_kit import ACROSS, KINDS, cases, data_of, plainly, written

from solar import DataLoader, H5Dataset, Ragged
from solar.values import Storage


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.blocks.BLOCK_NBYTES", 24)


BUFFERED = ("sequential", "shuffled", "by a generator", "with replacement", "odd batches", "planned", "a list")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["contiguous", "chunks", "gzip"])
@pytest.mark.parametrize("order", BUFFERED)
def test_a_buffer_changes_no_batch_and_counts_are_the_plans(
    kind: str, layout: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    data = data_of(kind, tmp_path / "a.h5", layout)
    torch.manual_seed(1)
    expected = passes(DataLoader(data, **ORDERS[order](data), buffer=0), 3)
    least = least_of(lambda nbytes: loader_of(data, order, buffer=nbytes))
    for nbytes in (least, least + 1_000, least + 60_000):
        torch.manual_seed(1)
        with loader_of(data, order, buffer=nbytes, epochs=3) as loader:
            assert equal(plainly(passes(loader, 3)), plainly(expected)), nbytes
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes), nbytes
            assert loader.stats()["peak_bytes"] <= nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_with_memory_for_all_each_chunk_is_decoded_once(kind: str, tmp_path: Path) -> None:
    data = data_of(kind, tmp_path / "a.h5", "gzip")
    layouts = data.extents["x"].layouts
    terms = ORDERS["by a generator"](data) | {"buffer": "2MiB", "epochs": 4}
    with DataLoader(data, **terms, storage=Storage(0.0, 1e9)) as loader:
        passes(loader, 4)
        stats = loader.stats()
    each = [len(one.chunk_nbytes) * np.prod(one.forms[0].chunk) * one.dtype.itemsize for one in layouts]
    assert stats["bytes_decoded"] == sum(each)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_samples_come_of_blocks_as_they_do_of_rows(case: dict[str, Any]) -> None:
    assume(case["layout"] not in ACROSS and sum(case["lengths"]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        paths = [Path(folder) / name for name in ("a.h5", "b.h5")]
        for path in paths:
            written(path, case["lengths"], case["layout"], case["dtype"], case["row"])
        field = Ragged("v", batch="flat", **{case["told"]: case["told"]})
        data = H5Dataset([str(path) for path in paths], (field, "y"))
        torch.manual_seed(1)
        expected = passes(DataLoader(data, 3, shuffle=True, buffer=0), 2)
        torch.manual_seed(1)
        with DataLoader(data, 3, shuffle=True, buffer="1MiB", storage=DISK) as loader:
            assert equal(plainly(passes(loader, 2)), plainly(expected))
            planned = loader._buffered.planned
            assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)
