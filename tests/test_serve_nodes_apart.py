"""Fields with samples of their own: services of several nodes read them as one, and send each field by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serve_kit import PATIENT, check, epochs_of, job, serving, soon
from serve_nodes_kit import Services
from test_serve_kinds import KINDS
from test_serve_nodes import WAITS, _travelled, on_nodes


@pytest.mark.parametrize("kind", [*KINDS])
def test_jobs_of_two_nodes_have_the_batches_that_they_would_have_alone(kind: str, tmp_path: Path) -> None:
    data = [KINDS[kind](tmp_path) for _ in range(4)]
    with Services(*tmp_path.glob("*.h5"), where=tmp_path / "s", memory="512MiB") as services:
        found = on_nodes(data, services)
        assert soon(lambda: _travelled(services)), services.status()
        status = services.status()
    check(data, found)
    print(
        kind,
        [(c["alone"], c["served"]) for _, c in found.values()],
        [
            {k: one[k] for k in ("read_bytes", "held_bytes", "sent_samples", "received_samples", "handed_bytes")}
            for one in status
        ],
    )
    assert sum(counts["alone"] for _, counts in found.values()) <= 8
    assert [one["nodes"] for one in status] == [2, 2]
    assert all(one["read_bytes"] > 0 and one["sent_samples"] > 0 for one in status)
