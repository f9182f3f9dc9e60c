"""A service that lacks something, or whose file or socket goes: jobs have their batches all the same."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from faults_kit import fault
from kit import settle
from serve_kit import FIELDS, PATIENT, SAMPLES, Process, alone, check, epochs_of, job, scan, serving, soon, together

from solar import DataLoader, H5Dataset, PlanSampler
from solar.errors import PlanError, ReadError
from solar.io.channels import service_sockets
from solar.service import served_passes

_ = scan  # a fixture

DATA = 100_000  # bytes of the file, behind which there are samples alone


def lacking(calls: list[str], code: int, **facts: int) -> str:
    """Has a service meet a fault in such calls."""
    faults = [fault(one, code, **facts) for one in calls]  # type: ignore[arg-type]
    return f"from solar import _native; _native._inject_faults({faults})"


def test_a_service_whose_disk_fails_leaves_those_batches_to_their_jobs(scan: Path, tmp_path: Path) -> None:
    """What fails is tried again, by the service or by its jobs: here forty reads fail, and then none."""
    data = [H5Dataset(scan, FIELDS) for _ in range(2)]
    before = lacking(["map", "read", "ring"], errno.EIO, times=40, begin=DATA)
    with Process(scan, tmp_path, before=before) as service:
        found = together(data, str(service.socket))
        assert service.process.poll() is None
    check(data, found)
    assert sum(counts["served"] for _, counts in found.values()) > 100


def test_a_service_whose_disk_fails_for_good_leaves_its_jobs_to_themselves_at_once(scan: Path, tmp_path: Path) -> None:
    """After two steps, and not after each: to try again takes its time. At their next pass they are told why."""
    log, data = tmp_path / "log", [H5Dataset(scan, FIELDS) for _ in range(2)]
    before = lacking(["map", "read", "ring"], errno.EIO, begin=DATA)
    before += f"; import sys; sys.stderr = open({str(log)!r}, 'w', buffering=1)"
    with Process(scan, tmp_path, before=before) as service:
        found = together(data, str(service.socket))
        assert service.process.poll() is None
    check(data, found)
    said = log.read_text()
    assert said.count("is left to each job") < 3 and said.count("goes on without these data") == 1, said
    assert all(counts["served"] == 0 for _, counts in found.values())


def test_a_service_without_memory_leaves_its_jobs_to_themselves(scan: Path, tmp_path: Path) -> None:
    data = [H5Dataset(scan, FIELDS) for _ in range(2)]
    with Process(scan, tmp_path, before=lacking(["memory"], errno.ENOMEM)) as service:
        found = together(data, str(service.socket))
        assert service.process.poll() is None
    check(data, found)
    assert any(counts["alone"] > 50 for _, counts in found.values())


@pytest.mark.slow
def test_a_service_without_descriptors_takes_whom_it_can(scan: Path, tmp_path: Path) -> None:
    """Each job takes some; who finds none left reads by itself, and the others notice nothing."""
    before = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (44, 44))"
    data = [H5Dataset(scan, FIELDS) for _ in range(8)]
    with Process(scan, tmp_path, before=before) as service:
        found = together(data, str(service.socket), pause=0.002)
        assert service.process.poll() is None
        again: dict[int, Any] = {}
        job(data[0], 0, 8, str(service.socket), again)  # and afterwards there is room
    check(data, found)
    assert again[0][0] == found[0][0] and again[0][1]["served"] > 250


def test_jobs_go_on_where_the_socket_is_removed_and_nobody_else_comes(scan: Path, tmp_path: Path) -> None:
    data, order = H5Dataset(scan, FIELDS), PlanSampler(H5Dataset(scan, FIELDS), seed=0)
    with serving(scan, where=tmp_path, slack=PATIENT) as service:
        with DataLoader(data, 8, sampler=order, service=str(service.path), buffer=0) as loader:
            next(iter(loader))
            service.path.unlink()
            assert epochs_of(loader) == alone(data, 0, 8)
            assert loader._buffered.running.counts()["alone"] <= 1
        with pytest.raises(PlanError, match="no service answers there"):
            next(iter(DataLoader(data, 8, service=str(service.path), buffer=0)))


def test_jobs_read_by_themselves_where_the_folder_of_the_service_hangs(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, goes_on, asked = H5Dataset(scan, FIELDS), threading.Event(), list[Path]()
    of_system = service_sockets.open_folder

    def hangs(where: Path, owner: int | None) -> int:
        asked.append(where)
        goes_on.wait(60)
        return of_system(where, owner)

    monkeypatch.setattr(service_sockets, "open_folder", hangs)
    monkeypatch.setattr(served_passes, "FIND_WITHIN", 0.2)
    order = PlanSampler(data, seed=0)
    with (
        serving(scan, where=tmp_path, slack=PATIENT) as service,
        DataLoader(data, 8, sampler=order, service=str(service.path), buffer=0) as loader,
    ):
        assert epochs_of(loader) == alone(data, 0, 8)
        assert len(asked) == 1  # the second epoch does not wait again
        said = [one.message for one in caplog.records if one.levelno == logging.WARNING]
        assert len(said) == 1
        assert "no answer after 0.2 s: still looking for a service" in said[0]
        assert said[0].endswith("this training reads by itself")
        goes_on.set()
        assert soon(lambda: not loader._buffered.options.service._looking)  # type: ignore[union-attr]
        assert soon(lambda: not service.status()["connections"])  # what came too late is closed
        assert epochs_of(loader) == alone(data, 0, 8)
        assert loader._buffered.served


def test_a_job_that_rests_holds_nobody_back_for_long(scan: Path, tmp_path: Path) -> None:
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with serving(scan, where=tmp_path, slack=0.05, memory=SAMPLES * 512) as service:
        order = PlanSampler(data, seed=1)
        with DataLoader(data, 11, sampler=order, service=str(service.path), buffer=0) as slow:
            slow.set_epoch(0)
            batches = iter(slow)
            seen = [next(batches) for _ in range(3)]  # and then it takes none
            job(data, 0, 8, str(service.path), found)
            assert soon(lambda: any("held back others" in one["why"] for one in service.status()["jobs"]))
            seen += batches
    assert found[0][0] == alone(data, 0, 8)
    with DataLoader(data, 11, sampler=order, buffer=0) as whole:
        whole.set_epoch(0)
        assert all(one.equal(other) for one, other in zip(seen, whole, strict=True))


def test_a_file_that_is_replaced_is_an_error_and_made_again_it_is_served(tmp_path: Path) -> None:
    path, other = tmp_path / "scan.h5", tmp_path / "other.h5"
    for number, one in enumerate((path, other)):
        with h5py.File(one, "w") as file:
            file["x"] = np.arange(number, number + SAMPLES * 16).reshape(SAMPLES, 16)
        settle(one)
    data = H5Dataset(path, "x")
    with serving(path, where=tmp_path) as service:
        order = PlanSampler(data, seed=0)
        with DataLoader(data, 8, sampler=order, service=str(service.path), buffer=0) as loader:
            first = epochs_of(loader, 1)
            os.utime(other, ns=(time.time_ns(), time.time_ns()))
            other.replace(path)
            with pytest.raises(ReadError, match=r"scan\.h5.*changed|scan\.h5.*replaced"):
                epochs_of(loader, 1)
        new, found = H5Dataset(path, "x"), dict[int, Any]()
        job(new, 0, 8, str(service.path), found)
    assert found[0][0] == alone(new, 0, 8) != first
    assert found[0][1]["served"] > 200
    assert service_sockets.real(str(path)) in service.served
