"""Requests that nobody waits for any more: an epoch left early, an error between start and wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from solar import _native
from solar.io.hdf5.layouts import inspect
from solar.io.reading.engine import Engine
from solar.io.reading.reader import Rows


def contiguous(path: Path) -> _native.Source:
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(1).random((20, 5, 7), np.float32)
    source = Rows(inspect(path, "x"))._source
    assert source is not None
    return source


def test_abandoned_tickets_give_their_memory_back_and_are_not_read_to_their_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(256 * 4096, dtype=np.float32).reshape(256, 4096)
    rows = Rows(inspect(tmp_path / "a.h5", "x"))
    random = np.random.default_rng(2)
    rows.start(np.arange(256)).wait()
    assert Engine.reader is not None
    before, read_before = _native.pool_stats()["in_use"], Engine.reader.stats()["rows"]
    most = 0
    for _ in range(1000):
        epoch = [rows.start(random.integers(0, 256, 64)) for _ in range(4)]
        epoch[0].wait()
        epoch.clear()
        most = max(most, _native.pool_stats()["in_use"] - before)
    assert most < 16 * 64 * 4096 * 4
    np.testing.assert_array_equal(rows.start(np.array([3])).wait()[0], np.arange(3 * 4096, 4 * 4096))
    assert Engine.reader.stats()["rows"] - read_before >= 1000 * 64 + 1

    def flat() -> bool:
        rows.start(np.array([3])).wait()
        return _native.pool_stats()["in_use"] <= before

    assert any(flat() for _ in range(1000))


def test_giving_up_a_ticket_is_quiet_whatever_became_of_it(tmp_path: Path) -> None:
    source = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(1, 1, 0, "auto")
    out = np.empty((1, 5, 7), np.float32)
    base = sys.getrefcount(out)
    ticket = reader.submit(source, np.array([0]), out)
    assert reader.wait(ticket, 60)
    reader.abandon(ticket)
    reader.abandon(12345)
    (tmp_path / "a.h5").unlink()
    fresh = _native.Reader(1, 1, 0, "auto")
    fresh.abandon(fresh.submit(source, np.array([0]), out))  # cannot be read
    while sys.getrefcount(out) > base:
        fresh.abandon(fresh.submit(source, np.array([0]), np.empty((1, 5, 7), np.float32)))
    fresh.close()
    fresh.abandon(1)


ABANDONED = """
import os, sys
sys.path[:0] = {path!r}
import numpy as np
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
rows = Rows(inspect({file!r}, "x"))
pending = [rows.start(np.arange(20)) for _ in range(100)]
if os.fork() == 0:
    del pending[50:]
    rows.start(np.arange(20)).wait()
    sys.exit()
assert os.wait()[1] == 0
del pending[:50]
rows.start(np.arange(20)).wait()
"""


def test_requests_given_up_in_a_forked_child_or_at_exit_are_quiet(tmp_path: Path) -> None:
    contiguous(tmp_path / "a.h5")
    code = ABANDONED.format(path=sys.path, file=str(tmp_path / "a.h5"))
    quiet = ["-W", "ignore::DeprecationWarning"]  # from Python 3.12 on it warns of forks beside threads
    done = subprocess.run([sys.executable, *quiet, "-c", code], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


class Revenant:
    """Memory whose release gives up another ticket."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def __del__(self) -> None:
        self.act()


def test_memory_let_go_may_run_python_code_that_comes_back(tmp_path: Path) -> None:
    source = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(2, 4, 0, "auto")
    done: list[int] = []

    def again(depth: int) -> None:
        if depth:
            out = np.empty((20, 5, 7), np.float32).view(Array)
            out.ghost = Revenant(lambda: again(depth - 1))
            reader.abandon(reader.submit(source, np.arange(20), out))
        done.append(depth)

    for _ in range(50):
        again(4)
    for _ in range(1000):
        if len(done) == 50 * 5:
            break
        assert reader.wait(reader.submit(source, np.arange(20), np.empty((20, 5, 7), np.float32)), 60)
    assert len(done) == 50 * 5


class Array(np.ndarray[Any, np.dtype[np.float32]]):
    ghost: Revenant
