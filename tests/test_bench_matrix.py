"""bench/: its steps name scenes that exist, runs that were ended go on, and the published policy is carried out."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """import_module, for bench/ which is not installed; behind all else, so that it hides nothing."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module


def test_every_step_names_scenes_that_there_are_and_all_sizes_storages_and_memories_are_run(bench: Any) -> None:
    matrix, rates = bench("bench.matrix"), bench("bench.scenes").all_scenes()
    buffered = bench("bench.buffer_scenes").scenes(False)
    assert set(matrix.RATES) <= set(rates)
    named = [name for names in matrix.BUFFER for name in names]
    assert set(named) <= set(buffered)
    ran = [buffered[name] for name in named]
    table = {(one.storage, round(one.sample_nbytes, -6)) for one in ran if one.storage}
    storages = bench("bench.buffer_scenes").STORAGES
    assert table == {(storage, size) for storage in storages for size in (0, 3_000_000, 17_000_000)}
    assert {fraction for one in ran for fraction in one.fractions} == {1, 0.5, 0.25, 0.1}
    assert all({"windowed", "torch", "solar"} <= set(one.peers_at(one.fractions[0])) for one in ran)
    commands = [" ".join(step.command) for step in matrix.steps(False, True)]
    assert all(command.endswith("--record") for command in commands)


def test_one_command_measures_every_row_of_readme(bench: Any) -> None:
    commands = [{*step.command} for step in bench("bench.matrix").steps(False, True, readme=True)]
    for one in bench("bench.situations").of_readme():
        for record in (reading.record for reading in one[1:4]):
            module = f"bench.{record.get('bench', 'far')}".replace("bench.rates", "bench")
            if module == "bench.far":
                wanted = {module, f"{record['delay_ms']:g}"}
            else:
                wanted = {module, *([record["scene"]] if "scene" in record else [str(record["jobs"]), record["way"]])}
            assert any(wanted <= command for command in commands), f"{one.title}: {wanted}"


def test_a_record_of_the_last_hours_is_not_measured_again(bench: Any, tmp_path: Path) -> None:
    records, path = bench("bench.records"), tmp_path / "deep" / "records.jsonl"
    assert records.found(path, scene="a") is None
    records.append(path, {"scene": "a", "peer": "x", "median": 1})
    records.append(path, {"scene": "a", "peer": "y", "failed": "no"})
    old = (datetime.now(UTC) - timedelta(hours=7)).isoformat()
    with path.open("a") as file:
        file.write(json.dumps({"scene": "b", "made": old}) + "\n" + json.dumps({"scene": "c"}) + "\n")
    assert records.found(path, scene="a", peer="x")["median"] == 1
    assert records.found(path, scene="a", peer="y") is None
    assert records.found(path, scene="b") is None
    assert records.found(path, scene="c") is None


@pytest.mark.parametrize("held", [0, 7, 12, 20, 24])
def test_the_published_policy_reuses_what_an_epoch_ends_with_in_the_beginning_of_the_next(
    bench: Any, held: int
) -> None:
    policy, rng = bench("bench.buffer_policy"), np.random.default_rng(held)
    orders = [rng.permutation(24).reshape(6, 4) for _ in range(3)]
    hits, kept = policy.reused(orders, held)
    head = held if held == 24 else held // 4 * 4
    memory: set[int] = set()
    for epoch, order in enumerate(orders):
        tail = {int(sample) for sample in orders[epoch - 1].ravel()[24 - held :]} if epoch else set()
        for place, sample in enumerate(map(int, order.ravel())):
            step, at = divmod(place, 4)
            assert hits[epoch][step, at] == (place < head and sample in tail)
            assert not hits[epoch][step, at] or sample in memory
            memory.discard(sample)
            if kept[epoch][step, at]:
                memory.add(sample)
            assert len(memory) <= held
    assert not memory
