"""The fork server of transform processes: begun with the loader, ended with it if nobody came. Whole programs."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transforms
from processes_kit import SOON, gone

from solar import DataLoader, H5Dataset
from solar.io.channels import worker_processes
from solar.loader import workers

BEGIN = """
import gc, os, sys, warnings
from multiprocessing import resource_tracker
from pathlib import Path
import torch
import work
from solar import DataLoader, H5Dataset
warnings.filterwarnings("ignore", "This DataLoader will create")
data, plain = H5Dataset("a.h5", "x", transform=work.doubled), H5Dataset("a.h5", "x")
def servers():
    # The processes that this one has begun, but multiprocessing's own tracker of resources.
    pids = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [int(pid) for pid in pids if int(pid) != resource_tracker._resource_tracker._pid]
"""
WORK = "import os\ndef doubled(x): return 2 * x\ndef parent(x): return os.getppid()\ndef collated(x): return len(x)\n"
# Notes each process in which torch is imported, and not had by being forked.
NOTED = """
import os, sys
class Noting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            with open("imports", "a") as file:
                print(os.getpid(), file=file)
sys.meta_path.insert(0, Noting())
"""


@pytest.fixture
def program(make: Callable[..., str], tmp_path: Path) -> Callable[[str], str]:
    """Runs a program beside a.h5 and work.py, and gives what it prints; it must end well and say nothing else."""
    make("a.h5", x=np.arange(16))
    (tmp_path / "work.py").write_text(WORK)

    def run(text: str) -> str:
        (tmp_path / "program.py").write_text(BEGIN + text)
        done = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=SOON
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.mark.slow
def test_it_is_begun_with_the_loader_and_ends_with_the_last_that_took_nothing(program: Callable[[str], str]) -> None:
    said = program("""
one, other = DataLoader(data, 4, num_workers=4), DataLoader(plain, 4, num_workers=1, collate_fn=work.collated)
print(len(servers()))
del one
gc.collect()
print(len(servers()))
del other
gc.collect()
print(len(servers()))
again = DataLoader(data, 4, num_workers=2)
print(len(servers()), len(list(again)))
""")
    assert said.split() == ["1", "1", "0", "1", "4"]


@pytest.mark.slow
def test_it_is_not_begun_where_nothing_needs_it(program: Callable[[str], str]) -> None:
    said = program("""
safe = H5Dataset("a.h5", "x", transform=work.doubled, thread_safe=True)
loaders = [
    DataLoader(data, 4), DataLoader(plain, 4, num_workers=2), DataLoader(safe, 4, num_workers=2),
    DataLoader(data, 4, num_workers=2, multiprocessing_context="fork"), DataLoader([1, 2], num_workers=2),
    DataLoader(data, 4, num_workers=2, multiprocessing_context="spawn"),
]
print(servers())
""")
    assert said == "[]\n"


@pytest.mark.slow
def test_it_stays_when_processes_were_had_of_it_and_a_loader_is_gone(program: Callable[[str], str]) -> None:
    said = program("""
loader, other = DataLoader(data, 4, num_workers=2), DataLoader(data, 4, num_workers=1)
before = servers()
list(loader)
del loader
gc.collect()
print(servers() == before != [], len(list(other)))
""")
    assert said == "True 4\n"


@pytest.mark.slow
def test_others_processes_of_it_are_left_alone(program: Callable[[str], str]) -> None:
    said = program("""
import multiprocessing, time
loader = DataLoader(data, 4, num_workers=2)
process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(1000,), daemon=True)
if __name__ == "__main__":
    process.start()
    del loader
    gc.collect()
    print(process.is_alive(), len(servers()))
""")
    assert said == "True 1\n"


@pytest.mark.slow
def test_a_program_that_iterates_nothing_leaves_no_process(program: Callable[[str], str]) -> None:
    said = program("loader = DataLoader(data, 4, num_workers=4)\nprint(*servers())\n")
    assert gone(int(said))


@pytest.mark.slow
def test_a_loader_at_the_top_of_a_script_begins_nothing_in_the_processes_that_import_it(
    program: Callable[[str], str],
) -> None:
    said = program("""
def own(x): return 3 * x
loader = DataLoader(H5Dataset("a.h5", "x", transform=own), 8, num_workers=2)
if __name__ == "__main__":
    print(*(batch.sum().item() for batch in loader))
""")
    assert said == "84 276\n"


def test_four_processes_cost_one_import_of_torch(
    program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = program("""
loader = DataLoader(H5Dataset("a.h5", "x", transform=work.parent), 1, num_workers=4)
parents = {parent.item() for parent in loader}
print(parents == set(servers()), len(parents))
""")
    assert said == "True 1\n"
    assert len((tmp_path / "imports").read_text().split()) == 2  # the program, and the server of which all four are


def test_that_processes_take_long_to_start_is_said_meanwhile(
    make: Callable[..., str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "solar")
    told = "still starting processes (1) for transform and collation: torch is imported for them"

    def until_told(*arguments: Any, **options: Any) -> Any:
        end = time.monotonic() + SOON
        while told not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        return started(*arguments, **options)

    started = worker_processes.Processes
    monkeypatch.setattr(workers, "SLOW", 0.01)
    monkeypatch.setattr(worker_processes, "Processes", until_told)
    path = make("a.h5", x=np.arange(16), label=np.arange(16))
    dataset = H5Dataset(path, {"x": "x", "label": "label"}, transform=transforms.doubled)
    assert len(list(DataLoader(dataset, 4, num_workers=1))) == 4
    assert told in caplog.text
