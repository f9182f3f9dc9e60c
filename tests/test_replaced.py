"""A file that is replaced, written to, cut short, grown or deleted: said when an epoch begins, not served."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader
from transforms import twice

from solar import DataLoader, H5Dataset, PlanSampler, ReadError, _native
from solar.cli import main

SAMPLES, BATCH = 24, 4
CHANGED = "changed since it was inspected: {}; make the H5Dataset again"
GONE = "there is no such file any more; put it back, or make the H5Dataset again"


def written(path: Path, first: int = 0, samples: int = SAMPLES, **options: Any) -> Path:
    """Samples counted from `first`, in a file of an hour ago."""
    with h5py.File(path, "w") as file:
        values = np.repeat(np.arange(first, first + samples, dtype="f4")[:, None], 8, axis=1)
        file.create_dataset("x", data=values, **options)
        file["text"] = [f"{first + number:6d}" for number in range(samples)]
    settle(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "scan.h5")


# --- what happens to the file, and what is said of it ----


def alike(path: Path) -> Path:
    """A file beside this one, stored as it is, of other samples."""
    with h5py.File(path) as file:
        stored = {"chunks": file["x"].chunks, "compression": file["x"].compression}
        samples = len(file["x"])
    made = written(path.with_name("new.h5"), 1000, samples, **stored)
    with made.open("ab") as file:
        file.truncate(path.stat().st_size)
    return made


def another(path: Path) -> None:
    """Another file of the same size takes its place."""
    alike(path).replace(path)
    os.utime(path, (1e9, 1e9))


def another_of_the_same_time(path: Path) -> None:
    """The same, and its time of modification is the same, too, as tar and rsync see to."""
    facts = path.stat()
    alike(path).replace(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)


def rewritten(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["x"][...] = 1000


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


CHANGES: dict[Callable[[Path], None], str] = {
    another: CHANGED.format("modification time differs"),
    another_of_the_same_time: CHANGED.format("another file has its place"),
    rewritten: CHANGED.format("modification time differs"),
    cut_short: CHANGED.format(r"size \d+ -> \d+"),
    grown: CHANGED.format(r"size \d+ -> \d+"),
    os.unlink: GONE,
}
changes = pytest.mark.parametrize(("change", "said"), CHANGES.items(), ids=lambda one: getattr(one, "__name__", ""))

# --- who reads it ----

WAYS: dict[str, dict[str, Any]] = {
    "no buffer": {"buffer": 0},
    "a buffer for all of it": {"buffer": "1MiB"},
    "a buffer for some of it": {"buffer": "700KB", "ahead": 1},
    "past the page cache": {"page_cache": False},
    "chunks": {"chunks": (3, 8), "compression": "gzip", "buffer": "1MiB"},
    "threads": {"transform": twice, "thread_safe": True},
    "processes": {"transform": twice, "num_workers": 1, "persistent_workers": True},
    "on a device": {"device": "cpu"},
    "resident on a device": {"device": "cpu", "resident": "1MiB"},
    "on_error": {"on_error": "skip"},
    "h5py": {"field": "text"},
}
OF_THE_FILE = ("chunks", "compression")
OF_THE_DATASET = ("page_cache", "transform", "thread_safe")


def made(path: Path, way: str) -> tuple[H5Dataset, DataLoader[Any]]:
    options = {name: value for name, value in WAYS[way].items() if name not in OF_THE_FILE}
    of_dataset = {name: options.pop(name) for name in OF_THE_DATASET if name in options}
    dataset = H5Dataset(path, options.pop("field", "x"), **of_dataset)
    return dataset, DataLoader(dataset, BATCH, sampler=PlanSampler(dataset, 1, 0, seed=1), **options)


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("way", WAYS)
@changes
def test_the_next_epoch_is_an_error_that_says_so(
    path: Path, way: str, change: Callable[[Path], None], said: str
) -> None:
    of_file = {name: value for name, value in WAYS[way].items() if name in OF_THE_FILE}
    written(path, **of_file)
    dataset, loader = made(path, way)
    with loader:
        first = [batch for _ in range(2) for batch in loader]
        assert len(first) == 2 * SAMPLES // BATCH
        change(path)
        if change is os.unlink and way == "on_error":  # samples that cannot be read are left out
            return
        for _ in range(2):
            with pytest.raises(ReadError, match=f"{path}: {said}"):
                next(iter(loader))
        with DataLoader(dataset, BATCH, buffer=0) as other, pytest.raises(ReadError, match=said):
            next(iter(other))


def test_made_again_it_serves_the_new_file(path: Path) -> None:
    with DataLoader(H5Dataset(path, "x"), SAMPLES, buffer="1MiB") as loader:
        assert next(iter(loader))[0, 0] == 0
    another(path)
    with DataLoader(H5Dataset(path, "x"), SAMPLES, buffer="1MiB") as loader:
        assert next(iter(loader))[0, 0] == 1000


@pytest.mark.parametrize("way", ["no buffer", "a buffer for all of it", "resident on a device"])
def test_amid_an_epoch_the_file_that_is_open_is_read_on(path: Path, way: str) -> None:
    _, loader = made(path, way)
    with loader:
        expected = torch.cat(list(loader))
        batches = iter(loader)
        found = [next(batches)]
        another(path)
        assert torch.equal(torch.cat([*found, *batches]), expected)
        with pytest.raises(ReadError, match=CHANGED.format("modification time differs")):
            next(iter(loader))


def test_a_file_that_is_put_back_is_the_same(path: Path) -> None:
    _, loader = made(path, "a buffer for all of it")
    with loader:
        expected = list(loader)
        path.rename(path.with_name("away"))
        with pytest.raises(ReadError, match=GONE) as caught:
            next(iter(loader))
        assert caught.value.errno == errno.ENOENT
        path.with_name("away").rename(path)
        assert all(map(torch.equal, loader, expected))
        path.chmod(0o600)  # another time of its last change, and the same inode
        assert all(map(torch.equal, loader, expected))


def test_a_state_can_be_taken_where_an_epoch_could_not_begin(path: Path) -> None:
    _, loader = made(path, "a buffer for all of it")
    with loader:
        list(loader)
        loader.set_epoch(1)
        another(path)
        with pytest.raises(ReadError, match="changed"):
            next(iter(loader))
        state = loader.state_dict()
        assert (state["epoch"], state["batches"]) == (1, 0)
    # The state knows how many samples there are, not which file: it goes on over another one of as many.
    _, other = made(path, "a buffer for all of it")
    with other:
        other.load_state_dict(state)
        assert sorted(torch.cat(list(other))[:, 0].tolist()) == [*range(1000, 1000 + SAMPLES)]


# --- without solar's loader ----


@changes
def test_samples_are_not_given_of_another_file(path: Path, change: Callable[[Path], None], said: str) -> None:
    dataset = H5Dataset(path, "x")
    assert dataset[3][0] == 3
    change(path)
    for act in (lambda: dataset[3], lambda: dataset.__getitems__([1, 2]), lambda: dataset.read_batch([0])):
        with pytest.raises(ReadError, match=said):
            act()


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_loader_serves_nothing_of_another_file(path: Path, workers: int) -> None:
    loader = TorchLoader(
        H5Dataset(path, "x"), BATCH, num_workers=workers, persistent_workers=workers > 0,
        multiprocessing_context="forkserver" if workers else None,
    )  # fmt: skip
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(SAMPLES))
    another_of_the_same_time(path)
    with pytest.raises(ReadError, match=CHANGED.format("another file has its place")):
        list(loader)


class Doubled(H5Dataset):
    """A subclass that makes its samples itself."""

    def __getitem__(self, index: int) -> Any:
        return 2 * super().__getitem__(index)


def test_a_subclass_that_torchs_iterators_ask_is_told_too(path: Path) -> None:
    with DataLoader(Doubled(path, "x"), BATCH) as loader:
        assert torch.cat(list(loader))[:, 0].tolist() == list(range(0, 2 * SAMPLES, 2))
        another(path)
        with pytest.raises(ReadError, match="changed"):
            next(iter(loader))


# --- many files ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "many").mkdir()
    for number in range(5):
        written(tmp_path / "many" / f"{number}.h5", 10 * number, 10)
    return tmp_path / "many"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The files that were looked at, each time."""
    found: list[list[str]] = []
    look = _native.check_unchanged

    def counted(paths: list[str], *facts: Any) -> None:
        found.append([Path(path).name for path in paths])
        look(paths, *facts)

    monkeypatch.setattr(_native, "check_unchanged", counted)
    return found


def test_each_file_is_looked_at_once_an_epoch(folder: Path, looks: list[list[str]]) -> None:
    every = [f"{number}.h5" for number in range(5)]
    dataset = H5Dataset(folder, {"x": "x", "again": "x", "t": "text"})
    with DataLoader(dataset, 7) as loader:
        for epoch in range(3):
            assert len(list(loader)) == 8
            assert looks.count(every) == epoch + 1
    parts = [Subset(H5Dataset(folder / name, "x"), range(5)) for name in every]
    looks.clear()
    with DataLoader(ConcatDataset(parts), 5, buffer="1MiB") as loader:
        assert len(list(loader)) == 5
        assert looks == [every]


def test_samples_asked_for_by_hand_cost_a_look_at_their_files_only(folder: Path, looks: list[list[str]]) -> None:
    dataset = H5Dataset(folder, {"x": "x", "again": "x"})
    dataset.read_batch([41, 3, 0, 47])
    assert looks == [["0.h5", "4.h5"]]
    (folder / "2.h5").unlink()
    dataset.read_batch([11, 40])
    with pytest.raises(ReadError, match=f"2.h5: {GONE}"):
        dataset.read_batch([40, 20])


@pytest.mark.parametrize("number", [0, 3, 4])
def test_the_file_that_was_replaced_is_named(folder: Path, number: int) -> None:
    with DataLoader(H5Dataset(folder, "x"), 7, buffer="1MiB") as loader:
        assert len(list(loader)) == 8
        another(folder / f"{number}.h5")
        (folder / "4.h5").unlink()  # the first in order is named
        name = rf"{number}\.h5: {GONE if number == 4 else 'changed'}"
        with pytest.raises(ReadError, match=name):
            next(iter(loader))


def test_of_thousands_of_files_looked_at_by_threads_the_first_bad_one_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.h5" for number in range(2000)]
    for path in paths:
        path.touch()
    facts = [path.stat() for path in paths]
    zeros, inode = np.zeros(2000, np.uint64), np.array([one.st_ino for one in facts], np.uint64)
    mtime = np.array([one.st_mtime_ns for one in facts])
    ctime = np.array([one.st_ctime_ns for one in facts])

    def look(gone: bool) -> None:
        _native.check_unchanged([str(path) for path in paths], zeros, mtime, inode, ctime, gone, 16)

    look(True)
    paths[1700].write_bytes(b"changed")
    paths[900].unlink()
    with pytest.raises(ReadError, match=rf"/900\.h5: {GONE}"):
        look(True)
    with pytest.raises(ReadError, match=r"/1700\.h5: changed since it was inspected: size 0 -> 7"):
        look(False)


def test_facts_that_do_not_fit_the_paths_are_refused() -> None:
    none, one = np.zeros(0, np.int64), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="as long as paths"):
        _native.check_unchanged(["a"], none.view("u8"), one, none.view("u8"), none, True, 1)
    with pytest.raises(ValueError, match="as long as paths"):
        _native.check_unchanged(["a"], one.view("u8"), one, one.view("u8"), none, True, 1)


def test_a_file_that_was_deleted_is_skipped_where_that_is_asked_for(folder: Path) -> None:
    with DataLoader(H5Dataset(folder, "x"), 5, on_error="skip", buffer=0) as loader:
        (folder / "2.h5").unlink()
        assert sorted(torch.cat(list(loader))[:, 0].tolist()) == [*range(20), *range(30, 50)]
        assert loader.stats()["skipped"] == 10
        another(folder / "1.h5")
        with pytest.raises(ReadError, match=r"1\.h5: changed"):
            next(iter(loader))


def test_a_deleted_file_is_skipped_also_where_a_buffer_is_chosen(folder: Path) -> None:
    for name in ("2.h5", "3.h5"):
        written(folder / name, 0, 10, chunks=(5, 8), compression="gzip")
    for buffer in ("1MiB", None):
        dataset = H5Dataset([folder / "2.h5", folder / "3.h5"], "x")
        (folder / "2.h5").rename(folder / "away")
        with DataLoader(dataset, 5, on_error="skip", buffer=buffer) as loader:
            assert sum(map(len, loader)) == 10
        (folder / "away").rename(folder / "2.h5")


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize("buffer", ["1MiB", None])
def test_a_replaced_source_of_a_virtual_dataset_is_an_error_where_it_is_read_natively(
    path: Path, tmp_path: Path, natively: bool, buffer: str | None
) -> None:
    layout = h5py.VirtualLayout((SAMPLES, 8), "f4")
    for half in (slice(4), slice(4, 8)):  # side by side is left to libhdf5, which takes sources as they are
        layout[:, half] = h5py.VirtualSource(path.name, "x", (SAMPLES, 8))[:, half]
    if natively:
        layout = h5py.VirtualLayout((SAMPLES, 8), "f4")
        layout[:] = h5py.VirtualSource(path.name, "x", (SAMPLES, 8))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with DataLoader(H5Dataset(tmp_path / "virtual.h5", "x"), BATCH, buffer=buffer if natively else None) as loader:
        assert next(iter(loader))[0, 0] == 0
        another_of_the_same_time(path)
        if not natively:
            assert next(iter(loader))[0, 0] == 1000
            return
        with pytest.raises(ReadError, match=re.escape(f"{path}: changed since it was inspected")):
            next(iter(loader))


def test_a_file_that_goes_while_a_command_runs_is_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(arguments: Any) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", arguments.file)

    monkeypatch.setattr("solar.cli.inspect.run", gone)
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().err == f"solar: {path}: no such file or directory\n"
