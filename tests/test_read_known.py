"""What solar.read keeps from call to call: a file is inspected once, and anew as soon as it is another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import open_files, settle

import solar
from solar import ReadError, _native
from solar.io.reading import reader

SAMPLES = 60


def written(path: Path, first: int = 0, samples: int = SAMPLES, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        values = np.arange(first, first + samples * 4, dtype="i8").reshape(samples, 4)
        file.create_dataset("x", data=values, **options)
        file["y"] = -values[:, 0]
        file["text"] = [str(number) for number in range(samples)]
        file["one"] = 7
    settle(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "a.h5", chunks=(7, 4), compression="gzip")


@pytest.fixture(autouse=True)
def inspected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose metadata was read, each time; nothing is known at first."""
    reader._kept.clear()
    found: list[str] = []
    look = _native.read_metadata

    def counted(path: str, name: str = "") -> Any:
        found.append(Path(path).name)
        return look(path, name)

    monkeypatch.setattr(_native, "read_metadata", counted)
    return found


INDICES: list[Callable[[int], Any]] = [
    lambda k: slice(k, k + 3),
    lambda k: k,
    lambda k: [k, 0, -1],
    lambda k: np.arange(SAMPLES) % 7 == k % 7,
    lambda k: None,
]


def test_a_hundred_reads_are_one_inspection_and_h5pys_values(path: Path, inspected: list[str]) -> None:
    with h5py.File(path) as file:
        values = file["x"][...]
    for k in range(100):
        index = INDICES[k % len(INDICES)](k % 50)
        assert np.array_equal(solar.read(path, "x", index), values if index is None else values[index])
    assert inspected == ["a.h5"]


def test_each_dataset_and_each_way_to_say_a_path_is_known_by_itself(path: Path, inspected: list[str]) -> None:
    for _ in range(3):
        for where in (path, str(path)):
            assert solar.read(where, "x", 1)[0] == 4
            assert solar.read(where, "y", 1) == -4
            assert solar.read(where, "one") == 7
    assert len(inspected) == 3


def test_a_relative_path_means_another_file_in_another_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    written(tmp_path / "other" / "a.h5", 1000)
    for folder, first in ((tmp_path, 0), (tmp_path / "other", 1000), (tmp_path, 0)):
        monkeypatch.chdir(folder)
        assert solar.read("a.h5", "x", 0)[0] == first


def other(path: Path) -> None:
    """Another file takes its place, of the same size and time."""
    facts = path.stat()
    new = written(path.with_name("new.h5"), 1000, chunks=(7, 4))
    with new.open("ab") as file:
        file.truncate(max(facts.st_size, new.stat().st_size))
    new.replace(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def rewritten(path: Path) -> None:
    """It is written to, and its time of modification set back."""
    facts = path.stat()
    with h5py.File(path, "r+") as file:
        file["x"][...] += 1000
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def longer(path: Path) -> None:
    written(path, 1000, SAMPLES + 5, chunks=(7, 4))


@pytest.mark.parametrize("change", [other, rewritten, longer])
def test_a_file_that_changed_is_seen_at_once(path: Path, change: Callable[[Path], None], inspected: list[str]) -> None:
    assert solar.read(path, "x", slice(0, 9))[0, 0] == 0
    change(path)
    with h5py.File(path) as file:
        values = file["x"][...]
    assert values[0, 0] == 1000
    for _ in range(3):
        assert np.array_equal(solar.read(path, "x"), values)
        assert np.array_equal(solar.read(path, "x", slice(5, None)), values[5:])
    assert len(inspected) == 2


def test_a_file_that_was_deleted_is_a_read_error_and_one_that_is_put_back_is_read(path: Path) -> None:
    assert solar.read(path, "x", 0)[1] == 1
    path.rename(path.with_name("away"))
    for _ in range(2):
        with pytest.raises(ReadError, match="no such file or directory"):
            solar.read(path, "x", 0)
    path.with_name("away").rename(path)
    assert solar.read(path, "x", 0)[1] == 1


def test_one_that_was_written_to_just_now_is_inspected_each_time(path: Path, inspected: list[str]) -> None:
    path.touch()  # within one tick of the file system's clock it may change again
    for _ in range(3):
        solar.read(path, "x", 0)
    assert len(inspected) == 3


def test_what_is_no_single_file_or_read_by_h5py_is_not_kept(path: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    written(tmp_path / "folder" / "b.h5")
    for _ in range(2):
        for where in (tmp_path / "folder", [path, tmp_path / "folder" / "b.h5"], str(tmp_path / "folder" / "*.h5")):
            assert solar.read(where, "x", -1)[0] == 4 * (SAMPLES - 1)
        assert solar.read(path, "text", 3) == b"3"
    assert not reader._kept
    with pytest.raises(TypeError, match="name of one dataset, not list"):
        solar.read(path, ["x", "y"])  # type: ignore[arg-type]


def test_only_so_many_are_kept_those_that_were_asked_for_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [written(tmp_path / f"{number}.h5", number) for number in range(reader.KEPT + 3)]
    for path in paths:
        solar.read(path, "x", 0)
        solar.read(paths[0], "x", 0)
    assert len(reader._kept) == reader.KEPT
    assert [name for name, _ in reader._kept] == [str(path) for path in (*paths[-reader.KEPT + 1 :], paths[0])]
    monkeypatch.setattr(reader, "KEPT_NBYTES", 100)
    large = [written(tmp_path / f"chunks{number}.h5", chunks=(1, 4)) for number in range(2)]
    for path in large:  # 60 chunks take more: one at least is kept
        solar.read(path, "x", 0)
        assert [name for name, _ in reader._kept] == [str(path)]


def test_nothing_is_opened_or_mapped_that_was_not_before(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{number}.h5") for number in range(40)]
    for path in paths:
        assert np.array_equal(solar.read(path, "x", slice(2, 5))[:, 0], [8, 12, 16])
    before = open_files()
    for _ in range(3):
        for path in paths:
            solar.read(path, "x", slice(2, 5))
    assert len(open_files()) <= len(before) + 40 * len(os.sched_getaffinity(0)), "one for each file in each thread"
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_threads_may_read_at_the_same_time_while_the_file_is_replaced(path: Path) -> None:
    wrong: list[Any] = []
    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            try:
                rows = solar.read(path, "x", slice(3, 6))
            except (ReadError, ValueError) as error:  # replaced between the look and the read
                if "changed since" not in str(error):
                    wrong.append(error)
                continue
            first = rows[0, 0] - 12
            if first not in (0, 1000) or not np.array_equal(rows, first + np.arange(12, 24).reshape(3, 4)):
                wrong.append(rows)

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        new = written(path.with_name("new.h5"), 1000 * (number % 2), chunks=(7 + number, 4), compression="gzip")
        new.replace(path)
        for _ in range(5):
            solar.read(path, "y", 0)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_keeps_its_own(path: Path) -> None:
    assert solar.read(path, "x", 0)[1] == 1
    with reader._keeping:  # as another thread may hold it
        child = os.fork()
        if child == 0:
            os._exit(0 if not reader._kept and solar.read(path, "x", 1)[0] == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader._kept
