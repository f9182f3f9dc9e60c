"""A damaged chunk is told by what people know: the sample, or the row and its sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from crops_kit import written as volume
from ragged_kit import matrix, sparse
from ragged_kit import written as ragged
from windows_kit import written as rows

from solar import CSR, CodecError, Crops, DataLoader, Field, H5Dataset, Ragged

LENGTHS = [3, 0, 5, 4, 2, 6, 1, 4]  # 25 rows, of which a chunk has five


def damage(path: Path, name: str, chunk: int) -> int:
    """Overwrites a chunk's first bytes; the first row that it has."""
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info(chunk)
    with path.open("r+b") as file:
        file.seek(info.byte_offset)
        file.write(b"\xff" * 8)
    return int(info.chunk_offset[0])


def said(data: H5Dataset, buffer: Any) -> str:
    with pytest.raises(CodecError) as caught, DataLoader(data, 2, buffer=buffer) as loader:
        list(loader)
    return str(caught.value)


@pytest.mark.parametrize("chunk", [1, 3])
def test_of_ragged_samples_the_row_and_its_sample(chunk: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    ragged(path, LENGTHS, "gzip")
    first = damage(path, "v", chunk)
    row = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    data = H5Dataset(str(path), Ragged("v", ends="ends"))
    assert f"{path}: /v, row {first}, offset " in said(data, 0)
    assert f"(of {path}: v, sample {row[first]})" in said(data, 0)
    assert f"{path}: /v, sample {row[first]}, offset " in said(data, "2MiB")


def test_of_a_matrix_the_value_and_its_row(tmp_path: Path) -> None:
    matrix(tmp_path / "a.h5", values := sparse(30, 12), "gzip")
    first = damage(tmp_path / "a.h5", "X/data", 2)
    sample = int(np.searchsorted(np.cumsum(np.count_nonzero(values, axis=1)), first, side="right"))
    assert f"(of {tmp_path / 'a.h5'}: X, sample {sample})" in said(H5Dataset(str(tmp_path / "a.h5"), CSR("X")), 0)


def test_of_windows_the_row(tmp_path: Path) -> None:
    rows(tmp_path / "a.h5", 24, {"chunks": (4, 3, 5), "compression": "gzip"})
    first = damage(tmp_path / "a.h5", "u", 2)
    data = H5Dataset(str(tmp_path / "a.h5"), Field("u", steps=range(3)))
    for buffer in (0, "2MiB"):
        assert f"/u, row {first}, offset " in said(data, buffer)
    assert f"/u, sample {first}, offset " in said(H5Dataset(str(tmp_path / "a.h5"), "u"), 0)


def test_of_boxes_the_sample(tmp_path: Path) -> None:
    volume(tmp_path / "a.h5", (8, 8, 8), "gzip", (4, 4, 4))
    damage(tmp_path / "a.h5", "u", 3)  # of the four that are written: the last half has two boxes by two
    data = H5Dataset(str(tmp_path / "a.h5"), "u", samples=Crops((4, 4, 4)))
    assert "/u, sample 7, offset " in said(data, 0)
