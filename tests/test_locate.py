"""Where a sample lies: its file, its row there, its group. h5py reads it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle

from solar import Crops, Field, H5Dataset, Ragged, Windows

LENGTHS = (7, 0, 9, 4)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = []
    for number, rows in enumerate(LENGTHS):
        paths.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file["x"] = 1000 * number + np.arange(rows * 12).reshape(rows, 3, 4)
            file["ends"], file["y"] = np.unique([rows // 2, rows]), np.arange(rows)
            for group in range(1 + number):
                file[f"g/m{group}/x"] = 1000 * number + 100 * group + np.arange(2 + group)
                file[f"g/m{group}/e"] = float(group)
        settle(paths[-1])
    return paths


def value(place: Any, name: str = "x") -> Any:
    with h5py.File(place.file) as file:
        return (file[place.group] if place.group else file)[name][place.row]


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rows": ("x", {}),
    "some rows": ("x", {"where": ("/y", lambda y: y % 2 == 1)}),
    "windows": (Field("x", steps=(0, 1)), {"samples": Windows(every=2)}),
    "windows with a past": (Field("x", steps=(0, -1, -2)), {}),
    "boxes": ("x", {"samples": Crops((2, 3, 4))}),
    "boxes of rows": ("x", {"samples": Crops((3, 4), volumes="rows")}),
    "boxes that are drawn": ("x", {"samples": Crops((2, 3, 4), at="random", per=5, seed=1)}),
    "along two axes": (Field("x", axis=(0, 1)), {}),
    "ragged": (Ragged("x", ends="ends"), {}),
    "rows of groups": ("/g/*/x", {}),
    "windows of groups": (Field("/g/*/x", steps=(0, 1)), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_row_of_a_sample_is_where_it_is_said_to_be(kind: str, files: list[str]) -> None:
    fields, more = KINDS[kind]
    data = H5Dataset([files[0], files[2], files[3]] if kind.startswith(("boxes", "along")) else files, fields, **more)
    whole = data.locate(np.arange(len(data)))
    for i in range(len(data)):
        place = data.locate(i)
        assert (whole.file[i], whole.row[i], whole.group[i]) == place
        assert not np.size(data[i]) or np.isin(np.ravel(data[i])[0], value(place))
    assert data.locate(-1) == data.locate(len(data) - 1)
    with pytest.raises(IndexError):
        data.locate(len(data))


@pytest.mark.parametrize("fields", ["x", "e", {"e": "e", "x": "x"}])
def test_a_group_that_is_a_sample_is_named(fields: Any, files: list[str]) -> None:
    data = H5Dataset(files, fields, samples="/g/*")
    expected = [(path, 0, f"/g/m{group}") for number, path in enumerate(files) for group in range(1 + number)]
    assert [tuple(data.locate(i)) for i in range(len(data))] == expected


def test_rows_of_another_shape_in_each_group_are_found(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, (n, atoms) in {"b": (3, 2), "a": (0, 5), "c": (2, 4)}.items():
            file[f"mol/{name}/x"] = np.zeros((n, atoms, 3))
    data = H5Dataset(tmp_path / "a.h5", "/mol/*/x")
    assert [tuple(data.locate(i))[1:] for i in range(5)] == [(i, "/mol/b") for i in range(3)] + [
        (i, "/mol/c") for i in range(2)
    ]


def test_arrays_of_variable_length_and_whole_files_are_found(files: list[str], tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        paths.append(str(tmp_path / f"v{number}.h5"))
        with h5py.File(paths[-1], "w") as file:
            made = file.create_dataset("v", (3,), h5py.vlen_dtype("f4"))
            for row in range(3):
                made[row] = np.full(row, number)
        settle(paths[-1])
    data = H5Dataset(paths, Ragged("v"))
    assert [tuple(data.locate(i))[:2] for i in range(6)] == [(path, row) for path in paths for row in range(3)]
    whole = H5Dataset(files[:1] * 2, "y", samples="files")
    assert whole.locate([0, 1]).row.tolist() == [0, 0]


def test_the_file_is_that_of_the_path_and_not_of_a_field_from_elsewhere(files: list[str], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "labels.hdf", "w") as file:
        file["l"] = np.arange(sum(LENGTHS))
    data = H5Dataset(files, {"l": Field("l", file=tmp_path / "labels.hdf"), "x": "x"})
    assert tuple(data.locate(8)) == (files[2], 1, "")
