"""What tests of netCDF's conventions need: xarray's rules in numpy, files of packed fields, xarray where it is."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from solar import Field, H5Dataset

Array = NDArray[Any]
SAMPLES, SHAPE = 24, (7, 9)
ALL = np.arange(SAMPLES)
ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


def by_numpy(raw: Array, attributes: dict[str, Any]) -> Array:
    """What xarray makes of stored numbers, step by step on whole arrays. Attributes are numpy's scalars and arrays.

    TypeError where it would work in no floating-point type of 32 or 64 bits.
    """
    data = raw.astype(raw.dtype.newbyteorder("="))
    fills = {name: np.ravel(attributes[name]) for name in ("_FillValue", "missing_value") if name in attributes}
    if data.dtype.kind in "iu":
        fills = {name: values for name, values in fills.items() if not np.isnan(values).all()}
    missing: list[Any] = [value for values in fills.values() for value in values if not np.isnan(value)]
    if (data.dtype.kind, attributes.get("_Unsigned")) in (("i", "true"), ("u", "false")):
        turned = np.dtype(("u" if data.dtype.kind == "i" else "i") + str(data.dtype.itemsize))
        for value in fills.get("_FillValue", np.empty(0)):
            seen = np.array(value).astype(data.dtype).view(turned)
            missing = [one for one in missing if one != value] + [seen.item() if turned.kind == "u" else seen[()]]
        data = data.view(turned)
    scale, offset = attributes.get("scale_factor"), attributes.get("add_offset")
    with np.errstate(all="ignore"):
        if missing:
            data = data.astype(floating(data.dtype, scale, offset))
            data[np.logical_or.reduce([data == value for value in missing])] = np.nan
        if scale is None and offset is None:
            return data
        if not fills:
            data = data.astype(floating(data.dtype, scale, offset))
        if data.dtype.str[1:] not in ("f4", "f8"):
            raise TypeError(data.dtype)
        if scale is not None:
            data *= scale
        if offset is not None:
            data += offset
        return data


def floating(dtype: np.dtype[Any], scale: Any, offset: Any) -> np.dtype[Any]:
    """The type that xarray unpacks to."""
    if scale is None and offset is None:
        if dtype.kind == "f":
            return dtype
        return np.dtype("f4" if dtype.itemsize <= 2 else "f8")
    if scale is not None and offset is not None and scale.dtype == offset.dtype and scale.dtype.str[1:] in ("f4", "f8"):
        return np.dtype("f8") if dtype.kind in "iu" and dtype.itemsize == 4 else np.dtype(scale.dtype)
    if offset is not None:
        return np.dtype("f8")
    if scale.dtype.str[1:] not in ("f4", "f8"):
        raise TypeError(scale.dtype)
    return np.dtype(scale.dtype)


def by_xarray(path: Path | str, *names: str) -> Any:
    """What xarray.open_dataset makes of a variable, or of several; the test is skipped where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xarray = pytest.importorskip("xarray", reason="the oracle of cf=True (the dev extra)")
        pytest.importorskip("h5netcdf")
        options = {"decode_times": False, "engine": "h5netcdf", "phony_dims": "sort"}
        with xarray.open_dataset(str(path), **options) as opened:
            values = [opened[name].values for name in names]
            return values[0] if len(values) == 1 else values


def by_decode_cf(raw: Array, attributes: dict[str, Any]) -> Array:
    """The same of an array in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xarray = pytest.importorskip("xarray", reason="the oracle of cf=True (the dev extra)")
        dims = tuple("abcdefgh"[: raw.ndim])
        packed = xarray.Dataset({"x": xarray.Variable(dims, raw, attributes)})
        values: Array = xarray.decode_cf(packed, decode_times=False)["x"].values
        return values


# Fields as radars and models write them.
FIELDS: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "velocity": ("i2", {"scale_factor": np.float32(0.01), "add_offset": np.float32(0)}, [-32768]),
    "reflectivity": ("i2", {"scale_factor": 0.01, "add_offset": -32.5}, [-32768]),
    "width": ("u1", {"scale_factor": np.float32(0.125)}, [255]),
    "phase": ("u2", {"add_offset": np.float32(-180)}, [0, 65535]),
    "rain": ("i4", {"scale_factor": np.float32(1e-3), "add_offset": np.float32(7)}, [-9999]),
    "clutter": ("i1", {"_Unsigned": "true", "scale_factor": np.float32(0.5)}, [-1]),
    "temperature": ("f4", {}, [np.float32(-9999), np.float32(1e20)]),
    "height": (">f8", {"scale_factor": np.float32(0.3)}, [1e36]),
    "nothing": ("f4", {"scale_factor": 0.1}, [np.nan]),
    "count": ("i8", {}, [-1]),
    "half": ("f2", {}, [-999]),
    "bare": ("i2", {}, []),
    "times": ("f8", {"units": "days since 1970-01-01"}, []),
}


def write(path: Path, seed: int = 0, only: str | None = None, **options: Any) -> Path:
    """A file of all FIELDS, of which 30 % are missing."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for name, (dtype, attributes, missing) in FIELDS.items():
            if only is not None and name != only:
                continue
            values = rng.integers(0, 100, (SAMPLES, *SHAPE)).astype(dtype)
            if missing:
                at = rng.random(values.shape) < 0.3
                values[at] = rng.choice(np.array(missing, dtype), np.count_nonzero(at))
            stored = file.create_dataset(name, data=values, **options)
            for key, value in attributes.items():
                stored.attrs[key] = value
            if missing:
                stored.attrs["_FillValue"] = np.array(missing[0], stored.dtype)
            if len(missing) > 1:
                stored.attrs["missing_value"] = np.array(missing[1:], stored.dtype)
    return path


def odd(path: Path, values: Any, **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("x", data=values)
        for key, value in attributes.items():
            stored.attrs[key] = value
    return path


def attributes_of(path: Path | str, name: str) -> dict[str, Any]:
    """By h5py, as netCDF's libraries give them."""
    with h5py.File(path) as file:
        found = {key: value for key, value in file[name].attrs.items() if key in ATTRIBUTES}
    return {key: value[0] if np.shape(value) == (1,) else value for key, value in found.items()}


def wanted(path: Path | str, name: str) -> Array:
    with h5py.File(path) as file:
        return by_numpy(file[name][()], attributes_of(path, name))


def rows_of(path: Any, name: str, rows: Any = ALL, **options: Any) -> Any:
    return H5Dataset(path, Field(name, cf=True, **options)).read_batch(rows)
