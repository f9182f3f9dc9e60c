"""Grain's own tests, which its wheel carries, over sources of ours in place of those that they make.

Of the tests of DataLoader those run here that start no processes, and one that does. All 38 take five minutes: 36 pass,
and two need files that the wheel lacks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("grain", reason="grain is not installed: pip install grain")
PROGRAM = Path(__file__).parent / "grain_own_program.py"
LOADS = [
    "test_batch_transform_mapped_to_batch_operation",
    "test_data_loader_checkpointing_object_reconstruction0",
    "test_data_loader_checkpointing_same_object0",
    "test_data_loader_single_process",
    "test_data_loader_single_process_iterate_twice",
    "test_data_loader_single_process_legacy_operations",
    "test_data_loader_single_process_random_map",
    "test_data_loader_with_batch_fn",
    "test_data_loader_with_flat_map",
    "test_data_loader_two_processes_no_shared_memory",
]
OWN = {
    "sources": ("dataset.transformations.source_test SourceMapDatasetTest _MyRandomAccessDataSource", 12),
    "ranges": ("data_sources_test RangeDataSourceTest data_sources.RangeDataSource", 3),
    "load": ("load_test DataLoaderTest data_sources.RangeDataSource", 2),
    "DataLoader": (
        "data_loader_test DataLoaderTest_1 RangeDataSource " + " ".join(LOADS), len(LOADS)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_grains_own_tests_pass_over_our_sources(name: str, tmp_path: Path) -> None:
    asked, tests = OWN[name]
    module = asked.split()[0]
    if find_spec(f"grain._src.python.{module}") is None:
        pytest.skip("this build of grain carries no tests of its own")
    if name == "DataLoader":
        pytest.importorskip("parameterized", reason="parameterized, which Grain's tests need, is not installed")
    command = [sys.executable, str(PROGRAM), str(tmp_path), *asked.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(re.findall(r"^Ran (\d+) test", done.stdout, re.MULTILINE)[0]) == tests
    assert int(re.findall(r"^of (\d+) file", done.stdout, re.MULTILINE)[0]) > 0
