"""h5py at an expert's best: each of its ways gives h5py's bytes, keeps its memory, and the best is found by trials."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from solar.baseline.h5py_loader import WAYS_TO_READ, Straight, batches_from, best_of, plain_loader
from solar.baseline.h5py_samples import CACHES, H5pySamples

SAMPLES, SHAPE, BATCH = 60, (6, 5), 7
NBYTES = 4 * 6 * 5
CHUNK = 16  # samples, of the one that is encoded
STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (8, 6, 5)},
    "gzip": {"chunks": (CHUNK, 3, 2), "compression": "gzip"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of all layouts, and a folder with a file for each sample."""
    folder = tmp_path_factory.mktemp("plain")
    values = np.random.default_rng(0).normal(size=(SAMPLES, *SHAPE)).astype("f4")
    with h5py.File(folder / "a.h5", "w") as file:
        for name, options in STORED.items():
            file.create_dataset(name, data=values, **options)
        file["big"] = values.astype(">f4")
        file["label"] = np.arange(SAMPLES, dtype="i8")
    (folder / "many").mkdir()
    for number, value in enumerate(values):
        with h5py.File(folder / "many" / f"{number:02}.h5", "w") as file:
            file["x"] = value
    return folder


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", WAYS_TO_READ)
def test_every_way_with_every_cache_gives_the_bytes_of_h5py(files: Path, kind: str, workers: int) -> None:
    names = [*STORED, "big", "label"]
    plain = H5pySamples([str(files / "a.h5")], names)
    with h5py.File(files / "a.h5", locking=False) as file:
        whole = {name: file[name][()] for name in names}
    order = np.random.default_rng(7).permutation(SAMPLES)
    for cache in CACHES if not workers else CACHES[-1:]:
        setting = {"kind": kind, "workers": workers, "cache": cache}
        loader = plain_loader(plain, BATCH, 3, setting, 10_000)
        sampler: Any = loader.sampler
        for epoch in range(2):
            sampler.set_epoch(epoch)
            order = np.array([*sampler])[: SAMPLES // BATCH * BATCH].reshape(-1, BATCH)
            # All are kept to the end: memory that is used again must be nobody's.
            for rows, batch in zip(order, [*batches_from(loader, [epoch])], strict=True):
                for name, values in whole.items():
                    np.testing.assert_array_equal(batch[name].numpy(), values[rows])


@pytest.mark.parametrize("kind", WAYS_TO_READ)
def test_a_file_may_be_a_sample_and_more_of_them_there_than_may_be_open(
    files: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.baseline.h5py_samples._most_open", lambda: 16)
    plain = H5pySamples([str(path) for path in sorted((files / "many").iterdir())], ["x"], whole=True)
    loader = plain_loader(plain, BATCH, 3, {"kind": kind, "workers": 0, "cache": "default"}, 10_000)
    with h5py.File(files / "a.h5", locking=False) as file:
        values = file["contiguous"][()]
    rows = np.array([*loader.sampler])[: SAMPLES // BATCH * BATCH].reshape(-1, BATCH)
    for places, batch in zip(rows, loader, strict=True):
        np.testing.assert_array_equal(batch["x"].numpy(), values[places])
    items: Any = loader.dataset
    assert len(items.plain._open) <= 16


def test_a_batch_that_nobody_has_any_more_is_written_again_and_one_that_is_seen_in_part_is_not(files: Path) -> None:
    items = Straight(H5pySamples([str(files / "a.h5")], ["contiguous"]))
    first = items.__getitems__([1, 2])["contiguous"]
    address, row = first.data_ptr(), first[1]
    kept = row.clone()
    del first
    assert items.__getitems__([3, 4])["contiguous"].data_ptr() != address  # and is gone at once
    assert torch.equal(row, kept)
    del row
    assert items.__getitems__([5, 6])["contiguous"].data_ptr() == address


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize(("memory", "gap"), [(30, 1), (30, 4), (64, 100), (200, 1)])
def test_windows_are_the_batches_in_one_ascending_pass_after_another(
    files: Path, name: str, memory: int, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = H5pySamples([str(files / "a.h5")], [name])
    with h5py.File(files / "a.h5", locking=False) as file:
        values = file[name][()]
    rng, reads = np.random.default_rng(memory + gap), []
    from solar.baseline import h5py_samples as module

    right = module.read_rows

    def read_rows(of: Any, first: int, out: Any) -> None:
        reads.append((first, len(out)))
        right(of, first, out)

    monkeypatch.setattr(module, "read_rows", read_rows)
    batches = [row for _ in range(2) for row in rng.permutation(SAMPLES)[:56].reshape(-1, BATCH)]
    piece = 5 * NBYTES
    for rows, batch in zip(batches, plain.windows(batches, memory * NBYTES, gap * NBYTES, piece), strict=True):
        np.testing.assert_array_equal(batch[name], values[rows])
    together = name == "gzip" and memory >= 2 * CHUNK  # a chunk's rows are read together, for it is decoded whole
    most = CHUNK if together else 5
    slots = max(BATCH, memory - most - BATCH)
    passes = 1 + sum(after < before for (before, _), (after, _) in itertools.pairwise(reads))
    assert passes <= -(-len(batches) // (slots // BATCH))
    assert max(count for _, count in reads) <= most
    if together:  # in a pass each chunk is read once
        within = [[first // CHUNK for first, _ in some] for some in _passes(reads)]
        assert all(len(some) == len(set(some)) for some in within)
        assert all((first + count - 1) // CHUNK == first // CHUNK for first, count in reads)
    elif gap == 1:
        assert sum(count for _, count in reads) >= len(batches) * BATCH - 56  # what a window uses twice is read once


def _passes(reads: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    ends = [k for k in range(1, len(reads)) if reads[k] < reads[k - 1]]
    return [reads[a:b] for a, b in itertools.pairwise([0, *ends, len(reads)])]


def test_a_trial_begins_with_full_caches(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from solar.baseline import h5py_samples as module

    firsts: list[int] = []
    monkeypatch.setattr(module, "read_rows", lambda of, first, out: firsts.append(first))
    plain, setting = H5pySamples([str(files / "a.h5")], ["contiguous", "gzip"]), {"kind": "items", "workers": 0}
    for cache, memory, rows in (("all", 10**6, [0, 16, 32, 48]), ("all", 4700, [0, 16]), ("none", 10**6, [])):
        plain_loader(plain, BATCH, 0, setting | {"cache": cache, "warm": True}, memory)
        assert firsts == rows
        firsts.clear()
    plain_loader(plain, BATCH, 0, setting | {"cache": "all"}, 10**6)
    assert not firsts


def rates_of(best: dict[str, Any]) -> Any:
    """A trial in which this setting is the fastest, straight ways come next, and workers help a little."""

    def timed(setting: dict[str, Any]) -> float:
        if setting == best | {"warm": True}:
            return 100.0
        return {"straight": 50.0, "items": 9.0, "sorted": 1.0}[setting["kind"]] + setting["workers"]

    return timed


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        ({"kind": "items", "workers": 0, "cache": "default"}, 12 + 6),
        ({"kind": "straight", "workers": 4, "cache": "all"}, 12 + 6),
    ],
)
def test_the_best_of_all_ways_is_found_by_trials(files: Path, best: dict[str, Any], tried: int) -> None:
    plain = H5pySamples([str(files / "a.h5")], ["gzip"])
    found, ones, untried = best_of(plain, 1, 4000, [0, 1, 2, 4], rates_of(best), 1e9)
    assert (found, len(ones), untried) == (best, tried, 0)
    assert {one["cache"] for one in ones} == set(CACHES)


def test_a_file_without_chunks_has_no_cache_to_try_and_what_fails_is_not_the_best(files: Path) -> None:
    def timed(setting: dict[str, Any]) -> float:
        if setting["kind"] == "straight":
            raise OSError("no")
        return {"items": 2.0, "sorted": 1.0}[setting["kind"]]

    plain = H5pySamples([str(files / "a.h5")], ["contiguous"])
    best, tried, untried = best_of(plain, BATCH, 10**6, [0], timed, 1e9)
    assert (best, len(tried), untried) == ({"kind": "items", "workers": 0, "cache": "default"}, 3, 0)
    assert tried[0]["failed"] == "no"


def test_no_trial_is_begun_after_the_time_but_the_first(files: Path) -> None:
    hours = iter(range(0, 10**6, 3600))
    plain = H5pySamples([str(files / "a.h5")], ["contiguous"])
    _, tried, untried = best_of(plain, BATCH, 10**6, [0, 2], lambda _: 1.0, 10.0, lambda: float(next(hours)))
    assert (len(tried), untried) == (1, 3)


def test_the_largest_cache_is_tried_first_as_the_smallest_may_take_all_the_time(files: Path) -> None:
    hours = iter(range(0, 10**6, 3600))
    plain = H5pySamples([str(files / "a.h5")], ["gzip"])
    best, _, _ = best_of(plain, 1, 4000, [0, 2], lambda _: 1.0, 10.0, lambda: float(next(hours)))
    assert best == {"kind": "straight", "workers": 0, "cache": "all"}


def test_caches_have_the_memory_that_is_allowed_and_no_more(files: Path) -> None:
    plain = H5pySamples([str(files / "a.h5")], ["contiguous", "gzip", "chunks"])
    chunk = 16 * 3 * 2 * 4
    every = {"gzip": 4 * 2 * 3 * chunk, "chunks": 8 * 8 * NBYTES}  # the last chunks are not full
    sizes = plain.cache_nbytes("all", BATCH, 3000)
    assert sizes[0] is None
    assert [3000 * one // sum(every.values()) for one in every.values()] == sizes[1:]
    assert plain.cache_nbytes("batch", 1, 10**6)[1:] == [6 * chunk, 8 * NBYTES]
    assert plain.cache_nbytes("none", 1, 10**6) == [None, 0, 0]
    for cache, nbytes in (("default", 8 << 20), ("all", sizes[1]), ("none", 0)):  # one after another, as in trials
        setting = {"kind": "straight", "workers": 2, "cache": cache}
        items: Any = plain_loader(plain, BATCH, 0, setting, 6000).dataset
        found = items.plain._data(0)[1].id.get_access_plist().get_chunk_cache()[1]
        assert found == nbytes or (cache == "default" and found == 1 << 20)  # of libhdf5 before 2
