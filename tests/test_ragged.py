"""Ragged rows and CSR matrices: each sample is one line of numpy over h5py, and batches are torch's to the bit."""

from __future__ import annotations

import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import transforms
from buffer_kit import ORDERS, equal, passes
from hypothesis import given, settings
from kit import settle
from ragged_kit import KINDS, TOLD, cases, data_of, matrix, plainly, sparse, written
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader

from solar import (
    CSR,
    Crops,
    DataLoader,
    Field,
    H5Dataset,
    LayoutError,
    PlanError,
    PlanSampler,
    Ragged,
    ReadError,
    Windows,
)


@settings(max_examples=120, deadline=None)
@given(cases())
def test_a_sample_is_its_stretch_of_rows(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        samples = written(path, case["lengths"], case["layout"], case["dtype"], case["row"])
        data = H5Dataset(str(path), {"x": Ragged("v", **{case["told"]: case["told"]}), "y": "y"})
        assert len(data) == len(samples)
        for index, expected in enumerate(samples):
            got = data[index]["x"]
            assert got.dtype == expected.dtype.newbyteorder("=")
            assert np.array_equal(got, expected)
        order = np.random.default_rng(0).integers(0, len(samples), 20)
        batch = data.read_batch(order)
        assert np.array_equal(batch["y"], order)
        assert np.array_equal(batch["x"].values, np.concatenate([samples[i] for i in order]))
        assert batch["x"].offsets.tolist() == [0, *np.cumsum([len(samples[i]) for i in order])]


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_batches_are_torchs(kind: str, order: str, tmp_path: Path) -> None:
    data = data_of(kind, tmp_path / "a.h5")
    ours = order == "planned, exact"  # which torch's loader cannot cut
    torch.manual_seed(1)
    expected = passes((DataLoader if ours else TorchLoader)(data, **ORDERS[order](data)), 2)
    torch.manual_seed(1)
    got = passes(DataLoader(data, **ORDERS[order](data)), 2)
    if order == "one by one":
        if kind != "csr":
            assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(got[0], expected[0], strict=True))
        return
    assert equal(plainly(got), plainly(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_data_sets_are_joined_and_parts_of_them_taken(kind: str, tmp_path: Path) -> None:
    parts = [data_of(kind, tmp_path / "a.h5"), data_of(kind, tmp_path / "b.h5", "contiguous")]
    data = ConcatDataset([Subset(parts[1], list(range(0, 30, 3))), parts[0]])
    torch.manual_seed(1)
    expected = list(TorchLoader(data, 7, shuffle=True))
    torch.manual_seed(1)
    with DataLoader(data, 7, shuffle=True) as loader:
        assert equal(plainly(list(loader)), plainly(expected))
        assert loader.stats()["samples"] == 40


@pytest.mark.parametrize("kind", KINDS)
def test_several_files_are_one_after_another(kind: str, tmp_path: Path) -> None:
    parts = [data_of(kind, tmp_path / name, layout) for name, layout in (("a.h5", "gzip"), ("b.h5", "chunks"))]
    field = CSR("X", dense=kind == "dense") if kind in ("csr", "dense") else Ragged("v", ends="ends", batch=kind)  # type: ignore[arg-type]
    data = H5Dataset([str(tmp_path / "a.h5"), str(tmp_path / "b.h5")], {"x": field, "y": "y"})
    torch.manual_seed(2)
    expected = list(TorchLoader(ConcatDataset(parts), 7, shuffle=True))
    torch.manual_seed(2)
    assert equal(plainly(list(DataLoader(data, 7, shuffle=True))), plainly(expected))


def test_forms_of_a_batch(tmp_path: Path) -> None:
    samples = written(tmp_path / "a.h5", [2, 0, 3], row=(2,))
    batch = {}
    for form in ("jagged", "flat", "padded"):
        (batch[form],) = DataLoader(H5Dataset(str(tmp_path / "a.h5"), Ragged("v", ends="ends", batch=form)), 3)
    assert [one.tolist() for one in batch["jagged"].unbind()] == [one.tolist() for one in samples]
    values, offsets = batch["flat"]
    assert values.tolist() == np.concatenate(samples).tolist()
    assert offsets.tolist() == [0, 2, 2, 5]
    padded, there = batch["padded"]
    assert padded.shape == (3, 3, 2)
    assert there.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert torch.equal(padded[there], values)
    assert not padded[~there].any()
    longer = H5Dataset(str(tmp_path / "a.h5"), Ragged("v", ends="ends", batch="padded", length=5))
    for loader in (DataLoader, TorchLoader):
        ((padded, there),) = loader(longer, 2, sampler=[0, 1])
        assert padded.shape == (2, 5, 2)
        assert there.sum() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_empty_samples_are_batches(kind: str, tmp_path: Path) -> None:
    if kind in ("csr", "dense"):
        matrix(tmp_path / "a.h5", np.zeros((4, 3), "f4"))
        data = H5Dataset(str(tmp_path / "a.h5"), CSR("X", dense=kind == "dense"))
    else:
        written(tmp_path / "a.h5", [0, 0, 4, 0, 0], row=(2,))
        data = H5Dataset(str(tmp_path / "a.h5"), Ragged("v", ends="ends", batch=kind))  # type: ignore[arg-type]
    order = [0, 1, 3, 3]
    for ours, theirs in zip(DataLoader(data, 2, sampler=order), TorchLoader(data, 2, sampler=order), strict=True):
        assert equal(plainly(ours), plainly(theirs))


def test_a_matrix_is_that_of_numpy(tmp_path: Path) -> None:
    whole = sparse(25, 9)
    matrix(tmp_path / "a.h5", whole, "gzip")
    rows, as_dense = (H5Dataset(str(tmp_path / "a.h5"), CSR("X", dense=dense)) for dense in (False, True))
    for index, expected in enumerate(whole):
        assert rows[index].columns.tolist() == np.flatnonzero(expected).tolist()
        assert np.array_equal(rows[index].dense(), expected)
        assert np.array_equal(as_dense[index], expected)
    (batch,) = DataLoader(rows, 25)
    assert batch.layout == torch.sparse_csr
    assert batch.col_indices().dtype == torch.int32  # as stored
    assert torch.equal(batch.to_dense(), torch.from_numpy(whole))


def test_values_of_one_column_are_added_up(tmp_path: Path) -> None:
    matrix(tmp_path / "a.h5", np.eye(2, dtype="f4"), data=[1.0, 2.0, 4.0], indices=[1, 1, 0], indptr=[0, 2, 3])
    (batch,) = DataLoader(H5Dataset(str(tmp_path / "a.h5"), CSR("X", dense=True)), 2)
    assert batch.tolist() == [[0, 3], [4, 0]]


def test_old_files_of_anndata_are_read(tmp_path: Path) -> None:
    matrix(tmp_path / "a.h5", sparse(5, 4))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        shape = file["X"].attrs["shape"]
        del file["X"].attrs["shape"], file["X"].attrs["encoding-type"]
        file["X"].attrs.update({"h5sparse_format": b"csr", "h5sparse_shape": shape})
    settle(tmp_path / "a.h5")
    assert len(H5Dataset(str(tmp_path / "a.h5"), CSR("X/"))) == 5


def test_of_chunks_without_filters_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=np.arange(100_000, dtype="f4"), chunks=(50_000,))
        file["ends"] = np.arange(1_000, 101_000, 1_000)
    settle(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), Ragged("v", ends="ends"), page_cache=False)
    pending = data.start_batch([3, 70, 71])
    pending.wait()
    counts = pending.counts()
    assert counts["bytes_read"] + counts["bytes_mapped"] == 3 * 4_000
    assert counts["rows"] == 3


def test_a_chunk_is_decoded_once_for_all_samples_of_a_batch(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", [3] * 40, "shuffled, checked")
    pending = H5Dataset(str(tmp_path / "a.h5"), Ragged("v", ends="ends")).start_batch(range(39, -1, -1))
    pending.wait()
    assert pending.counts()["chunks_decoded"] == -(-120 // 16)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_transforms_make_samples_that_are_collated_alike(workers: int, tmp_path: Path) -> None:
    written(tmp_path / "a.h5", [2, 0, 3, 1, 4, 0, 7, 2])
    fields = {"x": Ragged("v", ends="ends", batch="flat"), "y": "y"}
    data = H5Dataset(str(tmp_path / "a.h5"), fields, transform=transforms.doubled_and_more)
    found = []
    for ranks in (1, 2):
        batches = [
            batch
            for rank in range(ranks)
            for batch in DataLoader(
                data, 3, sampler=PlanSampler(data, ranks, rank, seed=4, tail="exact"), num_workers=workers
            )
        ]
        pieces = [
            one.tolist()
            for values, offsets in (batch["x"] for batch in batches)
            for one in values.tensor_split(offsets[1:-1])
        ]
        numbers = torch.cat([batch["y"] for batch in batches]).tolist()
        found.append(dict(zip(numbers, pieces, strict=True)))
    assert found[0] == found[1]
    assert len(found[0][6]) == 7


def test_it_is_resumed_at_another_number_of_ranks(tmp_path: Path) -> None:
    data = data_of("flat", tmp_path / "a.h5")
    loader = DataLoader(data, 4, sampler=PlanSampler(data, 1, 0, seed=2))
    iterator = iter(loader)
    seen = [next(iterator)["y"] for _ in range(3)]
    state = loader.state_dict()
    left = []
    for rank in range(2):
        other = DataLoader(data, 4, sampler=PlanSampler(data, 2, rank, seed=2, tail="exact"))
        other.load_state_dict(state)
        left += [batch["y"] for batch in other]
    assert sorted(torch.cat([*seen, *left]).tolist()) == list(range(30))


def test_a_sample_and_its_data_set_are_pickled(tmp_path: Path) -> None:
    data = data_of("padded", tmp_path / "a.h5")
    sample = data[0]["x"]
    again = pickle.loads(pickle.dumps(sample))
    assert np.array_equal(again, sample)
    assert again.form == sample.form == (sample + 1).form
    assert isinstance(sample.sum(), np.floating)
    assert equal(plainly(list(DataLoader(pickle.loads(pickle.dumps(data)), 7))), plainly(list(DataLoader(data, 7))))


@pytest.mark.parametrize("of", ["f4", "i8", "u1"])
def test_hdf5s_variable_length_numbers_are_ragged(of: str, tmp_path: Path) -> None:
    samples = [np.arange(n).astype(of) for n in (3, 0, 1, 700, 0, 2)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("v", (len(samples),), h5py.vlen_dtype(np.dtype(of)))
        for index, one in enumerate(samples):
            dataset[index] = one
        file["y"] = np.arange(len(samples))
    settle(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": Ragged("v"), "y": "y"})
    for index, expected in enumerate(samples):
        assert data[index]["x"].dtype == expected.dtype
        assert np.array_equal(data[index]["x"], expected)
    for order in ([5, 3, 0, 1], [1, 4, 4, 1]):
        for ours, theirs in zip(DataLoader(data, 2, sampler=order), TorchLoader(data, 2, sampler=order), strict=True):
            assert equal(plainly(ours), plainly(theirs))
    joined = ConcatDataset([data, data])
    assert equal(plainly(list(DataLoader(joined, 5))), plainly(list(TorchLoader(joined, 5))))


# --- what is refused ----


def changed(path: Path, **more: Any) -> None:
    with h5py.File(path, "r+") as file:
        for name, values in more.items():
            if name in file:
                del file[name]
            file[name] = values
    settle(path)


@pytest.mark.parametrize(
    ("told", "values", "said"),
    [
        ("ends", [2, 1, 5], "end 1 is 1, after 2: ends ascend"),
        ("ends", [2, 6, 7], "end 1 is 6, and /v has 5 rows"),
        ("ends", [-1, 2, 5], "end 0 is -1, below 0"),
        ("ends", [0, 2], "the last end is 2, and /v has 5 rows, so 3 are in no part"),
        ("ends", [2.0, 5.0], "is of float64; what tells the parts of a file are whole numbers"),
        ("ends", [[2, 5]], "has shape"),
        ("lengths", [2, -1, 4], "length 1 is -1"),
        ("lengths", [2, 2], "its lengths add up to 4"),
        ("lengths", [2**62, 2**62, 2**62, 2**62], "length 0 is"),
        ("indptr", [2, 5], "an indptr begins with 0. For ends give ends="),
        ("indptr", np.empty(0, "i8"), "an indptr begins with 0"),
        ("indptr", [0, 2, 9], "end 1 is 9"),
        ("ids", [0, 0, 1], "has 3 ids, and /v has 5 rows"),
    ],
)
def test_what_tells_nonsense_is_refused(told: str, values: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    written(path, [2, 3])
    changed(path, **{told: values})
    with pytest.raises(LayoutError, match=re.escape(said)) as caught:
        H5Dataset(str(path), Ragged("v", **{told: told}))
    assert f"{path}: /{told}" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoding-type": "csc_matrix"}, "kept by columns (CSC)"),
        ({"encoding-type": "array"}, "its attribute encoding-type is 'array'"),
        ({"encoding-type": None}, 'write that with h5py: file["X"].attrs.update('),
        ({"shape": None}, "its attribute shape is None"),
        ({"shape": [4, 3, 1]}, "that of a matrix is two numbers"),
        ({"shape": [7, 3]}, "says its shape is (7, 3), and /X/indptr tells of 4 rows"),
        ({"indices": [0, 1]}, "has 4 values, and /X/indices has 2"),
        ({"indices": [0.0, 1.0, 1.0, 2.0]}, "its rows are to be whole numbers"),
        ({"data": np.array([b"a"] * 4)}, "its rows are to be numbers"),
        ({"data": [[1.0]] * 4}, "the parts of a CSR matrix have one axis"),
        ({"indptr": [0, 1, 2, 3, 9]}, "end 3 is 9, and /X/data has 4 rows"),
        ({"indptr": [0, 2, 1, 3, 4]}, "end 1 is 1, after 2"),
    ],
)
def test_parts_of_a_matrix_that_disagree_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    matrix(tmp_path / "a.h5", np.eye(4, 3, dtype="f4") + np.eye(4, 3, -3, dtype="f4"), **change)
    with pytest.raises(LayoutError, match=re.escape(said)) as caught:
        H5Dataset(str(tmp_path / "a.h5"), CSR("X"))
    assert str(tmp_path / "a.h5") in str(caught.value)


@pytest.mark.parametrize("column", [-1, 5, 2**31 - 1])
@pytest.mark.parametrize("dense", [False, True])
def test_a_column_that_a_matrix_lacks_is_an_error_of_its_row(column: int, dense: bool, tmp_path: Path) -> None:
    matrix(tmp_path / "a.h5", np.eye(6, 5, dtype="f4"), indices=np.array([0, 1, column, 3, 4], "i4"))
    data = H5Dataset(str(tmp_path / "a.h5"), CSR("X", dense=dense))
    with pytest.raises(ReadError, match=re.escape(f"a.h5: X, sample 2: column {column}")):
        list(DataLoader(data, 3))
    batches = list(DataLoader(data, 3, on_error="skip"))
    assert [len(batch) for batch in batches] == [2, 3]


def test_a_sample_that_no_memory_holds_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", (2**45,), "f4", chunks=(2**20,))
        file["ends"] = [3, 2**45]
    settle(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), Ragged("v", ends="ends"))
    assert data[0].tolist() == [0.0] * 3
    with pytest.raises(ReadError, match=f"a.h5: v, sample 1 has {2**45 - 3} rows, and there is no memory"):
        data[1]


def test_what_does_not_go_together_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "a.h5")
    written(tmp_path / "a.h5", [2, 0, 3])
    ragged = Ragged("v", ends="ends")
    with pytest.raises(LayoutError, match="v has 3 samples, /v has 5"):
        H5Dataset(path, (ragged, "v"))
    with pytest.raises(LayoutError, match="do not go together"):
        H5Dataset(path, (ragged, Field("y", steps=(0, 1))), samples=Windows())
    with pytest.raises(LayoutError, match="each file is one sample"):
        H5Dataset(path, ragged, samples="files")
    with pytest.raises(LayoutError, match="not a row of HDF5's variable-length numbers"):
        H5Dataset(path, Ragged("v"))
    with pytest.raises(LayoutError, match="sample 2 has 3 rows, and length=2"):
        H5Dataset(path, Ragged("v", ends="ends", batch="padded", length=2))
    for wrong in ({"ends": "a", "ids": "b"}, {"batch": "list"}, {"length": 3}, {"batch": "padded", "length": 0}):
        with pytest.raises(ValueError, match=r"(give one of them|is one of|give batch=|at least 1)"):
            Ragged("v", **wrong)
    with pytest.raises(TypeError, match="ends is the name of a dataset"):
        Ragged("v", ends=3)  # type: ignore[arg-type]
    assert set(TOLD) == {"ends", "lengths", "indptr", "ids"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_gets_the_same_batches(kind: str, tmp_path: Path) -> None:
    data = data_of(kind, tmp_path / "a.h5")
    assert equal(plainly(list(DataLoader(data, 7, device="cpu"))), plainly(list(DataLoader(data, 7))))
    for options in ({"resident": "1MiB"}, {"static": True}):
        with pytest.raises(PlanError, match=r"is for samples of one size, and .* has others: leave it out"):
            next(iter(DataLoader(data, 7, device="cpu", **options)))
    with pytest.raises(PlanError, match="comes in samples of unequal length, whose rows the host"):
        next(iter(DataLoader(data, 7, device="cpu", decode="device")))


def test_a_virtual_dataset_of_unequal_lengths_is_refused_in_words(tmp_path: Path) -> None:
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["v"] = np.arange(5)
    layout = h5py.VirtualLayout(shape=(10,), dtype="i8")
    for number in range(2):
        layout[5 * number : 5 * number + 5] = h5py.VirtualSource(tmp_path / f"{number}.h5", "v", shape=(5,))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
        file["ends"] = [3, 7, 10]
    with pytest.raises(LayoutError, match=r"all.h5: /?v is a virtual dataset.*give the files that have them"):
        H5Dataset(tmp_path / "all.h5", Ragged("v", ends="ends"))
    with pytest.raises(LayoutError, match=r"all.h5: .*it is a virtual dataset"):
        H5Dataset(tmp_path / "all.h5", "v", samples=Crops((3,)))
