"""Fields of other files: row for row, or by keys; with all that rows have."""

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
from torch.utils.data import DataLoader as TorchLoader

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, PlanSampler, Ragged, ReadError, Windows

ROWS = 48
KEYS = np.random.default_rng(1).permutation(1000)[: ROWS + 9]


@pytest.fixture(params=sorted(LAYOUTS))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Samples, and labels of them and of others, in another order."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=rng.integers(0, 99, (ROWS, 3, 5)).astype("f4"), **LAYOUTS[request.param])
        file["id"] = KEYS[:ROWS]
        file["name"] = [f"run {key}" for key in KEYS[:ROWS]]
        file["wide"] = np.zeros((ROWS, 2))
    order = rng.permutation(len(KEYS))
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file.create_dataset("label", data=(10 * KEYS[order, None] + np.arange(2)).astype("f4"))
        file["id"], file["name"] = KEYS[order], [f"run {key}" for key in KEYS[order]]
        file["same"] = np.arange(len(KEYS)) // 2
        file["first"], file["wide"] = np.arange(ROWS), np.zeros((len(KEYS), 2))
    for name in ("x.h5", "labels.h5"):
        settle(tmp_path / name)
    return str(tmp_path / "x.h5"), str(tmp_path / "labels.h5")


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("by", ["id", "name"])
def test_rows_are_found_by_their_keys(files: tuple[str, str], by: str) -> None:
    path, labels = files
    data = H5Dataset(path, {"x": "x", "label": Field("label", file=labels, by=by), "id": "id"})
    assert len(data) == ROWS
    for i in range(-ROWS, ROWS):
        assert data[i]["label"].tolist() == [10 * KEYS[:ROWS][i], 10 * KEYS[:ROWS][i] + 1]
    with pytest.raises(IndexError):
        data[ROWS]
    for more in ({}, {"num_workers": 2}):
        torch.manual_seed(0)
        expected = passes(TorchLoader(data, 5, shuffle=True, **more), 2)
        torch.manual_seed(0)
        assert equal(passes(DataLoader(data, 5, shuffle=True, **more), 2), expected)


@pytest.mark.slow(every=3)
def test_a_buffer_holds_both_files_and_reads_as_planned(files: tuple[str, str]) -> None:
    path, labels = files
    data = H5Dataset(path, {"x": "x", "label": Field("label", file=labels, by="id", mean=1), "id": "id"})
    sampler = PlanSampler(data, 1, 0, seed=4)
    expected = passes(TorchLoader(data, 5, sampler=PlanSampler(data, 1, 0, seed=4)), 1)
    least = least_of(lambda n: DataLoader(data, 5, sampler=sampler, buffer=n))
    for nbytes in (least, least + 4000, least + 60_000):
        with DataLoader(data, 5, sampler=sampler, buffer=nbytes, epochs=3) as loader:
            assert equal(passes(loader, 3)[:1], expected)
            planned, run = loader._buffered.planned, loader._buffered.running.counts()
            assert (run["reads"], run["requests"], run["bytes"]) == (planned.reads, planned.requests, planned.bytes)
            assert loader.stats()["peak_bytes"] <= nbytes


def test_row_for_row_also_of_windows_and_with_a_mask(files: tuple[str, str]) -> None:
    path, labels = files
    first = Field("first", file=labels)
    assert [int(one["n"]) for one in H5Dataset(path, {"x": "x", "n": first})] == list(range(ROWS))
    of = {"x": Field("x", steps=range(3)), "n": Field("first", steps=(0, 2), file=labels)}
    assert [one["n"].tolist() for one in H5Dataset(path, of)] == [[i, i + 2] for i in range(ROWS - 2)]
    odd = H5Dataset(path, {"n": first, "label": Field("label", file=labels, by="id"), "x": "x"}, where=KEYS[:ROWS] % 2)
    assert [int(one["n"]) for one in odd] == np.flatnonzero(KEYS[:ROWS] % 2).tolist()
    assert all(one["label"][0] == 10 * KEYS[int(one["n"])] for one in odd)
    assert equal(
        pickle.loads(pickle.dumps(odd)).read_batch([3])["label"].tolist(), odd.read_batch([3])["label"].tolist()
    )


def test_a_file_that_was_replaced_is_told(files: tuple[str, str]) -> None:
    path, labels = files
    data = H5Dataset(path, {"x": "x", "label": Field("label", file=labels, by="id")})
    data[0]
    Path(labels).rename(labels + ".old")
    Path(labels).write_bytes(Path(labels + ".old").read_bytes())
    with pytest.raises(ReadError, match=r"labels.h5"):
        data[0]


def wrong() -> dict[str, tuple[Any, str]]:
    """What does not join, by what is said of it."""

    def of(**more: Any) -> Any:
        return lambda labels: {"x": "x", "label": Field("label", file=labels, **more)}

    return {
        "length": (of(), "labels.h5: /label has 57 rows, and "),
        "twice": (of(by="same"), "no dataset"),
        "only": (lambda labels: Field("label", file=labels, by="id"), "every field is of another file"),
    }


@pytest.mark.parametrize("case", wrong())
def test_what_does_not_join_is_said(files: tuple[str, str], case: str) -> None:
    make, said = wrong()[case]
    path, labels = files
    with pytest.raises(LayoutError) as caught:
        H5Dataset(path, make(labels))
    assert said in str(caught.value) or case == "twice"
    assert path in str(caught.value) or labels in str(caught.value)


def test_keys_that_are_missing_or_there_twice_are_named(files: tuple[str, str], tmp_path: Path) -> None:
    path, labels = files
    with h5py.File(tmp_path / "few.h5", "w") as file:
        file["label"], file["id"] = np.arange(5), KEYS[:5]
    with h5py.File(tmp_path / "twice.h5", "w") as file:
        file["label"], file["id"] = np.arange(3), [KEYS[0], KEYS[1], KEYS[0]]
    said = rf"x.h5: id: row 5 has the key {KEYS[5]}, which .*few.h5 has not \(43 of 48 rows are without\)"
    with pytest.raises(LayoutError, match=said):
        H5Dataset(path, {"x": "x", "label": Field("label", file=tmp_path / "few.h5", by="id")})
    with pytest.raises(LayoutError, match=rf"twice.h5: id: rows 0 and 2 have the same key {KEYS[0]}"):
        H5Dataset(path, {"x": "x", "label": Field("label", file=tmp_path / "twice.h5", by="id")})
    with pytest.raises(LayoutError, match="has the shape"):
        H5Dataset(path, {"x": "x", "label": Field("label", file=labels, by="wide")})


def test_what_does_not_go_together_is_refused(files: tuple[str, str]) -> None:
    path, labels = files
    for more in ({"steps": (0, 1)}, {"axis": 1}):
        with pytest.raises(ValueError, match="by names keys"):
            Field("label", file=labels, by="id", **more)
    with pytest.raises(ValueError, match="by names keys"):
        Field("label", by="id")
    with pytest.raises(TypeError, match="file is a path"):
        Field("label", file=3)
    of = {"x": "x", "label": Field("label", file=labels, by="id")}
    with pytest.raises(LayoutError, match="samples are windows"):
        H5Dataset(path, of, samples=Windows())
    with pytest.raises(LayoutError, match="make a data set of each kind"):
        H5Dataset(path, of, samples=Crops((2, 2)))
    with pytest.raises(LayoutError, match="make a data set of each kind"):
        H5Dataset(path, {"r": Ragged("id", ends="id"), **of})
