"""Constants of a file beside rows: a mask, a label, an attribute. h5py and torch are the oracles."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from buffer_kit import equal
from everyday_kit import check, check_service
from kit import settle
from torch.utils.data import ConcatDataset
from torch.utils.data import DataLoader as TorchLoader

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, Ragged, Windows
from solar.io.reading.reader import Rows

LENGTHS = (14, 0, 9, 18)


def written(folder: Path, lengths: tuple[int, ...] = LENGTHS) -> list[Path]:
    """Files of rows `x`, each with a mask, a label, a name and an attribute of its own."""
    paths = []
    for number, rows in enumerate(lengths):
        draw = np.random.default_rng(number)
        paths.append(folder / f"run{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            file.create_dataset(
                "x", data=draw.random((rows, 3, 4)).astype("f4"), chunks=(4, 3, 4), maxshape=(None, 3, 4)
            )
            file["det/mask"] = draw.integers(0, 2, (3, 4)).astype("u1")
            file["label"], file["name"] = number * 2.5, f"run {number}"
            file["det"].attrs["gain"], file.attrs["title"] = np.float32(number + 1), f"title {number % 2}"
            file["x"].attrs["axes"] = np.arange(2) + number
        settle(paths[-1])
    return paths


FIELDS: dict[str, Any] = {
    "x": "x",
    "mask": Field("det/mask", constant=True),
    "label": Field("label", constant=True, dtype="f4"),
    "name": Field("name", constant=True),
    "gain": Field("det", attribute="gain"),
    "title": Field("/", attribute="title"),
    "axes": Field("x", attribute="axes"),
}


def oracle(paths: list[Path]) -> list[dict[str, Any]]:
    found = []
    for path in paths:
        with h5py.File(path) as file:
            constants = {
                "mask": file["det/mask"][()], "label": np.float32(file["label"][()]), "name": file["name"][()],
                "gain": file["det"].attrs["gain"], "title": file.attrs["title"], "axes": file["x"].attrs["axes"],
            }  # fmt: skip
            found += [{"x": row, **constants} for row in file["x"][()]]
    return found


def test_each_sample_has_the_constants_of_its_file(tmp_path: Path) -> None:
    paths = written(tmp_path)
    check(H5Dataset([str(path) for path in paths], FIELDS), oracle(paths))


def test_a_service_holds_the_rows_and_each_job_its_constants(tmp_path: Path) -> None:
    paths = written(tmp_path)
    check_service(lambda: H5Dataset([str(path) for path in paths], FIELDS), paths, tmp_path)


def test_a_constant_is_read_once_a_file_and_not_with_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(path) for path in written(tmp_path)]
    started: list[tuple[str, list[int]]] = []
    start = Rows.start

    def noted(self: Rows, rows: Any, *more: Any) -> Any:
        started.append((self.layout.name, rows.tolist()))
        return start(self, rows, *more)

    monkeypatch.setattr(Rows, "start", noted)
    data = H5Dataset(paths, {"x": "x", "mask": Field("det/mask", constant=True)})
    assert started == [("/det/mask", [0, 1, 2, 3])]
    alone = H5Dataset(paths, {"x": "x"})
    read = []
    for one in (data, pickle.loads(pickle.dumps(data)), alone):
        torch.manual_seed(1)
        with DataLoader(one, 5, shuffle=True, buffer="1MiB", epochs=3) as loader:
            for _ in range(3):
                list(loader)
            read.append((loader.stats()["bytes"], loader.stats()["requests"]))
    assert read[0] == read[1] == read[2]
    _ = data[3], data.__getitems__([1, 20])
    assert [name for name, _ in started if name == "/det/mask"] == ["/det/mask"]


def test_equal_constants_of_many_files_take_the_memory_of_one(tmp_path: Path) -> None:
    paths = written(tmp_path)
    data = H5Dataset([str(path) for path in paths], {"x": "x", "t": Field("/", attribute="title")})
    assert data.constants is not None
    assert [len(one.values) for one in data.constants.values] == [2]


def test_windows_crops_ragged_samples_and_files_have_constants(tmp_path: Path) -> None:
    paths = written(tmp_path)
    given, beside = [str(path) for path in paths], {"label": Field("label", constant=True)}
    sizes = {path: h5py.File(path)["x"].shape[0] for path in paths}
    labels = [h5py.File(path)["label"][()] for path in paths]
    windows = H5Dataset(given, {"x": Field("x", steps=range(3)), **beside}, samples=Windows())
    expected = [label for label, n in zip(labels, sizes.values(), strict=True) for _ in range(max(0, n - 2))]
    assert [float(one["label"]) for one in windows] == expected
    some = [given[0], given[2], given[3]]
    for at in ("grid", "random"):
        crops = Crops((2, 2), volumes="rows", at=at, per=3) if at == "random" else Crops((2, 2), volumes="rows")
        boxes = H5Dataset(some, {"x": "x", **beside}, samples=crops)
        each = len(boxes) // (14 + 9 + 18)
        expected = [labels[f] for f, n in ((0, 14), (2, 9), (3, 18)) for _ in range(n * each)]
        assert [float(one["label"]) for one in boxes] == expected
        with DataLoader(boxes, 7, buffer="1MiB", epochs=2) as loader:
            for _ in range(2):
                assert torch.cat([batch["label"] for batch in loader]).tolist() == expected
    slices = H5Dataset(some, {"x": Field("x", axis=(0, 1)), **beside})
    assert [float(one["label"]) for one in slices] == [
        labels[f] for f, n in ((0, 14), (2, 9), (3, 18)) for _ in range(3 * n)
    ]
    for path in paths:
        with h5py.File(path, "r+") as file:
            file["ends"] = np.unique([0, len(file["x"]) // 2, len(file["x"])])[1:]
        settle(path)
    ragged = H5Dataset(some, {"x": Ragged("x", ends="ends"), **beside})
    assert [float(one["label"]) for one in ragged] == [labels[0]] * 2 + [labels[2]] * 2 + [labels[3]] * 2
    with DataLoader(ragged, 4, buffer="1MiB") as loader:
        assert torch.cat([batch["label"] for batch in loader]).tolist() == [float(one["label"]) for one in ragged]
    whole = H5Dataset([given[0], given[0]], {"x": "det/mask", **beside}, samples="files")
    assert [float(one["label"]) for one in whole] == [labels[0]] * 2


def test_concatenated_data_sets_have_their_own(tmp_path: Path) -> None:
    paths = written(tmp_path)
    parts = [H5Dataset([str(path) for path in some], FIELDS) for some in (paths[:2], paths[2:])]
    torch.manual_seed(1)
    expected = list(TorchLoader(ConcatDataset(parts), 5, shuffle=True))
    for buffer in (0, "1MiB"):
        torch.manual_seed(1)
        with DataLoader(ConcatDataset(parts), 5, shuffle=True, buffer=buffer) as loader:
            assert equal(list(loader), expected)
            assert buffer == 0 or loader._buffered.running is not None


def named(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"masked": sample["x"] * sample["mask"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_and_workers_get_them(workers: int, tmp_path: Path) -> None:
    paths = [str(path) for path in written(tmp_path)]
    data = H5Dataset(paths, FIELDS, transform=named)
    expected = list(TorchLoader(data, 6))
    with DataLoader(data, 6, num_workers=workers) as loader:
        assert equal(list(loader), expected)


def test_they_land_on_a_device(tmp_path: Path) -> None:
    paths = [str(path) for path in written(tmp_path)]
    data = H5Dataset(paths, {"x": Field("x", mean=1), "mask": FIELDS["mask"], "gain": FIELDS["gain"]})
    expected = list(TorchLoader(data, 6))
    for more in ({}, {"resident": "1MiB"}):
        with DataLoader(data, 6, device="cpu", **more) as loader:
            for _ in range(2):
                assert equal(list(loader), expected)


def test_a_mask_of_a_file_of_its_own_goes_with_all(tmp_path: Path) -> None:
    paths = [str(path) for path in written(tmp_path)]
    with h5py.File(tmp_path / "mask.hdf", "w") as file:
        file["mask"] = np.arange(6)
    data = H5Dataset(paths, ("x", Field("mask", file=tmp_path / "mask.hdf", constant=True, select=slice(1, 4))))
    assert all(np.array_equal(one[1], [1, 2, 3]) for one in data)
    with pytest.raises(LayoutError, match="of one file for all, or of one for each of the 4 files of the data set; "):
        H5Dataset(paths, ("x", Field("label", file=paths[:2], constant=True)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (Field("label", constant=True), "every field is a constant of its file, and none says what samples there are"),
        (("x", Field("labels", constant=True)), "there is no labels; did you mean /label"),
        (("x", Field("det", attribute="gian")), "run0.h5: det has no attribute 'gian'"),
        (("x", Field("nothing", attribute="gain")), "there is no"),
        (("x", Field("x", constant=True)), "run1.h5: /x has shape (0, 3, 4), which does not fit shape (14, 3, 4) in "),
        (("x", Field("det/mask", constant=True, axes=(0, 1, 2))), "run0.h5: axes=(0, 1, 2) are three axes"),
    ],
)
def test_what_is_no_constant_is_told(fields: Any, said: str, tmp_path: Path) -> None:
    paths = [str(path) for path in written(tmp_path)]
    with pytest.raises(LayoutError) as caught:
        H5Dataset(paths, fields)
    assert said in str(caught.value)


def test_constants_do_not_grow_without_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(path) for path in written(tmp_path)]
    monkeypatch.setattr("solar.samples.constants.CONSTANT_NBYTES", 24)
    with pytest.raises(LayoutError, match="constants are held in memory, and the different values of the files take "):
        H5Dataset(paths, ("x", Field("det/mask", constant=True)))
    H5Dataset(paths[:2], ("x", Field("det/mask", constant=True)))


@pytest.mark.parametrize("more", [{"steps": (0, 1)}, {"axis": 1}])
def test_a_field_is_a_constant_or_has_samples(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a constant is the same for all samples of a file"):
        Field("x", constant=True, **more)
    with pytest.raises(TypeError, match="attribute is the name of one attribute"):
        Field("x", attribute=3)
