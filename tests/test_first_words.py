"""What a first user stumbles over is answered with what to give instead."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import settle

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, PlanSampler, Windows


@pytest.fixture
def path(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["ends"], file["y"] = np.arange(10.0), [6, 10], [0, 1, 0, 0, 2, 1, 1, 0, 2, 2]
        file["volume"] = np.zeros((8, 8, 8))
        lists = file.create_dataset("vl", (4,), h5py.vlen_dtype(np.dtype("f4")))
        for i in range(4):
            lists[i] = np.ones(i + 1, "f4")
    settle(tmp_path / "a.h5")
    return str(tmp_path / "a.h5")


def test_the_shape_of_a_box_is_a_tuple() -> None:
    with pytest.raises(TypeError, match=r"shape=8: a length for each axis that is cut, such as Crops\(\(8, 8, 8\)\)"):
        Crops(8)  # type: ignore[arg-type]


def test_a_word_for_places_that_is_none_is_told_the_words(path: str) -> None:
    with pytest.raises(LayoutError, match=r"at='rand' is neither \"grid\" nor \"random\", so it would be a dataset"):
        H5Dataset(path, "volume", samples=Crops((4, 4, 4), at="rand"))


def test_batches_of_variable_length_are_told_ragged(path: str) -> None:
    with pytest.raises(RuntimeError, match=r"variable-length type, name the field as Ragged"):
        next(iter(DataLoader(H5Dataset(path, "vl"), batch_size=3)))


@pytest.mark.parametrize("where", [None, np.arange(10) != 3])
def test_a_label_by_name_is_that_at_the_windows_place(path: str, where: np.ndarray | None) -> None:
    data = H5Dataset(path, Field("u", steps=(0, 1, 2)), samples=Windows(ends="ends"), where=where)
    places = [place for place in (0, 1, 2, 3, 6, 7) if where is None or where[place]]
    assert [int(window[0]) for window in data] == places
    with h5py.File(path) as file:
        own = file["y"][:][places]
    for options in ({"per_class": "equal"},):
        assert list(PlanSampler(data, 1, 0, labels="y", **options)) == list(
            PlanSampler(data, 1, 0, labels=own, **options)
        )
    assert list(PlanSampler(data, 1, 0, weights="y")) == list(PlanSampler(data, 1, 0, weights=own))
