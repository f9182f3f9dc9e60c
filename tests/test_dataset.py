"""H5Dataset is a map-style dataset like the ordinary one over h5py, without an open file."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import open_files, same
from torch.utils.data import DataLoader, default_collate

import solar
from solar import H5Dataset

FIELDS = {"x": "contiguous", "rest": ("deflate", "bool", {"be": "big_endian", "text": "text"}), "virtual": "virtual"}
TENSORS = [
    "contiguous",
    "deflate",
    "lzf",
    "big_endian",
    "big_endian_lzf",
    "complex",
    "bool",
    "partly_written",
    "virtual",
]


def ordinary(path: str, fields: Any, index: int) -> Any:
    """The sample as an ordinary dataset gives it: from h5py, in the machine's byte order."""
    if isinstance(fields, dict):
        return {key: ordinary(path, part, index) for key, part in fields.items()}
    if isinstance(fields, tuple):
        return tuple(ordinary(path, part, index) for part in fields)
    with h5py.File(path) as file:
        value = file[fields][index]
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, (np.ndarray, np.generic)) else value


def all_same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(all_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (tuple, list)):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(all_same, ours, theirs))
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    return same(ours, theirs)


def test_a_sample_is_what_the_ordinary_dataset_gives(zoo: str) -> None:
    dataset = H5Dataset(zoo, FIELDS)
    assert len(dataset) == 10
    for index in (0, 3, 9, -1, -10, np.int64(4)):
        assert all_same(dataset[index], ordinary(zoo, FIELDS, int(index)))  # type: ignore[index]


def test_samples_read_together_are_those_read_one_by_one(zoo: str) -> None:
    dataset = H5Dataset(zoo, FIELDS)
    indices = [3, 3, -1, 0, 7]
    assert all_same(dataset.__getitems__(indices), [dataset[i] for i in indices])
    assert dataset.__getitems__([]) == []


@pytest.mark.filterwarnings("ignore:In future, it will be an error:DeprecationWarning")  # torch 2.4's own, of np.bool_
@pytest.mark.parametrize(
    "fields", [*TENSORS, ("contiguous", "bool"), ["lzf"], {"a": {"b": "complex"}}, "text", "fixed_text"]
)
def test_torchs_collation_gives_the_same_batch(zoo: str, fields: Any) -> None:
    dataset = H5Dataset(zoo, fields)
    plain = tuple(fields) if isinstance(fields, list) else fields
    theirs = default_collate([ordinary(zoo, plain, i) for i in (4, 2)])
    assert all_same(default_collate(dataset.__getitems__([4, 2])), theirs)


def test_read_batch_stacks_samples_along_axis_0(zoo: str) -> None:
    batch = H5Dataset(zoo, FIELDS).read_batch(np.array([5, 1]))
    assert batch["x"].shape == (2, 6, 5)
    assert np.array_equal(batch["x"][0], ordinary(zoo, "contiguous", 5))
    assert batch["rest"][2]["text"] == [b"sample 5", b"sample 1"]
    assert batch["rest"][2]["be"].dtype == np.dtype("i4")


def test_batches_started_together_arrive_each_with_its_own_samples(zoo: str) -> None:
    dataset = H5Dataset(zoo, ("deflate", "text"))
    pending = [(order, dataset.start_batch(order)) for order in np.random.default_rng(0).integers(0, 10, (20, 4))]
    for order, batch in reversed(pending):
        numbers, texts = batch.wait(30)
        assert np.array_equal(numbers, solar.read(zoo, "deflate", order))
        assert texts == [f"sample {i}".encode() for i in order]


def test_a_batch_that_nobody_waits_for_does_no_harm(zoo: str) -> None:
    dataset = H5Dataset(zoo, ("deflate", "text"))
    for _ in range(200):
        dataset.start_batch([1, 2, 3])
    assert all_same(dataset[2], ordinary(zoo, ("deflate", "text"), 2))


@pytest.mark.parametrize("index", [10, -11])
def test_what_is_out_of_range_is_an_index_error(zoo: str, index: int) -> None:
    with pytest.raises(IndexError, match=str(index)):
        H5Dataset(zoo, "bool")[index]
    with pytest.raises(IndexError):
        H5Dataset(zoo, "bool").__getitems__([0, index])


def test_it_can_be_iterated_like_a_sequence(zoo: str) -> None:
    assert [int(one) for one in H5Dataset(zoo, "big_endian")] == list(range(10))


def test_what_has_no_samples_is_refused_when_it_is_made(zoo: str) -> None:
    for field, why in (("scalar", "scalar"), ("null", "null"), ("nope", "nope")):
        with pytest.raises(solar.LayoutError, match=why):
            H5Dataset(zoo, field)
    with pytest.raises(TypeError, match="fields"):
        H5Dataset(zoo, None)


def test_no_file_is_open_after_construction(zoo: str) -> None:
    before = open_files()
    dataset = H5Dataset(zoo, "contiguous")
    assert not open_files() - before
    assert len(dataset) == 10


def test_a_pickled_dataset_gives_the_same_samples(zoo: str) -> None:
    dataset = H5Dataset(zoo, FIELDS)
    dataset[0]
    assert all_same(pickle.loads(pickle.dumps(dataset))[4], dataset[4])


@pytest.mark.slow(but=["fork"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_read_too(zoo: str, method: str) -> None:
    dataset = H5Dataset(zoo, ("deflate", "text"))
    dataset[0]  # its threads and its process are there before the workers are made
    context = multiprocessing.get_context(method)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context)
    theirs = DataLoader(dataset, batch_size=4)
    assert all_same(list(loader), list(theirs))
    dataset[1]


def test_each_file_may_be_one_sample(make: Callable[..., str], tmp_path: Path) -> None:
    for i in range(5):
        make(f"{i}.h5", x=np.full((4, 3), i), y=float(i), text=f"sample {i}")
    dataset = H5Dataset(tmp_path, {"x": "x", "y": "y", "text": "text"}, samples="files")
    assert len(dataset) == 5
    sample = dataset[3]
    assert same(sample["x"], np.full((4, 3), 3))
    assert same(sample["y"], np.float64(3))
    assert sample["text"] == b"sample 3"
    assert default_collate(dataset.__getitems__([4, 0]))["y"].tolist() == [4.0, 0.0]


def test_it_says_what_it_is(zoo: str) -> None:
    assert repr(H5Dataset(zoo, ("bool", "text"))) == f"H5Dataset(10 samples of /bool, /text in {zoo})"


def test_a_subclass_that_overrides_only_getitem_is_asked_by_every_loader(zoo: str) -> None:
    class Doubled(H5Dataset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) * 2

    doubled, plain = Doubled(zoo, "contiguous"), H5Dataset(zoo, "contiguous")
    for loader in (DataLoader, solar.DataLoader):
        for one, other in zip(loader(doubled, 4), loader(plain, 4), strict=True):
            assert torch.equal(one, 2 * other)
