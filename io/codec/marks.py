"""Finds out from the attributes of a dataset which values are marks, limits or labels.

A chunk with a bound keeps values with a special meaning bit for bit. No measured value becomes one of them, and none
crosses a limit of the valid range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.errors import CodecError, LayoutError
from solar.io.codec.codec import OUR_FILTER, Codec, as_fraction, rounded_down
from solar.io.codec.skeleton import H5_ERRORS

MISSING = ("_FillValue", "missing_value")
FLAGS = ("flag_values", "flag_masks")
SCALING = ("scale_factor", "add_offset")
STORED_ADVICE = "give the bound in the unit of the stored numbers (--stored), or set a number"
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

    def real(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Returns which values were measured: they are finite, and no marks."""
        found: NDArray[np.bool_] = np.isfinite(values) & ~np.isin(values, self.values)
        return found

    def numbers(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the values as the numbers that they mean."""
        return values.view(self.read_as)

    def extremes(self, values: NDArray[Any]) -> tuple[float | int, float | int]:
        """Returns the least and the largest measured number, exactly; inf and -inf if there is none."""
        real = self.numbers(values[self.real(values)])
        return (real.min().item(), real.max().item()) if real.size else (math.inf, -math.inf)

    def span(self, arrays: list[NDArray[Any]]) -> Fraction:
        """Returns the largest minus the smallest measured number, exactly; 0 if there is none."""
        return span_between(self.extremes(array) for array in arrays)

    def kept_by(self, codec: Codec) -> Codec:
        """Returns the codec, set to keep marks and limits. A lossless one keeps them anyway."""
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
        """Returns why a codec with a bound cannot keep them; empty if it can."""
        if len(self.values) > MOST_MARKS:
            return f"{len(self.values)} values of it mean something else than a number"
        return f"{len(self.limits)} limits divide its values" if len(self.limits) > MOST_LIMITS else ""


def span_between(extremes: Iterable[tuple[float | int, float | int]]) -> Fraction:
    """Returns the largest minus the smallest of the least and largest numbers of several arrays, exactly."""
    least, largest = math.inf, -math.inf
    for low, high in extremes:
        least, largest = min(least, low), max(largest, high)
    return Fraction(largest) - Fraction(least) if least <= largest else Fraction(0)


def marks_of(dataset: Any) -> Marks:
    """Returns the Marks of an open dataset of numbers, by its attributes and its fill value."""
    dtype = dataset.dtype.newbyteorder("=")
    other = _read_as(dataset, dtype)
    found: list[Any] = []
    for name in MISSING:
        found += mark_numbers(attribute_of_marks(dataset, name))
    with suppress(*H5_ERRORS):
        if dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            found.append(dataset.fillvalue)
    values = {one.tobytes(): one for value in found for one in stored_value(value, dtype, other)}
    limits = set(_limits(dataset, dtype, other))
    if other != dtype:  # where unsigned numbers turn negative: after 127 comes -128, which means 128
        limits.add(_least_turned(dtype))
    return Marks(np.array(sorted(values.values()), dtype), np.array(sorted(limits), dtype), other)


def labelled(dataset: Any) -> str:
    """Returns the attributes that declare the values to be labels; empty if none does."""
    named = [name for name in FLAGS if attribute_of_marks(dataset, name) is not None]
    return f"its values are flags ({' and '.join(named)})" if named else ""


def like_labels(dataset: Any, arrays: list[NDArray[Any]]) -> str:
    """Returns why values like these seem to be labels rather than measurements; else empty."""
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


def attribute_of_marks(dataset: Any, name: str) -> Any:
    with suppress(*H5_ERRORS):  # unreadable attributes
        return dataset.attrs.get(name)
    return None


def mark_numbers(said: Any) -> list[Any]:
    """Returns the numbers of an attribute, which may hold several, or text."""
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
    said = attribute_of_marks(dataset, "_Unsigned")
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    wanted = {"true": "u", "false": "i"}.get(text.lower()) if isinstance(text, str) else None
    if wanted is None or dtype.kind not in "iu":
        return dtype
    return np.dtype(f"{wanted}{dtype.itemsize}")


def _least_turned(dtype: np.dtype[Any]) -> Any:
    """Returns the least number whose sign changes between the stored type and the type it is read as."""
    return dtype.type(0 if dtype.kind == "i" else 1 << (8 * dtype.itemsize - 1))


def stored_value(value: Any, dtype: np.dtype[Any], other: np.dtype[Any]) -> Iterator[Any]:
    """Returns a number as a stored value of this type; nothing if the type has no such value."""
    if dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"), suppress(OverflowError):  # text of hundreds of digits
            found = np.asarray(value).astype(dtype)[()]
            if not np.isinf(found):
                yield found
        return
    number = as_fraction(value)
    if number is None or number.denominator != 1:
        return
    for kind in (dtype, other):
        if np.iinfo(kind).min <= number <= np.iinfo(kind).max:
            yield np.array([int(number)], kind).view(dtype)[0]
            return


# --- limits ----


Unpacking = tuple[Fraction, Fraction, np.dtype[Any]]  # scale, offset, and the type of these


def _limits(dataset: Any, dtype: np.dtype[Any], other: np.dtype[Any]) -> Iterator[Any]:
    """Yields the first value beyond each limit."""
    unpacked = _unpacking(dataset)
    for name, ends in (("valid_min", "<"), ("valid_max", ">"), ("valid_range", "<>")):
        numbers = mark_numbers(attribute_of_marks(dataset, name))
        if len(numbers) != len(ends):
            continue
        for number, end in zip(numbers, ends, strict=True):
            if (limit := as_fraction(number)) is None:
                continue
            for at, way, inexact in _as_stored(number, limit, end, dtype, unpacked):
                if dtype.kind == "f":
                    yield from _first_floats(at, way, dtype)
                else:
                    yield from _first_whole(at, way, inexact, other, dtype)


def _unpacking(dataset: Any) -> Unpacking | None:
    """Returns the scale, the offset and their type, if a dataset has an offset or a scale other than 0."""
    found = {name: mark_numbers(attribute_of_marks(dataset, name))[:1] for name in SCALING}
    terms = [one for numbers in found.values() for one in numbers]
    scale, offset = (
        as_fraction(*found[name]) if found[name] else usual for name, usual in zip(SCALING, (1, 0), strict=True)
    )
    if not terms or not scale or offset is None:
        return None
    return Fraction(scale), Fraction(offset), np.result_type(*(np.asarray(one).dtype for one in terms))


def _as_stored(
    number: Any, limit: Fraction, end: str, dtype: np.dtype[Any], unpacked: Unpacking | None
) -> Iterator[tuple[Fraction, str, bool]]:
    """Returns a limit among the stored numbers, which end of them it is, and whether people may have rounded it.

    In netCDF, a limit of the unpacked type, wider than the stored one, refers to the unpacked values. Of stored numbers
    that are no integers, and if it may be meant in either way, no value crosses it in any way.
    """
    kind = np.asarray(number).dtype
    real = kind.kind == "f"
    if unpacked is None or not (real and dtype.kind != "f"):
        yield limit, end, real
    if unpacked is None:
        return
    scale, offset, by = unpacked
    wider = kind.itemsize > dtype.itemsize and (real or kind == by)
    if (real and dtype.kind != "f") or wider:
        turned = {"<": ">", ">": "<"}[end] if scale < 0 else end
        yield (limit - offset) / scale, turned, True


def _first_floats(limit: Fraction, end: str, dtype: np.dtype[Any]) -> Iterator[Any]:
    """Yields the first values beyond a limit, and beyond it as rounded to this type: people compare with either."""
    with np.errstate(over="ignore"):
        try:
            near = dtype.type(float(limit))
        except OverflowError:
            return
        above = np.nextafter(near, dtype.type(np.inf))
    if np.isinf(near):
        return
    yield near if end == "<" else above
    if as_fraction(near) != limit:  # which lies between near and a neighbour
        yield above if Fraction(float(near)) < limit else near


def _first_whole(limit: Fraction, end: str, inexact: bool, other: np.dtype[Any], dtype: np.dtype[Any]) -> Iterator[Any]:
    """Yields the first integers beyond a limit. If people may have rounded it, it may be either of two."""
    near = round(limit)
    firsts = {math.ceil(limit) if end == "<" else math.floor(limit) + 1}
    if inexact and abs(limit - near) <= max(Fraction(1), abs(limit)) / 100_000:
        firsts |= {near, near + 1}
    facts = np.iinfo(other)
    for first in firsts:
        if facts.min < first <= facts.max:
            yield np.array([first], other).view(dtype)[0]


# --- the unit of a bound ----


def scale_of(dataset: Any) -> Fraction:
    """Returns the distance of unpacked values whose stored numbers are one apart: 1 unless the data are packed.

    Raises LayoutError if the attribute scale_factor exists and is not one number.
    """
    try:
        said = dataset.attrs.get(SCALING[0])  # None only where it is missing
    except H5_ERRORS as error:
        raise LayoutError(f"{_no_scale(dataset)} cannot be read: {error}; {STORED_ADVICE}") from error
    if said is None:
        return Fraction(1)
    values = np.ravel(np.asarray(said)) if not isinstance(said, h5py.Empty) else np.empty(0)
    if values.size != 1:
        raise LayoutError(f"{_no_scale(dataset)} has {values.size} values, where there should be one; {STORED_ADVICE}")
    if values.dtype.kind not in "iuf":
        raise LayoutError(f"{_no_scale(dataset)} is {values.tolist()[0]!r}, which is no number; {STORED_ADVICE}")
    if not (scale := as_fraction(values[0])):
        raise LayoutError(f"{_no_scale(dataset)} is {values[0]}: no value can be unpacked by it; {STORED_ADVICE}")
    return abs(scale)


def in_stored_unit(codec: Codec, dataset: Any) -> tuple[Codec, Fraction]:
    """Returns the codec with an absolute bound in the unit of the stored numbers, never rounded up, and that unit.

    The unit is the distance of unpacked values whose stored numbers are one apart; 1 if the bound is one of stored
    numbers, or if only these are known.
    """
    if codec.stored or codec.kind == "lossless":
        return codec, Fraction(1)
    if codec.kind == "rel":  # a share of the range is the same in either unit
        with suppress(LayoutError):
            return codec, scale_of(dataset)
        return codec, Fraction(1)
    unit = scale_of(dataset)
    bound = rounded_down(Fraction(codec.bound) / unit)
    if codec.filter != OUR_FILTER and bound == 0:
        raise CodecError(f"{codec.filter} needs a bound above 0, and {codec.bound:g} is less than it can keep")
    return replace(codec, bound=bound), unit


def _no_scale(dataset: Any) -> str:
    return f"{dataset.file.filename}: {dataset.name}: its attribute {SCALING[0]}"
