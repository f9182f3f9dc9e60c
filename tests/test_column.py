"""A column of a compound table is a field like any other; h5py and torch are the oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from everyday_kit import check, check_service
from kit import settle

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, Windows

ROWS = 41
# As PyTables keeps a frame of pandas: an index, and a block of columns for each type; and a compound in a compound.
TABLE = np.dtype(
    [
        ("index", "i8"),
        ("values_block_0", "f8", (3,)),
        ("energy", ">f4"),
        ("name", "S6"),
        ("particle", [("charge", "i1"), ("at", "f4", (2,))]),
    ]
)
STORED: dict[str, dict[str, Any]] = {"contiguous": {}, "gzip": {"chunks": (8,), "compression": "gzip", "shuffle": True}}


def written(path: Path, stored: str = "gzip", rows: int = ROWS) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(rows)
    table = np.zeros(rows, TABLE)
    table["index"], table["energy"] = np.arange(rows), draw.random(rows)
    table["values_block_0"], table["name"] = draw.random((rows, 3)), [b"n%d" % i for i in range(rows)]
    table["particle"]["charge"], table["particle"]["at"] = draw.integers(-9, 9, rows), draw.random((rows, 2))
    with h5py.File(path, "w") as file:
        file.create_dataset("df/table", data=table, **STORED[stored])
        file["y"] = np.arange(rows)
    settle(path)
    return table


def columns() -> dict[str, Any]:
    return {
        "e": Field("/df/table", column="energy"),
        "v": Field("/df/table", column="values_block_0"),
        "c": Field("/df/table", column="particle.charge"),
        "n": Field("/df/table", column="name"),
        "y": "y",
    }


@pytest.mark.parametrize("stored", STORED)
def test_columns_are_what_h5py_gives_of_a_row(stored: str, tmp_path: Path) -> None:
    written(tmp_path / "a.h5", stored)
    with h5py.File(tmp_path / "a.h5") as file:
        rows = [file["df/table"][i] for i in range(ROWS)]
    samples = [
        {"e": row["energy"].astype("f4"), "v": row["values_block_0"], "c": row["particle"]["charge"], "n": row["name"],
         "y": np.int64(i)}
        for i, row in enumerate(rows)
    ]  # fmt: skip
    check(H5Dataset(tmp_path / "a.h5", columns()), samples)


def test_a_service_hands_out_columns(tmp_path: Path) -> None:
    written(tmp_path / "a.h5")
    check_service(lambda: H5Dataset(tmp_path / "a.h5", columns()), [tmp_path / "a.h5"], tmp_path)


def test_a_column_is_converted_and_cut_into_windows_as_any_field(tmp_path: Path) -> None:
    table = written(tmp_path / "a.h5")
    fields = {
        "past": Field(
            "/df/table", column="particle.at", steps=range(-2, 1), dtype="f8", mean=2, select=(slice(None), slice(1))
        ),
        "next": Field("/df/table", column="index", steps=(1,)),
    }
    at, index = table["particle"]["at"].astype("f8") - 2, table["index"].copy()
    places = range(2, ROWS - 1)
    samples = [{"past": at[a - 2 : a + 1, :1], "next": index[a + 1 : a + 2]} for a in places]
    check(H5Dataset(tmp_path / "a.h5", fields, samples=Windows()), samples)


def test_boxes_of_a_table_have_columns(tmp_path: Path) -> None:
    volume = np.zeros((6, 9, 8), [("u", "f4"), ("v", "i2")])
    volume["u"], volume["v"] = np.arange(432).reshape(6, 9, 8), np.arange(432).reshape(6, 9, 8) // 2
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=volume, chunks=(3, 3, 4), compression="gzip")
    settle(tmp_path / "a.h5")
    data = H5Dataset(tmp_path / "a.h5", Field("x", column="v"), samples=Crops((3, 3, 4)))
    boxes = [(z, y, x) for z in (0, 3) for y in (0, 3, 6) for x in (0, 4)]
    check(data, [volume["v"].copy()[z : z + 3, y : y + 3, x : x + 4] for z, y, x in boxes])


def test_all_columns_of_a_table_are_read_as_one(tmp_path: Path) -> None:
    """Three columns have a batch read what one has, and a buffer hold the rows once."""
    written(tmp_path / "a.h5")
    found = []
    for names in (["energy"], ["energy", "index", "particle.charge"]):
        data = H5Dataset(tmp_path / "a.h5", {name: Field("df/table", column=name) for name in names})
        for buffer in (0, "1MiB"):
            with DataLoader(data, 8, buffer=buffer) as loader:
                list(loader)
                stats = loader.stats()
                found.append((stats["bytes"], stats["bytes_decoded"]))
    assert found[:2] == found[2:] and found[0][0] > 0


def test_the_buffer_of_a_column_holds_the_bytes_that_its_plan_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from solar.cli import main

    written(tmp_path / "a.h5")
    assert main(["plan", str(tmp_path / "a.h5"), "/df/table", "--memory", "1MiB"]) == 0
    assert "/df/table" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"column": "energie"}, "a.h5: /df/table has no column 'energie'; it has energy, index, values_block_0, "),
        ({"column": "Particle.charge"}, "'Particle.charge'; it has particle.charge, "),
        ({"column": "particle.mass"}, "/df/table has no column 'particle.mass'; it has "),
        ({"column": "energy.unit"}, "/df/table has no column 'energy.unit'"),
        (
            {"column": "particle", "dtype": "f4"},
            "cannot be cast to float32; leave dtype away, or name one of its columns",
        ),
    ],
)
def test_a_column_that_is_not_there_is_told_with_those_that_are(
    field: dict[str, Any], said: str, tmp_path: Path
) -> None:
    written(tmp_path / "a.h5")
    with pytest.raises(LayoutError) as caught:
        H5Dataset(tmp_path / "a.h5", Field("/df/table", **field))
    assert said in str(caught.value)


def test_what_has_no_columns_is_told(tmp_path: Path) -> None:
    written(tmp_path / "a.h5")
    with pytest.raises(LayoutError, match="/y is of int64, which has no columns; leave column= away"):
        H5Dataset(tmp_path / "a.h5", Field("/y", column="a"))
    with pytest.raises(TypeError, match="column is the name of one column"):
        Field("/y", column=["a", "b"])
    with pytest.raises(ValueError, match="column is empty"):
        Field("/y", column="")
    with pytest.raises(ValueError, match="cf=True unpacks whole datasets"):
        Field("/y", column="a", cf=True)


def test_a_table_with_text_of_any_length_has_columns_that_h5py_reads(tmp_path: Path) -> None:
    table = np.zeros(7, [("label", h5py.string_dtype()), ("x", "f4")])
    table["x"], table["label"] = np.arange(7), ["a" * i for i in range(7)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = table
    data = H5Dataset(tmp_path / "a.h5", {"x": Field("t", column="x"), "label": Field("t", column="label")})
    assert [float(one["x"]) for one in data] == list(range(7))
    assert next(iter(DataLoader(data, 3)))["label"] == [b"", b"a", b"aa"]


def test_a_column_whose_name_has_a_dot_is_found(tmp_path: Path) -> None:
    table = np.array([(1, (2,))], [("a.b", "i4"), ("a", [("c", "i4")])])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = table
    assert [int(H5Dataset(tmp_path / "a.h5", Field("t", column=name))[0]) for name in ("a.b", "a.c")] == [1, 2]
