"""Judges the values that come back from a compressed file, in exact arithmetic, without code of the encoder.

Neither the encoder's reading of attributes nor its arithmetic is used here. Integers are compared as integers. The
difference of two floating-point numbers is taken with its rounding error, and both are compared with a bound that is a
fraction.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.io.codec.skeleton import H5_ERRORS

Array = NDArray[Any]
Mask = NDArray[np.bool_]
AT_ONCE = 1 << 18  # values that are compared at a time: each takes some arrays of floats
ADDED_UP = ("beyond", "moved", "made", "crossed", "missing", "squares")  # of Judged
LIMITS = (("valid_min", ">="), ("valid_max", "<="), ("valid_range", ">=<="))


@dataclass(frozen=True)
class Meaning:
    """What the attributes of a dataset say about its values."""

    dtype: np.dtype[Any]  # of the numbers that the stored bits mean
    missing: tuple[Any, ...]  # numbers of that type
    limits: tuple[tuple[str, Any], ...]  # ">=" or "<=", and the outermost number of that type that is valid
    scale: Fraction | None  # an unpacked value is this times the number, and something more; None if that is unknown

    def numbers(self, stored: Array) -> Array:
        """Returns the numbers that stored values mean."""
        return stored.view(self.dtype)

    def are_missing(self, numbers: Array) -> Mask:
        """Returns which numbers mean that nothing was measured."""
        found = np.zeros(numbers.shape, bool)
        for one in self.missing:
            found |= np.isnan(numbers) if one != one else numbers == one
        return found

    def are_valid(self, numbers: Array) -> Iterator[Mask]:
        """Returns, for each limit, which numbers are on its valid side."""
        for side, end in self.limits:
            yield numbers >= end if side == ">=" else numbers <= end


@dataclass(frozen=True)
class Judged:
    """The result of comparing values with those that came back. Places are counted through the array."""

    beyond: int  # values that are off by more than the bound
    moved: int  # missing values that came back as others
    made: int  # values that came back as missing
    crossed: int  # values that came back on the other side of a limit
    missing: int
    first: int  # the place of the first of all these; -1 if there is none
    largest: Fraction  # difference
    squares: float  # of the differences of measured values, summed
    least: float | int  # measured value; inf if there is none
    most: float | int


def judged(wanted: Array, got: Array, bound: Fraction, meaning: Meaning) -> Judged:
    """Compares what came back with the original. Both are contiguous and of the same stored type."""
    here, there = wanted.reshape(-1), got.reshape(-1)
    blocks = [slice(at, at + AT_ONCE) for at in range(0, here.size, AT_ONCE)]
    parts = [_judge_values(here[block], there[block], bound, meaning) for block in blocks]
    firsts = [block.start + one.first for block, one in zip(blocks, parts, strict=True) if one.first >= 0]
    return Judged(
        **{name: sum(getattr(one, name) for one in parts) for name in ADDED_UP},
        first=min(firsts, default=-1),
        largest=max((one.largest for one in parts), default=Fraction(0)),
        least=min((one.least for one in parts), default=math.inf),
        most=max((one.most for one in parts), default=-math.inf),
    )


def _judge_values(wanted: Array, got: Array, bound: Fraction, meaning: Meaning) -> Judged:
    same = wanted.view(f"u{wanted.itemsize}") == got.view(f"u{got.itemsize}")
    before, after = meaning.numbers(wanted), meaning.numbers(got)
    was, became = meaning.are_missing(before), meaning.are_missing(after)
    crossed = np.zeros(same.shape, bool)
    for here, there in zip(meaning.are_valid(before), meaning.are_valid(after), strict=True):
        crossed |= here != there
    beyond, largest = (_floats_beyond if meaning.dtype.kind == "f" else _whole_beyond)(before, after, same, bound)
    wrong = beyond, was & ~same, became & ~was, crossed & ~was & ~became
    places = [int(one.argmax()) for one in wrong if one.any()]
    measured = np.isfinite(before) & ~was
    exact, off = before[measured], after[measured]
    ends = (exact.min().item(), exact.max().item()) if exact.size else (math.inf, -math.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.square(exact.astype(np.float64) - off.astype(np.float64)).sum())
    off_by, moved, made, past, missing = (int(one.sum()) for one in (*wrong, was))
    return Judged(off_by, moved, made, past, missing, min(places, default=-1), largest, squares, *ends)


def _whole_beyond(before: Array, after: Array, same: Mask, bound: Fraction) -> tuple[Mask, Fraction]:
    """Returns which integers are further apart than the bound, and how far the farthest are."""
    wide = np.int64 if before.dtype.kind == "i" else np.uint64
    here, there = before.astype(wide), after.astype(wide)
    apart = np.maximum(here, there).view(np.uint64) - np.minimum(here, there).view(np.uint64)  # modulo 2 ** 64: exact
    most = int(apart.max()) if apart.size else 0
    allowed = math.floor(bound)
    return (apart > np.uint64(allowed) if allowed < most else np.zeros(same.shape, bool)), Fraction(most)


def _floats_beyond(before: Array, after: Array, same: Mask, bound: Fraction) -> tuple[Mask, Fraction]:
    """Returns which floats are further apart than the bound, and how far the farthest are.

    What is not finite, and everything if the bound is 0, must be the same bit for bit.
    """
    finite = np.isfinite(before) & np.isfinite(after)
    beyond = ~same & ~finite
    here, there = (np.where(finite, one, 0).astype(np.float64) for one in (before, after))
    with np.errstate(over="ignore", invalid="ignore"):
        apart = here - there
        back = apart - here
        rest = (here - (apart - back)) + (-there - back)  # here - there is apart + rest, exactly, unless it overflows
        rest = np.where(apart < 0, -rest, rest)
        apart = np.abs(apart)
    largest = _largest(here, there, apart)
    if bound == 0:
        return beyond | ~same, largest
    low = float_below(bound)
    high = low if low == bound else math.nextafter(low, math.inf)
    beyond |= np.isfinite(apart) & (apart > high)
    for end in {low, high} - {math.inf}:  # only here the rest decides: off by apart + rest, exactly
        beyond |= (apart == end) & (rest > float_below(bound - Fraction(end)))
    for at in np.flatnonzero(np.isinf(apart) | np.isnan(rest)):
        beyond.flat[at] = abs(Fraction(here.flat[at]) - Fraction(there.flat[at])) > bound
    return beyond, largest


def _largest(here: Array, there: Array, apart: Array) -> Fraction:
    if not apart.size:
        return Fraction(0)
    at = int(apart.argmax())
    return abs(Fraction(here.flat[at]) - Fraction(there.flat[at]))


def float_below(number: Fraction) -> float:
    """Returns the largest float that is not above the number."""
    if number > Fraction(sys.float_info.max):
        return sys.float_info.max
    near = float(number)
    return near if Fraction(near) <= number else math.nextafter(near, -math.inf)


# --- attributes ----


def meaning_of(dataset: Any) -> Meaning:
    """Returns the Meaning of an open dataset of numbers."""
    stored = np.dtype(dataset.dtype).newbyteorder("=")
    said = attribute_text(read_attribute(dataset, "_Unsigned")).lower()
    turned = {("i", "true"): "u", ("u", "false"): "i"}.get((stored.kind, said), stored.kind)
    dtype = np.dtype(f"{turned}{stored.itemsize}")
    missing = [
        one for name in ("_FillValue", "missing_value") for one in attribute_numbers(read_attribute(dataset, name))
    ]
    with suppress(*H5_ERRORS):
        if dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            missing.append(dataset.fillvalue)
    numbers = [_in_type(one, stored, dtype) for one in missing]
    limits: list[tuple[str, Any]] = []
    for name, sides in LIMITS:
        found = attribute_numbers(read_attribute(dataset, name))
        if len(found) == len(sides) // 2:
            for at, one in enumerate(found):
                limits += _outermost(one, sides[2 * at : 2 * at + 2], dataset, dtype)
    if dtype != stored:  # the bits turn over between these two, so nothing may pass from one side to the other
        limits.append((">=", dtype.type(1 << (8 * dtype.itemsize - 1) if turned == "u" else 0)))
    scale, _, _ = packing_of_attributes(dataset)
    return Meaning(dtype, tuple(one for one in numbers if one is not None), tuple(limits), scale)


def read_attribute(dataset: Any, name: str) -> Any:
    with suppress(*H5_ERRORS):
        return dataset.attrs.get(name)
    return None


def attribute_text(said: Any) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said if isinstance(said, str) else ""


def attribute_numbers(said: Any) -> list[Any]:
    """Returns the numbers of an attribute, as numbers of numpy, or of Python where it is text."""
    if said is None or isinstance(said, h5py.Empty):
        return []
    values = np.ravel(np.asarray(said))
    if values.dtype.kind in "biuf":
        return list(values)
    found: list[Any] = []
    for one in values.tolist():
        for kind in (int, float):
            with suppress(ValueError, TypeError):
                found.append(kind(attribute_text(one)))
                break
    return found


def _fraction(number: Any) -> Fraction | None:
    whole = isinstance(number, (int, np.integer, np.bool_))
    if not whole and not np.isfinite(number):
        return None
    return Fraction(int(number)) if whole else Fraction(*number.as_integer_ratio())


def _in_type(number: Any, stored: np.dtype[Any], dtype: np.dtype[Any]) -> Any:
    """Returns a number that means "missing" as one of the type; None if the type has no such number."""
    with np.errstate(over="ignore", invalid="ignore"), suppress(OverflowError):
        if dtype.kind == "f":
            near = np.asarray(number).astype(dtype)[()]
            return None if np.isinf(near) else near
        value = _fraction(number)
        if value is None or value.denominator != 1:
            return None
        for kind in (stored, dtype):
            if np.iinfo(kind).min <= value <= np.iinfo(kind).max:
                return np.array([int(value)], kind).view(dtype)[0]
    return None


def packing_of_attributes(dataset: Any) -> tuple[Fraction | None, Fraction, np.dtype[Any] | None]:
    """Returns how numbers are unpacked: scale, offset, and their type; no type if there is neither."""
    found = [attribute_numbers(read_attribute(dataset, name))[:1] for name in ("scale_factor", "add_offset")]
    terms = [one for numbers in found for one in numbers]
    if not terms:
        return Fraction(1), Fraction(0), None
    scale, offset = (_fraction(one[0]) if one else Fraction(usual) for one, usual in zip(found, (1, 0), strict=True))
    return scale or None, offset or Fraction(0), np.result_type(*(np.asarray(one).dtype for one in terms))


def _outermost(number: Any, side: str, dataset: Any, dtype: np.dtype[Any]) -> Iterator[tuple[str, Any]]:
    """Returns a limit as the outermost valid number; if people may read it in several ways, one for each."""
    limit, kind = _fraction(number), np.asarray(number).dtype
    if limit is None:
        return
    scale, offset, by = packing_of_attributes(dataset)
    of_unpacked = by is not None and kind.kind == "f" and dtype.kind != "f"
    if not of_unpacked:
        yield from _within_type(limit, side, dtype)
        if dtype.kind == "f":  # the limit as rounded to the type of the data
            with np.errstate(over="ignore"), suppress(OverflowError):
                near = np.asarray(number).astype(dtype)[()]
                if np.isfinite(near):
                    yield side, near
    wider = by is not None and kind.itemsize > dtype.itemsize and (kind.kind == "f" or kind == by)
    if (of_unpacked or wider) and scale:
        turned = {">=": "<=", "<=": ">="}[side] if scale < 0 else side
        yield from _within_type((limit - offset) / scale, turned, dtype)


def _within_type(limit: Fraction, side: str, dtype: np.dtype[Any]) -> Iterator[tuple[str, Any]]:
    """Returns the outermost number of the type on the valid side of a limit; nothing if all or none are."""
    if dtype.kind != "f":
        whole = math.ceil(limit) if side == ">=" else math.floor(limit)
        if np.iinfo(dtype).min <= whole <= np.iinfo(dtype).max:
            yield side, dtype.type(whole)
        return
    if abs(limit) > Fraction(np.finfo(dtype).max.item()):
        return
    with np.errstate(over="ignore"):
        near = dtype.type(float(limit))
    inside = Fraction(near.item()) >= limit if side == ">=" else Fraction(near.item()) <= limit
    towards = np.inf if side == ">=" else -np.inf
    yield side, near if inside else np.nextafter(near, dtype.type(towards))
