"""Converts a batch as a Field asks: by native code, or by numpy where that has no conversion."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.io.given import BFLOAT16, Shape
from solar.io.layout.packing import Packing


class Converted(NamedTuple):
    """How samples of one shape and dtype are converted, and the result's shape and dtype."""

    shape: Shape
    dtype: np.dtype[Any]
    mean: NDArray[Any] | None  # of that dtype; of float32 for bfloat16
    std: NDArray[Any] | None
    unpacks: bool
    cast: bool  # cast, unpacked or normalised: values change, not only places
    native: bool


def memory(shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _native.take(nbytes))


def check_out(out: NDArray[Any], shape: Shape, dtype: np.dtype[Any], batch: NDArray[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, not {type(out).__name__}")
    if (out.shape, out.dtype) != (shape, dtype):
        raise ValueError(f"out must be of shape {shape} and {dtype}; it is of shape {out.shape} and {out.dtype}")
    if not out.flags.carray:
        raise ValueError("out must be contiguous in C order, aligned and writeable")
    if np.may_share_memory(out, batch):
        raise ValueError("out must not share memory with the batch")


def by_native_code(
    view: NDArray[Any], out: NDArray[Any], converted: Converted, packing: Packing | None, instead: float | None
) -> None:
    if converted.cast:
        told = None if packing is None else packing.told(instead)
        _native.convert(view, out, converted.mean, converted.std, told)
    else:  # whatever they mean, they are only bytes here
        item = f"V{converted.dtype.itemsize}"
        _native.convert(view.view(item), out.view(item))


def by_numpy(
    view: NDArray[Any], out: NDArray[Any], converted: Converted, packing: Packing | None, instead: float | None
) -> None:
    with np.errstate(all="ignore"):
        if packing is not None:  # which only native code does
            unpacked = np.empty(view.shape, packing.work)
            _native.convert(view, unpacked, packing=packing.told(None))
            view = unpacked
        if out.dtype == BFLOAT16:
            _native.convert(view.astype(np.float32), out, converted.mean, converted.std)
            return
        np.copyto(out, view, casting="unsafe")
        if converted.mean is not None:
            np.subtract(out, converted.mean, out=out)
        if converted.std is not None:
            np.divide(out, converted.std, out=out)
        if instead is not None:
            np.copyto(out, instead, where=np.isnan(out))
