"""How pytest-xdist gives files to processes, also after one of those has ended amid a test."""

from __future__ import annotations

import os
from typing import Any

import pytest
import ready_kit
from xdist.scheduler import LoadFileScheduling


class FilesInTurn(LoadFileScheduling):
    """pytest-xdist's own way, but for processes that end amid a test.

    Its own gives what such a process had done to another one, which then waits for ever to be told what comes next.
    """

    def remove_node(self, node: Any) -> str | None:
        files = {name: tests for name, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not files:
            return None
        began = next(iter(files.values()))
        ended = next(name for name, done in began.items() if not done)
        began[ended] = True  # it would end the next one, too
        self.workqueue.update({name: tests for name, tests in files.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        return ended

    def schedule(self) -> None:
        super().schedule()
        for node in self.nodes:  # one with a single test would wait for another
            self._reschedule(node)


def pytest_xdist_setupnodes() -> None:
    """One process that has torch, for the programs of all: each would take seconds to begin its own."""
    if ready_kit.SHARED not in os.environ:
        os.environ[ready_kit.SHARED] = ready_kit.begin()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole files to each process, if that is asked for."""
    return FilesInTurn(config, log) if config.getvalue("dist") == "loadfile" else None
