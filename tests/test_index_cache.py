"""The cache of chunk tables: quick when it is right, harmless when it is not."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle

import solar
from solar import _native
from solar.io.hdf5 import chunk_index


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with a table that is worth keeping."""
    monkeypatch.setattr(chunk_index, "WORTH_KEEPING", 50)
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(400).reshape(100, 4), chunks=(1, 2), compression="gzip")
        sparse = file.create_dataset("sparse", (1000,), "i4", chunks=(2,))
        sparse[300:500] = 1
    settle(path)
    return str(path)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The datasets whose index was walked."""
    walked: list[str] = []
    walk = _native.chunk_table

    def counted(path: str, name: str, *how: Any) -> Any:
        walked.append(name)
        return walk(path, name, *how)

    monkeypatch.setattr(_native, "chunk_table", counted)
    return walked


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "solar").glob("*"))


def arrays(layout: solar.Layout) -> list[list[int]]:
    return [
        array.tolist() for array in (layout.chunk_index, layout.chunk_offset, layout.chunk_nbytes, layout.chunk_mask)
    ]


@pytest.mark.parametrize("name", ["x", "sparse"])
def test_the_second_time_nothing_is_walked_and_the_layout_is_the_same(large: str, walks: list[str], name: str) -> None:
    first, second = solar.inspect(large, name), solar.inspect(large, name)
    assert walks == [f"/{name}"]
    assert arrays(first) == arrays(second)
    assert first.digest == second.digest
    assert np.array_equal(solar.read(large, name), h5py.File(large)[name][...])


def test_files_are_for_their_owner_only_and_nothing_is_left_over(large: str, tmp_path: Path) -> None:
    solar.inspect(large, "x")
    (file,) = kept(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_changed_file_is_walked_again(large: str, walks: list[str]) -> None:
    solar.inspect(large, "x")
    with h5py.File(large, "r+") as file:
        file["x"][:] = np.random.default_rng(0).integers(0, 1 << 40, (100, 4))
    settle(large)
    os.utime(large, ns=(0, Path(large).stat().st_mtime_ns + 1))
    layout = solar.inspect(large, "x")
    assert walks == ["/x", "/x"]
    assert np.array_equal(solar.read(large, "x"), h5py.File(large)["x"][...])
    assert layout.stored_nbytes > 0


def test_any_damage_to_the_cache_only_costs_a_walk(large: str, walks: list[str], tmp_path: Path) -> None:
    wanted = arrays(solar.inspect(large, "sparse"))
    (file,) = kept(tmp_path)
    sound = file.read_bytes()
    damages = [b"", sound[:60], sound[:-1], sound + b"\0", b"x" * len(sound)]
    damages += [
        sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in (0, 8, 12, 16, 30, 60, 73, 130, len(sound) - 1)
    ]
    for damage in damages:
        file.write_bytes(damage)
        walks.clear()
        assert arrays(solar.inspect(large, "sparse")) == wanted
        assert walks == ["/sparse"]
    assert file.read_bytes() == sound


def test_a_cache_that_others_may_write_is_not_used(large: str, walks: list[str], tmp_path: Path) -> None:
    solar.inspect(large, "x")
    kept(tmp_path)[0].parent.chmod(0o777)
    solar.inspect(large, "x")
    assert walks == ["/x", "/x"]


def test_a_cache_that_cannot_be_written_is_no_error(large: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("not a folder")
    assert solar.inspect(large, "x", cache=tmp_path / "a file").samples == 100


def test_it_can_be_turned_off_and_moved(large: str, tmp_path: Path) -> None:
    solar.inspect(large, "x", cache=None)
    assert kept(tmp_path) == []
    solar.inspect(large, "x", cache=tmp_path / "elsewhere")
    assert kept(tmp_path) == []
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_the_table_of_a_file_written_just_now_is_not_kept(large: str, tmp_path: Path) -> None:
    os.utime(large)
    solar.inspect(large, "x")
    assert kept(tmp_path) == []


def test_small_tables_are_not_kept(large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_index, "WORTH_KEEPING", 100_000)
    solar.inspect(large, "x")
    assert kept(tmp_path) == []


def test_the_folder_stays_within_its_size_and_what_was_used_longest_ago_goes(
    large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solar.inspect(large, "x")
    (old,) = kept(tmp_path)
    settle(old)
    monkeypatch.setattr(chunk_index, "FOLDER_NBYTES", old.stat().st_size + 100)
    solar.inspect(large, "sparse")
    (new,) = kept(tmp_path)
    assert new != old
