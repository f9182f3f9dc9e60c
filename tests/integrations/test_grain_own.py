"""Grain's own tests, which its wheel carries, over sources of ours in place of those that they make."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grain", reason="grain is not installed: pip install grain")
PROGRAM = Path(__file__).parent / "grain_own_program.py"
LEFT_OUT = {  # they make no source of a range, or show its name
    "test_data_loader_in_memory_data_source", "test_data_loader_with_used_array_record_data_source",
    "test_state_without_in_memory_data",
}  # fmt: skip
OWN = {
    "SourceMapDataset": ("dataset.transformations.source_test SourceMapDatasetTest _MyRandomAccessDataSource", 12),
    "RangeDataSource": ("data_sources_test RangeDataSourceTest data_sources.RangeDataSource", 3),
    "load": ("load_test DataLoaderTest data_sources.RangeDataSource", 2),
    "DataLoader": ("data_loader_test DataLoaderTest_1 RangeDataSource", 35),  # of it the workers are slow to start
}


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one == "DataLoader")) for one in OWN])
def test_grains_own_tests_pass_over_our_sources(name: str, tmp_path: Path) -> None:
    asked, tests = OWN[name]
    if name == "DataLoader":
        pytest.importorskip("parameterized", reason="parameterized is not installed, which Grain's tests need")
    command = [sys.executable, str(PROGRAM), str(tmp_path), *asked.split(), *sorted(LEFT_OUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
    if "No module named 'grain._src.python" in done.stderr:
        pytest.skip("this build of grain carries no tests of its own")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(re.findall(r"^Ran (\d+) test", done.stdout, re.MULTILINE)[0]) == tests
    assert int(re.findall(r"^of (\d+) files", done.stdout, re.MULTILINE)[0]) > 0
