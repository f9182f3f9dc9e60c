"""Random datasets to be compressed, and an oracle of fractions and whole numbers that knows nothing of the encoder.

case(seed) -> Case: values, attributes, setting
wrong(Case, values that came back) -> what does not hold, in words
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator
TYPES = (
    *("<f4", "<f8", ">f4", ">f8") * 3,
    *(f"{order}{kind}{n}" for order in "<>" for kind in "iu" for n in (1, 2, 4, 8)),
)
SCALES = (20.0, 0.01, 1e-3, 0.1, -0.5, 3.0, 1e-30, 1e6, 2.0**-40, 7)


@dataclass(frozen=True)
class Case:
    """A dataset and what is asked of it."""

    values: Array  # as stored
    attributes: dict[str, Any]
    fill: Any  # HDF5's own fill value; None
    options: dict[str, Any]  # of h5py's create_dataset
    kind: str
    bound: float
    stored: bool
    setting: str

    @property
    def meant(self) -> np.dtype[Any]:
        """The type of the numbers that are meant."""
        kind = {("i", "true"): "u", ("u", "false"): "i"}.get(
            (self.values.dtype.kind, self.attributes.get("_Unsigned", "")), self.values.dtype.kind
        )
        return np.dtype(f"{kind}{self.values.dtype.itemsize}")


def case(seed: int) -> Case:
    """The case of a seed, the same for ever."""
    rng = np.random.default_rng([42, seed])
    dtype = np.dtype(str(rng.choice(TYPES)))
    shape = (*rng.integers(1, (20, 40), 2)[: rng.integers(1, 3)].tolist(), int(rng.integers(2, 40)))
    own = dtype.newbyteorder("=")
    values = _floats(rng, own, math.prod(shape)) if own.kind == "f" else _whole(rng, own, math.prod(shape))
    attributes: dict[str, Any] = {}
    if own.kind != "f" and rng.random() < 0.15:
        attributes["_Unsigned"] = "true" if own.kind == "i" else "false"
    scale, offset = _packing(rng, attributes)
    fill = _missing(rng, values, attributes)
    _limits(rng, values, attributes, scale, offset)
    kind = str(rng.choice(["abs", "abs", "rel", "rel", "lossless"]))
    stored = kind == "abs" and rng.random() < 0.3
    draft = Case(values, attributes, fill, {}, kind, 0.0, stored, "")
    bound = _bound(rng, draft, Fraction(1) if stored else scale_of(attributes))
    said = "lossless" if kind == "lossless" else f"{kind}={bound!r}{',stored' if stored else ''}"
    said += str(rng.choice(["", "", ",coder=pack", ",coder=dense"]))
    said += str(rng.choice(["", "", "", ",predictor=patches", ",predictor=none", ",predictor=interpolation"]))
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["chunks"] = tuple(int(rng.integers(1, n + 1)) for n in shape)
        options |= {"compression": "gzip"} if rng.random() < 0.5 else {}
    return Case(values.reshape(shape).astype(dtype), attributes, fill, options, kind, bound, stored, said)


def _whole(rng: Random, dtype: np.dtype[Any], count: int) -> Array:
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    kind = rng.integers(5)
    if kind == 0:
        return rng.integers(least, most, count, dtype, endpoint=True)
    middle = int(rng.integers(least, most, dtype=dtype, endpoint=True))
    if kind == 1:  # close to an end
        middle = least if rng.random() < 0.5 else most
    apart = int(rng.choice([1, 1, 7, 1000, 1 << 20, 1 << 54]))
    steps = np.cumsum(rng.integers(-3, 4, count)) if kind == 2 else rng.integers(-500, 500, count)
    return np.array([min(max(middle + apart * int(one), least), most) for one in steps], dtype)


def _floats(rng: Random, dtype: np.dtype[Any], count: int) -> Array:
    tiny, huge = (np.finfo(dtype).tiny, np.finfo(dtype).max)
    size = [1.0, 1e-6, 1e6, float(tiny) * 4, float(huge) / 8][rng.integers(5)]
    with np.errstate(over="ignore", under="ignore"):
        smooth = rng.standard_normal(count).cumsum() / 10
        rough = rng.uniform(-1, 1, count)
        found: Array = ((smooth / max(1.0, np.abs(smooth).max()) if rng.random() < 0.5 else rough) * size).astype(dtype)
    if rng.random() < 0.2:
        found = np.round(rng.normal(0, 30, count)).astype(dtype)  # counts
    if rng.random() < 0.5:
        strange = [np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, huge, -huge, tiny, float(tiny) / 8, -float(tiny) / 2]
        few = rng.integers(0, count, max(1, count // 20))
        found[few] = rng.choice(np.array(strange, dtype), len(few))
    return found


def _as_attribute(rng: Random, number: Any) -> Any:
    """A number in one of the forms that files have it in."""
    form = rng.integers(4)
    if form == 0:
        return np.array([number])
    if form == 1:
        return np.asarray(number).astype(np.asarray(number).dtype.newbyteorder(">"))
    return number


def _packing(rng: Random, attributes: dict[str, Any]) -> tuple[Fraction, Fraction]:
    scale, offset = Fraction(1), Fraction(0)
    if rng.random() < 0.4:
        one = rng.choice(np.array(SCALES)).item()
        kinds: list[Any] = [np.float32, np.float64] + ([np.int64, np.int16] if one in (20.0, 3.0, 7) else [])
        said = kinds[rng.integers(len(kinds))](one)
        scale = Fraction(said.item())
        attributes["scale_factor"] = _as_attribute(rng, said)
        if rng.random() < 0.5:
            beside = np.float64(rng.choice([0.5, -273.15, 1e9]))
            offset = Fraction(float(beside))
            attributes["add_offset"] = _as_attribute(rng, beside)
    return scale, offset


def _missing(rng: Random, values: Array, attributes: dict[str, Any]) -> Any:
    """Says in one way or another that some values are missing, and strews them."""
    if rng.random() < 0.5:
        return None
    ends = np.finfo(values.dtype) if values.dtype.kind == "f" else np.iinfo(values.dtype)
    mark = rng.choice(np.array([ends.max, ends.min, values[0], values[-1], 0], values.dtype))
    if values.dtype.kind == "f" and rng.random() < 0.2:
        mark = values.dtype.type(np.nan)
    values[rng.random(values.size) < rng.choice([0.01, 0.3])] = mark
    how = rng.integers(3)
    if how == 2:
        return mark
    attributes[("_FillValue", "missing_value")[how]] = _as_attribute(rng, mark)
    return None


def _limits(rng: Random, values: Array, attributes: dict[str, Any], scale: Fraction, offset: Fraction) -> None:
    """Limits at, or next to, some of the values."""
    if rng.random() < 0.5:
        return
    some = values[np.isfinite(values)]
    if not some.size:
        return
    low, high = sorted(rng.choice(some, 2).tolist())
    form = rng.integers(4)
    said: list[Any] = [values.dtype.type(low), values.dtype.type(high)]
    if form == 0:  # of the unpacked type
        try:
            said = [np.float64(float(Fraction(one) * scale + offset)) for one in (low, high)]
        except OverflowError:
            return
        said = sorted(said)
    elif form == 1 and values.dtype.kind != "f":
        said = [np.float64(low), np.float64(high)]
    elif form == 2:
        with np.errstate(over="ignore"):
            said = [np.nextafter(np.float64(low), np.inf), np.nextafter(np.float64(high), -np.inf)]
    if "_Unsigned" in attributes and form != 0:
        return
    if rng.random() < 0.4:
        attributes["valid_range"] = np.array(said)
        return
    for name, one in zip(("valid_min", "valid_max"), said, strict=True):
        if rng.random() < 0.8:
            attributes[name] = _as_attribute(rng, one)


def _bound(rng: Random, draft: Case, unit: Fraction) -> float:
    if draft.kind == "lossless":
        return 0.0
    if draft.kind == "rel":
        share = float(rng.choice([0.3, 0.1, 1e-2, 1e-3, 1e-5, 1e-9, 5e-17, rng.random()]))
        return min(share, 0.3) if range_of(draft) > sys.float_info.max else share  # or it is refused
    wide = float(min(range_of(draft), Fraction(sys.float_info.max) / 4)) or 1.0
    share = float(rng.choice([2.0, 0.1, 1e-2, 1e-3, 1e-5, 1e-12]))
    chosen = [wide * share, float(int(rng.integers(1, 100))), 0.5, 2.0**53 + 2, 5e-324, wide / 64]
    try:
        found = float(Fraction(float(chosen[rng.integers(len(chosen))])) * unit)
    except OverflowError:
        found = sys.float_info.max / 2
    return found or 5e-324


# --- the oracle ----


def numbers_of(one: Case, values: Array) -> list[Any]:
    """The numbers that are meant, as Python's."""
    stored = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    return stored.view(one.meant).ravel().tolist()  # type: ignore[no-any-return]


def scale_of(attributes: dict[str, Any]) -> Fraction:
    return abs(Fraction(np.ravel(attributes.get("scale_factor", 1)).tolist()[0]))


def missing_of(one: Case) -> list[Any]:
    """The numbers that mean "missing"."""
    own = one.values.dtype.newbyteorder("=")
    said = [one.fill] if one.fill is not None else []
    said += [np.ravel(one.attributes[name])[0] for name in ("_FillValue", "missing_value") if name in one.attributes]
    return [np.array([mark]).astype(own).view(one.meant)[0].item() for mark in said]


def _is_missing(number: Any, missing: list[Any]) -> bool:
    return any(number == mark or (number != number and mark != mark) for mark in missing)


def range_of(one: Case) -> Fraction:
    """The largest minus the smallest of what is finite and not missing."""
    missing = missing_of(one)
    real = [x for x in numbers_of(one, one.values) if math.isfinite(x) and not _is_missing(x, missing)]
    return Fraction(max(real)) - Fraction(min(real)) if real else Fraction(0)


def allowed(one: Case) -> Fraction:
    """How far a number may be off, of those that are stored."""
    if one.kind == "rel":
        return Fraction(one.bound) * range_of(one)
    return Fraction(one.bound) / (1 if one.stored else scale_of(one.attributes))


def limits_of(one: Case) -> list[tuple[str, Fraction, Fraction, Fraction]]:
    """Each limit in each way in which it may be read: its side, the limit, and the scale and offset before it."""
    own, found = one.values.dtype, []
    packed = [np.ravel(one.attributes[name])[0] for name in ("scale_factor", "add_offset") if name in one.attributes]
    scale = Fraction(np.ravel(one.attributes.get("scale_factor", 1)).tolist()[0])
    offset = Fraction(np.ravel(one.attributes.get("add_offset", 0)).tolist()[0])
    for name, sides in (("valid_min", "<"), ("valid_max", ">"), ("valid_range", "<>")):
        for side, said in zip(sides, np.ravel(one.attributes.get(name, [])), strict=False):
            if not np.isfinite(said):
                continue
            limit, real = Fraction(said.item()), said.dtype.kind == "f"
            if not (packed and real and own.kind != "f"):
                found.append((side, limit, Fraction(1), Fraction(0)))
                with np.errstate(over="ignore"):
                    near = said.astype(own) if own.kind == "f" else said
                if own.kind == "f" and np.isfinite(near):  # as rounded to the type of the data
                    found.append((side, Fraction(near.item()), Fraction(1), Fraction(0)))
            if packed and real and (own.kind != "f" or said.dtype.itemsize > own.itemsize):
                found.append((side, limit, scale, offset))
    return found


def wrong(one: Case, back: Array) -> str:
    """What does not hold of the values that came back; empty if all does."""
    before, after = numbers_of(one, one.values), numbers_of(one, back)
    missing, limits, most = missing_of(one), limits_of(one), allowed(one)
    bits = [
        np.ascontiguousarray(x, x.dtype.newbyteorder("=")).view(f"u{x.itemsize}").ravel() for x in (one.values, back)
    ]
    for i in np.flatnonzero(bits[0] != bits[1]).tolist():
        a, b = before[i], after[i]
        if one.kind == "lossless" or not (math.isfinite(a) and math.isfinite(b)):
            return f"value {i}, {a}, came back as {b}"
        if _is_missing(a, missing) or _is_missing(b, missing):
            return f"value {i}, {a}, came back as {b}, and {missing} mean that it is missing"
        a, b = Fraction(a), Fraction(b)
        if abs(a - b) > most:
            return f"value {i}, {before[i]}, came back as {after[i]}, off by more than {float(most)}"
        for side, limit, scale, offset in limits:
            ends = [x * scale + offset for x in (a, b)]
            if len({x < limit if side == "<" else x > limit for x in ends}) > 1:
                return f"value {i}, {before[i]}, came back as {after[i]}, past {float(limit)}"
    if one.meant != one.values.dtype.newbyteorder("=") and one.kind != "lossless":
        half = 1 << (8 * back.itemsize - 1) if one.meant.kind == "u" else 0
        if any((a < half) != (b < half) for a, b in zip(before, after, strict=True)):
            return "the sign of a stored number turned"
    return ""
