"""Programs as they are published, unchanged but for the import: torch's batches, and whether they are read ahead."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import published_kit as published
import pytest
import torch
from adopt_kit import adopt_always, answered, draws, logged, seed_all, told
from kit import settle
from published_kit import Demonstrations, Particles, Patterns, Solutions, SolutionsApart, Trajectories
from torch.utils.data import BatchSampler, RandomSampler

from solar import DataLoader
from solar.io.reading import h5py_calls


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_always(monkeypatch)


class Seen(NamedTuple):
    """What became of two epochs with solar's loader."""

    answered: int  # calls of h5py, in all processes
    asked: int
    words: str  # of the log: what is read ahead, or why not
    report: str


class Counted:
    """A collate_fn that also says how many calls were answered, where the batch is made."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        reader: Any = h5py_calls._asked.get(threading.get_ident())
        counts = (0, 0) if reader is None else (reader.counts.answered, reader.counts.asked)
        worker = torch.utils.data.get_worker_info()
        return self.collate(samples), (-1 if worker is None else worker.id, *counts)


def compared(
    make: Callable[[], Any],
    workers: int,
    folder: Path,
    more: Callable[[Any], dict[str, Any]],
    batch_size: int | None = 5,
) -> Seen:
    """Asserts that two epochs are torch's, to the bit, and the state of the generators after them."""
    found, log = [], folder / "log.txt"
    collate = torch.utils.data.default_collate if batch_size else torch.utils.data.default_convert
    for kind in (torch.utils.data.DataLoader, DataLoader):
        seed_all(11)
        data = make()
        options = {"num_workers": workers, "collate_fn": Counted(collate), **more(data)}
        options |= {"persistent_workers": workers > 0, "multiprocessing_context": "fork" if workers else None}
        with logged(log):
            loader = kind(data, batch_size=batch_size, **options)
            batches = [batch for _ in range(2) for batch in loader]
        found.append([*(told(batch) for batch, _ in batches), draws()])
    assert found[0] == found[1]
    assert len(found[0]) > 5
    most: dict[int, tuple[int, int]] = {}
    for _, (worker, *found_there) in batches:
        most[worker] = max(most.get(worker, (0, 0)), tuple(found_there))
    counts = np.sum(list(most.values()), axis=0).tolist()
    return Seen(*counts, log.read_text(), str(loader.report()) if not workers else "")


def shuffled(_: Any) -> dict[str, Any]:
    return {"shuffle": True}


def in_batches(data: Any) -> dict[str, Any]:
    return {"sampler": BatchSampler(RandomSampler(data), 5, drop_last=False)}


class Case(NamedTuple):
    """A program, and what is said of it: by what it is read ahead, or why not."""

    write: Callable[[Path], None]
    make: Callable[[Path], Any]
    words: str
    answers: bool = True
    more: Callable[[Any], dict[str, Any]] = shuffled
    batch_size: int | None = 5


FROM_TABLE = "as each index read in the epoch before"
BY_H5PY = "what it reads is read by h5py alone: solar reads plain numbers of files opened for reading"
NO_CALLS = "it makes no calls of h5py"


def demonstrations(**options: Any) -> tuple[Callable[[Path], None], Callable[[Path], Any]]:
    def write(folder: Path) -> None:
        published.write_demonstrations(folder / "demo.hdf5")

    return write, lambda folder: Demonstrations(str(folder / "demo.hdf5"), **options)


def of_file(write: Callable[[Path], None], make: Callable[..., Any], **options: Any) -> Any:
    return (lambda folder: write(folder / "file.h5")), (lambda folder: make(str(folder / "file.h5"), **options))


def the_well(folder: Path, **options: Any) -> Any:
    """The Dataset of the package itself, which opens its files by fsspec."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pytest.importorskip("the_well.data")
    return data.WellDataset(path=str(folder), n_steps_input=3, n_steps_output=1, **options)


CASES = {
    "The Well's own": Case(published.write_well, the_well, "reading ahead for WellDataset"),
    "The Well's own with strides that are drawn": Case(
        published.write_well, partial(the_well, max_dt_stride=3), "reading ahead for WellDataset"
    ),
    "The Well's windows": Case(published.write_well, Trajectories, "reading ahead for Trajectories"),
    "The Well's windows, in order": Case(
        published.write_well, Trajectories, "reading ahead for Trajectories", more=lambda _: {}
    ),
    "The Well's windows with strides that are drawn": Case(
        published.write_well, partial(Trajectories, steps=3, longest_stride=3), "reading ahead for Trajectories"
    ),
    "robomimic": Case(*demonstrations(swmr=False), FROM_TABLE),
    "robomimic with swmr": Case(*demonstrations(swmr=True), BY_H5PY, answers=False),
    "robomimic in memory": Case(*demonstrations(swmr=False, cache="all"), NO_CALLS, answers=False),
    "PtychoNN": Case(*of_file(published.write_scan, Patterns), "3 datasets of file.h5, row indices[i]"),
    "PDEBench in memory": Case(*of_file(published.write_solutions, Solutions), NO_CALLS, answers=False),
    "PDEBench": Case(*of_file(published.write_solutions_apart, SolutionsApart), FROM_TABLE),
    "PDEBench of numbers that are cast": Case(
        *of_file(partial(published.write_solutions_apart, kind="f8"), SolutionsApart), FROM_TABLE
    ),
    "cryoDRGN": Case(
        *of_file(published.write_particles, Particles), "", answers=False, more=in_batches, batch_size=None
    ),
    "cryoDRGN one by one": Case(
        *of_file(published.write_particles, Particles, one_by_one=True), "", False, in_batches, None
    ),
}  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_program_as_it_is_published_has_torchs_batches(name: str, workers: int, tmp_path: Path) -> None:
    case = CASES[name]
    case.write(tmp_path)
    seen = compared(partial(case.make, tmp_path), workers, tmp_path, case.more, case.batch_size)
    assert case.words in seen.words
    assert (seen.answered > 0) == case.answers
    if not workers:
        said = f"{seen.answered:,} answered from memory" if case.answers else case.words
        assert said in seen.report


def long_trajectories(folder: Path) -> Any:
    """Windows in time of rows that are whole trajectories: a small part of each."""
    path = folder / "file.h5"
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(7).integers(0, 50, (3, 40, 64, 64)).astype("f4")
        file.create_dataset("v", data=values, chunks=(1, 4, 64, 64), compression="gzip")
    settle(path)
    return Windowed(str(path))


class Windowed(torch.utils.data.Dataset[Any]):
    def __init__(self, path: str) -> None:
        self.path, self.windows = path, 37

    def __len__(self) -> int:
        return 3 * self.windows

    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.path) as file:
            return file["v"][index // self.windows, index % self.windows : index % self.windows + 4]


@pytest.mark.parametrize("name", ["small parts of large rows", "indices of a whole batch"])
def test_where_nothing_is_read_ahead_a_line_says_why(name: str, tmp_path: Path) -> None:
    if name == "indices of a whole batch":
        published.write_particles(tmp_path / "file.h5")
        data: Any = Particles(str(tmp_path / "file.h5"))
        options: dict[str, Any] = {"batch_size": None, **in_batches(data)}
    else:
        data, options = long_trajectories(tmp_path), {"batch_size": 8, "shuffle": True}
    with logged(tmp_path / "log.txt"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loader = DataLoader(data, buffer="64MiB", **options)
        for _ in range(2):
            list(loader)
    assert answered(loader)[0] == 0
    kind = type(data).__name__
    assert f"{kind}.__getitem__ reads as torch's loader has it read: " in (tmp_path / "log.txt").read_text()
    assert f"{kind} is read as torch's loader reads it: " in loader.report()
    assert [str(one.message) for one in warned if "has no effect over" in str(one.message)] != []
