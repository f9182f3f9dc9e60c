"""bench/learned.py: what every way makes of a set, held against the bound; tables and patterns are counted."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from solar import _native

ROOT = Path(__file__).parent.parent


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The measurement; bench/ is not installed, and comes behind all else, so that it hides nothing."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module("bench.learned")


def test_a_row_counts_tables_and_patterns_and_values_beyond(learned: Any) -> None:
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(3, 8, 8))
    samples = [
        np.sqrt(rng.poisson(np.kron(rng.exponential(9, (6, 6)), np.exp(patterns[i % 3])))).astype(np.float32)
        for i in range(4)
    ]
    row = learned.row_of("made up", 1e-2, samples, seconds=0.0)
    assert row.nbytes == 4 * 48 * 48 * 4
    assert [one.beyond for one in (row.rows, row.auto, row.learned)] == [0, 0, 0]
    assert row.rows.patched == row.auto.learned == row.rows.learned == 0
    assert row.learned.learned > 0
    tables = _native.train(samples[::2], 0.1, "learned")
    assert row.learned.nbytes > len(tables) > 0
    assert learned.line(row).count("|") == 10
    assert "learned over auto" in learned.summary([row])
