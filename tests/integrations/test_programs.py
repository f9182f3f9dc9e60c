"""How the tests' own programs are run: one that goes wrong is never begun a second time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ABORTS_ONCE = """
import os, resource, sys
from pathlib import Path
begun = Path(sys.argv[1])
first = not begun.exists()
with begun.open("a") as file:
    file.write("begun\\n")
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if first:
    os.abort()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch cannot do distributed")
@pytest.mark.parametrize("processes", [0, 1])
def test_a_program_that_aborts_fails_its_test(
    processes: int, tmp_path: Path, program: Callable[..., dict[str, Any]]
) -> None:
    file, begun = tmp_path / "aborts_once.py", tmp_path / "begun.txt"
    file.write_text(ABORTS_ONCE)
    with pytest.raises(AssertionError, match=r"exitcode: -6|assert -6 == 0"):
        program(file, begun, processes=processes)
    assert begun.read_text() == "begun\n"
