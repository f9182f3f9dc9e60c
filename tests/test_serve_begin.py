"""A service that the first of several jobs begins, that the others find, and that ends after the last of them."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ready_kit import python
from serve_kit import FIELDS, alone, epochs_of, scan, soon

from solar import DataLoader, H5Dataset, PlanSampler
from solar.errors import PlanError
from solar.io.channels import service_sockets

_ = scan  # a fixture

JOB = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from serve_kit import job
from solar import H5Dataset
found, seed = {{}}, int(sys.argv[2])
data = H5Dataset(sys.argv[1], {FIELDS!r})
print("ready", flush=True)
sys.stdin.readline()
job(data, seed, 8, None, found, .002)
print(found[seed][0], found[seed][1]["served"] if found[seed][1] else 0)
"""
SOLAR = [sys.executable, "-m", "solar", "serve"]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of this test's own, whose services are ended."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("solar.io.channels.service_sockets.LINGERS", 3.0)
    yield tmp_path / "solar"
    subprocess.run([*SOLAR, "--stop"], check=False, capture_output=True)  # some have ended by themselves
    assert soon(lambda: not held(tmp_path / "solar"))


def held(folder: Path) -> list[Path]:
    """The locks that services hold; to try them would take them."""
    held = [
        line.split() for line in Path("/proc/locks").read_text().splitlines() if "-> " not in line
    ]  # none that wait
    locks = {line[5].split(":")[2] for line in held if line[1] == "FLOCK"}
    return [one for one in folder.glob("*.lock") if str(one.stat().st_ino) in locks]


def begun(scan: Path, jobs: int, environment: dict[str, str]) -> list[subprocess.Popen[str]]:
    running = [
        subprocess.Popen([*python(), "-c", JOB, str(scan), str(seed)], env=os.environ | environment, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for seed in range(jobs)
    ]  # fmt: skip
    for one in running:
        assert one.stdout is not None and one.stdin is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return running


@pytest.mark.slow(but=["3"])
@pytest.mark.parametrize("jobs", [3, 8])
def test_of_jobs_that_begin_together_one_begins_a_service(jobs: int, scan: Path, runtime: Path) -> None:
    running = begun(scan, jobs, {"SOLAR_SERVICE": "auto:4MiB"})
    said = [one.communicate(timeout=120) for one in running]
    assert len(service_sockets.found()) == len(held(runtime)) == 1
    data = H5Dataset(scan, FIELDS)
    for seed, (out, error) in enumerate(said):
        digest, served = out.split()
        assert digest == alone(data, seed, 8), error
        assert int(served) > 0, error


@pytest.mark.slow
def test_the_next_pass_begins_one_where_the_first_was_killed(scan: Path, runtime: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with DataLoader(data, 8, sampler=PlanSampler(data, seed=3), service="auto:4MiB") as loader:
        for _ in loader:
            pass
        killed = pid_of(runtime)
        os.kill(killed, signal.SIGKILL)
        assert soon(lambda: not held(runtime))
        digest = epochs_of(loader)
        assert soon(lambda: bool(held(runtime))) and pid_of(runtime) != killed
    assert digest == alone(data, 3, 8)


def pid_of(runtime: Path) -> int:
    """The process that serves there."""
    [path] = runtime.glob("*.sock")
    told = subprocess.run([*SOLAR, "--status", "--json", "--socket", str(path)], check=True, capture_output=True)
    return int(json.loads(told.stdout)[0]["pid"])


def test_it_ends_after_the_last(scan: Path, runtime: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with DataLoader(data, 8, service="auto:25%") as loader:
        for _ in loader:
            pass
        assert service_sockets.found() and "A service read " in loader.report()
    assert soon(lambda: not service_sockets.found() and not held(runtime))


@pytest.mark.parametrize("wrong", ["folder", "command", "time"])
def test_one_that_cannot_begin_is_said_and_the_job_reads_alone(
    wrong: str, scan: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.mkdir(mode=0o700)
    said = "this folder is not yours|others may enter this folder"
    if wrong == "folder":
        runtime.chmod(0o755)
    elif wrong == "command":
        monkeypatch.setattr(sys, "executable", "/bin/false")
        said = "no service could be started: 1"
    else:
        monkeypatch.setattr("solar.io.channels.service_sockets.BEGINS_WITHIN", 0.1)
        turn = os.open(service_sockets.socket_of([str(scan)]).with_suffix(".begin"), os.O_RDWR | os.O_CREAT, 0o600)
        assert service_sockets.locked(turn)
        said = "another job has tried to start a service for 0.1 s"
    data = H5Dataset(scan, FIELDS)
    order = PlanSampler(data, seed=1)
    with (
        caplog.at_level(logging.WARNING, "solar"),
        DataLoader(data, 8, sampler=order, service="auto:4MiB", buffer=0) as loader,
    ):
        assert epochs_of(loader) == alone(data, 1, 8)
    assert len(caplog.messages) == 1 and re.search(said, caplog.messages[0])
    assert "this training reads by itself" in caplog.messages[0]
    runtime.chmod(0o700)
    assert not service_sockets.found()


def test_memory_that_is_none_is_said_when_the_loader_is_made(scan: Path) -> None:
    with pytest.raises(PlanError, match=r"service='auto:64Gigs': '64Gigs' is not a size"):
        DataLoader(H5Dataset(scan, FIELDS), 8, service="auto:64Gigs")


def test_memory_that_is_too_small_is_said_and_the_job_reads_alone(
    scan: Path, runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = H5Dataset(scan, FIELDS)
    with (
        caplog.at_level(logging.INFO, "solar"),
        DataLoader(data, 8, sampler=PlanSampler(data, seed=1), service="auto:1k", buffer=0) as loader,
    ):
        assert epochs_of(loader) == alone(data, 1, 8)
    said = [one for one in caplog.records if "--memory is too small for these data: give " in one.message]
    assert [one.levelno for one in said][:1] == [logging.WARNING]
    assert not any(one.levelno >= logging.WARNING for one in said[1:])
    assert held(runtime)


def test_files_that_are_cut_off_are_not_served(scan: Path, runtime: Path, tmp_path: Path) -> None:
    torn, other = tmp_path / "torn.h5", tmp_path / "notes.txt"
    torn.write_bytes(scan.read_bytes()[:100_000])
    other.write_text("no HDF5")
    for wrong, said in ((torn, "is truncated: it has 100000 bytes of"), (other, "is no HDF5 file")):
        ended = subprocess.run(
            [*SOLAR, scan, wrong, "--memory", "4MiB", "--background"], capture_output=True, text=True
        )
        assert ended.returncode == 1 and str(wrong) in ended.stderr and said in ended.stderr
    assert not service_sockets.found()


def test_in_the_background_it_listens_when_the_command_ends(scan: Path, runtime: Path) -> None:
    command = [*SOLAR, str(scan), "--memory", "4MiB", "--background"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "it says what happens in" in ended.stdout
    assert os.getsid(pid_of(runtime)) == pid_of(runtime)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "a service is there" in again.stderr
