"""zstd and blosc: the native decoders against the libraries that made the bytes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError

hdf5plugin = pytest.importorskip("hdf5plugin", reason="writes blosc chunks")

Array = NDArray[Any]
Filters = list[tuple[int, int, list[int]]]

ZSTD, BLOSC2 = 32015, 32026
MOST = 1 << 20
KINDS = ["random", "words", "counts", "zeros", "period", "planes"]


def make(kind: str, nbytes: int, seed: int = 0) -> bytes:
    """Bytes that exercise one part of a coder each: stored, Huffman, matches near and far, runs."""
    rng = np.random.default_rng(seed)
    if kind == "random":
        return rng.bytes(nbytes)
    if kind == "zeros":
        return bytes(nbytes)
    if kind == "period":
        return (bytes(range(seed % 40 + 1)) * (nbytes + 1))[:nbytes]
    if kind == "counts":
        return rng.poisson(0.7, nbytes).astype(np.uint8).tobytes()
    if kind == "planes":
        walk = np.cumsum(rng.standard_normal(nbytes // 4 + 1)).astype("<f4")
        return walk.view(np.uint8).reshape(-1, 4).T.tobytes()[:nbytes]
    words = [rng.integers(97, 123, rng.integers(2, 10), dtype=np.uint8).tobytes() for _ in range(300)]
    return b" ".join(words[i % 300] for i in rng.zipf(1.3, nbytes // 3 + 1))[:nbytes]


def unzstd(stored: bytes, nbytes: int) -> bytes:
    return _native.decode([(ZSTD, 0, [])], 1, nbytes, 0, stored)


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("level", [-5, 1, 3, 6, 9, 13, 19, 22])
@pytest.mark.parametrize("kind", KINDS)
def test_a_zstd_frame_of_any_level_gives_its_bytes_back(kind: str, level: int) -> None:
    for seed, nbytes in enumerate([1, 2, 7, 63, 255, 256, 1000, 4099, 70_001, 131_072, 300_007]):
        raw = make(kind, nbytes, seed)
        coder = zstandard.ZstdCompressor(level=level, write_checksum=seed % 2 == 0, write_content_size=seed % 3 > 0)
        assert unzstd(coder.compress(raw), nbytes) == raw


PIECES = st.sampled_from([b"", b"solar", bytes(100), b"wind and flare ", bytes(range(256))])


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=200), st.data())
def test_zstd_parameters_change_nothing(parts: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(parts) or b"?"
    parameters = zstandard.ZstdCompressionParameters(
        window_log=data.draw(st.integers(10, 24)),
        strategy=data.draw(st.integers(1, 9)),
        min_match=data.draw(st.integers(3, 7)),
        enable_ldm=data.draw(st.booleans()),
        write_checksum=data.draw(st.booleans()),
        write_content_size=data.draw(st.booleans()),
    )
    assert unzstd(zstandard.ZstdCompressor(compression_params=parameters).compress(raw), len(raw)) == raw


def test_a_match_reaches_as_far_back_as_the_output_goes() -> None:
    block = make("random", 300_000)
    raw = block + bytes(MOST) + block
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=22, enable_ldm=True)
    stored = zstandard.ZstdCompressor(compression_params=parameters).compress(raw)
    assert len(stored) < 310_000
    assert unzstd(stored, len(raw)) == raw


def test_frames_and_streams_behind_each_other_make_one_output() -> None:
    parts = [make(kind, 50_000) for kind in KINDS]
    stored = b"".join(zstandard.ZstdCompressor(level=3).compress(part) for part in parts)
    stream = zstandard.ZstdCompressor(level=5, write_checksum=True).compressobj()
    for part in parts:
        stored += stream.compress(part) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    stored += b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + stream.flush()
    with pytest.raises(CodecError):  # a skippable frame in the middle of another
        unzstd(stored, 600_000)
    head = stored[: stored.index(b"\x5a\x2a\x4d\x18\x03\0\0\0abc")]
    rest = stored[len(head) + 11 :]
    assert unzstd(b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + head + rest, 600_000) == b"".join(parts) * 2


def test_a_frame_that_needs_a_dictionary_or_ends_early_or_is_followed_by_more_is_an_error() -> None:
    samples = [make("words", 200, i) for i in range(300)]
    dictionary = zstandard.train_dictionary(2000, samples)
    with pytest.raises(CodecError, match="dictionary"):
        unzstd(zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[0]), 200)
    stored = zstandard.ZstdCompressor(level=19).compress(make("words", 5000))
    for end in [1, 4, 5, 9, 100, len(stored) - 1]:
        with pytest.raises(CodecError):
            unzstd(stored[:end], 5000)
    with pytest.raises(CodecError):
        unzstd(stored + b"tail", 5000)


@pytest.mark.parametrize("kind", KINDS)
def test_changed_bytes_never_pass_the_checksum(kind: str) -> None:
    raw, rng = make(kind, 3000), random.Random(1)
    good = zstandard.ZstdCompressor(level=7, write_checksum=True).compress(raw)
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.randrange(6, len(bad))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(CodecError):
            assert unzstd(bytes(bad), 3000) == raw


# Blosc, through files that hdf5plugin writes.

COMPRESSORS = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]
TYPES = ["u1", "<i2", "<f4", ">f8", "c16", "S3", "V20"]
SHAPES = [(1,), (31,), (1000,), (20_011,), (33, 17), (600, 1), (1, 700), (10, 12, 14), (3, 60, 65), (2, 3, 5, 7, 2)]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[h5py.File]:
    with h5py.File(tmp_path / "file.h5", "w", rdcc_nbytes=0) as made:
        yield made


def array(kind: str, dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.frombuffer(make(kind, int(np.prod(shape)) * np.dtype(dtype).itemsize, seed), dtype).reshape(shape)


def stored_by(file: h5py.File, raw: Array, options: Any) -> tuple[Filters, int, bytes]:
    """The filters, mask and bytes of one chunk that is the whole of `raw`."""
    dataset = file.create_dataset(f"d{len(file)}", data=raw, chunks=raw.shape, **options)
    mask, stored = dataset.id.read_direct_chunk((0,) * raw.ndim)
    code, flags, values, _ = dataset.id.get_create_plist().get_filter(0)
    return [(code, flags, list(values))], mask, stored


def unblosc(filters: Filters, mask: int, stored: bytes, raw: Array) -> bytes:
    return _native.decode(filters, raw.dtype.itemsize, raw.nbytes, mask, stored)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("version", [1, 2])
def test_blosc_chunks_of_any_level_type_and_shape_are_read(
    file: h5py.File, version: int, compressor: str, shuffle: int
) -> None:
    for i, (dtype, shape) in enumerate((dtype, shape) for dtype in TYPES for shape in SHAPES):
        raw = array(KINDS[i % 6], dtype, shape, i)
        level = i % 10
        options = (
            hdf5plugin.Blosc(cname=compressor, clevel=level, shuffle=shuffle)
            if version == 1
            else hdf5plugin.Blosc2(cname=compressor, clevel=level, filters=shuffle)
        )
        filters, mask, stored = stored_by(file, raw, options)
        assert unblosc(filters, mask, stored, raw) == raw.tobytes(), (dtype, shape, level)


@pytest.mark.parametrize("filters", [hdf5plugin.Blosc2.DELTA, hdf5plugin.Blosc2.TRUNC_PREC])
def test_blosc2_delta_and_truncation_are_undone(file: h5py.File, filters: int) -> None:
    for i, (dtype, shape) in enumerate((dtype, shape) for dtype in TYPES for shape in SHAPES):
        raw = array(KINDS[i % 6], dtype, shape, i)
        options = hdf5plugin.Blosc2(cname="lz4", clevel=5, filters=filters)
        chunk_filters, mask, stored = stored_by(file, raw, options)
        assert unblosc(chunk_filters, mask, stored, raw) == raw.tobytes(), (dtype, shape)


@pytest.mark.parametrize("nbytes", [16, 128, 512, 4096, 100_000])
def test_blosc2_blocks_of_any_size_come_back_in_the_order_of_the_array(file: h5py.File, nbytes: int) -> None:
    for shape in SHAPES:
        raw = array("counts", "<i4", shape)
        for shuffle in range(3):
            options = {"compression": BLOSC2, "compression_opts": (0, nbytes, 0, 0, 5, shuffle, 5)}
            filters, mask, stored = stored_by(file, raw, options)
            assert unblosc(filters, mask, stored, raw) == raw.tobytes(), (shape, shuffle)


@pytest.mark.parametrize("value", [0.0, 7.5, np.nan])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("shape", [(1000,), (40, 50)])
def test_blosc2_chunks_of_one_value_are_read(file: h5py.File, shape: tuple[int, ...], dtype: str, value: float) -> None:
    raw = np.full(shape, value, dtype)
    filters, mask, stored = stored_by(file, raw, hdf5plugin.Blosc2())
    assert unblosc(filters, mask, stored, raw) == raw.tobytes()


@pytest.mark.parametrize("options", [hdf5plugin.Blosc(cname="zstd"), hdf5plugin.Blosc2(cname="blosclz")])
def test_changed_bytes_of_blosc_give_the_right_size_or_a_codec_error(file: h5py.File, options: Any) -> None:
    raw, rng = array("counts", "<f4", (20, 30)), random.Random(2)
    filters, mask, good = stored_by(file, raw, options)
    for _ in range(1000):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] = rng.randrange(256)
        end = rng.choice([len(bad), rng.randrange(len(bad))])
        with contextlib.suppress(CodecError):
            assert len(unblosc(filters, mask, bytes(bad[:end]), raw)) == raw.nbytes


def test_blosc_files_of_others_are_read_as_libhdf5_reads_them(shared: Path) -> None:
    folder = shared / "hdf5-odd"
    names = {
        "hdf5plugin/test/blosc.h5": "dset",
        "purehdf/tests/PureHDF.Tests/TestFiles/blosc.h5": "blosclz",
        "hdf5/HDF5Examples/C/H5FLT/tfiles/h5ex_d_zstd.h5": "DS1",
        "hdf5/HDF5Examples/C/H5FLT/tfiles/h5ex_d_blosc2.h5": "DS1",
    }
    for path, name in names.items():
        if not (folder / path).exists():
            pytest.skip(f"no {folder / path}")
        with h5py.File(folder / path) as file:
            dataset = file[name]
            expected = dataset[...]
            code, flags, values, _ = dataset.id.get_create_plist().get_filter(0)
            nbytes = int(np.prod(dataset.chunks)) * dataset.dtype.itemsize
            for i in range(dataset.id.get_num_chunks()):
                where = dataset.id.get_chunk_info(i).chunk_offset
                mask, stored = dataset.id.read_direct_chunk(where)
                got = _native.decode([(code, flags, list(values))], dataset.dtype.itemsize, nbytes, mask, stored)
                part = expected[tuple(slice(a, a + n) for a, n in zip(where, dataset.chunks, strict=True))]
                chunk = np.frombuffer(got, dataset.dtype).reshape(dataset.chunks)
                np.testing.assert_array_equal(chunk[tuple(slice(0, n) for n in part.shape)], part)
