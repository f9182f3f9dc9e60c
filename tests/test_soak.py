"""A program that does to loaders what programs do, for long: its memory, threads and descriptors stay what they are.

SOLAR_SOAK=24 lets it run for so many hours; SOLAR_SOAK_CURVE=FILE keeps what it had all the while.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HOURS = float(os.environ.get("SOLAR_SOAK", 0))
SECONDS = HOURS * 3600 or 10
CURVE = os.environ.get("SOLAR_SOAK_CURVE")
SPARE = 16 << 20  # bytes that the second half may have more: threads of the allocator, batches of a size not met before


@pytest.mark.slow
def test_a_program_that_goes_on_for_long_takes_no_more_than_it_did(tmp_path: Path) -> None:
    kit = Path(__file__).with_name("soak_kit.py")
    command = [sys.executable, str(kit), str(SECONDS), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS + 300)
    if CURVE:
        Path(CURVE).write_text(run.stdout)
    assert run.returncode == 0, run.stderr
    *told, last = map(json.loads, run.stdout.splitlines())
    assert len(told) >= 4, told
    quarter = len(told) // 4
    first, end = told[quarter : 2 * quarter], told[-quarter:]  # what is used at first comes in the first quarter
    typical = {key: [statistics.median(one[key] for one in part) for part in (first, end)] for key in told[0]}
    assert typical["bytes"][1] <= typical["bytes"][0] + SPARE, (typical, last)
    assert typical["threads"][1] <= typical["threads"][0] + 1, (typical, last)
    assert typical["descriptors"][1] <= typical["descriptors"][0] + 24, (
        typical,
        last,
    )  # files that the engine keeps open
    assert typical["pool"][1] == 0, (typical, last)
    assert max(one["children"] for one in told) <= 2  # multiprocessing's own
    assert len(last["did"]) >= min(8, told[-1]["rounds"] // 8), last
