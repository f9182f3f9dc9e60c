"""bench.cluster: what its readers read, how its storage grows, and what its tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True, scope="module")
def bench() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield


@given(st.sets(st.integers(0, 400), max_size=80), st.integers(0, 20), st.integers(1, 64))
def test_the_windowed_reader_reads_each_row_once_over_small_holes(rows: set[int], gap: int, longest: int) -> None:
    from bench.cluster_part import spans_of

    wanted = np.array(sorted(rows), np.int64)
    spans = list(spans_of(wanted, 7, gap, longest))
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *(one for one, _ in spans)]), wanted)
    assert [place for _, place in spans] == [7 + sum(len(one) for one, _ in spans[:k]) for k in range(len(spans))]
    for one, _ in spans:
        assert one[-1] - one[0] < longest and (np.diff(one) <= gap).all()


def test_ranks_of_all_steps_have_what_torch_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import DistributedSampler

    from bench.cluster_part import SEED, own_steps

    job = {"samples": 103, "batch": 4, "ranks": 3, "steps": 8}
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        sampler = DistributedSampler(range(103), 3, rank, seed=SEED, drop_last=True)  # type: ignore[arg-type]
        sampler.set_epoch(2)
        assert own_steps(job, 2).ravel().tolist() == list(sampler)[:32]


def test_the_storage_grows_with_the_ranks_and_is_slower_by_one_factor() -> None:
    from bench.cluster import NODE, SLOWER, storage_of

    four, eight, whole = storage_of(4), storage_of(8), storage_of(32, 1)
    assert whole == {"latency": NODE["latency"], "bandwidth": 10e9, "iops": 10e3}
    for name in ("bandwidth", "iops"):
        assert eight[name] == 2 * four[name] and four[name] == NODE[name] / SLOWER


def record(reader: str, rate: float, **more: Any) -> dict[str, Any]:
    plan = {"policies": {name: {"seconds": 10.0, "requests": 500.0, "bytes": 64e6} for name in ("torch", "pinned")}}
    return {
        "scene": "ptychonn", "title": "64 KB", "ranks": 4, "nodes": 1, "share": 0.1, "reader": reader, "samples": 1000,
        "median": rate, "plan": plan, "requests_a_sample": 0.5, "bytes_a_sample": 64e3, "sample_nbytes": 64000,
        "first_batch": 1.0, "first_epoch": 12.0, "memory": 2**20, "memory_grown": 2**20, **more,
    }  # fmt: skip


def test_a_rate_stands_beside_that_of_the_plan_and_torch_beside_every_share() -> None:
    from bench.cluster_tables import measured, modelled, readers

    found = [record("torch", 90.0), record("windowed", 300.0), record("windowed", 400.0, share=0.5)]
    rows = measured(found).splitlines()
    assert rows[2] == "| 64 KB | 4 | 0.1 | 90 (100) | – | 300 | – | – | – | – |"
    assert rows[3] == "| 64 KB | 4 | 0.5 | 90 (100) | – | 400 | – | – | – | – |"
    assert "| 0.500 (0.500) | 1.00 (1.00) | -10% | 1.0 | 12.0 | – | – |" in readers(found)
    assert modelled(found) == ""
    assert "no room for batches" in modelled([record("model", 0.0, plan={"refused": "too little"})])
