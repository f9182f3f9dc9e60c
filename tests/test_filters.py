"""Chunks written by libhdf5 through every filter that solar decodes itself, compared with what libhdf5 reads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError

hdf5plugin = pytest.importorskip("hdf5plugin", reason="writes the chunks of filters that h5py does not have")

Array = NDArray[Any]
Filters = list[tuple[int, int, list[int]]]

DEFLATE, SHUFFLE, FLETCHER32, NBIT, SCALEOFFSET, LZF, LZ4, BITSHUFFLE = 1, 2, 3, 5, 6, 32000, 32004, 32008
INTEGERS = ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", ">u4", "<i8", ">i8", "<u8"]
TYPES = [*INTEGERS, "<f2", "<f4", ">f4", "<f8", ">f8", "S7", "V3", [("a", "<i2"), ("b", "<f8"), ("c", "S3")]]
UNDER_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")  # as tools/asan-python runs these tests
SIZES = [1, 7, 8, 1003, 12011]
KINDS = ["random", "constant", "smooth", "sparse"]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[h5py.File]:
    with h5py.File(tmp_path / "file.h5", "w", rdcc_nbytes=0) as made:  # libhdf5, too, must decode what it reads
        yield made


def make(kind: str, dtype: Any, size: int, seed: int = 0) -> Array:
    """`size` items whose bytes are as compressible as `kind` says."""
    rng = np.random.default_rng(seed)
    itemsize = np.dtype(dtype).itemsize
    if kind == "random":
        raw = rng.integers(0, 256, size * itemsize, dtype=np.uint8)
    elif kind == "constant":
        raw = np.tile(rng.integers(1, 128, itemsize, dtype=np.uint8), size)
    elif kind == "smooth":
        raw = np.cumsum(rng.integers(0, 3, size * itemsize), dtype=np.uint8)
    else:
        raw = rng.poisson(0.1, size * itemsize).astype(np.uint8)
    return raw.view(np.dtype(dtype))


def filters_of(dataset: h5py.Dataset) -> Filters:
    properties = dataset.id.get_create_plist()
    found = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    return [(code, flags, list(values)) for code, flags, values, _ in found]


def read_as_stored(dataset: h5py.Dataset) -> Array:
    """libhdf5's answer without any conversion of type."""
    out = np.empty(dataset.shape, dtype=f"V{dataset.id.get_type().get_size()}")
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, dataset.id.get_type())
    return out


def check(dataset: h5py.Dataset) -> None:
    """Every chunk decodes to what libhdf5 reads there."""
    dataset.file.flush()
    filters, whole = filters_of(dataset), read_as_stored(dataset)
    itemsize = whole.dtype.itemsize
    assert _native.unsupported(filters, itemsize) == ""
    shape = dataset.chunks
    assert shape is not None
    nbytes = int(np.prod(shape)) * itemsize
    assert dataset.id.get_num_chunks() > 0
    for i in range(dataset.id.get_num_chunks()):
        where = dataset.id.get_chunk_info(i).chunk_offset
        mask, stored = dataset.id.read_direct_chunk(where)
        raw = _native.decode(filters, itemsize, nbytes, mask, stored)
        chunk = np.frombuffer(raw, whole.dtype).reshape(shape)
        expected = whole[tuple(slice(a, a + n) for a, n in zip(where, shape, strict=True))]
        assert chunk[tuple(slice(0, n) for n in expected.shape)].tobytes() == expected.tobytes()


def create(file: h5py.File, data: Array, filters: Filters, tid: h5py.h5t.TypeID | None = None) -> h5py.Dataset:
    """One chunk written through `filters`, set one by one as h5py's own interface cannot."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(data.shape)
    for code, flags, values in filters:
        properties.set_filter(code, flags, tuple(values))
    tid = tid or h5py.h5t.py_create(data.dtype)
    made = h5py.h5d.create(file.id, b"data", tid, h5py.h5s.create_simple(data.shape), properties)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, data, tid)
    return h5py.Dataset(made)


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_chunks_of_h5pys_own_filters_decode_to_what_h5py_reads(file: h5py.File, dtype: Any, kind: str) -> None:
    pipelines: list[dict[str, Any]] = [
        {"shuffle": True},
        {"fletcher32": True},
        {"compression": "gzip", "compression_opts": 1},
        {"compression": "gzip", "compression_opts": 9, "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},
        {"compression": "lzf", "shuffle": True, "fletcher32": True},
    ]
    for size in SIZES:
        data = make(kind, dtype, size)
        for i, pipeline in enumerate(pipelines):
            check(file.create_dataset(f"{size}/{i}", data=data, chunks=(min(size, 5003),), **pipeline))


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_chunks_of_plugin_filters_decode_to_what_libhdf5_reads(file: h5py.File, dtype: Any, kind: str) -> None:
    pipelines = [
        hdf5plugin.LZ4(),
        hdf5plugin.LZ4(nbytes=1024),
        hdf5plugin.Bitshuffle(cname="none"),
        hdf5plugin.Bitshuffle(nelems=64, cname="none"),
        hdf5plugin.Bitshuffle(cname="lz4"),
        hdf5plugin.Bitshuffle(nelems=2048, cname="lz4"),
        hdf5plugin.Bitshuffle(cname="zstd"),
        hdf5plugin.Zstd(),
    ]
    for size in SIZES:
        data = make(kind, dtype, size)
        for i, pipeline in enumerate(pipelines):
            check(file.create_dataset(f"{size}/{i}", data=data, chunks=(min(size, 5003),), **pipeline))


def test_a_filter_left_out_of_a_chunk_is_not_undone(file: h5py.File) -> None:
    data = make("random", "<f4", 1000)
    dataset = file.create_dataset("data", data=data, chunks=(100,), compression="lzf", shuffle=True)
    check(dataset)
    assert any(dataset.id.read_direct_chunk((i,))[0] for i in range(0, 1000, 100))  # random bytes do not shrink


def test_a_chunk_of_which_all_filters_are_skipped_is_copied() -> None:
    filters: Filters = [(SHUFFLE, 0, [4]), (DEFLATE, 0, [4])]
    assert _native.decode(filters, 4, 8, 3, b"12345678") == b"12345678"
    with pytest.raises(CodecError, match="7 bytes where 8"):
        _native.decode(filters, 4, 8, 3, b"1234567")


@pytest.mark.parametrize(
    "filters",
    [
        [(DEFLATE, 0, [6]), (DEFLATE, 1, [6])],
        [(LZF, 1, []), (DEFLATE, 1, [6])],
        [(SHUFFLE, 0, [4]), (DEFLATE, 0, [1]), (FLETCHER32, 0, []), (LZF, 1, [])],
        [(FLETCHER32, 0, []), (DEFLATE, 0, [1])],
        [(FLETCHER32, 0, []), (FLETCHER32, 0, [])],
        [(BITSHUFFLE, 0, [0, 0]), (DEFLATE, 1, [6])],
        [(SHUFFLE, 0, [4]), (LZ4, 0, [])],
        [(NBIT, 0, []), (SHUFFLE, 0, [4]), (DEFLATE, 1, [6])],
        [(SCALEOFFSET, 0, [2, 0]), (DEFLATE, 1, [6])],
        [(SCALEOFFSET, 0, [2, 0]), (SHUFFLE, 0, []), (LZF, 1, [])],
        # libhdf5 takes compressed bytes for whole values when it packs them, and reads a few bytes past their end.
        *(
            pytest.param(filters, marks=pytest.mark.skipif(UNDER_ASAN, reason="libhdf5 reads past its own buffer"))
            for filters in (
                [(DEFLATE, 0, [1]), (SCALEOFFSET, 0, [2, 0])],
                [(DEFLATE, 0, [1]), (SCALEOFFSET, 0, [2, 0]), (LZF, 1, [])],
                [(SHUFFLE, 0, [4]), (DEFLATE, 0, [1]), (SCALEOFFSET, 0, [2, 0])],
            )
        ),
    ],
    ids=str,
)
def test_any_order_of_filters_is_undone(file: h5py.File, filters: Filters) -> None:
    data = np.random.default_rng(1).integers(0, 1000, 3000).astype("<i4")
    check(create(file, data, filters))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_scaleoffset_of_integers_is_undone(file: h5py.File, dtype: str) -> None:
    rng = np.random.default_rng(2)
    limits = np.iinfo(dtype)
    spans = [
        (0, 0),
        (0, 1),
        (3, 90),
        (limits.min, limits.min + 5),
        (limits.max - 9, limits.max),
        (limits.min, limits.max),
    ]
    for i, (low, high) in enumerate(spans):
        data = rng.integers(low, high, 997, dtype=np.dtype(dtype).newbyteorder("="), endpoint=True).astype(dtype)
        check(file.create_dataset(f"plain/{i}", data=data, chunks=(500,), scaleoffset=0))
        for bits in {1, 3, limits.bits - 1, limits.bits}:
            check(file.create_dataset(f"bits/{i}/{bits}", data=data, chunks=(500,), scaleoffset=bits))
        data[::7] = 42
        check(file.create_dataset(f"filled/{i}", data=data, chunks=(500,), scaleoffset=0, fillvalue=42))


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_scaleoffset_of_floats_is_undone(file: h5py.File, dtype: str) -> None:
    data = np.random.default_rng(3).normal(0, 100, 997).astype(dtype)
    for digits in [0, 1, 3, 6]:
        check(file.create_dataset(f"{digits}", data=data, chunks=(500,), scaleoffset=digits))
        data[::5] = -1.5
        check(file.create_dataset(f"filled/{digits}", data=data, chunks=(500,), scaleoffset=digits, fillvalue=-1.5))
        check(file.create_dataset(f"constant/{digits}", data=np.full_like(data, 7.25), scaleoffset=digits, chunks=True))


def number(base: Any, precision: int, offset: int) -> h5py.h5t.TypeIntegerID:
    tid = base.copy()
    tid.set_offset(0)
    tid.set_precision(precision)
    tid.set_offset(offset)
    return tid


@pytest.mark.parametrize(
    "base", ["STD_I8LE", "STD_U16LE", "STD_I16BE", "STD_I32LE", "STD_U32BE", "STD_I64LE", "STD_I64BE"]
)
def test_nbit_of_integers_is_undone(file: h5py.File, base: str) -> None:
    rng = np.random.default_rng(4)
    whole = getattr(h5py.h5t, base)
    bits = 8 * whole.get_size()
    for precision in {bits // 2 + 1, bits - 3, bits - 1, bits}:
        for offset in {0, 1, (bits - precision) // 2, bits - precision}:
            if precision + offset > bits:
                continue
            data = rng.integers(0, 256, 333 * whole.get_size(), dtype=np.uint8).view(f"V{whole.get_size()}")
            check(create(file, data, [(NBIT, 0, [])], number(whole, precision, offset)))
            del file["data"]


def compound(size: int, **members: tuple[int, h5py.h5t.TypeID]) -> h5py.h5t.TypeCompoundID:
    made = h5py.h5t.create(h5py.h5t.COMPOUND, size)
    for name, (offset, tid) in members.items():
        made.insert(name.encode(), offset, tid)
    return made


SMALL, BIG = number(h5py.h5t.STD_I32LE, 17, 5), number(h5py.h5t.STD_U16BE, 9, 3)
INNER = compound(16, a=(1, BIG), b=(4, h5py.h5t.IEEE_F64LE), c=(12, SMALL))
GRID = h5py.h5t.array_create(h5py.h5t.array_create(SMALL, (3,)), (2,))


@pytest.mark.skipif(h5py.version.version_tuple[:2] < (3, 16), reason="before h5py 3.16, get_filter makes up values")
@pytest.mark.parametrize(
    "tid",
    [
        INNER,
        GRID,
        h5py.h5t.array_create(BIG, (5,)),
        h5py.h5t.array_create(INNER, (2, 2)),
        h5py.h5t.array_create(compound(9, text=(0, h5py.h5t.C_S1.copy()), n=(2, SMALL)), (3,)),
        compound(
            64, one=(40, INNER), text=(1, h5py.h5t.C_S1.copy()), row=(8, h5py.h5t.array_create(BIG, (5,))), n=(3, SMALL)
        ),
    ],
)
def test_nbit_of_arrays_and_compounds_is_undone(file: h5py.File, tid: h5py.h5t.TypeID) -> None:
    data = np.random.default_rng(5).integers(0, 256, 77 * tid.get_size(), dtype=np.uint8)
    check(create(file, data.view(f"V{tid.get_size()}"), [(NBIT, 0, [])], tid))


def test_nbit_of_what_libhdf5_itself_misreads_is_left_to_it(file: h5py.File) -> None:
    tid = compound(64, grid=(0, GRID), one=(40, INNER))
    data = np.zeros(7 * 64, np.uint8).view("V64")
    assert "inside a compound" in _native.unsupported(filters_of(create(file, data, [(NBIT, 0, [])], tid)), 64)


def test_what_has_no_decoder_is_named() -> None:
    assert _native.unsupported([(SHUFFLE, 0, [4]), (4, 0, [1, 2, 3, 4])], 4) == "filter 4 (szip) has no native decoder"
    assert "filter 32013 (zfp)" in _native.unsupported([(32013, 0, [])], 4)
    assert "filter 999 " in _native.unsupported([(999, 1, [])], 4)
    assert "deflate" in _native.unsupported([(DEFLATE, 0, [])], 4)
    assert "scaleoffset" in _native.unsupported([(SCALEOFFSET, 0, [1] * 20)], 4)
    assert "nbit" in _native.unsupported([(NBIT, 0, [3, 0, 0])], 4)
    assert "bitshuffle" in _native.unsupported([(BITSHUFFLE, 0, [0, 2, 4, 0, 9])], 4)
    assert _native.unsupported([], 4) == ""


def test_a_wrong_checksum_is_an_error_that_names_the_filter(file: h5py.File) -> None:
    dataset = file.create_dataset("data", data=np.arange(100), chunks=(100,), fletcher32=True)
    file.flush()
    _, stored = dataset.id.read_direct_chunk((0,))
    damaged = bytes([stored[0] ^ 1]) + stored[1:]
    with pytest.raises(CodecError, match=r"filter 3 \(fletcher32\): .*checksum"):
        _native.decode(filters_of(dataset), 8, 800, 0, damaged)


def test_the_exchanged_checksum_of_old_hdf5_is_accepted(file: h5py.File) -> None:
    dataset = file.create_dataset("data", data=np.arange(99, dtype="u1"), chunks=(99,), fletcher32=True)
    file.flush()
    _, stored = dataset.id.read_direct_chunk((0,))
    a, b, c, d = stored[-4:]
    assert _native.decode(filters_of(dataset), 1, 99, 0, stored[:-4] + bytes([b, a, d, c])) == stored[:-4]


def test_a_chunk_that_decodes_to_another_size_is_an_error() -> None:
    for n in (99, 101):
        with pytest.raises(CodecError):
            _native.decode([(DEFLATE, 0, [6])], 1, 100, 0, zlib.compress(bytes(n)))


data_of_any_kind = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda kind, size, seed: make(kind, "u1", size, seed).tobytes(), st.sampled_from(KINDS),
              st.integers(0, 70000), st.integers(0, 9)),
    st.builds(lambda period, times: period * times, st.binary(min_size=1, max_size=40), st.integers(1, 500)),
)  # fmt: skip
flushes = st.sampled_from([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK])


@settings(max_examples=200, deadline=None)
@given(data_of_any_kind, st.integers(0, 9), st.integers(9, 15), st.integers(1, 9), st.integers(0, 4), flushes)
def test_inflate_undoes_zlib(data: bytes, level: int, wbits: int, memory: int, strategy: int, flush: int) -> None:
    coder = zlib.compressobj(level, zlib.DEFLATED, wbits, memory, strategy)
    half = len(data) // 2
    stored = coder.compress(data[:half]) + coder.flush(flush) + coder.compress(data[half:]) + coder.flush()
    assert _native.decode([(DEFLATE, 0, [6])], 1, len(data), 0, stored) == data
    for end in {0, 1, len(stored) // 2, len(stored) - 1}:
        with pytest.raises(CodecError, match="deflate"):
            _native.decode([(DEFLATE, 0, [6])], 1, len(data), 0, stored[:end])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_inflate_accepts_of_damaged_streams_only_what_zlib_accepts(data: st.DataObject) -> None:
    plain = make(data.draw(st.sampled_from(KINDS)), "u1", data.draw(st.integers(1, 5000))).tobytes()
    stored = bytearray(zlib.compress(plain, data.draw(st.sampled_from([0, 1, 6]))))
    for at in data.draw(st.lists(st.integers(0, len(stored) - 1), min_size=1, max_size=3)):
        stored[at] ^= data.draw(st.integers(1, 255))
    reference = zlib.decompressobj()
    try:
        expected = reference.decompress(stored)
        whole = reference.eof and len(expected) == len(plain)
    except zlib.error:
        expected, whole = b"", False
    if whole:
        assert _native.decode([(DEFLATE, 0, [6])], 1, len(plain), 0, bytes(stored)) == expected
    else:
        with pytest.raises(CodecError):
            _native.decode([(DEFLATE, 0, [6])], 1, len(plain), 0, bytes(stored))
