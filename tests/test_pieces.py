"""solar.baseline.h5py_samples: for each kind of samples h5py gives solar's batches, and what numpy cuts out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import groups_kit
import h5py
import numpy as np
import pytest
import torch
from kit import settle

from solar import CSR, Crops, DataLoader, Field, H5Dataset, PlanSampler, Ragged, Windows
from solar.baseline.h5py_loader import batches_from, best_of, plain_loader
from solar.baseline.h5py_samples import StepRun, runs_of
from solar.cli import contestant
from solar.cli.contestant import h5py_samples_of, tensor_arrays

BATCH, SEED, EPOCH = 4, 3, 2


def rows_of(folder: Path) -> list[str]:
    """Two files of rows in parts, volumes, ragged rows, and a matrix."""
    paths = [folder / "a.h5", folder / "b.h5"]
    for number, path in enumerate(paths):
        rng = np.random.default_rng(number)
        n = 40 + 10 * number
        with h5py.File(path, "w") as file:
            file.create_dataset("u", data=rng.normal(size=(n, 3, 2)).astype(">f4"), chunks=(7, 3, 2), compression=4)
            file["i"] = rng.integers(0, 99, n, "u2")
            file["ends"] = [17, 17, n]
            file["v"] = rng.normal(size=(9 - number, 8, 7))
            file["label"] = rng.integers(0, 5, (9 - number, 8, 7), "i2")
            lengths = rng.integers(0, 4, 20)
            file["hits"], file["hits_ends"] = rng.normal(size=(int(lengths.sum()), 2)), np.cumsum(lengths)
            file["of_event"] = rng.integers(0, 9, 20)
            kept = file.create_dataset("vlen", 20, h5py.vlen_dtype("i4"))
            for place, length in enumerate(lengths.tolist()):
                kept[place] = rng.integers(0, 9, length)
            group = file.create_group("X")
            group["indptr"] = np.concatenate(([0], np.cumsum(lengths)))
            group["data"] = rng.normal(size=int(lengths.sum())).astype("f4")
            group["indices"] = np.concatenate([np.sort(rng.permutation(11)[:k]) for k in lengths]).astype("u2")
            group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", [20, 11]
        settle(path)
    return [str(path) for path in paths]


def groups_in(folder: Path, *rows: list[int]) -> list[str]:
    paths = [folder / f"{number}.h5" for number in range(len(rows))]
    for path, own in zip(paths, rows, strict=True):
        groups_kit.written(path, own, "chunks")
    return [str(path) for path in paths]


PAST = ("u", [-2, -1, 0])
GAPS = ("u", [-3, 0, 1, 5])
STEPS = ("i", [0, 2, 4])
HITS = {"ragged": ["hits"], "ends": "hits_ends"}
KINDS: dict[str, tuple[Callable[[Path], list[str]], list[str], dict[str, Any], Any, Any]] = {
    "windows": (
        rows_of, ["u", "i"], {"window": [PAST, STEPS], "every": 2, "ends": "ends"},
        {"u": Field("u", steps=PAST[1]), "i": Field("i", steps=STEPS[1])}, Windows(2, ends="ends"),
    ),
    "padded": (
        rows_of, ["i", "u"], {"dataset": ["i"], "window": [GAPS], "pad": "edge"},
        {"i": "i", "u": Field("u", steps=GAPS[1])}, Windows(pad="edge"),
    ),
    "boxes": (
        rows_of, ["v", "label"], {"dataset": ["v", "label"], "crop": [3, 4, 2], "overlap": [1]},
        {"v": "v", "label": "label"}, Crops((3, 4, 2), overlap=1),
    ),
    "random boxes": (
        rows_of, ["v", "label"], {"dataset": ["v", "label"], "crop": [3, 4, 2], "at": "random", "per": 9},
        {"v": "v", "label": "label"}, Crops((3, 4, 2), at="random", per=9),
    ),
    "ragged": (
        rows_of, ["of_event", "hits"], {"dataset": ["of_event"], **HITS},
        {"of_event": "of_event", "hits": Ragged("hits", ends="hits_ends")}, "rows",
    ),
    "variable length": (rows_of, ["vlen"], {"ragged": ["vlen"]}, {"vlen": Ragged("vlen")}, "rows"),
    "matrix": (rows_of, ["X"], {"csr": ["X"]}, {"X": CSR("X")}, "rows"),
    "groups": (
        lambda folder: groups_in(folder, [2, 0, 3, 1, 4], [5, 1, 2, 2, 2, 2, 3]), ["coords", "energy"],
        {"dataset": ["coords", "energy"], "groups": "/molecules/*"}, {"coords": "coords", "energy": "energy"},
        "/molecules/*",
    ),
    "groups alike": (
        lambda folder: groups_in(folder, [3] * 11), ["coords", "more/deep"],
        {"dataset": ["coords", "more/deep"], "groups": "/"}, {"coords": "coords", "more/deep": "more/deep"}, "groups",
    ),
}  # fmt: skip


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The same values, types, shapes and places."""
    assert sorted(one) == sorted(other)
    for name, values in one.items():
        assert values.layout == other[name].layout
        assert values.shape[0] == other[name].shape[0]
        for mine, theirs in zip(tensor_arrays(values), tensor_arrays(other[name]), strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_by_h5py_as_solar_reads_it_in_every_way(kind: str, tmp_path: Path) -> None:
    make, names, asked, fields, samples = KINDS[kind]
    paths = make(tmp_path)
    data = H5Dataset(paths, fields, samples=samples)
    with DataLoader(data, BATCH, sampler=PlanSampler(data, 1, 0, seed=SEED, drop_last=True), drop_last=True) as loader:
        loader.set_epoch(EPOCH)
        wanted = [*loader]
    plain = h5py_samples_of({"paths": paths, "names": names, "asked": asked})
    assert len(plain) == len(data)
    assert plain.nbytes() == pytest.approx(sum(one.rows.sample_nbytes for one in data.opened()), abs=3)
    assert ("span" in plain.ways) == (kind in ("windows", "padded"))
    for way in plain.ways:
        for workers in (0, 1) if way == "straight" else (0,):
            setting = {"kind": way, "workers": workers, "cache": "all"}
            found = [*batches_from(plain_loader(plain, BATCH, SEED, setting, 10_000), [EPOCH])]
            assert len(found) == len(wanted) == len(data) // BATCH
            for mine, theirs in zip(found, wanted, strict=True):
                same(mine, theirs)
    plain.close()


def test_windows_are_those_that_numpy_cuts(tmp_path: Path) -> None:
    paths = rows_of(tmp_path)
    plain = h5py_samples_of({"paths": paths, "names": ["u"], "asked": {"window": [GAPS], "ends": "ends"}})
    whole, at = [], 0
    for path in paths:
        with h5py.File(path) as file:
            values, ends = file["u"][()], file["ends"][()].tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            whole += [values[[a + step for step in GAPS[1]]] for a in range(begin + 3, end - 5)]
    for at, one in enumerate(whole):
        np.testing.assert_array_equal(plain.sample(at)["u"], one)
    assert len(plain) == at + 1


def test_groups_and_boxes_are_those_that_h5py_lists(tmp_path: Path) -> None:
    paths = groups_in(tmp_path, [2, 0, 3], [1, 4])
    plain = h5py_samples_of(
        {"paths": paths, "names": ["coords"], "asked": {"dataset": ["coords"], "groups": "/molecules/*"}}
    )
    wanted = [one for path in paths for one in groups_kit.oracle(Path(path), "coords")]
    assert len(plain) == len(wanted)
    for at, one in enumerate(wanted):
        np.testing.assert_array_equal(plain.sample(at)["coords"], one)
    (path, _), crops = rows_of(tmp_path), {"dataset": ["v"], "crop": [3, 8, 7]}
    plain = h5py_samples_of({"paths": [path], "names": ["v"], "asked": crops})
    with h5py.File(path, locking=False) as file:
        for at, begin in enumerate((0, 3, 6)):
            np.testing.assert_array_equal(plain.sample(at)["v"], file["v"][begin : begin + 3])


def test_each_epoch_has_random_boxes_of_its_own(tmp_path: Path) -> None:
    make, names, asked, _, _ = KINDS["random boxes"]
    plain = h5py_samples_of({"paths": make(tmp_path), "names": names, "asked": asked})
    loader = plain_loader(plain, 18, 0, {"kind": "straight", "workers": 0, "cache": "none"}, 0)
    one, other, again = (batch["v"].clone() for batch in batches_from(loader, [0, 1, 0]))
    assert torch.equal(one, again)
    assert not torch.equal(one.flatten(1).sort(0).values, other.flatten(1).sort(0).values)


def test_steps_are_few_slices() -> None:
    assert runs_of(range(-3, 2)) == [StepRun(0, -3, 5, 1)]
    assert runs_of(range(1, 9, 3)) == [StepRun(0, 1, 3, 3)]
    assert runs_of((4, 2, 3)) == [StepRun(0, 4, 1, 1), StepRun(1, 2, 2, 1)]
    assert runs_of(()) == []


def test_a_group_that_changed_is_not_read_beyond_its_memory(tmp_path: Path) -> None:
    (path,) = groups_in(tmp_path, [3, 3])
    plain = h5py_samples_of({"paths": [path], "names": ["coords"], "asked": {"dataset": ["coords"], "groups": "/"}})
    with h5py.File(path, "r+") as file:
        del file["molecules/m1/coords"]
        file["molecules/m1/coords"] = np.zeros((900, 3), "f4")
    with pytest.raises(OSError, match="has another shape than before"):
        plain.sample(1)


def test_the_ways_of_a_kind_are_tried_with_its_caches(tmp_path: Path) -> None:
    plain = h5py_samples_of({"paths": rows_of(tmp_path), "names": ["u"], "asked": {"window": [GAPS]}})
    _, tried, _ = best_of(plain, BATCH, 10**6, [0], lambda _: 1.0, 1e9)
    assert {one["kind"] for one in tried} == {"straight", "items", "span"}
    assert {one["cache"] for one in tried} >= {"none", "default"}
    plain = h5py_samples_of({"paths": groups_in(tmp_path, [3, 3]), "names": ["coords"],
                      "asked": {"dataset": ["coords"], "groups": "/"}})  # fmt: skip
    _, tried, _ = best_of(plain, BATCH, 10**6, [0], lambda _: 1.0, 1e9)
    assert [(one["kind"], one["cache"]) for one in tried] == [("straight", "default"), ("items", "default")]


@pytest.mark.parametrize("kind", KINDS)
def test_both_readers_of_bench_name_the_same_batches(kind: str, tmp_path: Path) -> None:
    make, names, asked, _, _ = KINDS[kind]
    job = {"paths": make(tmp_path), "names": names, "asked": asked, "batch": BATCH, "seed": SEED, "buffer": "0"}
    job |= {"seconds": 0.01, "workers": [0], "trying": -1.0}
    ours, theirs = contestant.solar_side(job)[0].digests(3), contestant.torch_side(job)[0].digests(3)
    assert ours == theirs
    assert len(set(ours)) == len(ours) > 1


def test_a_digest_tells_what_belongs_where() -> None:
    values = torch.arange(4.0)
    one = torch.nested.nested_tensor_from_jagged(values, offsets=torch.tensor([0, 1, 4]))
    other = torch.nested.nested_tensor_from_jagged(values, offsets=torch.tensor([0, 3, 4]))
    assert contestant.batch_digest({"x": one}) != contestant.batch_digest({"x": other})
    assert contestant.batch_digest({"x": one}) != contestant.batch_digest({"x": values})
    parts = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2)
    matrices = [torch.sparse_csr_tensor(*parts, size=(2, columns)) for columns in (2, 3)]
    assert contestant.batch_digest({"x": matrices[0]}) != contestant.batch_digest({"x": matrices[1]})
