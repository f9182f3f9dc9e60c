"""Zarr stores, of versions 2 and 3: zarr-python is the oracle, bit for bit."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serve_kit import serving

import solar
from solar import Crops, DataLoader, Field, H5Dataset, Windows, _native
from solar.cli import main
from solar.errors import CodecError, LayoutError, ReadError, SolarError
from solar.io.hdf5.zarr_stores import folders_among, names_below
from solar.io.reading.engine import source_of

zarr = pytest.importorskip("zarr", reason="zarr-python, the oracle, is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs, with zarr's codecs, is not installed")

TYPES = ["bool", "i1", "u1", "i2", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def codecs_of(version: int) -> list[Any]:
    if version == 2:
        return [
            None,
            numcodecs.Zlib(3),
            numcodecs.GZip(1),
            numcodecs.Zstd(3),
            numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.SHUFFLE),
            numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.BITSHUFFLE),
        ]
    made = zarr.codecs
    return [
        (),
        (made.GzipCodec(level=4),),
        (made.ZstdCodec(level=2, checksum=True),),
        (made.BloscCodec(cname="blosclz"), made.Crc32cCodec()),
        (made.BloscCodec(cname="zlib", shuffle="shuffle"),),
        (made.Crc32cCodec(),),
        (made.Crc32cCodec(), made.GzipCodec(level=1)),
    ]


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """How an array is stored."""
    version = draw(st.sampled_from([2, 3, 3]))
    shape = (draw(st.integers(1, 40)), *draw(st.lists(st.integers(1, 9), max_size=2)))
    chunks = tuple(draw(st.integers(1, size + 2)) for size in shape)
    sharded = version == 3 and draw(st.booleans())
    return {
        "version": version,
        "shape": shape,
        "chunks": chunks,
        "shards": tuple(draw(st.integers(1, 3)) * size for size in chunks) if sharded else None,
        "type": draw(st.sampled_from(TYPES)),
        "codec": draw(st.integers(0, len(codecs_of(version)) - 1)),
        "big": draw(st.booleans()),
        "fill": draw(st.sampled_from([0, 1, 1, 100])),
        "separator": draw(st.sampled_from([".", "/"])),
        "at_start": draw(st.booleans()),
        "axes": draw(st.permutations(range(len(shape)))),
        "turned": draw(st.booleans()),
        "filters": draw(st.sampled_from(["", "", "shuffle", "fletcher32"])),
        "written": draw(st.lists(st.integers(0, shape[0]), min_size=2, max_size=4)),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def make_array(group: Any, name: str, how: dict[str, Any]) -> Any:
    """Creates the array, with values in some of its rows: chunks of the others are missing."""
    version, dtype = how["version"], np.dtype(how["type"])
    fill = np.array(how["fill"]).astype(dtype)[()]
    given: dict[str, Any] = {"compressors": codecs_of(version)[how["codec"]], "fill_value": fill}
    if version == 2:
        dtype = dtype.newbyteorder(">" if how["big"] else "<")
        given["chunk_key_encoding"] = {"name": "v2", "separator": how["separator"]}
        given["order"] = "F" if how["turned"] else "C"
        if how["filters"]:
            own = {"shuffle": numcodecs.Shuffle(dtype.itemsize), "fletcher32": numcodecs.Fletcher32()}
            given["filters"] = [own[how["filters"]]]
    else:
        if how["turned"]:
            given["filters"] = [zarr.codecs.TransposeCodec(order=how["axes"])]
        given["serializer"] = zarr.codecs.BytesCodec(endian="big" if how["big"] else "little")
        given["chunk_key_encoding"] = {"name": "default", "separator": how["separator"]}
        if how["shards"]:
            where = "start" if how["at_start"] else "end"
            given["shards"] = {"shape": how["shards"], "index_location": where}
    array = group.create_array(name, shape=how["shape"], chunks=how["chunks"], dtype=dtype, **given)
    rng = np.random.default_rng(how["seed"])
    for begin, end in pairwise(sorted(how["written"])[:2]):
        rows = rng.integers(0, 256, (end - begin, *how["shape"][1:], max(1, dtype.itemsize)), np.uint8)
        if dtype.kind == "b":
            array[begin:end] = rows[..., 0] > 127
        else:
            array[begin:end] = rows.view(np.dtype(how["type"]))[..., 0]
    return array


def same_bits(ours: Any, theirs: Any) -> bool:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    theirs = theirs.astype(theirs.dtype.newbyteorder("="))
    ours = ours.astype(ours.dtype.newbyteorder("="))
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


@given(how=arrays(), zipped=st.booleans())
def test_samples_and_epochs_are_those_of_zarr(
    how: dict[str, Any], zipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("zarr") / ("a.zip" if zipped else "a.zarr"))
    store = zarr.storage.ZipStore(path, mode="w") if zipped else path
    group = zarr.open_group(store, mode="w", zarr_format=how["version"])
    make_array(group, "x", how)
    if zipped:
        store.close()
    values = zarr.open_group(zarr.storage.ZipStore(path, mode="r") if zipped else path, mode="r")["x"][:]
    data = H5Dataset(path, "x")
    assert len(data) == len(values)
    for row in range(len(values)):
        assert same_bits(data[row], values[row])
    assert same_bits(solar.read(path, "x"), values)
    assert same_bits(data.read_batch([len(values) - 1, 0, 0]), values[[len(values) - 1, 0, 0]])
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:
        return  # torch's tensors of these lack what the comparison needs
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(how["seed"])).tolist()
    for options in ({}, {"buffer": "128KiB", "epochs": 2}):
        loader = DataLoader(data, batch_size=7, sampler=order, **options)
        for _ in range(2):
            assert same_bits(torch.cat(list(loader)).numpy(), values[order])


@pytest.fixture
def volume(tmp_path: Path) -> tuple[str, Any]:
    group = zarr.open_group(str(tmp_path / "v.zarr"), mode="w")
    values = np.random.default_rng(1).integers(0, 1000, (40, 9, 11)).astype("i4")
    codec = zarr.codecs.ZstdCodec()
    group.create_array("in/x", data=values, chunks=(3, 4, 5), shards=(6, 8, 5), compressors=codec)
    group.create_array("y", data=np.arange(40), chunks=(10,))
    return str(tmp_path / "v.zarr"), values


def test_kinds_of_samples(volume: tuple[str, Any]) -> None:
    path, values = volume
    windows = H5Dataset(path, Field("in/x", steps=range(3)), samples=Windows(every=2))
    assert all(np.array_equal(windows[i], values[2 * i : 2 * i + 3]) for i in range(len(windows)))
    with h5py.File(f"{path}.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(3, 4, 5))
    crops, theirs = (
        H5Dataset(path, "in/x", samples=Crops((4, 4, 4))),
        H5Dataset(f"{path}.h5", "x", samples=Crops((4,) * 3)),
    )
    wanted = torch.cat(list(DataLoader(theirs, batch_size=5)))
    assert torch.equal(wanted[0], torch.from_numpy(values[:4, :4, :4]))
    for options in ({}, {"buffer": "64KiB"}):
        assert torch.equal(torch.cat(list(DataLoader(crops, batch_size=5, **options))), wanted)
    cast = H5Dataset(path, {"x": Field("in/x", dtype="float32"), "y": "y"})
    assert np.array_equal(cast[7]["x"], values[7].astype("f4"))
    assert int(cast[7]["y"]) == 7


def test_the_plan_reads_what_is_stored_once(volume: tuple[str, Any]) -> None:
    path, values = volume
    sampler = solar.PlanSampler(H5Dataset(path, "in/x"), seed=3)
    loader = DataLoader(H5Dataset(path, "in/x"), batch_size=8, sampler=sampler, buffer="1MiB", epochs=2)
    for _ in range(2):
        got = np.concatenate([batch.numpy() for batch in loader])
        assert sorted(one.tobytes() for one in got) == sorted(one.tobytes() for one in values)


def test_several_stores_are_one_data_set(tmp_path: Path) -> None:
    values = np.arange(70).reshape(35, 2)
    for name, rows, chunk in (("a", values[:20], 3), ("b", values[20:], 4)):
        zarr.create_array(str(tmp_path / f"{name}.zarr"), data=rows, chunks=(chunk, 1))
    data = H5Dataset([tmp_path / "a.zarr", tmp_path / "b.zarr"], "/")
    assert np.array_equal(np.stack(list(data)), values)
    assert data.locate(25).row == 5
    zarr.create_array(str(tmp_path / "c.zarr"), data=values.astype("f4"), chunks=(3, 2))
    with pytest.raises(LayoutError, match="does not fit"):
        H5Dataset([tmp_path / "a.zarr", tmp_path / "c.zarr"], "/")


def test_the_commands(volume: tuple[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = volume
    assert main(["inspect", path]) == 0
    said = capsys.readouterr().out
    assert "chunks of 3 × 4 × 5" in said
    assert "Zarr 3" in said
    assert main(["inspect", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["datasets"]
    assert [(one["name"], one["shape"], one["reader"]) for one in found] == [
        ("/in/x", [40, 9, 11], "direct"),
        ("/y", [40], "direct"),
    ]
    assert main(["plan", path, "in/x", "--batch-size", "8", "--memory", "64KiB"]) == 0
    with pytest.raises(LayoutError, match="did you mean /in/x"):
        H5Dataset(path, "x")
    with pytest.raises(LayoutError, match="it is a group"):
        H5Dataset(path, "in")
    with pytest.raises(LayoutError, match="samples are rows"):
        H5Dataset(path, "in/x", samples="files")
    with pytest.raises(LayoutError, match="stars"):
        H5Dataset(path, "*/x")


def test_a_chunk_that_was_written_again_is_noticed(volume: tuple[str, Any]) -> None:
    path, _ = volume
    data = H5Dataset(path, "in/x")
    assert len(data[0])
    zarr.open_group(path)["in/x"][:3] = 5
    with pytest.raises(ReadError, match="changed"):
        data[0]


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    codecs = [(zarr.codecs.Crc32cCodec(),), (zarr.codecs.GzipCodec(),)]
    for number, codec in enumerate(codecs):
        path = tmp_path / f"{number}.zarr"
        zarr.create_array(str(path), data=np.arange(100), chunks=(50,), compressors=codec)
        chunk = path / "c" / "1"
        stored = bytearray(chunk.read_bytes())
        stored[len(stored) // 2] ^= 1
        chunk.write_bytes(stored)
        data = H5Dataset(path, "/")
        assert int(data[0]) == 0
        with pytest.raises(CodecError, match="c/1"):
            data[99]


def test_what_else_works(volume: tuple[str, Any], tmp_path: Path) -> None:
    path, values = volume
    assert np.array_equal(H5Dataset(path, "in/x", where=("/y", lambda y: y > 30))[0], values[31])
    assert np.array_equal(H5Dataset(f"{path}/in", "x")[3], values[3])
    assert np.array_equal(H5Dataset(f"{path[:-6]}*.zarr", "in/x")[3], values[3])
    (tmp_path / "stage").mkdir()
    for _ in range(2):
        staged = H5Dataset(path, "in/x", stage=tmp_path / "stage", stage_size="64MiB")
        assert np.array_equal(np.stack(list(staged)), values)
    assert any((tmp_path / "stage").rglob("*"))
    loader = DataLoader(H5Dataset(path, "in/x"), batch_size=9, num_workers=2)
    assert np.array_equal(torch.cat(list(loader)).numpy(), values)
    sliced = H5Dataset(path, Field("in/x", select=(slice(2, 7), slice(None))))
    assert np.array_equal(sliced[11], values[11, 2:7])


def test_a_service_reads_it(volume: tuple[str, Any], tmp_path: Path) -> None:
    path, _ = volume
    read = []
    with serving(path, where=tmp_path) as service:
        for options in ({}, {"service": str(service.path)}):
            sampler = solar.PlanSampler(H5Dataset(path, "in/x"), seed=5)
            loader = DataLoader(H5Dataset(path, "in/x"), batch_size=4, sampler=sampler, **options)
            read.append(torch.cat([batch for _ in range(3) for batch in loader]))
    assert "A service read" in str(loader.report())
    assert torch.equal(*read)


def test_the_page_runs(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "scan.zarr"), mode="w")
    group.create_array("images", data=np.zeros((130, 4, 4), "f4"), chunks=(10, 4, 4))
    group.create_array("labels", data=np.arange(130), chunks=(130,))
    page = (Path(__file__).parent.parent / "docs" / "zarr.md").read_text()
    (code,) = re.findall(r"<!-- runs -->\n\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page.py").write_text(code + "\nassert x.shape[1:] == (4, 4) and len(x) == len(y)\n")
    run = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_what_needs_hdf5_is_refused(volume: tuple[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = volume
    with pytest.raises(LayoutError, match="cf=True reads no attributes of Zarr"):
        H5Dataset(path, Field("in/x", cf=True))
    assert main(["bench", path, "y", "--batch-size", "4"]) == 1
    assert "reads no Zarr" in capsys.readouterr().err
    with h5py.File(f"{path}.h5", "w") as file:
        file["y"] = np.arange(3)
    with pytest.raises(LayoutError, match="a data set is of one kind"):
        H5Dataset([path, f"{path}.h5"], "y")


def test_gzip_and_crc32c_are_decoded_as_python_does() -> None:
    rng, (gzip_filter, crc_filter, _) = np.random.default_rng(4), _native.zarr_filters()
    for nbytes in (0, 1, 7, 8, 9, 1000, 70_000):
        raw = rng.integers(0, 9, nbytes, np.uint8).tobytes()
        head = b"\x1f\x8b\x08\x1e" + bytes(6) + b"\x02\x00ab" + b"name\0" + b"comment\0" + b"??"
        body = gzip.compress(raw, mtime=0)[10:]
        members = gzip.compress(raw[: nbytes // 3]) + gzip.compress(raw[nbytes // 3 :]) + bytes(5)
        for stored in (gzip.compress(raw), head + body, members):
            assert gzip.decompress(stored) == raw
            assert _native.decode([(gzip_filter, 0, [])], 1, nbytes, 0, stored) == raw
        stored = gzip.compress(raw)
        for wrong in (stored[:-1], stored[:9], stored[:-5] + bytes([stored[-5] ^ 1]) + stored[-4:], stored + b"x", b""):
            with pytest.raises(CodecError, match="gzip"):
                _native.decode([(gzip_filter, 0, [])], 1, nbytes, 0, wrong)
        summed = bytes(numcodecs.CRC32C(location="end").encode(raw)) if nbytes else b""
        if nbytes:
            assert _native.decode([(crc_filter, 0, [])], 1, nbytes, 0, summed) == raw
            with pytest.raises(CodecError, match="crc32c"):
                _native.decode([(crc_filter, 0, [])], 1, nbytes, 0, bytes([summed[0] ^ 1]) + summed[1:])
        with pytest.raises(CodecError, match="crc32c"):
            _native.decode([(crc_filter, 0, [])], 1, nbytes, 0, b"abc")


@given(data=st.data())
def test_any_order_of_axes(data: st.DataObject) -> None:
    *_, transpose = _native.zarr_filters()
    itemsize = data.draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5).filter(lambda one: np.prod(one) < 100_000))
    order = data.draw(st.permutations(range(len(shape))))
    nbytes = itemsize * int(np.prod(shape))
    raw = np.random.default_rng(len(shape)).integers(0, 256, nbytes, np.uint8).reshape(*shape, itemsize)
    stored = np.ascontiguousarray(raw.transpose(*order, len(shape))).tobytes()
    filters = [(transpose, 0, [itemsize, len(shape), *order, *shape])]
    assert _native.decode(filters, itemsize, nbytes, 0, stored) == raw.tobytes()
    packed = gzip.compress(stored, 1)
    assert _native.decode([*filters, (_native.zarr_filters()[0], 0, [])], itemsize, nbytes, 0, packed) == raw.tobytes()
    for wrong in (stored[:-1], stored + b"x", b""):
        with pytest.raises(CodecError, match="transpose"):
            _native.decode(filters, itemsize, nbytes, 0, wrong)
    for values in ([], [1], [1, 0], [4, 2, 0, 0, 5, 5], [4, 2, 0, 2, 5, 5], [4, 2, 0, 1, 5], [4, 1, 0, 0], [4, 33],
                   [4, 2, 0, 1, 2**31, 2**31], [2**31, 3, 0, 1, 2, 2**31, 2**31, 2**31], [0, 1, 0, 5]):  # fmt: skip
        assert "transpose" in _native.unsupported([(transpose, 0, values)], 4)


def test_an_hdf5_file_with_the_number_of_a_codec_is_not_decoded_by_it(tmp_path: Path) -> None:
    number, *_ = _native.zarr_filters()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((4,))
        created.set_deflate(4)
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((4,)), created)
        file["x"][:] = range(4)
    stored = (tmp_path / "a.h5").read_bytes()
    message = b"\x01\x00\x08\x00\x01\x00\x01\x00deflate\0"  # of the pipeline: number, length of the name, flags, values
    assert stored.count(message) == 1
    (tmp_path / "a.h5").write_bytes(stored.replace(message, number.to_bytes(2, "little") + message[2:]))
    layout = solar.inspect(tmp_path / "a.h5", "x", cache=None)
    assert (layout.reader, layout.reason) == ("h5py", f"filter {number} has no native decoder")


def test_files_of_chunks_that_are_not_there_are_refused(small: Path) -> None:
    layout = solar.inspect(small, "/")
    for number in (-1, len(layout.paths)):
        wrong = replace(layout, chunk_file=np.full_like(layout.chunk_file, number))
        with pytest.raises(LayoutError, match="a file that is not there"):
            source_of(wrong, 0, None)
    with pytest.raises(LayoutError, match="do not fit each other"):
        replace(layout, chunk_file=layout.chunk_file[1:])


# --- what is refused ----


def altered(path: Path, **changes: Any) -> Path:
    """The array with other metadata."""
    place = path / "zarr.json"
    if not place.exists():
        place = path / ".zarray"
    place.write_text(json.dumps({**json.loads(place.read_text()), **changes}))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    zarr.create_array(str(tmp_path / "a.zarr"), data=np.arange(20), chunks=(5,), compressors=None)
    return tmp_path / "a.zarr"


def sharding(**changes: Any) -> list[Any]:
    facts = {"chunk_shape": [5], "codecs": ["x"], "index_codecs": ["x"], "index_location": "end"}
    return [{"name": "sharding_indexed", "configuration": {**facts, **changes}}]


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
BAD_METADATA: list[tuple[dict[str, Any], str]] = [
    ({"shape": [2**70]}, "no list"),
    ({"shape": [20, 20]}, "number of axes"),
    ({"shape": [-1]}, "no list"),
    ({"shape": [True]}, "no list"),
    ({"shape": "20"}, "no list"),
    ({"shape": [1] * 40}, "at most 32"),
    ({"data_type": "float8"}, "its data type"),
    ({"data_type": {"name": "numpy.datetime64"}}, "its data type"),
    ({"chunk_grid": {"name": "odd"}}, "not regular"),
    ({"chunk_grid": 4}, "no name"),
    ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}}, "chunk_shape"),
    ({"chunk_key_encoding": {"name": "default", "configuration": {"separator": "../"}}}, "chunk keys"),
    ({"fill_value": "NaN"}, "fill value"),
    ({"fill_value": 1.5}, "fill value"),
    ({"fill_value": 2**63}, "fill value"),
    ({"fill_value": None}, "fill value"),
    ({"fill_value": {"a": 1}}, "fill value"),
    ({"codecs": []}, "codecs"),
    ({"codecs": [[]]}, "a codec"),
    ({"codecs": [{"name": "bytes", "configuration": {"endian": 3}}]}, "endian"),
    ({"codecs": [BYTES, {"name": "gzip", "configuration": {"level": "9"}}]}, "gzip has a wrong"),
    ({"codecs": [BYTES, {"name": "zstd", "configuration": {"level": []}}]}, "zstd has a wrong"),
    ({"codecs": [BYTES, {"name": "blosc", "configuration": {"cname": ["lz4"]}}]}, "blosc has a wrong"),
    ({"codecs": [BYTES, {"name": "blosc", "configuration": {"cname": "snappy"}}]}, "snappy"),
    ({"codecs": [BYTES, {"name": "numcodecs.lzma"}]}, "write the array again"),
    ({"codecs": [{"name": "transpose", "configuration": {"order": [1]}}, BYTES]}, "transpose"),
    ({"codecs": [{"name": "transpose", "configuration": {"order": "C"}}, BYTES]}, "transpose"),
    ({"codecs": [{"name": "vlen-utf8"}]}, "write the array again"),
    ({"codecs": sharding()}, "codec 'x'"),
    ({"codecs": sharding(codecs=[BYTES], chunk_shape=[2])}, "codec 'x'"),
    ({"codecs": sharding(codecs=[BYTES], chunk_shape=[2], index_codecs=[BYTES])}, "divide"),
    (
        {"codecs": sharding(codecs=[BYTES], index_codecs=[BYTES, {"name": "gzip", "configuration": {"level": 1}}])},
        "index",
    ),
    ({"codecs": sharding(codecs=sharding(codecs=[BYTES], index_codecs=[BYTES]))}, "hold shards"),
    ({"codecs": [*sharding(codecs=[BYTES], index_codecs=[BYTES]), "crc32c"]}, "as wholes"),
    ({"codecs": sharding(codecs=[BYTES], index_codecs=[BYTES], index_location=3)}, "index_location"),
    ({"zarr_format": 4}, "another version"),
    ({"node_type": "table"}, "neither"),
    ({"storage_transformers": [{}]}, "storage transformers"),
    ({"unknown": 1}, "does not know"),
]


@pytest.mark.parametrize(("changes", "said"), BAD_METADATA)
def test_metadata_that_is_wrong_is_refused(changes: dict[str, Any], said: str, small: Path) -> None:
    with pytest.raises(LayoutError, match=said):
        H5Dataset(altered(small, **changes), "/")


BAD_OLD_METADATA: list[tuple[dict[str, Any], str]] = [
    ({"filters": [{"id": "shuffle", "elementsize": 0}]}, "shuffle has a wrong"),
    ({"filters": [{"id": "shuffle", "elementsize": "4"}]}, "shuffle has a wrong"),
    ({"filters": [{"id": "delta"}]}, "delta.*write the array again"),
    ({"filters": [3]}, "filter or compressor None"),
    ({"filters": {"id": "delta"}}, "filters"),
    ({"filters": [{"id": "zlib"}] * 17}, "filters"),
    ({"compressor": {"id": "lz4"}}, "lz4"),
    ({"compressor": "zlib"}, "compressor"),
    ({"compressor": {"id": "zlib", "level": "x"}}, "zlib has a wrong"),
    ({"compressor": {"id": "blosc", "cname": 1}}, "blosc"),
    ({"order": "F", "chunks": [5]}, ""),
    ({"order": 3}, "order"),
    ({"dtype": "<U5"}, "dtype"),
    ({"dtype": [["a", "<f4"]]}, "dtype"),
    ({"dtype": "|O"}, "dtype"),
    ({"dimension_separator": "x"}, "dimension_separator"),
]


@pytest.mark.parametrize(("changes", "said"), BAD_OLD_METADATA)
def test_old_metadata_that_is_wrong_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), data=np.arange(20), chunks=(5,), compressors=None, zarr_format=2)
    altered(path, **changes)
    if not said:
        assert int(H5Dataset(path, "/")[19]) == 19
        return
    with pytest.raises(LayoutError, match=said):
        H5Dataset(path, "/")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.unlink()
    outside = path.parents[2] / "secret"
    outside.write_bytes(bytes(40))
    path.symlink_to(outside)


@pytest.mark.parametrize(("spoil", "said"), [(cut, "39 bytes where 40"), (pipe, "no plain file"), (link, "leads to")])
def test_files_that_are_no_chunks_are_refused(spoil: Callable[[Path], None], said: str, small: Path) -> None:
    spoil(small / "c" / "2")
    with pytest.raises(LayoutError, match=said):
        H5Dataset(small, "/")


def test_folders_of_chunks_that_are_links_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), data=np.ones((2,) * 20, "u1"), chunks=(1,) * 2 + (2,) * 18)
    for number in (0, 1):
        (path / "c" / "1" / str(number)).rename(path / "c" / f"moved{number}")
        (path / "c" / "1" / str(number)).symlink_to(".")
    with pytest.raises(LayoutError, match="in place of a folder"):
        H5Dataset(path, "/")
    (path / "c").rename(tmp_path / "c")
    (path / "c").symlink_to(tmp_path / "c")
    with pytest.raises(LayoutError, match="leads to"):
        H5Dataset(path, "/")


def test_what_is_no_chunk_is_left_alone(small: Path) -> None:
    for name in ("01", "4", "-1", "x", "²", "1" * 200):
        (small / "c" / name).write_bytes(b"?")
    (small / "c" / "3").unlink()
    (small / "c" / "3").mkdir()
    assert [int(one) for one in H5Dataset(small, "/")] == [*range(15), *[0] * 5]


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "nan", "\x00", '{"zarr_format": ' + "9" * 5000 + "}", "{}"])
def test_json_that_is_none_is_refused(text: str, small: Path) -> None:
    (small / "zarr.json").write_text(text)
    with pytest.raises(LayoutError, match=r"zarr\.json"):
        H5Dataset(small, "/")
    assert main(["inspect", str(small)]) == 1


def test_metadata_without_end_is_refused(small: Path) -> None:
    with (small / "zarr.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(LayoutError, match="no file of at most"):
        H5Dataset(small, "/")
    pipe(small / "zarr.json")
    with pytest.raises(LayoutError, match="no file of at most"):
        H5Dataset(small, "/")


@pytest.mark.parametrize("name", ["../a.zarr", "..", "x/../..", "./x", "a//b", "\0"])
def test_names_that_lead_out_of_the_store_are_refused(name: str, small: Path) -> None:
    with pytest.raises(LayoutError, match="no name of an array"):
        H5Dataset(small, name)


def spoiled_shard(path: Path, entry: int, value: int, *, summed: bool) -> None:
    stored = bytearray((path / "c" / "0").read_bytes())
    index = np.frombuffer(bytes(stored[-68:-4]), "<u8").copy()
    index[entry] = value
    stored[-68:-4] = index.tobytes()
    if summed:
        import google_crc32c

        stored[-4:] = google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    (path / "c" / "0").write_bytes(stored)


@pytest.mark.parametrize("value", [0, 10**6, 2**63, 2**64 - 1, 2**64 - 8])
@pytest.mark.parametrize("entry", [0, 1])
def test_indexes_of_shards_that_are_damaged_are_refused(entry: int, value: int, tmp_path: Path) -> None:
    pytest.importorskip("google_crc32c", reason="google_crc32c, which zarr sums by, is not installed")
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), data=np.arange(20), chunks=(5,), shards=(20,), compressors=None)
    spoiled_shard(path, entry, value, summed=False)
    if (entry, value) != (0, 0):
        with pytest.raises(LayoutError, match="index of this shard is damaged"):
            H5Dataset(path, "/")
    spoiled_shard(path, entry, value, summed=True)
    if (entry, value) == (0, 0):
        assert int(H5Dataset(path, "/")[0]) == 0
        return
    with pytest.raises(LayoutError, match=r"leaves its|bytes where"):
        H5Dataset(path, "/")


def test_shards_shorter_than_their_index_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), data=np.arange(20), chunks=(5,), shards=(20,), compressors=None)
    (path / "c" / "0").write_bytes(bytes(60))
    with pytest.raises(LayoutError, match="shorter than its index"):
        H5Dataset(path, "/")


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from(["", "x", "bytes", "2"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "id", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places_in(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested lists and objects."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inside for place in [(*here, key), *places_in(one, (*here, key))]]


@given(data=st.data(), version=st.sampled_from([2, 3]))
def test_whatever_metadata_says_is_read_or_refused(
    data: st.DataObject, version: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("odd") / "a.zarr"
    codecs = {"shards": (10,), "compressors": (zarr.codecs.BloscCodec(), zarr.codecs.Crc32cCodec())}
    given = codecs if version == 3 else {"compressors": numcodecs.Blosc()}
    zarr.create_array(str(path), data=np.arange(20.0), chunks=(5,), zarr_format=version, **given)
    file = path / ("zarr.json" if version == 3 else ".zarray")
    node = json.loads(file.read_text())
    *above, last = data.draw(st.sampled_from(places_in(node)))
    inner = node
    for key in above:
        inner = inner[key]
    inner[last] = data.draw(ODD)
    file.write_text(json.dumps(node))
    begin = time.monotonic()
    try:
        found = H5Dataset(path, "/")
        [found[i] for i in range(min(100, len(found)))]
    except SolarError:
        pass
    assert time.monotonic() - begin < 20


@given(keys=st.lists(st.sampled_from(["a", "a-b", "a0", "b", "", "é"]), max_size=4).map("/".join), data=st.data())
def test_folders_are_found_in_sorted_names(keys: str, data: st.DataObject) -> None:
    parts = st.lists(st.sampled_from(["a", "a-b", "a0", "b", ".zgroup", "é"]), min_size=1, max_size=4)
    names = sorted(data.draw(st.sets(parts.map("/".join), max_size=30)))
    key = keys.strip("/")
    above = f"{key}/" if key else ""
    below = [name for name in names if name.startswith(above)]
    assert names_below(names, key) == below
    assert folders_among(names, key) == sorted(
        {name[len(above) :].split("/")[0] for name in below if "/" in name[len(above) :]}
    )


@pytest.mark.parametrize("version", [2, 3])
def test_types_that_are_not_read_are_named_in_whole_words(version: int, tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    with warnings.catch_warnings(action="ignore"):  # zarr-python's own, of types that version 3 does not know
        group.create_array("text", data=np.array(["one", "two"]))
        group.create_array("table", data=np.zeros(3, [(f"column_of_a_long_name_{one}", "f4") for one in range(5)]))
    said = {name: layout.reason for name, layout in solar.inspect(tmp_path / "a.zarr").items()}
    names = ("'<U3'", "a structure") if version == 2 else ("'fixed_length_utf32'", "'struct(ured)?'")
    for name, type_ in zip(("/text", "/table"), names, strict=True):
        assert re.search(f"type is {type_}: of Zarr solar reads booleans, .* structure as an array$", said[name])


def test_a_mistyped_path_gets_a_suggestion(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "scan.zarr"), data=np.arange(20))
    (tmp_path / "refs.json").write_text("{}")
    for wrong, right in (("scann.zarr", "scan.zarr"), ("ref.json", "refs.json")):
        with pytest.raises(ReadError, match=f"did you mean {right}"):
            H5Dataset(tmp_path / wrong, "/")


def test_a_store_may_be_named_by_its_metadata(volume: tuple[str, Any]) -> None:
    path, values = volume
    assert np.array_equal(H5Dataset(f"{path}/zarr.json", "in/x")[3], values[3])


def test_a_zip_file_of_a_folder_says_where_the_store_lies(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a.zarr"), data=np.arange(20), chunks=(5,))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for one in sorted((tmp_path / "a.zarr").rglob("*")):
            file.write(one, one.relative_to(tmp_path))
    for ask in (solar.inspect, lambda path: H5Dataset(path, "x")):
        with pytest.raises(LayoutError, match=r"there is no Zarr store: .* lies in its folder a\.zarr"):
            ask(tmp_path / "a.zip")


def test_zip_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(b"no zip")
    with pytest.raises(LayoutError, match="no zip file"):
        H5Dataset(path, "/")
    folder = tmp_path / "a.zarr"
    zarr.create_array(str(folder), data=np.arange(20), chunks=(5,), compressors=None)
    for method, said in ((zipfile.ZIP_DEFLATED, "compressed by zip"), (zipfile.ZIP_STORED, "")):
        with zipfile.ZipFile(path, "w", method) as file:
            for one in sorted(folder.rglob("*")):
                file.write(one, one.relative_to(folder))
        if said:
            with pytest.raises(LayoutError, match=said):
                H5Dataset(path, "/")
    assert [int(one) for one in H5Dataset(path, "/")] == list(range(20))
    stored = path.read_bytes()
    for place in range(0, len(stored), 7):  # whatever is damaged: an error of ours, or values
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 255]) + stored[place + 1 :])
        try:
            data = H5Dataset(path, "/")
            [data[i] for i in range(len(data))]
        except (SolarError, IndexError):
            pass
