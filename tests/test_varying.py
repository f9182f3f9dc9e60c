"""HDF5's variable-length type is read natively: value for value h5py's, and damage is named."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import settle
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, LayoutError, Ragged, SolarError

STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (3,), "maxshape": (None,)},
    "gzip": {"chunks": (4,), "maxshape": (None,), "compression": "gzip"},
}


def written(
    path: Path, lengths: list[int], stored: str = "contiguous", of: str = "f4", libver: str = "earliest"
) -> list[np.ndarray[Any, Any]]:
    """A file of arrays `v` of these lengths, and `y`, the number of each; the arrays."""
    samples = [(np.arange(n) + 10 * number).astype(of) for number, n in enumerate(lengths)]
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("v", (len(lengths),), h5py.vlen_dtype(np.dtype(of)), **STORED[stored])
        for number, one in enumerate(samples):
            if len(one):  # others were never written
                dataset[number] = one
        file["y"] = np.arange(len(lengths))
    settle(path)
    return samples


def natively(path: Any, **options: Any) -> H5Dataset:
    data = H5Dataset(path, {"x": Ragged("v", **options), "y": "y"})
    assert not data.extents["x"].varying
    return data


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9) | st.integers(500, 3000), min_size=1, max_size=12),
    st.sampled_from(sorted(STORED)),
    st.sampled_from(["f4", ">f8", "u1", "i2", ">i4"]),
    st.sampled_from(["earliest", "latest"]),
)
def test_arrays_are_h5pys(lengths: list[int], stored: str, of: str, libver: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        samples = written(Path(folder) / "a.h5", lengths, stored, of, libver)
        data = natively(Path(folder) / "a.h5")
        for number, expected in enumerate(samples):
            got = data[number]["x"]
            assert got.dtype == expected.dtype.newbyteorder("=") and np.array_equal(got, expected)
        order = np.random.default_rng(0).integers(0, len(samples), 20)
        batch = data.read_batch(order)["x"]
        assert np.array_equal(batch.values, np.concatenate([samples[i] for i in order]))


def test_batches_are_torchs_also_of_several_files(tmp_path: Path) -> None:
    samples = written(tmp_path / "a.h5", [3, 0, 5, 1, 0], "gzip") + written(tmp_path / "b.h5", [0, 2, 2], "chunks")
    data = natively(str(tmp_path / "*.h5"), batch="flat")
    assert [sample["x"].tolist() for sample in data] == [one.tolist() for one in samples]
    torch.manual_seed(1)
    expected = list(TorchLoader(data, 3, shuffle=True))
    torch.manual_seed(1)
    for ours, theirs in zip(DataLoader(data, 3, shuffle=True), expected, strict=True):
        assert all(map(torch.equal, ours["x"], theirs["x"])) and torch.equal(ours["y"], theirs["y"])


def test_values_that_are_converted_are_left_to_h5py(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        base = h5py.h5t.NATIVE_INT32.copy()
        base.set_precision(20)
        kind = h5py.h5t.vlen_create(base)
        dataset = h5py.h5d.create(file.id, b"v", kind, h5py.h5s.create_simple((2,)))
        h5py.Dataset(dataset)[0] = np.array([1, -2, 3], "i4")
    data = H5Dataset(tmp_path / "a.h5", Ragged("v"))
    assert data.extents.varying and data[0].tolist() == [1, -2, 3] and len(data[1]) == 0


# --- damage ----


def spoilt(path: Path, at: int, value: int, nbytes: int) -> str:
    """What is said of a file in which these bytes are another number."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(value.to_bytes(nbytes, "little"))
    with pytest.raises(LayoutError) as error:
        H5Dataset(path, Ragged("v"))
    return str(error.value)


@pytest.mark.parametrize(
    ("where", "value", "nbytes", "said"),
    [
        (("reference", 0), 2**32 - 1, 4, "and 17179869180 are wanted of it"),
        (("reference", 4), 2**40, 8, "but the file ends at byte"),
        (("reference", 4), 2**64 - 1, 8, "its values are nowhere"),
        (("reference", 4), 0, 8, "lacks its signature GCOL"),
        (("reference", 12), 77, 4, "has no object 77"),
        (("heap", 0), 0, 4, "lacks its signature GCOL"),
        (("heap", 4), 9, 1, "has version 9"),
        (("heap", 8), 2**50, 8, "but the file ends at byte"),
        (("heap", 24), 2**40, 8, "has an object that leaves it"),
        (("heap", 24), 11, 8, "it has 11 bytes, and 12 are wanted of it"),
    ],
)
def test_damage_names_file_dataset_and_sample(
    where: tuple[str, int], value: int, nbytes: int, said: str, tmp_path: Path
) -> None:
    written(tmp_path / "a.h5", [3, 0, 5])
    with h5py.File(tmp_path / "a.h5") as file:
        begin = file["v"].id.get_offset()
    begin = begin if where[0] == "reference" else (tmp_path / "a.h5").read_bytes().find(b"GCOL")
    message = spoilt(tmp_path / "a.h5", begin + where[1], value, nbytes)
    assert message.startswith(f"{tmp_path}/a.h5: /v, sample ") and said in message


def test_a_gap_without_size_ends(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", [3])
    raw = (tmp_path / "a.h5").read_bytes()
    gap = raw.find(b"GCOL") + 16 + 16 + 16  # behind the first object, of 12 bytes
    assert int.from_bytes(raw[gap : gap + 2], "little") == 0
    assert "has a gap of no size" in spoilt(tmp_path / "a.h5", gap + 8, 0, 8)


def test_damaged_bytes_end_in_an_error_or_in_arrays(tmp_path: Path) -> None:
    draw = random.Random(5)
    written(tmp_path / "a.h5", [3, 0, 40, 2], "gzip")
    whole, failed = (tmp_path / "a.h5").read_bytes(), 0
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        (tmp_path / "b.h5").write_bytes(damaged)
        try:
            H5Dataset(tmp_path / "b.h5", Ragged("v"), cache=None).read_batch([0, 1, 2, 3])
        except SolarError as error:
            failed += 1
            assert str(tmp_path / "b.h5") in str(error)
    assert failed > 20
