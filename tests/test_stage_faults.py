"""Faults of a stage: the local disk fills, goes, lies or forgets, and the training gets the right bits all the same."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults_kit import fault, injected
from kit import BACKENDS, engine
from ready_kit import python
from stage_kit import SAMPLES, as_a_new_process, epoch, loader_of, own, stage_files, written

from solar import DataLoader, H5Dataset, PlanError, ReadError
from solar.io.reading import stage

BLOCK = stage.STAGE_BLOCK


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder of a local disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture(params=BACKENDS)
def staged(request: pytest.FixtureRequest, tmp_path: Path, disk: Path) -> Any:
    """A data set, its values and the folder of its stage, which is filled; of each it is not known what is right."""
    values = written(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    with engine(2, request.param):
        assert epoch(data, values)["far"] > 0
        as_a_new_process()
        yield H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk), values, disk


def said(data: Any) -> str:
    """What the report says after an epoch."""
    with loader_of(data) as loader:
        assert sum(len(batch["x"]) for batch in loader) == SAMPLES
        return str(loader.report())


def changed(path: Path, offset: int, bits: int = 1, nbytes: int = 1) -> None:
    """Flips bits of bytes of a file."""
    with path.open("r+b") as file:
        before = os.pread(file.fileno(), nbytes, offset)
        os.pwrite(file.fileno(), bytes(byte ^ bits for byte in before), offset)


def test_a_folder_that_somebody_else_has_locked_is_given_up_in_words(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "a.h5")
    monkeypatch.setattr(stage, "LOCK_WAIT", 0.1)
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    own(disk).mkdir(mode=0o700, exist_ok=True)
    with (own(disk) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "its lock was not free for 0 s" in said(data)


def test_a_flipped_bit_is_noticed_and_its_block_is_read_from_afar_and_staged_again(staged: Any) -> None:
    data, values, disk = staged
    [file] = stage_files(disk)
    changed(file, 100_000)
    found = epoch(data, values)
    assert 0 < found["far"] <= 8 * values[0].nbytes
    assert "1 block of the stage in" in said(data)
    assert epoch(data, values)["far"] == 0  # the epoch of `said` has put it back
    as_a_new_process()
    again = H5Dataset(data.layouts["x"].paths[0], {"x": "x"}, stage=disk)
    assert epoch(again, values)["far"] == 0
    assert "block" not in again.__repr__() + stage.tier_warnings(again.tier)


def test_torn_entries_are_not_believed(staged: Any) -> None:
    data, values, disk = staged
    [file] = stage_files(disk)
    entries = -(-int(data.layouts["x"].file_nbytes[0]) // BLOCK) * BLOCK
    changed(file, entries, 0xFF, 64)  # of 16 blocks
    with file.open("r+b") as open_file:
        os.pwrite(open_file.fileno(), bytes(64), entries + 64)  # of 16 more: never written, it seems
    assert 0 < epoch(data, values)["far"] <= values.nbytes / 2
    epoch(data, values)
    assert epoch(data, values)["far"] == 0


@pytest.mark.parametrize("how", ["last page", "cut short", "empty", "longer"])
def test_a_stage_file_that_is_not_whole_is_made_anew(staged: Any, how: str) -> None:
    data, values, disk = staged
    [file] = stage_files(disk)
    size = file.stat().st_size
    if how == "last page":
        changed(file, size - BLOCK + 20)
    else:
        os.truncate(file, {"cut short": size - 5, "empty": 0, "longer": size + BLOCK}[how])
    assert epoch(data, values)["far"] > values.nbytes
    assert epoch(data, values)["far"] == 0
    assert len(stage_files(disk)) == 1


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("how", ["cut short", "another", "removed", "folder"])
def test_what_happens_to_it_amid_an_epoch_costs_no_batch(staged: Any, how: str) -> None:
    data, values, disk = staged
    [file] = stage_files(disk)
    order = list(range(SAMPLES))
    with loader_of(data, sampler=order) as loader:
        for turn in range(2):
            for number, batch in enumerate(loader):
                if turn == 0 and number == 3:
                    _harm(file, how)
                assert np.array_equal(batch["x"].numpy(), values[order[number * 7 : number * 7 + 7]])
    as_a_new_process()
    again = H5Dataset(data.layouts["x"].paths[0], {"x": "x"}, stage=disk)
    epoch(again, values)
    assert epoch(again, values)["far"] == 0


def _harm(file: Path, how: str) -> None:
    if how == "cut short":
        os.truncate(file, 10_000)
    elif how == "folder":
        shutil.rmtree(file.parent)
    else:
        file.unlink()
    if how == "another":
        shutil.copyfile(file.parent / "lock", file)
        os.truncate(file, 10_000_000)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("after", [0, 5])
def test_a_disk_that_takes_no_more_ends_staging_and_nothing_else(
    code: int, after: int, tmp_path: Path, disk: Path
) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    with injected([fault("write", code, after=after)]):
        first = epoch(data, values)
        second = epoch(data, values)
    assert first["far"] > 0
    assert after or second["near"] == 0
    full = "the disk is full but for its last twentieth" if code == errno.ENOSPC else os.strerror(code)
    assert f"Nothing more is staged in {disk}: {full}" in said(data)
    as_a_new_process()
    again = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    epoch(again, values)
    assert epoch(again, values)["far"] == 0


@pytest.mark.slow
def test_a_limit_for_files_is_no_end_either(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5")
    code = (
        "import resource, sys\n"
        "from solar import DataLoader, H5Dataset\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "loader = DataLoader(H5Dataset(sys.argv[1], 'x', stage=sys.argv[2]), 7, shuffle=True, buffer=0)\n"
        "assert sum(map(len, loader)) == 300\n"
        "print(loader.report())\n"
    )
    words = [*python(fresh=True), "-c", code, str(tmp_path / "a.h5"), str(disk)]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    assert f"Not staged in {disk}: File too large" in answer.stdout


def test_a_folder_that_is_gone_when_it_is_needed_is_said(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    disk.rmdir()
    assert epoch(data, values)["near"] == 0
    assert f"Not staged in {disk}: No such file or directory" in said(data)


def test_a_read_of_it_that_fails_is_made_from_afar(staged: Any) -> None:
    data, values, disk = staged
    with injected([("read", ".stage", 0, 2**64 - 1, 20, 2**64 - 1, errno.EIO, 2**64 - 1, 0.0)]):
        assert epoch(data, values)["far"] > 0
        assert "no longer read: Input/output error" in said(data)
    assert epoch(data, values)["near"] == 0  # in this data set
    as_a_new_process()
    assert epoch(H5Dataset(data.layouts["x"].paths[0], {"x": "x"}, stage=disk), values)["far"] == 0


def test_an_error_of_the_far_storage_is_what_it_is_without_a_stage(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5")
    words = []
    for folder in (None, disk):
        data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=folder)
        bad = ("a.h5", 100_000, 100_001, 0, 2**64 - 1, errno.EACCES, 2**64 - 1, 0.0)
        with injected([("read", *bad), ("ring", *bad)]):
            with pytest.raises(ReadError) as caught, loader_of(data, sampler=range(SAMPLES)) as loader:
                list(loader)
            words.append(str(caught.value))
            with DataLoader(data, 8, on_error="skip", buffer=0) as loader:
                assert sum(len(batch["x"]) for batch in loader) == SAMPLES - 1
    assert words[0] == words[1]


def test_a_far_file_that_was_replaced_is_staged_anew_and_the_old_bytes_go(staged: Any, tmp_path: Path) -> None:
    data, _, disk = staged
    [before] = stage_files(disk)
    values = written(tmp_path / "a.h5", seed=9)
    with pytest.raises(ReadError, match="changed since it was inspected"), loader_of(data) as loader:
        next(iter(loader))
    now = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    assert epoch(now, values)["far"] > 0
    assert epoch(now, values)["far"] == 0
    [after] = stage_files(disk)
    assert after != before


@pytest.mark.parametrize("when", [1, 4, 9])
def test_what_a_killed_process_staged_is_found_and_used(when: int, tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    code = (
        "import os, signal, sys\n"
        "from solar import DataLoader, H5Dataset\n"
        "loader = DataLoader(H5Dataset(sys.argv[1], 'x', stage=sys.argv[2]), 7, buffer=0)\n"
        "for number, _ in enumerate(loader):\n"
        "    if number == int(sys.argv[3]): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [*python(), "-c", code, str(tmp_path / "a.h5"), str(disk), str(when)]
    assert subprocess.run(words, timeout=300).returncode == -signal.SIGKILL
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    first = epoch(data, values)
    assert first["near"] > 0
    assert epoch(data, values)["far"] == 0


FOREIGN: dict[str, Callable[[Path], object]] = {
    "open to others": lambda place: place.mkdir(mode=0o755),
    "a link": lambda place: place.symlink_to("/tmp"),
    "a file": lambda place: place.touch(),
    "a folder in a file's place": lambda place: (place.mkdir(mode=0o700), (place / "x.stage").mkdir()),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_foreign_is_refused_in_words(kind: str, tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5")
    FOREIGN[kind](own(disk))
    with pytest.raises(PlanError, match="remove it, or name another `stage`"):
        H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)[0]


def test_the_disks_last_twentieth_is_left(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", place]).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        values = written(tmp_path / "a.h5")
        data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=place)
        assert epoch(data, values)["written"] > 0
        second = epoch(data, values)
        assert second["far"] > 0
        assert second["near"] > 0
        assert "the disk is full but for its last twentieth" in said(data)
        facts = os.statvfs(place)
        assert facts.f_bavail * 20 >= facts.f_blocks
        as_a_new_process()
    finally:
        subprocess.run(["umount", "-l", place], check=True)
