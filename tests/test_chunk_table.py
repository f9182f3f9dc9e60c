"""The native chunk table says what libhdf5 says, for each of the six kinds of index."""

from __future__ import annotations

import random
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t

from solar import _native
from solar.errors import LayoutError
from solar.io.codec.grid import chunk_begins

Row = tuple[int, int, int, int]
UNLIMITED = None

# kind: library bounds, shape, largest shape, chunk
KINDS: dict[str, tuple[Any, tuple[int, ...], tuple[int | None, ...], tuple[int, ...]]] = {
    "btree1": ("earliest", (37, 10), (UNLIMITED, 12), (2, 3)),
    "btree1 four axes": ("earliest", (5, 4, 6, 3), (5, 4, 6, 3), (2, 1, 4, 2)),
    "single": ("v110", (7, 5), (7, 5), (7, 5)),
    "implicit": ("v110", (7, 5), (9, 11), (2, 3)),
    "fixed array": ("v110", (7, 5), (9, 11), (2, 3)),
    "fixed array in pages": ("latest", (2049,), (3000,), (1,)),
    "extensible array": ("v110", (9, 5), (UNLIMITED, 11), (2, 3)),
    "extensible array, second axis": ("latest", (4, 25, 3), (5, UNLIMITED, 4), (1, 2, 2)),
    "extensible array, long": ("latest", (5000,), (UNLIMITED,), (1,)),
    "btree2": ("v110", (9, 5), (UNLIMITED, UNLIMITED), (2, 3)),
    "btree2, deep": ("latest", (150, 60), (UNLIMITED, UNLIMITED), (1, 1)),
}


def write(path: Path, kind: str, *, filtered: bool = False, share: float = 1.0, userblock: int = 0) -> None:
    """Writes some of the chunks of /x, in random order, each with bytes of its own."""
    bounds, shape, most, chunk = KINDS[kind]
    choose = random.Random(kind)
    space = h5s.create_simple(shape, tuple(h5s.UNLIMITED if n is UNLIMITED else n for n in most))
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk(chunk)
    if filtered:
        properties.set_deflate(1)
    if kind == "implicit":
        properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    with h5py.File(path, "w", libver=bounds, userblock_size=userblock) as file:
        dataset = h5d.create(file.id, b"x", h5t.NATIVE_UINT8, space, properties)
        places = list(np.ndindex(*grid(shape, chunk)))
        for place in choose.sample(places, max(1, int(share * len(places)))):
            raw = choose.randbytes(int(np.prod(chunk)))
            offset = tuple(p * n for p, n in zip(place, chunk, strict=True))
            dataset.write_direct_chunk(offset, zlib.compress(raw) if filtered else raw, 0)


def grid(shape: tuple[int, ...], chunk: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-n // k) for n, k in zip(shape, chunk, strict=True))


def rows_of_libhdf5(dataset: h5py.Dataset) -> list[Row]:
    chunks = grid(dataset.shape, dataset.chunks)
    rows: list[Row] = []

    def add(info: Any) -> None:
        place = tuple(at // n for at, n in zip(info.chunk_offset, dataset.chunks, strict=True))
        if all(p < n for p, n in zip(place, chunks, strict=True)):
            rows.append((int(np.ravel_multi_index(place, chunks)), info.byte_offset, info.size, info.filter_mask))

    dataset.id.chunk_iter(add)
    return sorted(rows)


def rows_of_solar(path: Path | str, name: str) -> list[Row]:
    return list(zip(*(column.tolist() for column in _native.chunk_table(str(path), name)), strict=True))


def check(path: Path) -> None:
    rows = rows_of_solar(path, "/x")
    with h5py.File(path) as file:
        dataset = file["x"]
        if dataset.maxshape.count(None) == 1 and dataset.maxshape[0] is not None:
            # This index swaps axes, which libhdf5's listing forgets. Its look-up does not.
            check_contents(path, dataset, rows)
        else:
            assert rows == rows_of_libhdf5(dataset)


def check_contents(path: Path, dataset: h5py.Dataset, rows: list[Row]) -> None:
    stored = path.read_bytes()
    extents = {index: (offset, nbytes) for index, offset, nbytes, _ in rows}
    for index, place in enumerate(np.ndindex(*grid(dataset.shape, dataset.chunks))):
        offset = tuple(p * n for p, n in zip(place, dataset.chunks, strict=True))
        if index in extents:
            start, nbytes = extents[index]
            assert dataset.id.read_direct_chunk(offset)[1] == stored[start : start + nbytes]
        else:
            with pytest.raises((OSError, RuntimeError, ValueError)):
                dataset.id.read_direct_chunk(offset)


@pytest.mark.parametrize("share", [1.0, 0.02], ids=["full", "sparse"])
@pytest.mark.parametrize("filtered", [False, True], ids=["raw", "deflate"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_index_gives_the_chunks_that_libhdf5_gives(
    tmp_path: Path, kind: str, filtered: bool, share: float
) -> None:
    if filtered and kind == "implicit":
        pytest.skip("libhdf5 keeps filtered chunks in an index")
    path = tmp_path / "x.h5"
    write(path, kind, filtered=filtered, share=share)
    check(path)


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_to_copy_begin_where_libhdf5_finds_them(tmp_path: Path, kind: str, userblock: int) -> None:
    path = tmp_path / "x.h5"
    write(path, kind, share=0.3, userblock=userblock)
    found = []
    with h5py.File(path) as file:
        dataset = file["x"]
        for place in np.ndindex(*grid(dataset.shape, dataset.chunks)):
            begin = tuple(p * n for p, n in zip(place, dataset.chunks, strict=True))
            with suppress(OSError, RuntimeError, ValueError):  # not written
                dataset.id.read_direct_chunk(begin)
                found.append(begin)
        assert list(chunk_begins(dataset.id)) == found


@pytest.mark.parametrize("shape", [(3, 2), (14, 7), (9, 5)], ids=["shrunk", "grown", "as it was"])
@pytest.mark.parametrize("kind", ["extensible array", "btree2"])
def test_a_resized_dataset_has_the_chunks_of_its_new_extent(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / "x.h5"
    write(path, kind)
    with h5py.File(path, "r+") as file:
        file["x"].resize(shape)
    check(path)


@pytest.mark.parametrize("maxshape", [(UNLIMITED,), (10**12,)], ids=["extensible array", "btree1"])
def test_a_huge_dataset_with_few_chunks_has_few_rows(tmp_path: Path, maxshape: tuple[int | None, ...]) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest" if maxshape == (UNLIMITED,) else "earliest") as file:
        dataset = file.create_dataset("x", (10**12,), "u1", chunks=(1000,), maxshape=maxshape)
        dataset[5] = dataset[123_456_789] = 1
    assert [row[0] for row in rows_of_solar(path, "/x")] == [0, 123_456]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith(("fixed", "extensible", "btree2"))])
def test_a_flipped_bit_of_a_checksummed_index_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.h5"
    write(path, kind)
    stored = bytearray(path.read_bytes())
    header = next(at for at in (stored.find(name) for name in (b"FAHD", b"EAHD", b"BTHD")) if at > 0)
    stored[header + 6] ^= 4
    path.write_bytes(stored)
    with pytest.raises(LayoutError, match=r"x\.h5.*checksum"):
        _native.chunk_table(str(path), "/x")


def test_files_of_other_people_give_the_chunks_that_libhdf5_gives(shared: Path) -> None:
    for path in sorted((shared / "hdf5-odd").rglob("*chunked_v4*")):
        with h5py.File(path) as file:
            names: list[str] = []
            file.visit(names.append)
            for name in names:
                dataset = file[name]
                if isinstance(dataset, h5py.Dataset) and dataset.chunks and dataset.dtype.hasobject is False:
                    assert rows_of_solar(path, dataset.name) == rows_of_libhdf5(dataset), (path, name)
