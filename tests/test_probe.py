"""Measuring a storage: what is counted, what is left behind, and which profiles are believed."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit import forgotten, open_files

from solar import _native
from solar.errors import PlanError, ReadError, SolarError
from solar.io.system import probe as probing
from solar.io.system import profile
from solar.io.system.probe import LARGE_REQUEST, LEAST, SMALL_REQUEST, probe
from solar.io.system.profile import Profile, Rate, fit_storage
from solar.values import Storage


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A file just large enough to be measured."""
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(LEAST))
    return str(path)


def profile_of(**changes: Any) -> Profile:
    rates = (Rate(SMALL_REQUEST, 1, 100, 100, 1.0), Rate(LARGE_REQUEST, 1, 10, 10, 1.0))
    return replace(Profile("/data", "2026-01-01T00:00:00+00:00", "as told", rates, fit_storage(rates)), **changes)


# --- measuring ----


def test_a_folder_is_measured_with_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    before, threads = open_files(), set(threading.enumerate())
    lines: list[str] = []
    made = probe(tmp_path, 0.1, LEAST, lines.append)
    assert not [*tmp_path.iterdir()]
    assert not open_files() - before
    assert set(threading.enumerate()) <= threads
    assert made.path == str(tmp_path)
    assert "writing" in lines[0]
    assert [line[:13] for line in lines[1:]] == sorted(line[:13] for line in lines[1:])
    assert {line[:13] for line in lines[1:]} == {f"round {number} of 3:" for number in (1, 2, 3)}
    assert len(made.rounds) == 3
    assert made.storage == fit_storage(made.rates)


def test_requests_of_two_sizes_are_counted_at_growing_depths(large: str) -> None:
    refused = forgotten(large)
    made = probe(large, 0.1)
    small = [rate for rate in made.rates if rate.nbytes == SMALL_REQUEST]
    assert [rate.depth for rate in small] == list(probing.DEPTHS[SMALL_REQUEST])[: len(small)]
    assert len(small) >= 2
    # Four large pieces are in the file: more than one at a time would soon read the same again.
    assert [rate.depth for rate in made.rates if rate.nbytes == LARGE_REQUEST] == [1]
    assert all(rate.bypassed == (0 if refused else rate.requests) for rate in made.rates)
    assert all(rate.requests >= 1 for rate in made.rates)


def test_without_io_uring_threads_make_the_depth(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _native.Reader
    monkeypatch.setattr(_native, "Reader", lambda threads, depth, gap, _: real(threads, depth, gap, "pread"))
    found = probe(large, 0.1)
    depths = [rate.depth for rate in found.rates if rate.nbytes == SMALL_REQUEST]
    assert depths == list(probing.DEPTHS[SMALL_REQUEST])[: len(depths)]
    assert len(depths) >= 2


def test_a_file_is_only_read(large: str) -> None:
    before, facts = Path(large).read_bytes(), Path(large).stat()
    Path(large).chmod(0o400)
    probe(large, 0.05)
    after = Path(large).stat()
    assert Path(large).read_bytes() == before
    assert (after.st_mtime_ns, after.st_size) == (facts.st_mtime_ns, facts.st_size)


def test_where_nothing_bypasses_the_page_cache_it_is_emptied_and_that_is_said(
    large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, dropped, advise = os.open, [], os.posix_fadvise

    def refuse(path: str, flags: int, *more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "refused")
        return opened(path, flags, *more)

    def count(descriptor: int, *what: int) -> None:
        dropped.append(what)
        advise(descriptor, *what)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "posix_fadvise", count)
    lines: list[str] = []
    made = probe(large, 0.05, progress=lines.append)
    assert all(rate.bypassed == 0 for rate in made.rates if rate.nbytes == LARGE_REQUEST)
    assert "through the page cache" in made.how or "memory" in made.how
    assert dropped == [(0, 0, os.POSIX_FADV_DONTNEED)] * (1 + len(lines))


def test_ctrl_c_removes_the_temporary_file(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if "in flight" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(tmp_path, 0.05, LEAST, interrupt)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_killed_command_leaves_no_temporary_file(tmp_path: Path, number: int, code: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    script = "import sys; from solar.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "probe", str(folder), "--seconds", "12", "--size", "32MiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "writing" in running.stdout.readline()
        assert "in flight" in running.stdout.readline()
        assert [*folder.iterdir()]
        running.send_signal(number)
        assert running.wait(60) == code
    assert not [*folder.iterdir()]


def test_a_folder_without_room_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match=r"needs .* free, and .* are: give a smaller --size"):
        probe(tmp_path, 0.05, 1 << 60)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(ReadError, match="cannot be written: No space left"):
        probe(tmp_path, 0.05, LEAST)
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "small").write_bytes(bytes(100))
    for name, why in (("pipe", "neither a plain file"), ("small", "100 bytes"), ("none", "No such file")):
        with pytest.raises(ReadError, match=why):
            probe(tmp_path / name, 0.05)
    with pytest.raises(ReadError, match="100 bytes"):
        probe(tmp_path, 0.05, 100)


def test_a_file_that_shrinks_meanwhile_is_an_error(large: str) -> None:
    def shrink(line: str) -> None:
        os.truncate(large, SMALL_REQUEST)

    with pytest.raises(SolarError, match=r"large\.bin"):
        probe(large, 0.05, progress=shrink)


# --- what the rates mean ----


@pytest.mark.parametrize("truth", [Storage(0.004, 1e9, 500, depth=2), Storage(0.008, 1.5e8, 125, depth=1)])
def test_the_storage_explains_both_sizes(truth: Storage) -> None:
    def rate(nbytes: int, depth: int) -> Rate:
        # So many in flight, of those that the storage takes side by side.
        some = Storage(truth.latency, truth.bandwidth, truth.iops, min(depth, truth.depth))
        return Rate(nbytes, depth, 1000, 0, some.seconds(1000, 1000 * nbytes))

    found = fit_storage(tuple(rate(nbytes, depth) for nbytes in (SMALL_REQUEST, LARGE_REQUEST) for depth in (1, 2, 4)))
    assert found.depth == truth.depth
    assert found.iops == pytest.approx(truth.iops, rel=0.01)
    assert found.latency == pytest.approx(truth.latency, rel=0.01)
    # Of a stream that blocks, a large request has its own latency in it.
    assert found.bandwidth == pytest.approx(truth.bandwidth, rel=0.01 if truth.depth > 1 else 0.15)


def test_noise_gives_a_storage_all_the_same() -> None:
    found = fit_storage((Rate(SMALL_REQUEST, 1, 10, 0, 1.0), Rate(LARGE_REQUEST, 1, 20, 0, 1.0)))
    assert (found.bandwidth, found.iops) == (20 * LARGE_REQUEST, pytest.approx(10, rel=0.01))
    found = fit_storage((Rate(SMALL_REQUEST, 1, 10_000, 0, 1.0), Rate(LARGE_REQUEST, 1, 2500, 0, 1.0)))
    assert found.iops > 0


def test_rounds_are_put_together_by_size_and_depth() -> None:
    one, two, other = Rate(4096, 1, 10, 10, 1.0), Rate(4096, 1, 30, 20, 1.5), Rate(4096, 2, 7, 7, 1.0)
    assert profile.merge_rates([one, other, two]) == (Rate(4096, 1, 40, 30, 2.5), other)


def test_rounds_disagree_by_half_as_much_again() -> None:
    truth = Storage(1e-3, 1e9, 500, depth=8)
    assert profile.disagreement([truth, truth]) == ""
    assert profile.disagreement([truth, replace(truth, bandwidth=1.49e9, iops=340, latency=6.8e-4, depth=2)]) == ""
    said = profile.disagreement([truth, replace(truth, bandwidth=38e6), replace(truth, latency=5e-3)])
    assert said == "latency differs 5 times (1 ms to 5 ms), bandwidth differs 26.3 times (38 MB/s to 1 GB/s)"
    assert "iops differs 2 times (500/s to 1k/s)" in profile.disagreement([truth, replace(truth, iops=1000)])


# --- profiles ----


def test_a_profile_is_read_as_it_was_stored_and_only_by_its_owner(tmp_path: Path) -> None:
    made = profile_of()
    path = tmp_path / "new" / "folder" / "disk.json"
    profile.save(made, path)
    assert profile.load(path) == made.storage
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    profile.save(profile_of(storage=Storage(0.5, 2e9, 7, 3)), path)
    assert profile.load(path) == Storage(0.5, 2e9, 7, 3)
    assert [*path.parent.iterdir()] == [path]


def test_a_profile_that_cannot_be_stored_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "disk.json"
    profile.save(profile_of(), path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        with pytest.raises(PlanError, match="cannot be stored: broken"):
            profile.save(profile_of(), path)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(PlanError, match="cannot be stored"):
        profile.save(profile_of(), path / "below")


def test_a_profile_tells_the_load_and_what_each_round_found(tmp_path: Path) -> None:
    storage = Storage(0.001, 1e9, 500, 8)
    profile.save(profile_of(rounds=(storage,) * 3, load=9.5, cores=2), tmp_path / "p.json")
    kept = json.loads((tmp_path / "p.json").read_text())
    assert (kept["load"], kept["cores"]) == (9.5, 2)
    assert kept["rounds"] == [{"latency": 0.001, "bandwidth": 1e9, "iops": 500, "depth": 8}] * 3
    profile.load(tmp_path / "p.json")


GOOD = {"solar_storage": 1, "latency": 0.001, "bandwidth": 1e9, "iops": 500, "depth": 8}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no JSON",
        "[1]",
        "null",
        "{}",
        "[" * 100_000,
        "9" * 100_000,
        b"\xff\xfe",
        " " * (1 << 20) + json.dumps(GOOD),
        *(json.dumps(GOOD | {"solar_storage": version}) for version in (0, 2, "1", None)),
        *(json.dumps({key: value for key, value in GOOD.items() if key != name}) for name in GOOD),
        *(
            json.dumps(GOOD | {name: value})
            for name in ("latency", "bandwidth", "iops", "depth")
            for value in (-1, 1e300, 10**400, True, None, "500", [500], float("nan"), float("inf"))
        ),
        *(json.dumps(GOOD | {name: 0}) for name in ("bandwidth", "iops", "depth")),
    ],
    ids=lambda content: str(content)[:60],
)
def test_what_no_storage_can_be_is_refused(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanError, match=r"p\.json: ") as caught:
        profile.load(path)
    assert len(str(caught.value)) < 600


def test_only_a_plain_file_is_opened_as_a_profile(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "", "none"):
        with pytest.raises(PlanError, match=r"not a plain file|cannot be read|directory"):
            profile.load(tmp_path / name)


def test_each_mount_point_has_its_own_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) in ("/", str(tmp_path)))
    (tmp_path / "a").mkdir()
    here, there = profile.default_path(tmp_path / "a"), profile.default_path("/")
    assert here == profile.default_path(tmp_path)
    assert here != there
    assert here.parent == there.parent
    assert there.name == "root.json"
    assert profile.mount_point(tmp_path / "a" / "missing.h5") == tmp_path


def test_the_kind_of_file_system_is_known() -> None:
    assert profile.file_system("/proc/self") == "proc"
