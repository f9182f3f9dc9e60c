"""PhysicsNeMo's datapipes read through solar: what its HDF5Reader gives, and what that one cannot.

PhysicsNeMo imports more than its datapipes need: hundreds of megabytes, which need not be there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from absent_kit import pretended

from solar import LayoutError

with warnings.catch_warnings(), pretended("nvtx", "s3fs", "timm", "torchvision", "treelib", "warp"):
    warnings.simplefilter("ignore")  # what it imports warns of much
    pytest.importorskip("physicsnemo.datapipes")
    from physicsnemo.datapipes import COMPONENT_REGISTRY, DataLoader, Dataset, HDF5Reader

    from solar.integrations.physicsnemo import SolarReader

Pair = tuple[Any, Any]


@pytest.fixture
def scan(make: Callable[..., str]) -> str:
    rng = np.random.default_rng(5)
    pressure = (rng.random((21, 6, 4)).astype("f4"), {"chunks": (4, 3, 4), "compression": "gzip"})
    return make("scan.h5", pressure=pressure, velocity=rng.random((21, 6, 3)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(6)
    for number in range(7):
        with h5py.File(tmp_path / f"sample_{number}.h5", "w") as file:
            file["pressure"] = rng.random((5, 2)).astype("f4")
            file["group/deep"] = np.arange(3)
    (tmp_path / "notes.txt").write_text("no sample")
    return tmp_path


def same(ours: Pair, theirs: Pair) -> bool:
    """Whether two samples or batches have the same fields, dtypes, values, and the same metadata."""
    (one, its), (other, others) = ours, theirs
    names = set(one.keys())  # a TensorDict itself is iterated over its samples
    alike = names == set(other.keys()) and its == others
    return alike and all(one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in names)


def test_samples_of_a_file_are_those_of_hdf5reader(scan: str) -> None:
    for fields in (["velocity", "pressure"], ["pressure"], None):
        theirs, ours = HDF5Reader(scan, fields=fields), SolarReader(scan, fields=fields)
        assert len(ours) == len(theirs) == 21
        assert sorted(ours.field_names) == sorted(theirs.field_names)
        assert all(same(ours[i], theirs[i]) for i in (0, 20, -1, 7))
        theirs.close()


@pytest.mark.parametrize("pattern", ["*.h5", "sample_[2-4].h5"])
def test_samples_of_a_folder_are_those_of_hdf5reader(folder: Path, pattern: str) -> None:
    theirs, ours = HDF5Reader(folder, file_pattern=pattern), SolarReader(folder, file_pattern=pattern)
    assert len(ours) == len(theirs)
    assert ours.field_names == ["pressure"]
    assert all(same(ours[i], theirs[i]) for i in range(len(ours)))


def test_files_of_different_shapes_are_read_one_by_one(folder: Path) -> None:
    with h5py.File(folder / "sample_3.h5", "a") as file:
        del file["pressure"]
        file["pressure"] = np.ones((9, 2), "f4")
    theirs, ours = HDF5Reader(folder), SolarReader(folder)
    assert ours[3][0]["pressure"].shape == (9, 2)
    assert all(same(ours[i], theirs[i]) for i in range(7))


def test_one_number_for_each_sample_is_a_field_too(make: Callable[..., str]) -> None:
    reader = SolarReader(make("labels.h5", label=np.arange(5), on=np.array([True, False, True, True, False])))
    sample, _ = reader[3]
    assert sample["label"] == 3
    assert sample["on"].dtype == torch.bool


@pytest.mark.parametrize("prefetch", [0, 3])
def test_datapipes_give_the_same_batches_with_either_reader(scan: str, prefetch: int) -> None:
    batches = []
    for reader in (HDF5Reader(scan), SolarReader(scan)):
        dataset = Dataset(reader, num_workers=1 if isinstance(reader, HDF5Reader) else 4)
        loader = DataLoader(
            dataset,
            batch_size=4,
            shuffle=True,
            seed=3,
            prefetch_factor=prefetch,
            use_streams=False,
            collate_metadata=True,
        )
        batches.append(list(loader))
        dataset.close()
    assert len(batches[1]) == 6
    assert all(same(ours, theirs) for ours, theirs in zip(batches[1], batches[0], strict=True))


def test_a_closed_reader_can_be_used_again_and_says_what_it_is(folder: Path) -> None:
    reader = SolarReader(folder)
    reader.close()
    assert reader[2][0]["pressure"].shape == (5, 2)
    assert repr(reader) == f"SolarReader(path={folder}, mode=directory, len=7, fields=['pressure'])"


def test_it_is_found_by_hydras_configurations() -> None:
    assert COMPONENT_REGISTRY.get("SolarReader") is SolarReader


def test_what_is_not_there_is_said_when_it_is_made(scan: str, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="presure"):
        SolarReader(scan, fields=["presure"])
    with pytest.raises(LayoutError, match=r"file_pattern='\*\.nc'"):
        SolarReader(tmp_path, file_pattern="*.nc")
    with pytest.raises(OSError, match="nowhere"):
        SolarReader(tmp_path / "nowhere.h5")
