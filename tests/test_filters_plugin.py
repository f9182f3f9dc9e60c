"""The filter plug-in: libhdf5 writes and reads through it what solar's own codec does, and damage is an error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import same
from numpy.typing import NDArray
from test_codec import BOUNDS, GOLDEN, TYPES, some_array, within

import solar.filters
from solar import CodecError
from solar.filters import FILTER, FOLDER, NAMED, Bounded, filter_values, named
from solar.io.codec.codec import CODERS, PREDICTORS, Codec

Make = Callable[..., str]


def field(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).cumsum(-1).astype(np.float32)


def ready_made(file: h5py.File, name: str, samples: NDArray[Any], values: tuple[int, ...]) -> h5py.Dataset:
    """A data set of one sample a chunk for chunks that come encoded."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((1, *samples.shape[1:]))
    properties.set_filter(FILTER, h5py.h5z.FLAG_OPTIONAL, values)
    space, type_ = h5py.h5s.create_simple(samples.shape), h5py.h5t.py_create(samples.dtype)
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), type_, space, properties))


def run(*command: str, **environment: str) -> str:
    """What a command prints, in a process that has only the variables given on top of ours."""
    own = {name: value for name, value in os.environ.items() if name != "HDF5_PLUGIN_PATH"}
    ended = subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# --- being found ----


def test_the_module_prints_the_folder_that_other_programs_need() -> None:
    assert run(sys.executable, "-W", "error", "-m", "solar.filters").strip() == FOLDER
    assert [path.name for path in Path(FOLDER).iterdir()] == ["libsolar_h5filter.so"]


@pytest.mark.parametrize("before", ["", "import h5py", "import h5py; h5py.h5z.filter_avail(333)"])
@pytest.mark.parametrize("path", ["", "/nowhere", f"/nowhere:{FOLDER}"])
def test_libhdf5_finds_the_filter_whenever_solar_filters_is_imported(before: str, path: str) -> None:
    code = f"""{before}
import json, os, solar.filters
solar.filters.register()
import h5py
paths = [h5py.h5pl.get(i).decode() for i in range(h5py.h5pl.size())]
print(json.dumps([h5py.h5z.filter_avail(333), paths, os.environ["HDF5_PLUGIN_PATH"].split(":")]))"""
    found, searched, variable = json.loads(
        run(sys.executable, "-c", code, **({"HDF5_PLUGIN_PATH": path} if path else {}))
    )
    assert found
    assert searched.count(FOLDER) == variable.count(FOLDER) == 1
    assert ("/nowhere" in searched) is ("/nowhere" in variable) is bool(path)
    assert len(variable) > 1  # libhdf5's own folder is still searched


def test_a_child_process_finds_it_without_importing_solar() -> None:
    code = "import h5py; print(h5py.h5z.filter_avail(333))"
    assert run(sys.executable, "-c", code, HDF5_PLUGIN_PATH=os.environ["HDF5_PLUGIN_PATH"]).strip() == "True"


# --- writing and reading ----


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_chunks_written_by_h5py_are_those_of_the_codec(make: Make, coder: str, predictor: str) -> None:
    samples = field(5, 30, 40)
    bounded = Bounded(abs=1e-2, coder=coder, predictor=predictor)
    path = make("a.h5", x=(samples, {"chunks": (1, 30, 40), **bounded}))
    codec = Codec("abs", 1e-2, coder, predictor)
    with h5py.File(path) as file:
        chunks = [file["x"].id.read_direct_chunk((i, 0, 0)) for i in range(5)]
        restored = file["x"][()]
    assert chunks == [(0, codec.encode(sample[None])) for sample in samples]
    assert within(samples, restored, 1e-2)
    assert same(solar.read(path, "x"), restored)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_kept_within_the_bound_and_read_alike_by_all(make: Make, dtype: str) -> None:
    samples = (field(4, 100) * 4).clip(0, 100).astype(dtype)
    options: dict[str, dict[str, Any]] = {
        "bounded": {"chunks": (1, 100), **Bounded(abs=1.5)},
        "lossless": {"chunks": (1, 100), "compression": Bounded(lossless=True)},
        "cut": {"chunks": (3, 33), **Bounded(abs=0.0)},
        "summed": {"chunks": (1, 100), "fletcher32": True, **Bounded(rel=1e-3, span=samples)},
    }
    path = make("a.h5", **{name: (samples, these) for name, these in options.items()})
    bounds = {"bounded": 1.5, "lossless": 0.0, "cut": 0.0, "summed": 1e-3 * float(np.ptp(samples))}
    with h5py.File(path) as file:
        for name, bound in bounds.items():
            restored = file[name][()]
            assert within(samples, restored, bound)
            assert same(solar.read(path, name), restored)


@settings(max_examples=60, deadline=None)
@given(some_array().filter(lambda array: array.ndim > 0 and array.size > 0), BOUNDS)
def test_any_array_comes_back_from_a_file_as_from_the_codec(array: NDArray[Any], bound: float) -> None:
    codec, restored = Codec("abs", bound), np.empty_like(array, order="C")
    codec.decode(codec.encode(array), restored)
    with h5py.File("any", "w", driver="core", backing_store=False) as file:
        file.create_dataset("x", data=array, chunks=array.shape, **Bounded(abs=bound))
        assert same(file["x"][()], restored)  # opened anew: no cache of what was given
    assert within(array, restored, bound)


def test_a_data_set_that_grows_is_encoded_as_it_grows(tmp_path: Path) -> None:
    samples = field(6, 20, 20)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"maxshape": (None, 20, 20), "chunks": (1, 20, 20), "fillvalue": 7.0}
        x = file.create_dataset("x", (0, 20, 20), "f4", **options, **Bounded(abs=1e-3))
        for i, sample in enumerate(samples[:5]):
            x.resize(i + 1, axis=0)
            x[i] = sample
        x.resize(6, axis=0)
    with h5py.File(tmp_path / "a.h5") as file:
        assert within(samples[:5], file["x"][:5], 1e-3)
        assert (file["x"][5] == 7).all()


def test_a_filter_without_values_is_lossless(tmp_path: Path) -> None:
    samples = field(3, 50)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        ready_made(file, "x", samples, ())[...] = samples
    with h5py.File(tmp_path / "a.h5") as file:
        assert same(file["x"][()], samples)
        assert file["x"].id.read_direct_chunk((1, 0)) == (0, Codec("lossless").encode(samples[1:2]))


def test_chunks_that_come_encoded_are_read(tmp_path: Path) -> None:
    samples = field(4, 64, 64)
    codec = Codec("abs", 1e-2, "dense").trained([samples[:2]])
    known = filter_values(codec, samples.dtype, (1, 64, 64))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in {"bare": codec.filter_values, "known": known}.items():
            x = ready_made(file, name, samples, values)
            for i, sample in enumerate(samples):
                x.id.write_direct_chunk((i, 0, 0), codec.encode(sample[None]))
            told = x.id.get_create_plist().get_filter(0)[2]
            assert len(told) == len(values) and told[:16] == values[:16]  # the plug-in has nothing to add
            assert told == values or h5py.version.version_tuple[:2] < (3, 16)  # which makes up the 17th and on
    with h5py.File(tmp_path / "a.h5") as file:
        for name in ("bare", "known"):
            assert within(samples, file[name][()], 1e-2)
            assert same(solar.read(str(tmp_path / "a.h5"), name), file[name][()])


def test_golden_chunks_are_read_through_libhdf5() -> None:
    with h5py.File("golden", "w", driver="core", backing_store=False) as file:
        for name, case in json.loads((GOLDEN / "index.json").read_text()).items():
            like = np.empty(case["shape"], case["type"])
            if like.size == 0 or like.ndim == 0 or name.startswith("learned"):
                continue  # HDF5 has no such chunks, and solar no longer reads these
            tables = bytes.fromhex(case["tables"])
            stored = (GOLDEN / f"{name}.chunk").read_bytes()
            x = ready_made(file, name, like[None], filter_values(Codec("abs", 1.0, tables=tables)))
            x.id.write_direct_chunk((0,) * x.ndim, stored)
            Codec("abs", 1.0, tables=tables).decode(stored, like)
            assert same(x[0], like), name


# --- refusing ----


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": ">f4"}, "little-endian"),
        ({"dtype": "f2"}, "only float32"),
        ({"dtype": "?"}, "only float32"),
        ({"dtype": "c8"}, "only float32"),
        ({"dtype": "S4"}, "only float32"),
        ({"dtype": [("a", "f4")]}, "only float32"),
        ({"dtype": "f4", "shuffle": True}, "filter 2 comes before"),
        ({"dtype": "i4", "scaleoffset": 2}, "filter 6 comes before"),
    ],
    ids=str,
)
def test_what_the_bound_could_not_be_kept_for_is_refused_when_the_data_set_is_made(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file, pytest.raises(ValueError, match=says):
        file.create_dataset("x", (10, 10), chunks=(1, 10), **options, **Bounded(abs=1e-3))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of abs=, rel= and lossless"),
        ({"abs": 1.0, "lossless": True}, "one of abs=, rel= and lossless"),
        ({"rel": 1e-3}, "needs span="),
        ({"abs": 1e-3, "span": 2.0}, "needs span="),
    ],
)
def test_a_bound_that_says_too_little_or_too_much_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Bounded(**options)
    with pytest.raises(ValueError, match=r"0 \(bit for bit\) or more"):
        Bounded(abs=-1.0)


def test_values_that_hdf5_tools_could_not_read_are_refused() -> None:
    noise = [np.random.default_rng(i).normal(size=4000).astype("f4") * 10**i for i in range(5)]
    tables = Codec("abs", 1e-3).trained(noise).tables + bytes(1000)
    with pytest.raises(CodecError, match="HDF5's tools read no more than 256"):
        filter_values(Codec("abs", 1e-3, tables=tables))
    with pytest.raises(ValueError, match="absolute"):
        filter_values(Codec("rel", 1e-3))
    with pytest.raises(CodecError, match="cannot be encoded"):
        filter_values(Codec("abs", 1e-3), np.dtype(">f4"), (1, 2))


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, bytes]:
    """A file of two samples, and the second one's chunk."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", data=field(2, 30, 40), chunks=(1, 30, 40), **Bounded(abs=1e-2))
        file.flush()
        return tmp_path / "a.h5", x.id.read_direct_chunk((1, 0, 0))[1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_truncated_or_flipped_chunk_is_an_error_of_libhdf5(stored: tuple[Path, bytes], data: st.DataObject) -> None:
    path, whole = stored
    chunk = bytearray(whole)
    if data.draw(st.booleans()):
        del chunk[data.draw(st.integers(1, len(chunk) - 1)) :]
    else:
        for at in data.draw(st.sets(st.integers(0, 8 * len(chunk) - 1), min_size=1, max_size=3)):
            chunk[at // 8] ^= 1 << at % 8
    with h5py.File(path, "a") as file:
        file["x"].id.write_direct_chunk((1, 0, 0), bytes(chunk))
    with h5py.File(path) as file:
        assert within(field(2, 30, 40)[0], file["x"][0], 1e-2)
        with pytest.raises(OSError, match=r"filter returned failure|solar: "):
            file["x"][1]


@pytest.mark.parametrize("shape", [(1, 29, 40), (1, 60, 40), (1, 1, 1)])
def test_a_sound_chunk_of_another_size_is_an_error(stored: tuple[Path, bytes], shape: tuple[int, ...]) -> None:
    with h5py.File(stored[0], "a") as file:
        file["x"].id.write_direct_chunk((1, 0, 0), Codec("lossless").encode(np.zeros(shape, "f4")))
    with h5py.File(stored[0]) as file, pytest.raises(OSError, match=r"filter returned failure|solar: "):
        file["x"][1]


def test_a_virtual_data_set_of_encoded_chunks_is_read_by_solar_alone(make: Make, tmp_path: Path) -> None:
    samples = field(4, 30, 40)
    path = make("a.h5", x=(samples, {"chunks": (1, 30, 40), **Bounded(lossless=True)}))
    virtual = h5py.VirtualLayout(samples.shape, "f4")
    virtual[:] = h5py.VirtualSource(path, "x", samples.shape)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("x", virtual)
    code = "import solar, sys; print(solar.read(sys.argv[1], 'x').tobytes().hex())"
    printed = run(sys.executable, "-c", code, str(tmp_path / "v.h5"))
    assert same(np.frombuffer(bytes.fromhex(printed), "<f4").reshape(samples.shape), samples)


# --- other programs ----


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump is not installed")
def test_h5dump_prints_the_values(make: Make, tmp_path: Path) -> None:
    samples = field(5, 33, 20)
    path = make("a.h5", x=(samples, {"chunks": (1, 33, 20), **Bounded(abs=1e-3)}))
    raw = tmp_path / "raw"
    run("h5dump", "-d", "/x", "-b", "LE", "-o", str(raw), path, HDF5_PLUGIN_PATH=FOLDER)
    assert same(np.fromfile(raw, "<f4").reshape(samples.shape), solar.read(path, "x"))


@pytest.mark.skipif(shutil.which("h5repack") is None, reason="h5repack is not installed")
def test_h5repack_writes_through_the_filter(make: Make, tmp_path: Path) -> None:
    samples = field(5, 33, 20)
    path, out = make("a.h5", x=samples), str(tmp_path / "b.h5")
    run("h5repack", "-l", "x:CHUNK=1x33x20", "-f", "x:UD=333,0,0", path, out, HDF5_PLUGIN_PATH=FOLDER)
    assert same(solar.read(out, "x"), samples)
    with h5py.File(out) as file:
        assert file["x"].id.read_direct_chunk((3, 0, 0)) == (0, Codec("lossless").encode(samples[3:4]))


def test_netcdf4_reads_the_values(make: Make) -> None:
    pytest.importorskip("netCDF4")
    samples = field(5, 33, 20)
    path = make("a.h5", x=(samples, {"chunks": (1, 33, 20), **Bounded(abs=1e-3)}))
    code = "import netCDF4, sys; print(netCDF4.Dataset(sys.argv[1])['x'][:].data.tobytes().hex())"
    for first, environment in (("", {"HDF5_PLUGIN_PATH": FOLDER}), ("import solar.filters; ", {})):
        printed = run(sys.executable, "-c", first + code, path, **environment)
        assert same(np.frombuffer(bytes.fromhex(printed), "<f4").reshape(samples.shape), solar.read(path, "x"))


# --- hdf5plugin ----


@pytest.mark.parametrize("name", NAMED)
def test_filters_of_hdf5plugin_are_written_by_name_and_read_by_solar(make: Make, name: str) -> None:
    pytest.importorskip("hdf5plugin")
    samples = field(6, 32, 32)
    bound = {"abs": 1e-2} if name == "zfp" else {}
    path = make("a.h5", x=(samples, {"chunks": (1, 32, 32), **named(name, dtype=samples.dtype, **bound)}))
    with h5py.File(path) as file:
        restored = file["x"][()]
        assert file["x"].id.get_storage_size() < samples.nbytes
    assert same(solar.read(path, "x"), restored)
    assert within(samples, restored, bound.get("abs", 0.0))


@pytest.mark.parametrize("name", sorted({*NAMED} - {"zfp", "bitshuffle-lz4"}))
def test_levels_are_passed_on(make: Make, name: str) -> None:
    pytest.importorskip("hdf5plugin")
    counts = np.random.default_rng(0).poisson(3, (2, 200, 200)).astype("u2")
    sizes = set()
    for options in ({}, {"level": 1}, {"level": 9}):
        with h5py.File(make("a.h5", x=(counts, {"chunks": (1, 200, 200), **named(name, **options)}))) as file:
            sizes.add(file["x"].id.get_storage_size())
    assert len(sizes) == 3


@pytest.mark.parametrize(
    ("name", "options", "kind", "says"),
    [
        ("zstandard", {}, ValueError, "did you mean zstd"),
        ("zstd", {"level": 23}, ValueError, "levels 1 to 22, not 23"),
        ("bitshuffle-lz4", {"level": 1}, ValueError, "no levels"),
        ("zstd", {"abs": 1e-3}, TypeError, "keeps every bit"),
        ("zfp", {"dtype": np.dtype("f4")}, TypeError, "needs abs="),
        ("zfp", {"abs": 1.0}, TypeError, "needs .* dtype="),
        ("zfp", {"abs": 0.0, "dtype": np.dtype("f4")}, ValueError, "above 0"),
        ("zfp", {"abs": 1.0, "dtype": np.dtype("i4")}, CodecError, "not for int32"),
        ("zfp", {"abs": 1.0, "dtype": np.dtype(">f4")}, CodecError, "not for >f4"),
        ("zfp", {"abs": 1.0, "level": 3, "dtype": np.dtype("f4")}, ValueError, "no levels"),
    ],
)
def test_names_and_settings_that_do_not_exist_are_refused(
    name: str, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        named(name, **options)


def test_without_hdf5plugin_its_filters_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(ImportError, match=r"pip install 'solar\[filters\]'"):
        named("zstd")
