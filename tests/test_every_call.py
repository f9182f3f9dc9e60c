"""Any call to the system of a whole program may fail, be late or hang: some of each, of some programs.

`make calls` tries more of all programs, as each night; docs/fuzzing.md says more.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ready_kit import python

ROOT = Path(__file__).parent.parent
PATIENCE = 1200
NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler, which builds what stands between"
)

pytestmark = NEEDS_COMPILER


def every_call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*python(), "-m", "tests.every_call", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


def ends(said: str) -> dict[str, int]:
    """How the trials ended, by what came of them."""
    return {what: int(count) for count, what in re.findall(r"(\d+) ([A-Za-z ]+?)[,;]", said.splitlines()[-1])}


@pytest.mark.parametrize("scene", ["plain", "small buffer"])
def test_whatever_call_of_a_loader_fails_its_batches_are_right_or_an_error_says_why(scene: str) -> None:
    done = every_call("--scene", scene, "--mode", "fails", "--most", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert min(ends(done.stdout).get(what, 0) for what in ("batches", "SolarError")) > 5, done.stdout


@pytest.mark.parametrize("mode", ["late", "hangs"])
def test_what_is_late_or_hangs_while_a_loader_runs_ends_in_its_time(mode: str) -> None:
    done = every_call("--scene", "buffer", "--mode", mode, "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ends(done.stdout).get("SolarError" if mode == "hangs" else "batches", 0) > 3, done.stdout


@pytest.mark.parametrize("scene", ["buffer", pytest.param("serving", marks=pytest.mark.slow)])
def test_a_clock_that_jumps_by_an_hour_changes_no_batch(scene: str) -> None:
    done = every_call("--scene", scene, "--mode", "forward", "--mode", "back", "--most", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ends(done.stdout).get("batches", 0) >= 4, done.stdout  # the last look need not come


def test_a_folder_of_services_that_hangs_or_fails_leaves_a_loader_to_itself() -> None:
    names = ("stat64", "lstat64", "fstatat64", "statx", "stat", "open64")
    looks = [word for name in names for word in ("--call", name)]
    done = every_call("--scene", "service that is found", "--mode", "fails", "--mode", "hangs", "--most", "2", *looks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ends(done.stdout).get("batches", 0) > 4, done.stdout


@pytest.mark.slow
def test_of_two_ranks_both_have_their_batches_or_both_end() -> None:
    done = every_call("--scene", "ranks", "--mode", "fails", "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert min(ends(done.stdout).get(what, 0) for what in ("batches", "SolarError")) > 5, done.stdout


def test_a_stat_that_hangs_leaves_a_dataset_of_the_users_to_h5py() -> None:
    stats = [word for name in ("stat64", "fstat", "fstat64", "statx", "stat") for word in ("--call", name)]
    scenes = ("--scene", "own", "--scene", "own planned")
    done = every_call(*scenes, "--mode", "hangs", "--most", "2", *stats)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ends(done.stdout).get("batches", 0) > 4, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["service", "own", "own planned"])
def test_whatever_call_of_another_program_fails_it_ends_as_it_should(scene: str) -> None:
    done = every_call("--scene", scene, "--mode", "fails", "--most", "2")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_that_takes_no_notice_of_an_error_is_found() -> None:
    done = every_call("--scene", "careless", "--mode", "fails")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "open64 number 1 fails: wrong batches" in done.stdout
    assert "4 wrong batches" in done.stdout  # once and for ever, of two calls


def test_a_program_that_waits_by_the_time_of_day_is_found() -> None:
    done = every_call("--scene", "careless of the clock", "--mode", "forward", "--mode", "back")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "finds the clock an hour forward: wrong batches" in done.stdout  # the other is wrong in the same way
    assert "2 batches, 2 wrong batches" in done.stdout
