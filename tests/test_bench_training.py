"""The tables of bench.training: each beside exact training, and the rows that lose first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil")


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))


def step(size: int, way: str, median: float, **more: Any) -> dict[str, Any]:
    return {"what": "steps", "size": size, "way": way, "median": median, "peak_rss": 5e8, **more}


def test_memory_and_time_stand_beside_exact_training_the_slowest_first() -> None:
    from bench import training

    counts = {"exact": 8e6, "kept": 2e6, "restored": 4e6, "peak_rss": 4e8}
    found = [step(32, "exact", 0.1), step(32, "frequency", 0.11, **counts), step(32, "bounded", 0.2, **counts)]
    lines = training.kept(found).splitlines()[2:]
    assert lines == [
        "| CosmoFlow | 32 | bounded | 8.0 | 2.0 | 4.0 | 2.0 | 100 | 100 | 200 | +100% |",
        "| CosmoFlow | 32 | frequency | 8.0 | 2.0 | 4.0 | 2.0 | 100 | 100 | 110 | +10% |",
    ]
    assert training.kept(found[1:]) == "", "nothing is said of what has nothing beside it"


def test_bytes_and_seconds_stand_beside_those_of_exact_gradients() -> None:
    from bench import training

    found: list[dict[str, Any]] = [
        {"what": "link", "rate": "100mbit", "way": way, "median": median, "bytes": nbytes}
        for way, median, nbytes in (("4", 0.1, 1e6), ("exact", 0.5, 8e6))
    ]
    lines = training.sent(found).splitlines()[2:]
    assert lines == ["| 100mbit | exact | 8.00 | 1.0 | 500 | 1.0 |", "| 100mbit | 4 | 1.00 | 8.0 | 100 | 5.0 |"]


def test_losses_are_told_in_deviations_of_seeds_and_only_of_the_same_seeds() -> None:
    from bench import training

    def of(way: str, part: str, *ends: float) -> list[dict[str, Any]]:
        return [
            {"what": "losses", "case": "a", "part": part, "way": way, "seed": seed, "held_out": [9.0, end]}
            for seed, end in enumerate(ends)
        ]

    found = [
        *of("exact", "kept", 1.0, 2.0, 3.0),
        *of("bounded", "kept", 1.0, 2.0, 3.0),
        *of("4", "sent", 3.0, 4.0, 5.0),
    ]
    lines = training.ended([*found, *of("8", "sent", 1.0)]).splitlines()[2:]
    assert [line.rpartition(" | ")[2] for line in lines] == ["+2.0 |", "+0.0 |"]
    assert lines[0].startswith("| a | gradients | 4 | 1.0000, 2.0000, 3.0000 | 3.0000, 4.0000, 5.0000 |")
