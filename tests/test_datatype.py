"""The dtype of a datatype message: h5py's, for every type h5py can write, and a reason where bytes are not values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5s, h5t

from solar import _native
from solar.errors import LayoutError
from solar.io.hdf5.datatype import decode


def written(folder: Path, kind: Any, libver: str = "earliest") -> tuple[bytes, np.dtype[Any]]:
    """The message of a dataset of this type, and the dtype h5py gives it."""
    path = folder / "one.h5"
    type_ = kind if isinstance(kind, h5t.TypeID) else h5t.py_create(np.dtype(kind), logical=True)
    with h5py.File(path, "w", libver=libver) as file:
        h5d.create(file.id, b"x", type_, h5s.create_simple((2,)))
    with h5py.File(path) as file:
        dtype = file["x"].dtype
    return _native.read_metadata(str(path))["datasets"][0]["datatype"], dtype


NESTED = np.dtype([("a", "i1"), ("b", [("c", ">f8", (2, 3)), ("d", "S5")]), ("e", "u2", (4,))])
PADDED = np.dtype({"names": ["x", "y"], "formats": ["<f4", ">i8"], "offsets": [4, 16], "itemsize": 32})
DIRECT = [
    *("i1", "<i2", ">i4", "<i8", "u1", ">u2", "<u4", ">u8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c16"),
    *("S1", "S7", "V5", "?", NESTED, PADDED, np.dtype(("<i4", (2, 3)))),
    h5py.opaque_dtype(np.dtype("<M8[ns]")),
    h5py.enum_dtype({"RED": 1, "GREEN": -2}, ">i2"),
]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("dtype", DIRECT, ids=str)
def test_types_whose_bytes_are_values_have_h5pys_dtype_and_no_reason(tmp_path: Path, dtype: Any, libver: str) -> None:
    message, expected = written(tmp_path, dtype, libver)
    found, reason = decode(message)
    assert (found, reason) == (expected, "")
    assert h5py.check_enum_dtype(found) == h5py.check_enum_dtype(expected)


def odd_integer() -> h5t.TypeID:
    type_ = h5t.STD_I32LE.copy()
    type_.set_precision(20)
    type_.set_offset(4)
    return type_


def string(padding: int) -> h5t.TypeID:
    type_ = h5t.C_S1.copy()
    type_.set_size(6)
    type_.set_strpad(padding)
    return type_


def reversed_complex() -> h5t.TypeID:
    type_ = h5t.create(h5t.COMPOUND, 8)
    type_.insert(b"r", 4, h5t.IEEE_F32LE)
    type_.insert(b"i", 0, h5t.IEEE_F32LE)
    return type_


def wide_boolean() -> h5t.TypeID:
    type_ = h5t.enum_create(h5t.STD_I32LE)
    type_.enum_insert(b"FALSE", 0)
    type_.enum_insert(b"TRUE", 1)
    return type_


def tagged() -> h5t.TypeID:
    type_ = h5t.create(h5t.OPAQUE, 4)
    type_.set_tag(b"mine")
    return type_


CONVERTED = {
    "odd integer": odd_integer,
    "string that ends at zero": lambda: string(h5t.STR_NULLTERM),
    "string padded with spaces": lambda: string(h5t.STR_SPACEPAD),
    "reversed complex": reversed_complex,
    "wide boolean": wide_boolean,
    "tagged bytes": tagged,
    "long double": lambda: h5t.NATIVE_LDOUBLE,
    "reference": lambda: h5py.ref_dtype,
    "region reference": lambda: h5py.regionref_dtype,
    "text": h5py.string_dtype,
    "sequence": lambda: h5py.vlen_dtype("i4"),
    "compound with text": lambda: np.dtype([("a", "i4"), ("b", h5py.string_dtype()), ("c", h5py.vlen_dtype("f4"))]),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_types_that_libhdf5_converts_have_h5pys_dtype_and_a_reason(tmp_path: Path, name: str) -> None:
    message, expected = written(tmp_path, CONVERTED[name]())
    found, reason = decode(message)
    assert found == expected
    assert reason


def test_time_has_no_dtype(tmp_path: Path) -> None:
    path = tmp_path / "time.h5"
    with h5py.File(path, "w") as file:
        h5d.create(file.id, b"x", h5t.UNIX_D32LE, h5s.create_simple((2,)))
    with pytest.raises(LayoutError, match="time"):
        decode(_native.read_metadata(str(path))["datasets"][0]["datatype"])


def test_a_message_cut_short_is_a_layout_error_at_every_length(tmp_path: Path) -> None:
    message, expected = written(tmp_path, NESTED)
    needed = next(n for n in range(len(message) + 1) if _succeeds(message[:n]))
    assert decode(message[:needed])[0] == expected
    assert len(message) - needed < 8  # messages are padded to eight bytes
    assert not any(_succeeds(message[:n]) for n in range(needed))


def _succeeds(message: bytes) -> bool:
    try:
        decode(message)
    except LayoutError:
        return False
    return True


def test_damaged_messages_are_layout_errors_and_nothing_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for dtype in (*DIRECT, np.dtype([("a", h5py.string_dtype()), ("b", "f4")])):
        message, _ = written(tmp_path, dtype)
        for _ in range(300):
            damaged = bytearray(message)
            for _ in range(rng.integers(1, 4)):
                damaged[rng.integers(len(damaged))] = rng.integers(256)
            _succeeds(bytes(damaged))


def test_types_inside_types_end() -> None:
    level = bytes.fromhex("1a00000004000000010000000100000000000000")
    with pytest.raises(LayoutError, match="nested"):
        decode(level.replace(b"\x1a", b"\x2a", 1) * 1000)


def test_a_tag_of_objects_is_refused() -> None:
    message = bytes.fromhex("1508000008000000") + b"NUMPY:O\0"
    with pytest.raises(LayoutError, match="cannot be in"):
        decode(message)
