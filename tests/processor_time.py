"""The processor time of each test: the twenty that take most, and a budget for their sum that a run may not exceed.

A machine is slower when its neighbours are busy, by a factor of two and more. So seconds are those of one machine: what
a test took is divided by how much slower a loop of plain Python ran at about the same time than it does there.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MARGIN = 1.3  # times a budget, which fails: a loop of plain Python is slowed less by a busy machine than most tests are
LOOP_SECONDS = 0.00265  # what `loop_seconds` returns on the machine whose seconds are counted
FRESH_SECONDS = 2.0  # of processor time, after which the machine's speed is measured again

_began = pytest.StashKey[tuple[float, float]]()
_told = pytest.StashKey[list[str]]()
_seconds = Counter[str]()  # by test, in the process that shows them
_speed = (float("-inf"), 1.0)  # when it was measured, and how much slower this machine is


def loop_seconds() -> float:
    """Returns the processor time of a loop of plain Python, the shortest of three."""

    def once() -> float:
        began = time.process_time()
        total = 0
        for i in range(100_000):
            total += i
        return time.process_time() - began

    return min(once() for _ in range(3))


def slowness() -> float:
    """Returns how much slower this machine is now than the one whose seconds are counted."""
    global _speed
    if time.process_time() - _speed[0] > FRESH_SECONDS:
        _speed = (time.process_time(), max(loop_seconds() / LOOP_SECONDS, 0.1))
    return _speed[1]


def used_seconds() -> float:
    """Returns the processor time of this process, and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    slower = slowness()
    item.stash[_began] = used_seconds(), slower
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown" and _began in item.stash:
        began, slower = item.stash[_began]
        report.user_properties.append(("processor_seconds", (used_seconds() - began) / slower))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _seconds[report.nodeid] += dict(report.user_properties).get("processor_seconds", 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    budget = session.config.getoption("--budget")
    if budget is None or hasattr(session.config, "workerinput"):
        return
    total = sum(_seconds.values())
    session.config.stash[_told] = lines = [
        f"{total:.0f} s of processor time for {len(_seconds)} tests; the budget is {budget:.0f} s."
    ]
    if total > budget * MARGIN:
        lines.append("That is far too much: make tests quicker, or mark as slow what a quicker one covers.")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not (lines := config.stash.get(_told, [])):
        return
    terminalreporter.section("processor time, in seconds of one machine")
    for test, seconds in _seconds.most_common(20):
        terminalreporter.line(f"{seconds:7.1f} s  {test}")
    for line in lines:
        terminalreporter.line(line)
    if path := os.environ.get("SOLAR_TEST_SECONDS"):
        Path(path).write_text("".join(f"{seconds:.3f}\t{test}\n" for test, seconds in _seconds.most_common()))
