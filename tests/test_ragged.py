"""Samples of different shapes, which torch's default collation cannot stack: what is said, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import transforms
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset

LENGTHS = [2, 2, 2, 2, 0, 1, 3, 4, 5, 6, 7]


@pytest.fixture
def path(make: Callable[..., str]) -> str:
    path = make("ragged.h5", x=np.arange(11.0))
    with h5py.File(path, "a") as file:
        file.create_dataset("hits", (11,), h5py.vlen_dtype("i4"))
        for place, length in enumerate(LENGTHS):
            file["hits"][place] = np.arange(length)
    return path


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ("hits", "batch"),
        ({"x": "x", "of": ("x", {"hits": "hits"})}, "batch['of'][1]['hits']"),
    ],
)
def test_the_field_its_shapes_and_a_way_out_are_named(path: str, fields: Any, where: str) -> None:
    loader = iter(DataLoader(H5Dataset(path, fields), 4))
    next(loader)  # alike by chance
    with pytest.raises(RuntimeError) as caught:
        next(loader)
    said = str(caught.value)
    assert said.startswith(f"{where}: samples of the shapes (0,), (1,), (3,), (4,) do not make one tensor")
    assert "collate_fn=list" in said
    assert caught.value.__context__ is None  # torch's own error is no help


def test_not_all_shapes_are_named(path: str) -> None:
    with pytest.raises(RuntimeError, match=r"shapes \(2,\), \(0,\), \(1,\), \(3,\) and 4 others do not"):
        next(iter(DataLoader(H5Dataset(path, "hits"), 11)))


def test_the_way_out_gives_the_samples_as_they_are(path: str) -> None:
    dataset = H5Dataset(path, {"hits": "hits"})
    for got, expected in zip(
        DataLoader(dataset, 4, collate_fn=list), TorchLoader(dataset, 4, collate_fn=list), strict=True
    ):
        assert [one["hits"].tolist() for one in got] == [one["hits"].tolist() for one in expected]
    assert [one.tolist() for one in DataLoader(H5Dataset(path, "hits"), None)] == [list(range(n)) for n in LENGTHS]


@pytest.mark.parametrize("place", [{}, {"thread_safe": True}, {"num_workers": 1}], ids=str)
def test_what_a_transform_makes_unlike_is_told_in_the_same_words(path: str, place: dict[str, Any]) -> None:
    workers = {key: value for key, value in place.items() if key == "num_workers"}
    of_dataset = {key: value for key, value in place.items() if key not in workers}
    dataset = H5Dataset(path, {"x": "x"}, transform=transforms.of_its_own_length, **of_dataset)
    with pytest.raises(RuntimeError, match=r"batch\['x'\]: samples of the shapes \(0,\), \(1,\), \(2,\) do not make"):
        next(iter(DataLoader(dataset, 3, **workers)))


def test_other_errors_of_torchs_collation_stay_what_they_are(zoo: str) -> None:
    for loader in (TorchLoader, DataLoader):
        with pytest.raises(TypeError):
            next(iter(loader(H5Dataset(zoo, "struct"), 2)))
    assert torch.equal(next(iter(DataLoader(H5Dataset(zoo, "array"), 2))), torch.zeros(2, 3))
