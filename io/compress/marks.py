"""Reads from a dataset's attributes which values mean "nothing was measured", which are valid, which are labels.

A chunk with a bound keeps values with a special meaning bit for bit. No measured value becomes one of them, and none
crosses a limit of the valid range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.errors import CodecError
from solar.io.compress.codec import Codec
from solar.io.compress.skeleton import H5_ERRORS

MISSING = ("_FillValue", "missing_value")
FLAGS = ("flag_values", "flag_masks")
MOST_MARKS, MOST_LIMITS = 16, 8  # most_marks and most_limits of native/include/solar/codec.hpp
MOST_LABELS = 16  # different values at most, for data to look like labels
ENOUGH_LABELS = 1024  # values needed to judge a dataset
STEADY, FAR = 0.8, 1 / 16  # share of equal neighbours; distance of the others, as a share of the range


@dataclass(frozen=True)
class Marks:
    """Values of a dataset's own type that mean "missing", and limits of what is valid.

    `read_as` is the type of the numbers if an attribute (netCDF's _Unsigned) makes it another than the stored type.
    """

    values: NDArray[Any]
    limits: NDArray[Any]
    read_as: np.dtype[Any]

    def missing(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these values mean "missing"."""
        found: NDArray[np.bool_] = np.isin(values, self.values)
        if values.dtype.kind == "f" and np.isnan(self.values).any():
            found |= np.isnan(values)
        return found

    def real(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which values were measured: they are finite, and no marks."""
        found: NDArray[np.bool_] = np.isfinite(values) & ~np.isin(values, self.values)
        return found

    def numbers(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values as the numbers that they mean."""
        return values.view(self.read_as)

    def span(self, arrays: list[NDArray[Any]]) -> float:
        """The largest minus the smallest measured number; 0 if there is none."""
        least, largest = math.inf, -math.inf
        for array in arrays:
            real = self.numbers(array[self.real(array)])
            if real.size:
                least, largest = min(least, float(real.min())), max(largest, float(real.max()))
        return max(0.0, largest - least)

    def crossed(self, values: NDArray[Any], restored: NDArray[Any]) -> NDArray[np.bool_]:
        """Which values crossed a limit of what is valid."""
        found = np.zeros(values.shape, bool)
        for limit in self.limits:
            found |= (values < limit) != (restored < limit)
        return found

    def kept_by(self, codec: Codec) -> Codec:
        """The codec, set to keep marks and limits. A lossless one keeps them anyway."""
        if codec.kind == "lossless":
            return codec
        if self.too_many:
            raise CodecError(
                f"{self.too_many}, and a bound keeps {MOST_MARKS} such values and {MOST_LIMITS} limits: say lossless"
            )
        marks = self.values[np.isfinite(self.values)]
        return replace(codec, marks=marks.tobytes(), limits=self.limits.tobytes())

    @property
    def too_many(self) -> str:
        """Why a codec with a bound cannot keep them; empty if it can."""
        if len(self.values) > MOST_MARKS:
            return f"{len(self.values)} values of it mean something else than a number"
        return f"{len(self.limits)} limits divide its values" if len(self.limits) > MOST_LIMITS else ""


def marks_of(dataset: Any) -> Marks:
    """The Marks of an open dataset of numbers, by its attributes and its fill value."""
    dtype = dataset.dtype.newbyteorder("=")
    other = _read_as(dataset, dtype)
    found: list[Any] = []
    for name in MISSING:
        found += _numbers(_attribute(dataset, name))
    with suppress(*H5_ERRORS):
        if dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            found.append(dataset.fillvalue)
    values = {one.tobytes(): one for value in found for one in _stored(value, dtype, other)}
    limits = set(_limits(dataset, dtype, other))
    if other != dtype:  # where unsigned numbers turn negative: after 127 comes -128, which means 128
        limits.add(_least_turned(dtype))
    return Marks(np.array(sorted(values.values()), dtype), np.array(sorted(limits), dtype), other)


def labelled(dataset: Any) -> str:
    """The attributes that declare the values to be labels; empty if none does."""
    named = [name for name in FLAGS if _attribute(dataset, name) is not None]
    return f"its values are flags ({' and '.join(named)})" if named else ""


def like_labels(dataset: Any, arrays: list[NDArray[Any]]) -> str:
    """Why values like these seem to be labels rather than measurements; else empty."""
    if said := labelled(dataset):
        return said
    marks = marks_of(dataset)
    some = np.concatenate([array[marks.real(array)] for array in arrays]) if arrays else np.empty(0)
    if some.size < ENOUGH_LABELS:
        return ""
    ordered = np.sort(some)
    different = 1 + int((ordered[1:] != ordered[:-1]).sum())
    if different <= MOST_LABELS:
        return f"it has {different} different value{'s' if different > 1 else ''}, as labels and masks have"
    if some.dtype.kind not in "iu":
        return ""
    if different == some.size:
        return "its whole numbers are all different, as those of ids are"
    span = float(ordered[-1]) - float(ordered[0])
    jumps = np.concatenate([np.abs(np.diff(array.astype(np.float64), axis=-1)).ravel() for array in arrays])
    far = jumps[jumps > 0]
    if far.size < (1 - STEADY) * jumps.size and far.size and np.median(far) > FAR * span:
        return "its whole numbers stay the same and then jump, as those of segments do"
    return ""


def _attribute(dataset: Any, name: str) -> Any:
    with suppress(*H5_ERRORS):  # unreadable attributes
        return dataset.attrs.get(name)
    return None


def _numbers(said: Any) -> list[Any]:
    """The numbers of an attribute, which may hold several, or text."""
    if said is None or isinstance(said, h5py.Empty):
        return []
    values = np.ravel(said)
    if values.dtype.kind in "biuf":
        return list(values)
    found: list[Any] = []
    for one in values.tolist():
        text = one.decode("utf-8", "replace") if isinstance(one, bytes) else one
        for number in (int, float):
            with suppress(ValueError, TypeError):
                found.append(number(text))
                break
    return found


def _read_as(dataset: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    said = _attribute(dataset, "_Unsigned")
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    wanted = {"true": "u", "false": "i"}.get(text.lower()) if isinstance(text, str) else None
    if wanted is None or dtype.kind not in "iu":
        return dtype
    return np.dtype(f"{wanted}{dtype.itemsize}")


def _least_turned(dtype: np.dtype[Any]) -> Any:
    """The least number whose sign changes between the stored type and the type it is read as."""
    return dtype.type(0 if dtype.kind == "i" else 1 << (8 * dtype.itemsize - 1))


def _stored(value: Any, dtype: np.dtype[Any], other: np.dtype[Any]) -> Iterator[Any]:
    """A number as a stored value of this type; nothing if the type has no such value."""
    if dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.asarray(value).astype(dtype)[()]
        if not np.isinf(found):
            yield found
        return
    if not math.isfinite(value) or int(value) != value:
        return
    for kind in {dtype, other}:
        if np.iinfo(kind).min <= int(value) <= np.iinfo(kind).max:
            yield np.array([int(value)], kind).view(dtype)[0]
            return


# --- limits ----


def _limits(dataset: Any, dtype: np.dtype[Any], other: np.dtype[Any]) -> Iterator[Any]:
    """The first value beyond each limit."""
    for name, ends in (("valid_min", "<"), ("valid_max", ">"), ("valid_range", "<>")):
        said = _attribute(dataset, name)
        numbers = _numbers(said)
        if len(numbers) != len(ends):
            continue
        for number, end in zip(numbers, ends, strict=True):
            if math.isnan(number):
                continue
            if dtype.kind == "f":
                yield from _first_floats(number, end, dtype)
            else:
                yield from _first_whole(_packed(dataset, number), end, dtype, other)


def _first_floats(number: Any, end: str, dtype: np.dtype[Any]) -> Iterator[Any]:
    """The first values beyond the exact number, and beyond it as rounded to this type: people compare with either."""
    with np.errstate(over="ignore"):
        near = np.asarray(number).astype(dtype)[()]
        above = np.nextafter(near, dtype.type(np.inf))
    if np.isinf(near):
        return
    yield near if end == "<" else above
    if float(near) != float(number):  # the exact one lies between near and a neighbour
        yield above if float(near) < float(number) else near


def _first_whole(number: float, end: str, dtype: np.dtype[Any], other: np.dtype[Any]) -> Iterator[Any]:
    """The first integers beyond a limit. A packed limit is rounded, so it may be either of two."""
    if not math.isfinite(number):
        return
    near = round(number)
    if isinstance(number, float) and abs(number - near) <= 1e-5 * max(1.0, abs(number)):
        firsts = {near, near + 1}
    else:
        firsts = {math.ceil(number) if end == "<" else math.floor(number) + 1}
    facts = np.iinfo(other)
    for first in firsts:
        if facts.min < first <= facts.max:
            yield np.array([first], other).view(dtype)[0]


def _packed(dataset: Any, number: Any) -> Any:
    """A limit in terms of the stored integers. In netCDF, a limit of another type refers to the unpacked values."""
    scale, offset = (_numbers(_attribute(dataset, name)) for name in ("scale_factor", "add_offset"))
    if not isinstance(number, (float, np.floating)) or not (scale or offset):
        return number if isinstance(number, (int, np.integer)) else float(number)
    by, beside = (float(scale[0]) if scale else 1.0), (float(offset[0]) if offset else 0.0)
    return (float(number) - beside) / by if by else math.nan
