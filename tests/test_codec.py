"""The bounded codec from Python: bounds that hold, chunks that cannot be damaged unseen, files that Reader reads."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import hypothesis.extra.numpy as arrays_of
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import SHARED, same
from numpy.typing import NDArray

import solar
import solar.filters
from solar import H5Dataset, _native
from solar.errors import CodecError
from solar.io.codec.codec import CODERS, FILTER, PREDICTORS, Codec, parse, rounded_down, span_of
from solar.io.codec.filters import filter_values

GOLDEN = Path(__file__).parent / "golden" / "codec"
TYPES = ["f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
BOUNDS = st.one_of(st.just(0.0), st.floats(1e-12, 1e9), st.sampled_from([1e-320, 1e-45, 1e-3, 1e38, 1e308]))


def decoded(chunk: bytes, like: NDArray[Any], path: str = "", tables: bytes = b"") -> NDArray[Any]:
    out = np.empty_like(like, order="C")
    _native.decode_into(chunk, out, tables, path)
    return out


def within(original: NDArray[Any], restored: NDArray[Any], bound: float) -> bool:
    """Python's own judgement, in exact fractions."""
    a, b = original.ravel(), restored.ravel()
    same_bits = np.frombuffer(a.tobytes(), f"V{a.itemsize}") == np.frombuffer(b.tobytes(), f"V{a.itemsize}")
    if bound == 0:
        return bool(same_bits.all())
    pairs = ((x.item(), y.item()) for x, y, equal in zip(a, b, same_bits, strict=True) if not equal)
    return all(np.isfinite(x) and np.isfinite(y) and distance(x, y) <= bound for x, y in pairs)


def distance(x: float, y: float) -> Fraction:
    return abs(Fraction(x) - Fraction(y))


@st.composite
def some_array(draw: st.DrawFn) -> NDArray[Any]:
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12))
    if draw(st.booleans()):
        return np.asarray(draw(arrays_of.arrays(dtype, shape)))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    smooth = np.cumsum(rng.normal(size=shape).ravel()).reshape(shape) * draw(st.sampled_from([1e-3, 1.0, 30.0]))
    if dtype.kind in "iu":
        return np.asarray(np.clip(smooth, -100, 100).astype("i1").astype(dtype))
    made = np.asarray(smooth.astype(dtype))
    if made.size and draw(st.booleans()):
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, 1e-40, 1e20], dtype)
        made.reshape(-1)[rng.integers(0, made.size, 5)] = rng.choice(special, 5)
    return made


@settings(max_examples=150, deadline=None)
@given(some_array(), BOUNDS, st.sampled_from(list(CODERS)), st.sampled_from(list(PREDICTORS)))
def test_every_value_comes_back_within_the_bound_by_every_path(
    array: NDArray[Any], bound: float, coder: str, predictor: str
) -> None:
    codec = Codec("abs", bound, coder, predictor)
    chunk = codec.encode(array)
    plain = decoded(chunk, array, "plain", codec.tables)
    assert within(array, plain, bound)
    assert _native.compare(np.ascontiguousarray(array), plain, bound)[0] == 0
    for path in _native.codec_paths():
        assert same(decoded(chunk, array, path, codec.tables), plain), path


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.data())
def test_a_truncated_or_flipped_chunk_is_an_error(seed: int, data: st.DataObject) -> None:
    array = np.random.default_rng(seed).normal(size=(30, 40)).cumsum(1).astype(np.float32)
    chunk = bytearray(Codec("abs", 0.01, data.draw(st.sampled_from(list(CODERS)))).encode(array))
    if data.draw(st.booleans()):
        del chunk[data.draw(st.integers(0, len(chunk) - 1)) :]
    else:
        for at in data.draw(st.sets(st.integers(0, 8 * len(chunk) - 1), min_size=1, max_size=3)):
            chunk[at // 8] ^= 1 << at % 8
    with pytest.raises(CodecError):
        decoded(bytes(chunk), array)


def test_a_damaged_type_is_damage_and_not_the_wrong_type() -> None:
    array = np.arange(10, dtype=np.float32)
    chunk = bytearray(Codec("lossless").encode(array))
    for code in (0, 2, 7, 255):
        chunk[6] = code
        with pytest.raises(CodecError, match="damaged"):
            decoded(bytes(chunk), array)


def test_golden_chunks_are_read_for_ever() -> None:
    index = json.loads((GOLDEN / "index.json").read_text())
    assert {path.stem for path in GOLDEN.glob("*.chunk")} == set(index)
    for name, case in index.items():
        if name.startswith("learned"):
            continue
        like = np.empty(case["shape"], case["type"])
        for path in _native.codec_paths():
            out = decoded((GOLDEN / f"{name}.chunk").read_bytes(), like, path, bytes.fromhex(case["tables"]))
            assert hashlib.sha256(out.tobytes()).hexdigest() == case["sha256"], (name, path)


def test_counts_in_floats_are_kept_exactly_and_small() -> None:
    counts = np.random.default_rng(0).poisson(2, (128, 128)).astype(np.float32)
    chunk = Codec("abs", 0.4).encode(counts)
    assert same(decoded(chunk, counts), counts)
    assert len(chunk) < counts.nbytes / 10
    assert _native.describe_codec(chunk)["lattice"]


def test_a_bound_of_an_integer_spacing_and_a_half_takes_the_wider_lattice() -> None:
    whole = np.random.default_rng(0).integers(0, 1000, 5000).astype(np.float32)
    chunk = Codec("abs", 1.2).encode(whole)
    assert _native.describe_codec(chunk)["step"] == 3.0
    assert np.abs(decoded(chunk, whole) - whole).max() == 1.0


def test_five_huge_values_do_not_spoil_the_others() -> None:
    field = np.linspace(0, 1, 40000, dtype=np.float32).reshape(200, 200)
    plain = len(Codec("abs", 1e-3).encode(field))
    field.flat[[3, 700, 20000, 30001, 39999]] = 3e38
    chunk = Codec("abs", 1e-3).encode(field)
    assert len(chunk) < plain + 500
    assert within(field, decoded(chunk, field), 1e-3)


def test_a_relative_bound_is_of_the_array_or_of_what_the_caller_says() -> None:
    field = np.random.default_rng(0).normal(size=(50, 50))
    field[0, 0] = np.nan
    for span in (None, 100.0):
        chunk = Codec("rel", 1e-3).encode(field, span)
        assert _native.describe_codec(chunk)["bound"] == rounded_down(
            Fraction(1e-3) * Fraction(span_of(field) if span is None else span)
        )


def test_a_bound_of_nothing_is_lossless() -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(40000), np.float32)
    for codec in (Codec("abs", 0.0), Codec("rel", 0.0), Codec("lossless")):
        assert same(decoded(codec.encode(noise), noise), np.array(noise))


def test_trained_tables_make_chunks_smaller_and_travel_in_the_filter_values() -> None:
    rng = np.random.default_rng(0)
    frames = [(rng.exponential(20, (64, 64)) * (rng.random((64, 64)) < 0.2)).astype(np.float32) for _ in range(4)]
    plain = Codec("abs", 0.5, "dense")
    codec = plain.trained(frames[:3])
    chunk = codec.encode(frames[3])
    assert len(chunk) < len(plain.encode(frames[3]))
    assert within(frames[3], decoded(chunk, frames[3], tables=codec.tables), 0.5)
    with pytest.raises(CodecError, match="copied from another file"):
        decoded(chunk, frames[3])
    assert np.array(codec.filter_values[2:], np.uint32).tobytes()[: codec.filter_values[1]] == codec.tables


def speckles(seed: int) -> NDArray[np.float32]:
    """As what diffracted light leaves on a detector: bright and dark, not smooth."""
    rng = np.random.default_rng(seed)
    return rng.poisson(np.kron(rng.exponential(3, (12, 12)) ** 3, np.ones((8, 8)))).astype(np.float32)


@pytest.mark.parametrize("coder", CODERS)
def test_speckles_are_smaller_in_the_order_of_patches_and_auto_takes_it(coder: str) -> None:
    frame = speckles(0)
    in_rows = min(len(Codec("abs", 4.0, coder, one).encode(frame)) for one in ("none", "x", "xy", "interpolation"))
    chunk = Codec("abs", 4.0, coder).encode(frame)
    assert len(chunk) < 0.95 * in_rows
    assert _native.describe_codec(chunk)["patched"] == 1
    assert within(frame, decoded(chunk, frame), 4.0)


def golden_learned(name: str = "learned") -> tuple[bytes, bytes]:
    """A chunk of the predictor that was removed, and the tables of its filter."""
    tables = json.loads((GOLDEN / "index.json").read_text())[name]["tables"]
    return (GOLDEN / f"{name}.chunk").read_bytes(), bytes.fromhex(tables)


@pytest.mark.parametrize("name", ["learned", "learned-inside"])
def test_a_chunk_of_the_learned_predictor_is_an_error_that_names_it_and_the_version_that_reads_it(name: str) -> None:
    chunk, tables = golden_learned(name)
    for path in _native.codec_paths():
        with pytest.raises(CodecError, match=r"written with the learned predictor.*with solar 0\.1\.0"):
            decoded(chunk, np.empty((40, 48), np.float32), path, tables)


def test_the_learned_predictor_is_refused_as_removed() -> None:
    with pytest.raises(ValueError, match="learned was removed after solar"):
        Codec("abs", 0.2, predictor="learned")


def learned_file(path: Path, chunk: bytes, tables: bytes) -> None:
    """A file as `--predictor learned` wrote it."""
    solar.filters.register()
    written = filter_values(Codec("abs", 0.2, tables=tables), np.dtype("<f4"), (1, 40, 48))
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "x", (1, 40, 48), "<f4", chunks=(1, 40, 48), compression=FILTER, compression_opts=written
        )
        dataset.id.write_direct_chunk((0, 0, 0), chunk)
    at = len(written) - 7
    asked = tuple(24 if i == at else value for i, value in enumerate(written))
    assert written[at] == 255
    before, after = (np.array(of, "<u4").tobytes() for of in (written, asked))
    stored = path.read_bytes()
    assert stored.count(before) == 1
    path.write_bytes(stored.replace(before, after))


def test_a_file_of_the_learned_predictor_is_refused_in_words_chunk_by_chunk(tmp_path: Path) -> None:
    learned, tables = golden_learned()
    values = np.linspace(0, 9, 40 * 48, dtype=np.float32).reshape(1, 40, 48)
    other = Codec("abs", 0.2, tables=tables).encode(values[0])  # with the tables of that predictor, and without it
    assert len(tables) > 4 + 64 and _native.describe_codec(other)["tables"]
    learned_file(tmp_path / "a.h5", learned, tables)
    learned_file(tmp_path / "b.h5", other, tables)
    with pytest.raises(CodecError, match="learned predictor"):
        solar.read(tmp_path / "a.h5", "x")
    assert within(values, solar.read(tmp_path / "b.h5", "x"), 0.2)
    with h5py.File(tmp_path / "a.h5") as file, pytest.raises(OSError, match="filter returned failure"):
        file["x"][()]  # by the plug-in
    with h5py.File(tmp_path / "b.h5") as file:
        assert within(values, file["x"][()], 0.2)
        like = file["x"].id
        with h5py.File(tmp_path / "c.h5", "w") as to, pytest.raises(ValueError, match="removed after solar"):
            h5py.h5d.create(to.id, b"x", like.get_type(), like.get_space(), like.get_create_plist())
    for damaged in (tables[:-4], tables + bytes(4), tables[:-68] + bytes(4)):
        with pytest.raises(CodecError):
            Codec("abs", 0.2, tables=damaged).encode(values[0])


def test_a_chunk_of_float32_can_be_had_as_float16() -> None:
    values = np.concatenate([np.linspace(-7e4, 7e4, 1000), np.geomspace(1e-9, 1, 1000)]).astype(np.float32)
    out = np.empty(2000, np.float16)
    Codec("lossless").decode(Codec("lossless").encode(values), out)
    with np.errstate(over="ignore"):
        assert same(out, values.astype(np.float16))


def test_the_wrong_type_size_or_layout_is_refused() -> None:
    chunk = Codec("lossless").encode(np.arange(10, dtype=np.float32))
    with pytest.raises(TypeError, match="another type"):
        decoded(chunk, np.empty(10, np.int32))
    with pytest.raises(CodecError, match="40 bytes where 44"):
        decoded(chunk, np.empty(11, np.float32))
    for odd in ("f2", "?", "c8", "f4,f4", "S4"):
        with pytest.raises(CodecError, match="cannot be encoded"):
            Codec("lossless").encode(np.zeros(3, odd))
    with pytest.raises(CodecError, match="other way round"):
        Codec("lossless").encode(np.zeros(3, ">f4"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("abs=1e-3", Codec("abs", 1e-3)),
        ("rel = 1e-4 , coder=pack", Codec("rel", 1e-4, "pack")),
        ("lossless,predictor=xy", Codec("lossless", predictor="xy")),
        ("abs=0", Codec("abs", 0.0)),
    ],
)
def test_settings_are_read(text: str, wanted: Codec) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("abs", "abs=NUMBER"),
        ("abs=x", "no number"),
        ("abs=-1", "0 .* or more"),
        ("abs=nan", "0 .* or more"),
        ("abs=inf", "0 .* or more"),
        ("lossless=1", "abs=NUMBER"),
        ("coder=pack", "must name one"),
        ("abs=1,rel=1e-1", "must name one"),
        ("rel=2", "whole range.*rel=0.02"),
        ("abs=1,abs=2", "each setting once"),
        ("abs=1,coder=packed", "did you mean pack"),
        ("lossles", "did you mean lossless"),
        ("", "no setting"),
    ],
)
def test_settings_that_cannot_be_read_are_refused_with_advice(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(text)


def write(path: Path, name: str, samples: NDArray[Any], codec: Codec) -> None:
    """A data set of one sample a chunk, as `solar compress` will write it."""
    with h5py.File(path, "a") as file:
        space = h5py.h5s.create_simple(samples.shape)
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((1, *samples.shape[1:]))
        made.set_filter(FILTER, h5py.h5z.FLAG_OPTIONAL, codec.filter_values)
        dataset = h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(samples.dtype), space, made)
        for i, sample in enumerate(samples):
            dataset.write_direct_chunk((i, *[0] * sample.ndim), codec.encode(sample[None]))


def test_the_dataset_reads_encoded_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fields = rng.normal(size=(12, 20, 30, 40)).cumsum(3).astype(np.float32)
    counts = rng.poisson(4, (12, 25)).astype(np.int16)
    write(tmp_path / "a.h5", "x", fields, Codec("abs", 1e-2, "dense").trained(list(fields[:3])))
    write(tmp_path / "a.h5", "y", counts, Codec("lossless"))
    data = H5Dataset(tmp_path / "a.h5", {"x": "x", "y": "y"})
    order = [7, 0, 11, 3]
    for row, sample in zip(order, data.__getitems__(order), strict=True):
        assert within(fields[row], sample["x"], 1e-2)
        assert same(sample["y"], counts[row])


def test_a_damaged_chunk_of_a_file_is_a_codec_error(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
    write(tmp_path / "a.h5", "x", samples, Codec("abs", 1e-2))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        chunk = bytearray(file["x"].id.read_direct_chunk((1, 0))[1])
        chunk[len(chunk) // 2] ^= 4
        file["x"].id.write_direct_chunk((1, 0), bytes(chunk))
    data = H5Dataset(tmp_path / "a.h5", "x")
    assert within(samples[0], data[0], 1e-2)
    with pytest.raises(CodecError, match=r"filter 333 \(solar\)"):
        data[1]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not here")
def test_measured_data_keep_their_bounds() -> None:
    (path,) = (SHARED / "climate-ukesm1").glob("*.nc")
    with h5py.File(path) as file:
        air = file["noy"][()]
    span = span_of(air[air < 1e19])
    for share in (1e-2, 1e-4):
        chunk = Codec("rel", share).encode(air, span)
        assert within(air, decoded(chunk, air), share * span)
        assert len(chunk) * (30 if share == 1e-2 else 6) < air.nbytes
