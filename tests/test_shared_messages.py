"""Files that keep parts of their datasets' descriptions in a heap of shared messages; h5py is the oracle."""

from __future__ import annotations

import ctypes
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import settle

import solar

SPACE, KIND, FILL, FILTERS, ATTRIBUTE = 0x2, 0x8, 0x20, 0x800, 0x1000  # HDF5's bits of types of messages
TO_HEAP = 1  # byte from which on a message is shared


def libhdf5() -> ctypes.CDLL:
    """The library that h5py has, for what h5py itself cannot ask of it."""
    found = next(Path(h5py.__file__).parent.parent.glob("h5py.libs/libhdf5-*.so*"), None)
    if found is None:
        pytest.skip("h5py has no libhdf5 of its own beside it")
    return ctypes.CDLL(str(found))


def shared(path: Path, types: list[int], listed: int = 50) -> h5py.File:
    """A new file with an index of shared messages for each of these sets of types."""
    library = libhdf5()
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    handle = ctypes.c_int64(creation.id)
    assert library.H5Pset_shared_mesg_nindexes(handle, ctypes.c_uint(len(types))) >= 0
    for number, one in enumerate(types):
        assert library.H5Pset_shared_mesg_index(handle, ctypes.c_uint(number), ctypes.c_uint(one), TO_HEAP) >= 0
    assert library.H5Pset_shared_mesg_phase_change(handle, ctypes.c_uint(listed), ctypes.c_uint(listed)) >= 0
    return h5py.File(h5py.h5f.create(str(path).encode(), h5py.h5f.ACC_TRUNC, fcpl=creation))


@pytest.mark.parametrize("listed", [50, 0], ids=["list", "tree"])
@pytest.mark.parametrize(
    "types",
    [[SPACE], [KIND], [FILL], [FILTERS], [SPACE | KIND | FILL | FILTERS | ATTRIBUTE], [SPACE, KIND | FILTERS, FILL]],
    ids=str,
)
def test_shared_messages_are_read_natively(types: list[int], listed: int, tmp_path: Path) -> None:
    values = np.arange(60, dtype=">f4").reshape(5, 12)
    with shared(tmp_path / "a.h5", types, listed) as file:
        for number in range(6):  # a message is in the heap once there are two of it
            rows = values[: 5 - number // 2]
            file.create_dataset(f"d{number}", data=rows, chunks=(2, 12), compression="gzip", fillvalue=7)
            file.create_dataset(f"part{number}", (6, 12), ">f4", chunks=(2, 12), fillvalue=7)[:2] = values[:2]
            file.create_dataset(f"one{number}", data=values[0])
    settle(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        layouts = solar.inspect(tmp_path / "a.h5", cache=None)
        assert len(layouts) == len(file)
        for name, dataset in file.items():
            layout = layouts[f"/{name}"]
            assert (layout.shape, layout.dtype, layout.reader) == (dataset.shape, dataset.dtype, "direct")
            assert np.array_equal(solar.read(tmp_path / "a.h5", name), dataset[()])


@pytest.mark.parametrize("many", [0, 20], ids=["few attributes", "many attributes"])
def test_shared_attributes_are_read(many: int, tmp_path: Path) -> None:
    with shared(tmp_path / "a.h5", [ATTRIBUTE, SPACE | KIND]) as file:
        for name in ("x", "y"):
            file[name] = np.arange(10, dtype="i2")
            for number in range(many):
                file[name].attrs[f"more{number}"] = np.arange(3)
            file[name].attrs["scale_factor"], file[name].attrs["add_offset"] = 0.5, 100.0
    settle(tmp_path / "a.h5")
    data = solar.H5Dataset(tmp_path / "a.h5", solar.Field("x", cf=True))
    assert np.array_equal(np.array([data[i] for i in range(10)]), np.arange(10) * 0.5 + 100)


def test_a_heap_that_is_not_there_is_damage(tmp_path: Path) -> None:
    with shared(tmp_path / "a.h5", [SPACE]) as file:
        for number in range(4):
            file[f"d{number}"] = np.arange(10)
    raw = bytearray((tmp_path / "a.h5").read_bytes())
    at = raw.index(b"FRHP")
    raw[at : at + 4] = b"FRHX"
    (tmp_path / "a.h5").write_bytes(raw)
    settle(tmp_path / "a.h5")
    with pytest.raises(solar.LayoutError):
        solar.inspect(tmp_path / "a.h5", "d3", cache=None)
