"""Samples that a mask of the rows leaves: those of a Subset of them, for whatever samples are made of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from buffer_kit import LAYOUTS, equal, least_of, passes
from kit import settle
from torch.utils.data import ConcatDataset, Subset

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, PlanSampler, Ragged, Windows

ROWS = 60
ENDS = [7, 7, 30, 60]
GOOD = np.random.default_rng(3).random(ROWS) < 0.4


@pytest.fixture(params=sorted(LAYOUTS))
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=rng.integers(0, 99, (ROWS, 3, 5)).astype("f4"), **LAYOUTS[request.param])
        file["y"], file["good"], file["energy"], file["ends"] = np.arange(ROWS), GOOD, np.arange(ROWS) % 7, ENDS
        file["few"] = [True, False, False, True]
    settle(tmp_path / "x.h5")
    return str(tmp_path / "x.h5")


KINDS: dict[str, tuple[Any, Any]] = {
    "rows": ({"x": "x", "y": "y"}, "rows"),
    "windows": ({"x": Field("x", steps=range(-1, 2)), "y": "y"}, Windows(ends="ends")),
}


def both(path: str, kind: str) -> tuple[H5Dataset, Subset[Any]]:
    """With where=, and as torch's users write it."""
    fields, samples = KINDS[kind]
    whole = H5Dataset(path, fields, samples=samples)
    rows = np.array([int(whole[i]["y"]) for i in range(len(whole))])
    return H5Dataset(path, fields, samples=samples, where="good"), Subset(whole, np.flatnonzero(GOOD[rows]).tolist())


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_subset(path: str, kind: str) -> None:
    ours, theirs = both(path, kind)
    assert len(ours) == len(theirs) > 5
    assert all(np.array_equal(ours[i][k], theirs[i][k]) for i in range(-len(ours), len(ours)) for k in "xy")
    with pytest.raises(IndexError):
        ours[len(ours)]
    for more in ({}, {"num_workers": 2}):
        torch.manual_seed(0)
        expected = passes(DataLoader(theirs, 4, shuffle=True, **more), 2)
        torch.manual_seed(0)
        assert equal(passes(DataLoader(ours, 4, shuffle=True, **more), 2), expected)
    samplers = [PlanSampler(one, 1, 0, seed=5) for one in (ours, theirs)]
    found = []
    for one, sampler in zip((ours, theirs), samplers, strict=True):
        least = least_of(lambda n, one=one, own=sampler: DataLoader(one, 4, sampler=own, buffer=n))
        with DataLoader(one, 4, sampler=sampler, buffer=least + 3000, epochs=3) as loader:
            batches = passes(loader, 3)
            assert loader.stats()["peak_bytes"] <= least + 3000
            planned, run = loader._buffered.planned, loader._buffered.running.counts()
            assert (run["reads"], run["requests"], run["bytes"]) == (planned.reads, planned.requests, planned.bytes)
            found.append((batches, planned.reads, planned.requests, planned.bytes))
    assert equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_masks_come_from_datasets_arrays_and_functions(path: str) -> None:
    def chosen(energy: Any, good: Any) -> Any:
        return (energy > 3) & good

    energy = np.arange(ROWS) % 7
    for where, mask in (
        ("/good", GOOD),
        (GOOD, GOOD),
        (GOOD.tolist(), GOOD),
        ("energy", energy != 0),
        (("energy", "good", chosen), (energy > 3) & GOOD),
        (("energy", lambda one: one == 2), energy == 2),
    ):
        data = H5Dataset(path, "y", where=where)
        assert [int(y) for y in data] == np.flatnonzero(mask).tolist()
        assert [int(y) for y in pickle.loads(pickle.dumps(data))] == np.flatnonzero(mask).tolist()


def test_joined_and_sampled_by_columns_of_the_file(path: str) -> None:
    parts = [H5Dataset(path, "y", where=GOOD), H5Dataset(path, "y", where=~GOOD)]
    came = torch.cat([*DataLoader(ConcatDataset(parts), 7, sampler=PlanSampler(range(ROWS), 1, 0))])
    assert sorted(came.tolist()) == list(range(ROWS))
    balanced = PlanSampler(parts[0], 1, 0, labels="energy", per_class="equal", num_samples=70)
    energies = torch.cat([*DataLoader(parts[0], 10, sampler=balanced)]) % 7
    assert torch.bincount(energies).tolist() == [10] * 7
    assert sum(balanced.counts().values()) == 70
    drawn = PlanSampler(parts[0], 1, 0, weights="energy", num_samples=200)
    assert 0 not in (torch.cat([*DataLoader(parts[0], 10, sampler=drawn)]) % 7).tolist()


def test_of_samples_of_unequal_length_a_mask_has_a_value_for_each(path: str) -> None:
    data = H5Dataset(path, Ragged("y", ends="ends"), where="few")
    assert [np.asarray(one).tolist() for one in data] == [list(range(7)), list(range(30, 60))]
    assert [len(one) for batch in DataLoader(data, 2) for one in batch.unbind()] == [7, 30]


def test_it_is_resumed(path: str) -> None:
    def loader() -> DataLoader:
        data = H5Dataset(path, "y", where="good")
        return DataLoader(data, 4, sampler=PlanSampler(data, 1, 0, seed=2))

    whole = [batch.tolist() for batch in loader()]
    first = loader()
    for at, _ in enumerate(first, 1):
        if at == 2:
            state = first.state_dict()
            break
    (rest := loader()).load_state_dict(state)
    assert [batch.tolist() for batch in rest] == whole[2:]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("ends", "has the shape (4,); one value for each of 60 rows is needed"),
        (np.ones(3, bool), "has the shape (3,)"),
        (np.ones(ROWS), "is of float64; it is true or false"),
        (np.zeros(ROWS, bool), "leaves none of 60 samples"),
        (("energy", lambda one: one > 99), "leaves none"),
    ],
    ids=["length", "array", "type", "none", "function"],
)
def test_what_is_no_mask_is_said(path: str, where: Any, said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        H5Dataset(path, "y", where=where)
    assert said in str(caught.value)
    assert path in str(caught.value)


def test_functions_without_names_and_boxes_are_refused(path: str) -> None:
    for where in (lambda one: one, (lambda one: one,), (3, lambda one: one)):
        with pytest.raises(TypeError, match=r"name(s of|) the datasets|names of datasets"):
            H5Dataset(path, "y", where=where)
    with pytest.raises(LayoutError, match="Crops has `inside`"):
        H5Dataset(path, "x", samples=Crops((2, 2)), where="good")
