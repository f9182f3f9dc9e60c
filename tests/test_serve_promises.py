"""What docs/serving.md says of the command and of the log, where no other test shows it."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_kit import alone, job, scan, soon

from solar import H5Dataset
from solar.cli import main
from solar.io.channels import service_sockets
from solar.service.service import Service

_ = scan  # a fixture


@pytest.fixture
def two(scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Path, Service]]]:
    """Services of two files, where a user's are found."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    files = [scan, Path(shutil.copy(scan, tmp_path / "other.h5"))]
    services = [Service([str(one)], 2 << 20, service_sockets.socket_of([str(one)])) for one in files]
    threads = [threading.Thread(target=one.run) for one in services]
    for thread in threads:
        thread.start()
    yield list(zip(files, services, strict=True))
    for one in services:
        one.stop()
    for thread in threads:
        thread.join(20)


def test_stop_ends_the_service_of_a_file_and_without_one_all_of_a_user(
    two: list[tuple[Path, Service]], capsys: pytest.CaptureFixture[str]
) -> None:
    (first, _), (other, _) = two
    assert len(service_sockets.found()) == 2
    assert main(["serve", "--status"]) == 0
    said = capsys.readouterr().out
    assert f"serves {first}\n" in said and f"serves {other}\n" in said
    assert main(["serve", "--stop", str(first)]) == 0
    assert soon(lambda: service_sockets.found() == [service_sockets.socket_of([str(other)])])
    assert main(["serve", "--stop"]) == 0
    assert soon(lambda: service_sockets.found() == [])
    assert main(["serve", "--stop"]) == 1
    assert "no service of yours is there" in capsys.readouterr().err


def test_an_empty_lock_stays_and_the_log_of_one_in_the_background(scan: Path, tmp_path: Path) -> None:
    where = tmp_path / "s"
    where.mkdir(mode=0o700)
    solar = [sys.executable, "-m", "solar", "serve", "--socket", str(where / "a.sock")]
    subprocess.run([*solar, str(scan), "--memory", "2MiB", "--background"], check=True, capture_output=True)
    assert (where / "a.sock").is_socket() and (where / "a.sock").stat().st_mode & 0o777 == 0o600
    subprocess.run([*solar, "--stop"], check=True, capture_output=True)
    assert soon(lambda: sorted(one.name for one in where.iterdir()) == ["a.lock", "a.log"])
    assert (where / "a.lock").stat().st_size == 0


def test_the_log_says_that_there_is_no_service(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    data, found = H5Dataset(scan, "y"), dict[int, Any]()
    with caplog.at_level(logging.INFO, "solar"):
        job(data, 0, 8, "auto", found)
    assert found[0] == (alone(data, 0, 8), None)
    assert any("no service: none is there: start one by `solar serve FILE" in one for one in caplog.messages)
