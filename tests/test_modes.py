"""Who may read what is written: a compressed file no more than its original, from its first byte on."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import h5py
import pytest
from store_kit import smooth

import solar
from solar.io.codec import unfinished
from solar.io.system import local_copy


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = smooth(40, 32, 32)
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o660, 0o444, 0o400])
@pytest.mark.parametrize("mask", [0o022, 0o000])
def test_a_compressed_file_has_the_mode_of_its_original_and_is_never_wider(
    mode: int, mask: int, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    target = original.with_name("b.h5")

    def told(progress: Any) -> None:
        seen.extend(mode_of(path) for path in original.parent.glob(".b.h5.solar-*"))

    original.chmod(mode)
    before = os.umask(mask)
    try:
        solar.io.codec.store.compress(original, target, "abs=1e-3", progress=told)
    finally:
        os.umask(before)
    assert mode_of(target) == mode
    assert seen and set(seen) == {0o600}
    assert target.stat().st_gid == original.stat().st_gid


def test_a_file_that_is_overwritten_takes_the_mode_of_the_original(original: Path) -> None:
    target = original.with_name("b.h5")
    target.touch(0o644)
    original.chmod(0o600)
    solar.compress(original, target, "abs=1e-3", force=True)
    assert mode_of(target) == 0o600


def test_where_the_group_cannot_be_kept_no_group_gains(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    facts = original.stat()
    other = os.stat_result((stat.S_IFREG | 0o640, *facts[1:5], facts.st_gid + 1, *facts[6:]))
    monkeypatch.setattr("os.fchown", refuse)
    with original.open("rb") as file:
        unfinished._keep_mode(file.fileno(), other)
    assert mode_of(original) == 0o600


def test_a_copy_of_an_object_that_another_user_could_have_put_there_is_not_used(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.touch(0o600)
    assert local_copy._ours(mine)
    mine.chmod(0o666)
    assert not local_copy._ours(mine)
    (tmp_path / "link").symlink_to(mine)
    assert not local_copy._ours(tmp_path / "link")
    assert not local_copy._ours(tmp_path / "nothing")
