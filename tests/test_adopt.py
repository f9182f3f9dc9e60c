"""A Dataset of the user's is read ahead by what it asks h5py for; its samples, errors and draws are torch's."""

from __future__ import annotations

import logging
import pickle
import random
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from adopt_kit import Around, adopt_always, answered, compared, draws, epochs_of, kept, scan, seed_all, told
from kit import settle
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split

from solar import DataLoader, PlanSampler
from solar.io.reading import h5py_calls
from solar.loader import adopt

SAMPLES = 96


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_always(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return scan(tmp_path, SAMPLES)


class Reading(Dataset[Any]):
    """A Dataset as people write it: it opens its file when it is first asked."""

    def __init__(self, path: str, body: Any) -> None:
        self.path, self.body, self.file = path, body, None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path)
        return self.body(self.file, index)


def by_rows(file: Any, i: int) -> Any:
    return file["x"][i], file["y"][i], file["flat"][i]


BODIES: dict[str, Any] = {
    "rows": by_rows,
    "a part of each row": lambda file, i: (file["x"][i, 2:, ::2], file["flat"][i, ..., 3:], file["x"][i][1]),
    "windows": lambda file, i: file["x"][i : i + 9],
    "windows that overlap": lambda file, i: file["flat"][max(0, i - 3) : i + 2 : 2],
    "strides": lambda file, i: file["long"][3 * i + 1 : 3 * i + 3],
    "backwards": lambda file, i: (file["x"][-1 - i], file["flat"][SAMPLES - 1 - i]),
    "numpy's integers": lambda file, i: file["x"][np.int32(i)],
    "what is the same for all": lambda file, i: (file["y"][:], file["x"][i], file["flat"][0, ()]),
    "big-endian": lambda file, i: (file["big"][i], file["big"][i, 2], file["big"][i : i + 1]),
    "scalars": lambda file, i: (file["y"][i], file["x"][i, 1, 2], file["big"][i, -1]),
    "arrays that are written to": lambda file, i: np.add(row := file["x"][i], 1, out=row),
    "into memory": lambda file, i: _directly(file["flat"], np.s_[i], (300, 20), "f8"),
    "as an array": lambda file, i: (np.asarray(file["y"])[i], file["x"][i]),
}
PASSED_ON: dict[str, Any] = {
    "text": lambda file, i: (file["name"][i], file["name"].asstr()[i]),
    "lists": lambda file, i: file["x"][[i // 2, i // 2 + 3]],
    "masks": lambda file, i: file["y"][np.arange(SAMPLES) == i],
    "into memory of another type": lambda file, i: _directly(file["flat"], np.s_[i], (300, 20), "f4"),
    "into a part of memory": lambda file, i: _directly(file["flat"], np.s_[i, :9], (300, 20), "f8", np.s_[3:12]),
    "another type": lambda file, i: file["x"].astype("f8")[i],
}


def _directly(dataset: Any, where: Any, shape: tuple[int, ...], kind: str, there: Any = None) -> Any:
    into = np.zeros(shape, kind)
    dataset.read_direct(into, where, there)
    return into


@pytest.mark.parametrize("options", [{"shuffle": True, "batch_size": 8}, {"batch_size": None}, {"batch_size": 5}])
@pytest.mark.parametrize("body", BODIES)
def test_a_reading_that_follows_from_the_index_is_answered_from_memory(
    path: str, body: str, options: dict[str, Any]
) -> None:
    loader = compared(lambda: Reading(path, BODIES[body]), collate_fn=kept, epochs=3, **options)
    ours, theirs = answered(loader)
    assert ours > theirs, "most calls are answered"
    assert f"{ours:,} answered from memory, {theirs:,} read as asked" in loader.report()


@pytest.mark.parametrize("body", PASSED_ON)
def test_what_only_h5py_can_read_is_read_by_it(path: str, body: str) -> None:
    loader = compared(lambda: Reading(path, PASSED_ON[body]), collate_fn=kept, batch_size=8, shuffle=True)
    assert answered(loader)[0] == 0


def test_batches_are_torchs_with_the_default_collation(path: str) -> None:
    loader = compared(lambda: Reading(path, by_rows), batch_size=8, shuffle=True, drop_last=True, epochs=3)
    assert answered(loader)[0] > 3 * SAMPLES


# --- what a Dataset does with an index ----


class Wrapped(Around):
    """A transform around another Dataset."""

    def __getitem__(self, index: int) -> Any:
        return [2 * one for one in super().__getitem__(index)]


class LookedUp(Reading):
    def __init__(self, path: str, order: Any) -> None:
        super().__init__(path, by_rows)
        self.order = order

    def __getitem__(self, index: int) -> Any:
        at = self.order[index]
        return super().__getitem__(at[1] if isinstance(at, tuple) else int(at))


class Together(Reading):
    """Takes the samples of a batch by itself."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def order(seed: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).permutation(SAMPLES)]


DATASETS: dict[str, Any] = {
    "a Subset": lambda path: Subset(Reading(path, by_rows), order(3)[:70]),
    "a Subset of a Subset": lambda path: Subset(Subset(Reading(path, by_rows), order(3)[:70]), range(69, 0, -1)),
    "a part of random_split": lambda path: random_split(
        Reading(path, by_rows), [70, 26], torch.Generator().manual_seed(3)
    )[0],
    "a ConcatDataset": lambda path: ConcatDataset([Reading(path, by_rows), Reading(path, BODIES["strides"])]),
    "a Subset of a ConcatDataset": lambda path: Subset(ConcatDataset([Reading(path, by_rows)] * 2), order(3)),
    "a wrapper": lambda path: Wrapped(Reading(path, by_rows)),
    "a wrapper of a Subset": lambda path: Wrapped(Subset(Reading(path, by_rows), order(3)[:70])),
    "a wrapper of a wrapper": lambda path: Wrapped(Wrapped(Reading(path, by_rows))),
    "a list of rows": lambda path: LookedUp(path, order(3)),
    "an array of rows": lambda path: LookedUp(path, np.array(order(3), "u2")),
    "a list of names and rows": lambda path: LookedUp(path, [("x", row) for row in order(3)]),
    "batches of its own": lambda path: Together(path, by_rows),
    "a Subset of batches of its own": lambda path: Subset(Together(path, by_rows), order(3)[:70]),
}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("name", DATASETS)
def test_the_index_is_followed_through(path: str, name: str, shuffle: bool) -> None:
    loader = compared(lambda: DATASETS[name](path), collate_fn=kept, batch_size=6, shuffle=shuffle, epochs=3)
    ours, theirs = answered(loader)
    # Where torch hands a batch on whole, nobody sees which sample a call is for if the parts differ.
    assert ours > theirs


def some_rows(file: Any, i: int) -> Any:
    return file["x"][i] if i % 2 else 0


def test_batches_of_its_own_of_which_nobody_can_tell_what_each_sample_read(path: str) -> None:
    loader = compared(
        lambda: Subset(Together(path, some_rows), order(3)), collate_fn=kept, batch_size=3, shuffle=True, epochs=2
    )
    assert "ended by an error" not in loader.report()


def by_chance(file: Any, i: int) -> Any:
    return file["x"][i], file["flat"][hash((i, 3)) % SAMPLES]


def test_what_no_rule_says_is_known_from_the_epoch_before(path: str) -> None:
    loader = compared(lambda: Reading(path, by_chance), collate_fn=kept, batch_size=6, shuffle=True, epochs=2)
    assert answered(loader)[0] >= 2 * SAMPLES + SAMPLES - 40, "all of the second epoch, and one call of the first"


class Files(Dataset[Any]):
    """A file for each sample, which is opened for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.folder / f"{index:03}.h5") as file:
            return file["image"][()], file["group/label"][...]


def test_a_file_for_each_sample_is_known_from_the_epoch_before(tmp_path: Path) -> None:
    for number in range(20):
        with h5py.File(tmp_path / f"{number:03}.h5", "w") as file:
            file["image"], file["group/label"] = np.random.default_rng(number).random((7, 5)), np.arange(number + 1)
        settle(tmp_path / f"{number:03}.h5")
    loader = compared(lambda: Files(tmp_path), collate_fn=kept, batch_size=4, shuffle=True, epochs=3)
    assert answered(loader) == (80, 40)


# --- nothing else is changed ----


def with_draws(file: Any, i: int) -> Any:
    at = int(torch.randint(0, 4, ()))
    return file["x"][i, at:], np.random.rand() + random.random(), file["flat"][i], torch.rand(2)


@pytest.mark.parametrize("sampler", ["none", "shuffle", "generator", "shared generator", "replacement", "weighted"])
def test_every_draw_is_torchs(path: str, sampler: str) -> None:
    def options(loader: Any) -> dict[str, Any]:
        own = torch.Generator().manual_seed(5)
        if sampler == "replacement":
            return {"sampler": torch.utils.data.RandomSampler(loader, True, 70, own)}
        if sampler == "weighted":
            return {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * SAMPLES, 70)}
        if sampler == "shared generator":
            loader.body = lambda file, i: (file["x"][i], torch.rand(2, generator=own))
        return {"shuffle": sampler != "none", "generator": own if "generator" in sampler else None}

    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        data = Reading(path, with_draws)
        loader = kind(data, batch_size=7, collate_fn=kept, **options(data))
        found.append(list(epochs_of(loader, 3)))
    assert found[0] == found[1]
    assert answered(loader)[0] > 0


@pytest.mark.parametrize("name", ["distributed", "batches", "plan", "a list"])
def test_samplers_are_followed(path: str, name: str) -> None:
    data = Reading(path, by_rows)
    options: dict[str, Any] = {
        "distributed": lambda: {"sampler": torch.utils.data.DistributedSampler(data, 2, 1, seed=3), "batch_size": 7},
        "batches": lambda: {"batch_sampler": [order(at)[:9] for at in range(12)]},
        "plan": lambda: {"sampler": PlanSampler(data, 2, 0, seed=3), "batch_size": 7},
        "a list": lambda: {"sampler": order(3), "batch_size": 7},
    }[name]()  # fmt: skip
    loader = compared(lambda: Reading(path, by_rows), collate_fn=kept, epochs=3, **options)
    ours, theirs = answered(loader)
    assert ours > 4 * theirs


class Lazy(torch.utils.data.Sampler[int]):
    """A sampler that draws each index when it is asked for it, as the Dataset draws."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Any:
        for _ in range(SAMPLES):
            yield int(torch.randint(0, SAMPLES, ()))


def test_a_sampler_of_the_users_is_not_asked_before_its_time(path: str) -> None:
    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        data = Reading(path, with_draws)
        loader = kind(data, batch_size=7, collate_fn=kept, sampler=Lazy())
        found.append(list(epochs_of(loader, 3)))
    assert found[0] == found[1]
    assert answered(loader)[0] > SAMPLES, "what a batch needs is read together all the same"


def test_the_calls_of_a_dataset_are_torchs_in_number_and_order(path: str) -> None:
    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        calls: list[int] = []

        def body(file: Any, i: int, calls: list[int] = calls) -> Any:
            calls.append(i)
            return file["x"][i]

        seed_all(1)
        loader = kind(Subset(Reading(path, body), order(3)), batch_size=7, shuffle=True)
        for _ in range(2):
            for number, _ in enumerate(loader):
                calls.append(-number)
        found.append(calls)
    assert found[0] == found[1]


def fails(file: Any, i: int) -> Any:
    if i % 31 == 7:
        return file["x"][i + SAMPLES]
    if i % 31 == 8:
        return file["no such"][i]
    return file["x"][i], file["flat"][i, : 400 - i]


def test_errors_are_h5pys_and_come_where_torch_has_them(path: str) -> None:
    loader = compared(lambda: Reading(path, fails), collate_fn=kept, batch_size=5, shuffle=True)
    assert answered(loader)[0] > SAMPLES


def test_a_file_that_was_closed_is_not_read(path: str) -> None:
    def body(file: Any, i: int) -> Any:
        if i == 60:
            file.close()
        return data[i], len(data.shape)

    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        file = h5py.File(path)
        data = file["x"]
        reading = Reading(path, body)
        reading.file = file
        loader = kind(reading, batch_size=5, collate_fn=kept)
        found.append(list(epochs_of(loader, 1)))
    assert found[0] == found[1]
    assert any(one[0] is OSError for one in found[1])
    assert answered(loader)[0] > 40


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_a_file_that_is_open_for_writing_is_left_to_h5py(path: str, mode: str) -> None:
    class Writing(Reading):
        def __getitem__(self, index: int) -> Any:
            self.file = self.file or h5py.File(self.path, mode)
            self.file["y"][index] += 1
            return self.file["x"][index], self.file["y"][index]

    data = Writing(path, None)
    loader = DataLoader(data, batch_size=4)
    for epoch in range(2):
        for number, (_, y) in enumerate(loader):
            assert y.tolist() == [i + epoch + 1 for i in range(4 * number, 4 * number + 4)]
    assert answered(loader)[0] == 0


def test_a_file_that_takes_the_place_of_another_is_read_by_who_opens_it(path: str, tmp_path: Path) -> None:
    class Opening(Reading):
        def __getitem__(self, index: int) -> Any:
            with h5py.File(self.path) as file:
                return file["x"][index], file["flat"][index]

    loader = DataLoader(Opening(path, None), batch_size=8, buffer="64MiB")
    list(loader)
    other = tmp_path / "other.h5"
    with h5py.File(path) as old, h5py.File(other, "w") as new:
        for name in ("x", "flat"):
            new[name] = old[name][()] + 1
    settle(other)
    other.replace(path)
    for number, (x, flat) in enumerate(loader):
        with h5py.File(path) as file:
            assert x.numpy().tobytes() == file["x"][8 * number : 8 * number + 8].tobytes()
            assert flat.numpy().tobytes() == file["flat"][8 * number : 8 * number + 8].tobytes()


def test_a_file_that_is_changed_is_left_to_h5py_from_the_next_epoch_on(path: str) -> None:
    with h5py.File(path) as file:
        at = file["flat"].id.get_offset()
    data = Reading(path, lambda file, i: file["flat"][i])
    loader = DataLoader(data, batch_size=8, buffer="64MiB")
    for _ in range(2):
        before = list(loader)
    with Path(path).open("r+b") as raw:
        raw.seek(at)
        raw.write(np.full((SAMPLES, 300, 20), 7.0).tobytes())
    count = answered(loader)[0]
    data.file = None  # or h5py itself might have the old values in its memory
    assert all((batch == 7).all() for batch in loader)
    assert not any((batch == 7).all() for batch in before)
    assert answered(loader)[0] < count + 3 * SAMPLES
    assert "ended by an error" not in loader.report()


def test_a_damaged_chunk_is_h5pys_error(path: str) -> None:
    with h5py.File(path) as file:
        where = file["x"].id.get_chunk_info(3).byte_offset
    with Path(path).open("r+b") as raw:
        raw.seek(where + 8)
        raw.write(b"damaged" * 4)
    settle(path)
    loader = compared(lambda: Reading(path, by_rows), collate_fn=kept, batch_size=5, shuffle=True)
    assert answered(loader)[0] > SAMPLES


def test_an_error_of_ours_ends_reading_ahead_and_no_training(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("as it may be")

    for name in ("blocks_of", "start", "rows"):
        with monkeypatch.context() as broken:
            broken.setattr(adopt.BlockSource, name, fails)
            loader = compared(lambda: Reading(path, by_rows), collate_fn=kept, batch_size=5, shuffle=True)
        assert "reading ahead ended by an error: as it may be" in loader.report()
    assert "ended by an error" in caplog.text


def test_h5pys_methods_are_its_own_outside_and_after_an_error(path: str) -> None:
    theirs = h5py.Dataset.__getitem__, h5py.Dataset.read_direct

    def body(file: Any, i: int) -> Any:
        assert h5py.Dataset.__getitem__ is not theirs[0]
        if i == 50:
            raise KeyboardInterrupt
        return file["x"][i]

    loader = DataLoader(Reading(path, body), batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        for _ in loader:
            assert (h5py.Dataset.__getitem__, h5py.Dataset.read_direct) == theirs
    assert (h5py.Dataset.__getitem__, h5py.Dataset.read_direct) == theirs


def test_another_threads_calls_are_h5pys(path: str) -> None:
    """Its own calls are neither answered nor noted, though it reads while a batch is made."""
    seen: list[Any] = []

    def body(file: Any, i: int) -> Any:
        row = file["x"][i]
        before = answered(loader)

        def other() -> None:
            seen.append((told(file["x"][i]) == told(row), answered(loader) == before))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return row

    loader = DataLoader(Reading(path, body), batch_size=4, shuffle=True)
    for _ in range(2):
        list(loader)
    assert seen == [(True, True)] * (2 * SAMPLES)
    assert answered(loader)[0] > SAMPLES


def test_two_loaders_in_two_threads_and_one_within_the_other(path: str) -> None:
    inner = DataLoader(Reading(path, BODIES["windows"]), batch_size=8)

    def body(file: Any, i: int) -> Any:
        own = [told(one) for one in next(iter(inner))] if i % 40 == 0 else None
        return file["x"][i], own

    def run() -> None:
        found.append(list(epochs_of(DataLoader(Reading(path, body), batch_size=8, collate_fn=kept), 2))[:-1])

    found: list[Any] = []
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    theirs = torch.utils.data.DataLoader(Reading(path, body), batch_size=8, collate_fn=kept)
    expected = list(epochs_of(theirs, 2))
    batches = [[one for one in each if one[0] is list] for each in (expected, *found)]
    assert batches[0] == batches[1] == batches[2]


def test_an_epoch_that_is_left_early_and_two_at_a_time(path: str) -> None:
    def batches(kind: Any) -> Any:
        seed_all(2)
        loader = kind(Reading(path, by_rows), batch_size=6, shuffle=True)
        for _ in range(2):
            for number, batch in enumerate(loader):
                yield told(batch)
                if number == 5:
                    break
        for one, other in zip(loader, loader, strict=True):
            yield told(one), told(other)
        yield draws()

    assert list(batches(DataLoader)) == list(batches(torch.utils.data.DataLoader))


def test_a_state_in_the_middle_of_an_epoch_counts_what_was_handed_out(path: str) -> None:
    def made() -> Any:
        return DataLoader(Reading(path, by_rows), 6, shuffle=True, generator=torch.Generator().manual_seed(4))

    loader, first = made(), made()
    whole = [told(batch) for _ in range(2) for batch in loader]
    batches = iter(first)
    for _ in range(9):
        next(batches)
    later = made()
    later.load_state_dict(first.state_dict())
    assert [told(batch) for _ in range(2) for batch in later] == whole[9:]


def test_memory_stays_within_its_bound(path: str) -> None:
    loader = compared(lambda: Reading(path, by_rows), batch_size=4, shuffle=True, epochs=1)
    for buffer in ("64KiB", "200KiB", "1MiB", "64MiB"):
        small = DataLoader(Reading(path, by_rows), batch_size=4, shuffle=True, buffer=buffer, ahead=30)
        most = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                for _ in small:
                    held = small._adopted.held  # type: ignore[union-attr]
                    most = max(most, held.nbytes)
                    assert held.nbytes <= held.capacity
        small.close()
        assert small._adopted.held.nbytes == 0  # type: ignore[union-attr]
    assert most >= SAMPLES * 300 * 20 * 8, "there is room for all"
    assert loader._adopted.held.nbytes < most  # type: ignore[union-attr]


def test_h5netcdf_reads_by_h5py(path: str) -> None:
    h5netcdf = pytest.importorskip("h5netcdf")

    class Climate(Reading):
        def __getitem__(self, index: int) -> Any:
            self.file = self.file or h5netcdf.File(self.path, "r", phony_dims="sort")
            return self.file["x"][index], self.file["flat"][index : index + 2]

    loader = compared(lambda: Climate(path, None), collate_fn=kept, batch_size=6, shuffle=True)
    assert answered(loader)[0] > SAMPLES


# --- what is left alone, and what is said ----


class InMemory(Dataset[Any]):
    def __init__(self, path: str) -> None:
        with h5py.File(path) as file:
            self.x = file["x"][:]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.x[index]


def test_a_dataset_without_calls_of_h5py_is_left_alone(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "solar"):
        loader = compared(lambda: InMemory(path), batch_size=4, shuffle=True)
    assert "InMemory.__getitem__ reads as torch's loader has it read: it makes no calls of h5py" in caplog.text
    assert iter(loader)._adopted is None  # type: ignore[attr-defined]
    assert "makes no calls of h5py" in loader.report()


def test_one_line_says_what_is_read_ahead(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "solar"):
        for _ in range(2):
            list(DataLoader(Reading(path, by_rows), batch_size=4, shuffle=True))
    line = "reading ahead for Reading.__getitem__: 3 datasets of scan.h5, row i"
    assert caplog.text.count(line) == 2, "once for each loader"


def test_fast_reads_are_left_to_h5py(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "CHEAP", 1e9)
    loader = compared(lambda: Reading(path, by_rows), batch_size=8, shuffle=True)
    assert answered(loader)[0] == 0
    assert "for each of its reads, and reading ahead is no faster" in loader.report()


def test_a_rule_that_fails_is_given_up(path: str) -> None:
    class Changing(Reading):
        taken = 0

        def __getitem__(self, index: int) -> Any:
            self.taken += 1
            return super().__getitem__(index if self.taken < 40 else (7 * index + self.taken) % SAMPLES)

    loader = compared(lambda: Changing(path, BODIES["scalars"]), batch_size=8, shuffle=True, epochs=8)
    assert answered(loader)[0] > 0
    only_once = [0]

    def body(file: Any, i: int) -> Any:
        only_once[0] += 1
        return file["flat"][i] if only_once[0] < 40 else 0

    loader = DataLoader(Reading(path, body), batch_size=8, shuffle=True, collate_fn=kept)
    for _ in range(8):
        list(loader)
    assert "it makes no calls of h5py" in loader.report()


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_it_can_be_turned_off(path: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "environment":
        monkeypatch.setenv("SOLAR_ADOPT", "0")
    loader = DataLoader(Reading(path, by_rows), batch_size=8, adopt=by != "argument")
    list(loader)
    assert loader._adopted is None
    assert "adopt=False" in repr(loader) or by != "argument"


def test_arguments_that_have_no_effect_warn_once(path: str) -> None:
    with warnings.catch_warnings(action="error"):
        loader: Any = DataLoader(Reading(path, by_rows), batch_size=8, buffer="64MiB", ahead=3)
        list(loader)
        loader = DataLoader(InMemory(path), batch_size=8, buffer="64MiB", ahead=3)
    with pytest.warns(UserWarning, match=r"ahead and buffer have no effect over InMemory: it makes no calls of h5py"):
        list(loader)
    with warnings.catch_warnings(action="error"):
        list(loader)
    with pytest.warns(UserWarning, match="buffer='1MiB' has no effect"):
        DataLoader(Reading(path, by_rows), adopt=False, buffer="1MiB")


def test_a_loader_is_pickled_without_what_it_read(path: str) -> None:
    data = InMemory(path)
    loader = DataLoader(data, batch_size=8)
    list(loader)
    again = pickle.loads(pickle.dumps(loader))
    assert [told(one) for one in again] == [told(one) for one in loader]


def test_a_forked_process_reads_for_itself(path: str) -> None:
    program = (
        "import os, sys, h5py, torch\n"
        "sys.path[:0] = sys.argv[2:]\n"
        "from solar.loader import adopt\n"
        "adopt.CHEAP = 0.0\n"
        "from test_adopt import Reading, by_rows, told\n"
        "from solar import DataLoader\n"
        "loader = DataLoader(Reading(sys.argv[1], by_rows), batch_size=8)\n"
        "first = [told(one) for one in loader]\n"
        "loader.dataset.file = None\n"
        "if (child := os.fork()) == 0:\n"
        "    same = [told(one) for _ in range(2) for one in loader] == first * 2\n"
        "    os._exit(0 if same and loader._adopted.counts.answered > 100 else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-c", program, path, str(Path(__file__).parent)], check=True, timeout=120)


# --- in worker processes ----


def test_many_small_files_are_left_to_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "WORTH_A_DATASET", 1e9)
    monkeypatch.setattr(adopt, "FEW_DATASETS", 8)
    for number in range(20):
        with h5py.File(tmp_path / f"{number:03}.h5", "w") as file:
            file["image"], file["group/label"] = np.arange(5), np.arange(2)
        settle(tmp_path / f"{number:03}.h5")
    loader = compared(lambda: Files(tmp_path), collate_fn=kept, batch_size=4, shuffle=True, epochs=3)
    assert answered(loader)[0] == 0
    assert "it reads a little of each of many datasets" in loader.report()


class Told(Reading):
    """Also says how many calls were answered in its process."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        reader = h5py_calls._asked.get(threading.get_ident())
        return found, 0 if reader is None else reader.counts.answered  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_adopt_a_dataset_each_for_itself(path: str, context: str, persistent: bool) -> None:
    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        seed_all(3)
        loader = kind(
            Told(path, with_draws), batch_size=4, shuffle=True, num_workers=2, collate_fn=kept,
            multiprocessing_context=context, persistent_workers=persistent, worker_init_fn=seeded,
        )  # fmt: skip
        batches = [batch for _ in range(2) for batch in loader]
        found.append(([told([sample for sample, _ in batch]) for batch in batches], draws()))
        most = max(count for batch in batches for _, count in batch)
        assert (most > 0) == (kind is DataLoader)
        del loader
    assert found[0] == found[1]


def seeded(worker: int) -> None:
    random.seed(worker)
    np.random.seed(worker)


def test_errors_of_workers_are_torchs(path: str) -> None:
    def messages(kind: Any) -> Any:
        batches = list(epochs_of(kind(Reading(path, fails), batch_size=5, num_workers=1, collate_fn=kept), 1))
        return [(one[0], one[1].splitlines()[-1]) if isinstance(one[1], str) else one for one in batches[:-1]]

    assert messages(DataLoader) == messages(torch.utils.data.DataLoader)
