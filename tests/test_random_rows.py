"""Field(rows=k, at="random"): k random rows of each sample, which any way of reading gives alike."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from crops_kit import check_resumed
from serve_kit import PATIENT, check, serving, together
from torch.utils.data import ConcatDataset

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, PlanError, Ragged
from solar.cli import main

SAMPLES, ROWS, K = 60, 50, 8
STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "gzip": {"chunks": (1, ROWS, 3), "compression": "gzip"},
    "four samples a chunk": {"chunks": (4, ROWS, 3), "compression": "lzf"},
    "parts of a sample": {"chunks": (1, 20, 3)},
}


def values_of(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 30_000, (SAMPLES, ROWS, 3)).astype("<i2")


def written(path: Path, stored: str = "gzip", seed: int = 0) -> str:
    with h5py.File(path, "w") as file:
        file.create_dataset("points", data=values_of(seed), **STORED[stored])
        file["label"], file["column"] = np.arange(SAMPLES), np.arange(SAMPLES)[:, None]
    return str(path)


def clouds(path: str, **more: Any) -> H5Dataset:
    return H5Dataset(path, {"points": Field("points", rows=K, at="random", **more), "label": "label"})


def batches(data: Any, epochs: int = 2, **options: Any) -> list[tuple[list[int], np.ndarray[Any, Any]]]:
    options = {"shuffle": True, "generator": torch.Generator().manual_seed(5), **options}
    loader = DataLoader(data, 7, **options)
    return [(one["label"].tolist(), one["points"].numpy()) for _ in range(epochs) for one in loader]


def same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)


@pytest.mark.parametrize("stored", STORED)
def test_a_sample_has_rows_of_its_own_none_twice(stored: str, tmp_path: Path) -> None:
    values, data = values_of(), clouds(written(tmp_path / "a.h5", stored))
    seen, counts = [], np.zeros(ROWS, int)
    for epoch in range(40):
        data.set_epoch(epoch)
        for label, found in zip(range(0, SAMPLES, 7), [data[i]["points"] for i in range(0, SAMPLES, 7)], strict=True):
            assert found.shape == (K, 3)
            rows = [int(np.flatnonzero((values[label] == row).all(axis=1))[0]) for row in found]
            assert len(set(rows)) == K
            counts[rows] += 1
            seen.append(tuple(rows))
    assert len(set(seen)) > 0.99 * len(seen)  # other ones in each sample and epoch
    assert counts.min() > 0.3 * counts.mean() and counts.max() < 2 * counts.mean()


def test_batches_are_the_same_however_they_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    plain = batches(clouds(path), buffer=0)
    first, second = plain[: len(plain) // 2], plain[len(plain) // 2 :]
    assert not any(np.array_equal(a[1], b[1]) for a in first for b in second)
    for options in ({"buffer": "30%"}, {"buffer": "4MiB"}, {"num_workers": 2}, {"on_error": "skip"}):
        assert same(batches(clouds(path), **{"num_workers": 0, **options}), plain), options  # type: ignore[dict-item]
    for number, dataset in enumerate((clouds(path), pickle.loads(pickle.dumps(clouds(path))))):
        for epoch in range(2):  # as torch's own loader reads it
            dataset.set_epoch(epoch)
            for labels, points in plain[epoch * len(first) : (epoch + 1) * len(first)]:
                assert np.array_equal(dataset.read_batch(labels)["points"], points), number


def test_a_conversion_is_one_of_the_rows_that_were_drawn(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    plain = batches(clouds(path))
    for buffer in (0, "1MiB"):
        scaled = batches(
            clouds(path, dtype="float32", mean=[1, 2, 3], std=[2, 2, 4], select=slice(0, 5)), buffer=buffer
        )
        for (labels, points), (others, found) in zip(plain, scaled, strict=True):
            assert labels == others and found.shape[1:] == (5, 3)
            mean, std = np.array([1, 2, 3], "f4"), np.array([2, 2, 4], "f4")
            assert np.array_equal(found, (points[:, :5].astype("f4") - mean) / std)
    other = batches(clouds(path, seed=1))
    assert [one[0] for one in other] == [one[0] for one in plain] and not same(other, plain)


def test_several_files_and_a_transform(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{number}.h5", stored, number) for number, stored in enumerate(STORED)]
    one, both = clouds(paths[0]), ConcatDataset([clouds(paths[0]), clouds(paths[2])])
    plain = {
        label: points for labels, rows in batches(one, 1, buffer=0) for label, points in zip(labels, rows, strict=True)
    }
    for buffer in (0, "1MiB"):
        found = batches(both, 1, buffer=buffer)
        assert sum(len(labels) for labels, _ in found) == 2 * SAMPLES
        rows = [tuple(map(tuple, points)) for _, batch in found for points in batch.tolist()]
        assert set(rows) >= {tuple(map(tuple, points.tolist())) for points in plain.values()}
    listed = H5Dataset(paths[:2], {"points": Field("points", rows=K, at="random")})
    assert len(listed) == 2 * SAMPLES and listed[SAMPLES + 3]["points"].shape == (K, 3)
    assert listed.locate(SAMPLES + 3).row == 3
    as_files = H5Dataset(paths[:2], Field("points", rows=SAMPLES - 1, at="random"), samples="files")
    assert as_files[1].shape == (SAMPLES - 1, ROWS, 3)
    data = H5Dataset(
        paths[0], {"points": Field("points", rows=K, at="random"), "label": "label"}, transform=lambda sample: sample
    )
    assert same(batches(data, buffer=0), batches(one, buffer=0))


def test_ranks_and_resuming_change_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    data = H5Dataset(path, {"image": Field("points", rows=K, at="random"), "label": "column"})
    check_resumed(data)
    check_resumed(data, buffer="1MiB")


def test_a_service_gives_the_same_batches(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    written(path)
    data = [clouds(str(path)) for _ in range(2)]
    with serving(path, where=tmp_path, slack=PATIENT) as service:
        check(data, together(data, str(service.path)))


def test_the_plan_is_that_of_whole_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.h5")
    common = ("--batch-size", "7", "--memory", "1MiB", "--epochs", "3", "--json")
    found = []
    for names in (["points"], ["--rows", "points=8"]):
        assert main(["plan", path, *names, *common]) == 0
        found.append(json.loads(capsys.readouterr().out)["policies"]["solar"])
    assert found[0]["requests"] == found[1]["requests"] and found[0]["reads"] == found[1]["reads"]
    assert main(["rehearse", path, "--rows", "points=8", "--batch-size", "7", "--epochs", "1"]) == 0


def test_what_makes_no_random_rows_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    for options, said in (
        ({"rows": 4}, "given together"), ({"at": "random"}, "given together"), ({"rows": 4, "at": "grid"}, "together"),
        ({"rows": 0, "at": "random"}, "at least 1"), ({"rows": 4, "at": "random", "axis": 1}, "do not go with it"),
        ({"seed": 3}, "seed is of the random rows"), ({"rows": 4, "at": "random", "constant": True}, "of a dataset"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            Field("points", **options)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match=r"rows=51 random rows of each sample, and a sample has 50 rows"):
        H5Dataset(path, Field("points", rows=51, at="random"))
    with pytest.raises(LayoutError, match="no rows: it is a single value"):
        H5Dataset(path, Field("label", rows=1, at="random"))
    with pytest.raises(LayoutError, match=r"random rows beside boxes"):
        H5Dataset(path, Field("points", rows=5, at="random"), samples=Crops((10, 3)))
    with h5py.File(path, "a") as file:
        file["hits"], file["ends"] = np.arange(3 * SAMPLES), np.arange(3, 3 * SAMPLES + 1, 3)
    fields = {"points": Field("points", rows=5, at="random"), "hits": Ragged("hits", ends="ends")}
    with pytest.raises(LayoutError, match="random rows and fields of unequal length do not go together"):
        H5Dataset(path, fields)
    with pytest.raises(PlanError, match="resident"):
        list(DataLoader(clouds(path), 7, device="cpu", resident="1MiB"))
    assert repr(Field("p", rows=5, at="random")) == "Field('p', rows=5, at='random')"
