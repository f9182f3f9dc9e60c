"""What tests of transform processes share: work as a user writes it, two processes, and whether one has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from solar.io.channels.worker_processes import Processes

SOON = 120.0  # seconds after which a test fails, rather than waits


def call(payload: tuple[Any, ...]) -> Any:
    """Calls the payload's first with the rest."""
    function, *arguments = payload
    return function(*arguments)


def same_again(value: Any) -> Any:
    return value


def wait_until_there(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def fail_with(error: type[Exception], *arguments: Any) -> None:
    raise error(*arguments)


def gone(pid: int) -> bool:
    """Whether a process ends."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def shared_two() -> Iterator[Processes]:
    with Processes(2, call) as processes:
        for task in [processes.submit((os.getpid,)) for _ in range(2)]:
            task.wait(SOON)
        yield processes


@pytest.fixture
def two(shared_two: Processes) -> Processes:
    """Two processes that other tests use, too."""
    return shared_two
