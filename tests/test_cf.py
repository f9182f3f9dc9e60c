"""Field(cf=True): packed numbers come as xarray.open_dataset has them, to the bit, by every reader."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from cf_kit import FIELDS, SAMPLES, SHAPE, Array, by_decode_cf, by_numpy, by_xarray, odd, rows_of, wanted, write
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import SHARED, same
from torch.utils.data import ConcatDataset

import solar
from solar import DataLoader, Field, H5Dataset, LayoutError
from solar.cli import main
from solar.io.hdf5.packing import Packings, packing_by

# --- the rules ----

NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
TERMS = ["f4", "f8", "f4", "f8", "i2", "i4", "i8"]


@st.composite
def numbers(draw: st.DrawFn, dtype: str) -> Any:
    stored = np.dtype(dtype)
    if stored.kind == "f":
        return stored.type(draw(st.floats(-1e4, 1e4, width=32) | st.sampled_from([-9999.0, 1e20, 0.1, np.nan])))
    about = np.iinfo(stored)
    return stored.type(
        draw(st.integers(max(about.min, -200), min(about.max, 200)) | st.sampled_from([about.min, about.max]))
    )


@st.composite
def packed(draw: st.DrawFn) -> tuple[Array, dict[str, Any]]:
    stored = np.dtype(draw(st.sampled_from(NUMBERS)))
    raw = np.frombuffer(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))).bytes(40 * stored.itemsize), stored
    ).copy()
    attributes: dict[str, Any] = {}
    for key in ("scale_factor", "add_offset"):
        if draw(st.booleans()):
            dtype = draw(st.sampled_from(TERMS))
            attributes[key] = np.dtype(dtype).type(draw(st.floats(-100, 100, width=32)))
    if draw(st.booleans()):
        attributes["_FillValue"] = draw(numbers(stored.str[1:]))
    if draw(st.booleans()):
        dtype = draw(st.sampled_from([stored.str[1:], stored.str[1:], *NUMBERS]))
        attributes["missing_value"] = np.array([draw(numbers(dtype)) for _ in range(draw(st.integers(1, 3)))])
    if draw(st.booleans()):
        attributes["_Unsigned"] = draw(st.sampled_from(["true", "false", "True"]))
    for value in np.ravel(
        [*np.ravel(attributes.get("_FillValue", [])), *np.ravel(attributes.get("missing_value", []))]
    ):
        with np.errstate(all="ignore"):
            raw[draw(st.integers(0, 39))] = np.array(value).astype(stored)
    return raw.reshape(4, 5, 2), attributes


@given(packed(), st.sampled_from([None, "f4", "f8"]))
@settings(deadline=None, max_examples=500)
def test_any_attributes_make_of_any_numbers_what_numpy_makes_by_xarrays_rules(
    case: tuple[Array, dict[str, Any]], dtype: str | None
) -> None:
    raw, attributes = case
    given = {key: np.ravel(value) if not isinstance(value, str) else value for key, value in attributes.items()}
    try:
        want = by_numpy(raw, attributes)
    except TypeError:
        with pytest.raises(ValueError, match=r"would be worked out in .*; cf=True does it in float32 or float64"):
            packing_by(given, raw.dtype)
        return
    field = Field("x", cf=Packings((packing_by(given, raw.dtype),)), dtype=dtype)
    if dtype is not None:
        with np.errstate(all="ignore"):
            want = want.astype(dtype)
    assert same(field.convert(raw), want)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
@pytest.mark.parametrize("name", FIELDS)
def test_fields_come_as_xarray_has_them(tmp_path: Path, name: str, dtype: str | None) -> None:
    path = write(tmp_path / "radar.nc")
    want = wanted(path, name)
    batch = rows_of(path, name, dtype=dtype)
    assert same(batch, want if dtype is None else want.astype(dtype))
    theirs = by_xarray(path, name)  # skipped without xarray: all before is by numpy alone
    assert same(batch, theirs if dtype is None else theirs.astype(dtype))


@given(packed())
@settings(deadline=None, max_examples=300)
def test_the_rules_are_those_of_xarray(case: tuple[Array, dict[str, Any]]) -> None:
    """by_numpy, which all else is compared with, is compared with xarray."""
    raw, attributes = case
    try:
        want = by_numpy(raw, attributes)
    except TypeError:
        return
    assert same(by_decode_cf(raw, attributes), want)


# --- every way that samples come ----


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (5, *SHAPE)}, {"chunks": (1, 4, 9), "compression": "gzip", "shuffle": True}]
)
@pytest.mark.parametrize("name", ["velocity", "height", "clutter"])
def test_all_storages_give_the_same(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = write(tmp_path / "radar.h5", **options)
    rows = np.random.default_rng(1).permutation(SAMPLES)
    assert same(rows_of(path, name, rows), wanted(path, name)[rows])


@pytest.mark.parametrize("reader", ["direct", "h5py"])
def test_a_virtual_dataset_is_unpacked_by_its_own_attributes(tmp_path: Path, reader: str) -> None:
    path = write(tmp_path / "radar.h5")
    with h5py.File(tmp_path / "virtual.h5", "w") as file, h5py.File(path) as source:
        layout = h5py.VirtualLayout((SAMPLES, *SHAPE), "i2")
        source_of = h5py.VirtualSource(str(path), "velocity", (SAMPLES, *SHAPE))
        for half in (slice(None),) if reader == "direct" else (slice(1), slice(1, None)):
            layout[:, half] = source_of[:, half]
        made = file.create_virtual_dataset("velocity", layout, fillvalue=-32768)
        for key, value in source["velocity"].attrs.items():
            made.attrs[key] = value
    values = wanted(path, "velocity")
    with h5py.File(path, "a") as source:  # that of the source does not count
        source["velocity"].attrs["add_offset"] = np.float32(1000)
    assert solar.inspect(str(tmp_path / "virtual.h5"), "velocity").reader == reader
    assert same(rows_of(tmp_path / "virtual.h5", "velocity"), values)


def test_what_solar_compressed_is_unpacked_too(tmp_path: Path) -> None:
    path = write(tmp_path / "radar.h5")
    assert main(["compress", str(path), str(tmp_path / "small.h5"), "--lossless"]) == 0
    for name in ("velocity", "temperature", "clutter"):
        assert same(rows_of(tmp_path / "small.h5", name), wanted(path, name))


def test_buffered_and_shuffled_batches_are_those_of_numpy(tmp_path: Path) -> None:
    path = write(tmp_path / "radar.h5", chunks=(4, *SHAPE), compression="gzip")
    dataset = H5Dataset(path, {"v": Field("velocity", cf=True), "z": Field("reflectivity", cf=True, dtype="float32")})
    rows = np.random.default_rng(1).permutation(SAMPLES)
    for buffer in (None, "1MiB"):
        seen = list(DataLoader(dataset, 5, sampler=rows.tolist(), buffer=buffer))
        for key, name in (("v", "velocity"), ("z", "reflectivity")):
            assert same(torch.cat([batch[key] for batch in seen]).numpy(), wanted(path, name)[rows].astype("f4"))


def test_a_transform_in_processes_gets_unpacked_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "radar.h5")
    dataset = H5Dataset(path, Field("velocity", cf=True), transform=twice)
    with DataLoader(dataset, 6, num_workers=1) as loader:
        came = torch.cat(list(loader)).numpy()
    assert same(came, wanted(path, "velocity") * np.float32(2))


def twice(sample: Array) -> Array:
    doubled: Array = sample * np.float32(2)
    return doubled


# --- with what else a Field does ----


def test_slices_transposes_and_normalises_what_was_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path / "radar.h5")
    options: dict[str, Any] = {"select": (slice(1, 6), slice(None, None, 2)), "axes": (1, 0), "mean": 3.5, "std": 0.25}
    x = wanted(path, "reflectivity")[:, 1:6, ::2].transpose(0, 2, 1)
    assert same(rows_of(path, "reflectivity", **options), np.ascontiguousarray((x - 3.5) / 0.25))
    single = (x.astype("f4") - np.float32(3.5)) / np.float32(0.25)
    assert same(rows_of(path, "reflectivity", dtype="float32", **options), np.ascontiguousarray(single))
    halves = rows_of(path, "reflectivity", dtype="float16", select=options["select"])
    assert same(halves, np.ascontiguousarray(wanted(path, "reflectivity")[:, 1:6, ::2].astype("f2")))


@pytest.mark.parametrize("dtype", [None, "float32", "float64", "float16", "bfloat16"])
def test_missing_takes_the_place_of_nan_after_all_else(tmp_path: Path, dtype: str | None) -> None:
    path = write(tmp_path / "radar.h5")
    for name in ("velocity", "nothing"):
        x = wanted(path, name)
        given = np.dtype(x.dtype if dtype is None else "f4" if dtype == "bfloat16" else dtype)
        want = (x.astype(given) - given.type(2)) / given.type(4)
        want[np.isnan(want)] = -5
        batch = rows_of(path, name, dtype=dtype, mean=2, std=4, missing=-5)
        if dtype == "bfloat16":
            assert torch.equal(batch, torch.from_numpy(want).to(torch.bfloat16))
        else:
            assert same(batch, want)


def test_whole_numbers_that_nothing_is_said_of_stay_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "radar.h5")
    with h5py.File(path) as file:
        assert same(rows_of(path, "bare", missing=0), file["bare"][()])
        assert same(rows_of(path, "times"), file["times"][()])


def test_hdf5s_own_fill_value_is_no_marker_without_the_attribute(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (4, 2), "i2", fillvalue=-7, chunks=(2, 2))
    assert rows_of(tmp_path / "x.h5", "x", [0]).tolist() == [[-7, -7]]


def test_a_missing_value_that_xarray_never_meets_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "radar.h5")
    assert same(rows_of(path, "height"), wanted(path, "height"))
    said = "missing values of 1e+36 are unpacked as numbers, for float32, in which xarray looks for them, does not have"
    assert f"{path}: /height: {said}" in caplog.text
    caplog.clear()
    rows_of(path, "velocity")
    assert caplog.text == ""


def test_valid_range_is_not_looked_at(tmp_path: Path) -> None:
    path = write(tmp_path / "radar.h5", only="velocity")
    with h5py.File(path, "a") as file:
        file["velocity"].attrs["valid_range"] = np.array([10, 20], "i2")
    assert same(rows_of(path, "velocity"), wanted(path, "velocity"))
    assert same(by_xarray(path, "velocity"), wanted(path, "velocity"))


# --- several files ----


def several(folder: Path) -> tuple[list[str], Array]:
    """Files packed each in its own way, and what they hold."""
    paths = []
    for i, (scale, missing) in enumerate([(0.01, -32768), (0.5, 7), (0.5, 7), (2.0, 3), (0.01, -32768)]):
        path = write(folder / f"{i}.nc", seed=i, only="reflectivity")
        with h5py.File(path, "a") as file:
            file["reflectivity"].attrs["scale_factor"] = scale
            file["reflectivity"].attrs["_FillValue"] = np.int16(missing)
        paths.append(str(path))
    return paths, np.concatenate([wanted(path, "reflectivity") for path in paths])


def test_each_file_is_unpacked_by_its_own_attributes(tmp_path: Path) -> None:
    paths, want = several(tmp_path)
    rows = np.random.default_rng(5).permutation(len(want))
    dataset = H5Dataset(paths, Field("reflectivity", cf=True, dtype="float32"))
    assert same(dataset.read_batch(rows), want[rows].astype("f4"))
    assert same(dataset[30], want[30].astype("f4"))
    for buffer in (0, "1MiB"):
        loader = DataLoader(dataset, 7, sampler=rows.tolist(), buffer=buffer)
        for _ in range(2):
            assert same(torch.cat(list(loader)).numpy(), want[rows].astype("f4"))
        assert (loader.stats()["buffer_hits"] > 0) is bool(buffer)
    copied = pickle.loads(pickle.dumps(dataset))
    assert same(copied.read_batch(rows[:9]), want[rows[:9]].astype("f4"))
    with pytest.raises(LayoutError, match="files of different packings: `rows` must say which row each sample is"):
        dataset.fields.convert(np.zeros((2, *SHAPE), "i2"))


def test_files_as_samples_are_unpacked_each_by_its_own(tmp_path: Path) -> None:
    paths, want = several(tmp_path)
    dataset = H5Dataset(paths, Field("reflectivity", cf=True), samples="files")
    assert same(dataset.read_batch([3, 1]), want.reshape(5, SAMPLES, *SHAPE)[[3, 1]])


def test_data_sets_of_different_packings_are_concatenated_as_torch_does(tmp_path: Path) -> None:
    paths, want = several(tmp_path)
    both = ConcatDataset([H5Dataset(path, Field("reflectivity", cf=True)) for path in paths])
    assert same(torch.cat(list(DataLoader(both, 11))).numpy(), want)


def test_files_unpacked_to_different_types_are_refused_with_both_their_names(tmp_path: Path) -> None:
    one = write(tmp_path / "one.nc", only="velocity")
    two = write(tmp_path / "two.nc", only="velocity")
    with h5py.File(two, "a") as file:
        file["velocity"].attrs["scale_factor"] = 0.25
    said = (
        f"{two}: /velocity is unpacked to float64 (scale_factor 0.25, add_offset 0, missing -32768), but to float32 in "
        f"{one} (scale_factor 0.01, add_offset 0, missing -32768): make an H5Dataset of each sort of file"
    )
    with pytest.raises(LayoutError, match=re.escape(said)):
        H5Dataset([one, two], Field("velocity", cf=True))


# --- what cannot be ----


@pytest.mark.parametrize(
    ("values", "attributes", "said"),
    [
        (np.array([b"a", b"b"]), {}, "cf=True is for numbers, and it is of |S1: leave cf out"),
        (np.array([True, False]), {}, "cf=True is for numbers, and it is of bool: leave cf out"),
        (np.array([1j, 2]), {}, "cf=True is for numbers, and it is of complex128: leave cf out"),
        (np.arange(2), {"scale_factor": "0.1"}, "its attribute scale_factor is the text '0.1', where cf=True needs a"),
        (np.arange(2), {"missing_value": "none"}, "its attribute missing_value is the text 'none', where cf=True"),
        (np.arange(2), {"scale_factor": [1.0, 2]}, "its attribute scale_factor has 2 values, where there should be"),
        (np.arange(2), {"add_offset": np.nan}, "its attribute add_offset is nan: nothing can be unpacked by that"),
        (
            np.arange(2),
            {"add_offset": np.array([True])},
            "its attribute add_offset is of bool, which is no number here",
        ),
        (np.arange(2), {"scale_factor": 2}, "scale_factor 2 of int64 would be worked out in int64; cf=True does it in"),
        (np.arange(2), {"missing_value": np.arange(65)}, "65 values are called missing; cf=True looks for 64 at most"),
    ],
)
def test_what_cannot_be_unpacked_is_refused_in_words(
    tmp_path: Path, values: Any, attributes: dict[str, Any], said: str
) -> None:
    path = odd(tmp_path / "x.h5", values, **attributes)
    with pytest.raises(LayoutError, match=re.escape(f"{path}: /x: {said}")):
        H5Dataset(path, Field("/x", cf=True))
    assert len(H5Dataset(path, "/x")) == 2


def test_a_field_says_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="cf=True gives fractions and NaN, which int32 cannot hold"):
        Field("x", cf=True, dtype="int32")
    with pytest.raises(ValueError, match="which values are missing is known by cf=True alone"):
        Field("x", missing=0)
    with pytest.raises(TypeError, match="missing must be a number"):
        Field("x", cf=True, missing="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="known once an H5Dataset has it; give it to one"):
        Field("x", cf=True).convert(np.zeros((2, 3), "i2"))


def test_missing_that_the_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "radar.h5", only="velocity")
    with pytest.raises(LayoutError, match="missing has values that float32 cannot hold"):
        H5Dataset(path, Field("velocity", cf=True, missing=1e300))


def test_a_field_with_cf_is_its_own_repr_and_equal_to_its_copy(tmp_path: Path) -> None:
    field = Field("velocity", cf=True, missing=0)
    assert repr(field) == "Field('velocity', cf=True, missing=0.0)"
    assert field == pickle.loads(pickle.dumps(field)) != Field("velocity", cf=True)
    bound = H5Dataset(write(tmp_path / "x.h5"), field).fields
    assert bound == pickle.loads(pickle.dumps(bound)) != field
    assert hash(bound) == hash(pickle.loads(pickle.dumps(bound)))


def test_what_netcdf4_writes_comes_as_xarray_has_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("netCDF4")
        with library.Dataset(tmp_path / "x.nc", "w") as file:
            file.createDimension("time", None)
            file.createDimension("range", 33)
            stored = file.createVariable("v", "i2", ("time", "range"), zlib=True, fill_value=-999, chunksizes=(4, 33))
            stored.setncatts({"scale_factor": 0.01, "add_offset": 3.0, "missing_value": np.int16(7), "units": "m/s"})
            stored.set_auto_maskandscale(False)
            stored[:] = np.random.default_rng(1).choice(np.array([-999, 7, 20, 300], "i2"), (50, 33))
    batch = rows_of(tmp_path / "x.nc", "v", np.arange(50))
    assert same(batch, by_xarray(tmp_path / "x.nc", "v")) and np.isnan(batch).mean() > 0.3


def test_a_measured_file_comes_as_xarray_has_it() -> None:
    path = SHARED / "climate-ukesm1" / "noy_AERmonZ_UKESM1-0-LL_piControl_r1i1p1f2_gnz_200001-200012.nc"
    batch = rows_of(str(path), "noy", np.arange(12))
    assert np.isnan(batch).any() and same(batch, wanted(path, "noy"))
    assert same(batch, by_xarray(path, "noy"))
    for name in ("lat", "time"):
        assert same(rows_of(str(path), name, np.arange(12)), by_xarray(path, name)[:12])
