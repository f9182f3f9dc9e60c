"""bench/gpu.py: the one command for a machine with a GPU; here only what it makes of records, and how steps end."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """bench/ is not installed; behind all else, so that it hides nothing."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module("bench.gpu")


WHERE = {"device": "A GPU", "torch": "2.13", "made": "2026-01-02T03:04:05+00:00"}
TRAINED = {"step": "training", "scene": "PtychoNN", "step_seconds": 0.0123}
DECODED = {"step": "decode", "what": "frames", "coder": "pack", "out": "float32"}
RECORDS: list[dict[str, Any]] = [
    {"step": "tests", "ended": True, "passed": 90, "failures": 1, "skipped": 2, "failed": "1 failed, 90 passed"},
    {"step": "loaders", "what": "solar", "of_the_copy": 0.5, "gigabytes_a_second": 1.0, "waited": 1.0},
    {
        "step": "loaders",
        "what": "solar",
        "of_the_copy": 0.972,
        "gigabytes_a_second": 53.4,
        "waited": 0.003,
    },  # the last one counts
    {"step": "loaders", "ended": True, "failed": "no end in 560 s"},
    TRAINED | {"what": "1", "loader": "solar", "waited": 0.004},
    TRAINED | {"what": "2", "loader": "torch, 8 workers", "waited": 0.3},
    TRAINED | {"what": "3", "loader": "torch, 4 workers", "waited": 0.4},
    DECODED | {"what": "copy on the device", "coder": "", "out": "", "gigabytes_a_second": 1500},
    DECODED | {"predictor": "x", "gigabytes_a_second": 251},
    DECODED | {"predictor": "y", "gigabytes_a_second": 310},
    DECODED | {"predictor": "y", "gigabytes_a_second": 999, "out": "bfloat16"},
]


def test_the_table_says_what_was_measured_and_what_was_not(gpu: Any) -> None:
    table = gpu.tables.gpu(WHERE | one for one in RECORDS)
    assert "A GPU, torch 2.13, 2026-01-02" in table
    for row in (
        "| tests on a GPU | all pass | 90 passed, 1 failures, 2 skipped |",
        "| 97% (53.4 GB/s) in batches of 17 MB |",
        "| solar | 53.4 | 97% | 0.3% |",
        "| a step waits, PtychoNN | ≤ 2 % | 0.4% of 12.3 ms; 30.0% with torch, 8 workers |",
        "| a step waits, CosmoFlow | ≤ 2 % | not measured |",
        "| 251 to 310 GB/s (a copy on the device: 1,500) |",
        "| `dense` decoded, float32 | ≥ 80 GB/s | not measured |",
    ):
        assert row in table


def test_steps_that_fail_or_hang_are_recorded_with_what_came_before(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"what": "row"}) + "\n")
    code = "import sys; print('{\"what\": 1}', flush=True); sys.exit('no memory')"
    first, row, ended = gpu.run("decode", ["-c", code], rows)
    assert (first, row, ended["failed"]) == ({"what": 1}, {"what": "row"}, "no memory") and not rows.exists()
    monkeypatch.setattr(gpu, "LIMIT", 3)
    *_, ended = gpu.run("loaders", ["-c", "import time; print('{}', flush=True); time.sleep(60)"], rows)
    assert ended["failed"] == "no end in 3 s"
    [ended] = gpu.run("tests", ["-c", "print('1 failed, 90 passed, 2 skipped, 3 errors in 1.0s')"], rows)
    assert [ended[what] for what in ("failures", "passed", "skipped", "errors")] == [1, 90, 2, 3]
    assert "no memory" in capsys.readouterr().out


def test_every_step_is_a_command_that_is_there(gpu: Any, tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        for command in gpu.commands(device, False, tmp_path).values():
            name = command[1] if command[0] == "-m" else command[0]
            path = ROOT / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
            assert name == "pytest" or path.exists()
