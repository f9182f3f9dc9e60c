"""The processor time of each test: the twenty that take most, and a budget for their sum that a run may not exceed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MARGIN = 1.1  # a budget may be exceeded by a tenth
# What `loop_seconds` returns on the machine that budgets are stated for. A slower machine gets a larger budget.
LOOP_SECONDS = 0.027

_began = pytest.StashKey[float]()
_told = pytest.StashKey[list[str]]()
_seconds = Counter[str]()  # by test, in the process that shows them


def loop_seconds() -> float:
    """Returns the processor time of a loop of plain Python, the shortest of several: the speed of this machine."""

    def once() -> float:
        began = time.process_time()
        total = 0
        for i in range(1_000_000):
            total += i
        return time.process_time() - began

    return min(once() for _ in range(7))


def used_seconds() -> float:
    """Returns the processor time of this process, and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_began] = used_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown" and _began in item.stash:
        report.user_properties.append(("processor_seconds", used_seconds() - item.stash[_began]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _seconds[report.nodeid] += dict(report.user_properties).get("processor_seconds", 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    budget = session.config.getoption("--budget")
    if budget is None or hasattr(session.config, "workerinput"):
        return
    slower = max(loop_seconds() / LOOP_SECONDS, 1.0)
    session.config.stash[_told] = lines = [
        f"{sum(_seconds.values()):.0f} s of processor time for {len(_seconds)} tests; the budget is {budget:.0f} s"
        + (f" x {slower:.2f} on this machine, which is slower than the one that it was set on" if slower > 1 else "")
    ]
    if sum(_seconds.values()) > budget * slower * MARGIN:
        lines.append(
            "That is more than a tenth too much. Make tests quicker, or mark those as slow that a quicker one covers."
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not (lines := config.stash.get(_told, [])):
        return
    terminalreporter.section("processor time")
    for test, seconds in _seconds.most_common(20):
        terminalreporter.line(f"{seconds:7.1f} s  {test}")
    for line in lines:
        terminalreporter.line(line)
    if path := os.environ.get("SOLAR_TEST_SECONDS"):
        Path(path).write_text("".join(f"{seconds:.3f}\t{test}\n" for test, seconds in _seconds.most_common()))
