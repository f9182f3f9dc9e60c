"""Codec: a bound, a coder and a predictor of the bounded format (FORMAT.md), in exact numbers."""

from __future__ import annotations

import difflib
import math
import sys
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError


def as_fraction(number: Any) -> Fraction | None:
    """Returns a number of Python or numpy as a fraction; None if it is NaN or infinite."""
    if isinstance(number, (int, np.integer, np.bool_)):
        return Fraction(int(number))
    return Fraction(*number.as_integer_ratio()) if np.isfinite(number) else None


def rounded_down(number: Fraction) -> float:
    """Returns the largest float that is not above a number of 0 or more."""
    if number > Fraction(sys.float_info.max):
        return sys.float_info.max
    near = float(number)
    return near if Fraction(near) <= number else math.nextafter(near, 0.0)


FILTER = _native.codec_filter()  # HDF5's number of the filter; the one constant is in native/include/solar/codec.hpp

BOUND_KINDS = {
    "abs": "no value is off by more than the bound",
    "rel": "the same, of bound x (largest - smallest finite value) of what the caller says: the array, or the data set",
    "lossless": "every value comes back bit for bit",
}
CODERS = {
    "auto": "whichever is smaller, tile by tile",
    "pack": "fields of fixed width: the fastest to decode",
    "dense": "an entropy coder: the smallest",
}
PREDICTORS = {
    "auto": "whatever makes a tile small",
    "none": "the values as they are",
    "x": "from the value before",
    "xy": "from the neighbours in a plane",
    "xyz": "from the neighbours in space",
    "interpolation": "cubic, between values ever closer together",
    "patches": "as x to xyz, whichever is smallest, stored in the order of small patches",
}
REMOVED = "predictor learned was removed after solar 0.1.0: leave it out, or say predictor auto"
OUR_FILTER = "solar"
FILTER_CHOICES = {
    OUR_FILTER: "the bounded codec",
    "blosc2": "every bit, by zstd after bitshuffle",
    "bitshuffle-lz4": "every bit, in every facility's software",
    "bitshuffle-zstd": "every bit",
    "zstd": "every bit, after shuffle",
    "zfp": "abs and rel of finite floats; each chunk is looked at again",
}
ENCODED_TYPES = frozenset({"f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"})


@dataclass(frozen=True)
class Codec:
    """Turns arrays into chunks, and chunks into arrays.

    >>> chunk = Codec("abs", 1e-3).encode(np.linspace(0, 1, 1000, dtype=np.float32))
    >>> len(chunk) < 4000 / 5
    True
    """

    kind: str
    bound: float = 0.0
    coder: str = "auto"
    predictor: str = "auto"
    tables: bytes = b""  # coding tables from train(), stored in the filter's values
    filter: str = OUR_FILTER  # or one of hdf5plugin's: others make the chunks, and only the bound is the codec's
    marks: bytes = b""  # special numbers of the arrays' type: kept bit for bit, and no other value becomes one
    limits: bytes = b""  # numbers of the same type that no value crosses: each stays below or above
    stored: bool = False  # the bound of a packed dataset is in the unit of its stored numbers, not the unpacked ones

    def __post_init__(self) -> None:
        _check_name("kind of bound", self.kind, BOUND_KINDS)
        _check_name("coder", self.coder, CODERS)
        if self.predictor == "learned":
            raise ValueError(REMOVED)
        _check_name("predictor", self.predictor, PREDICTORS)
        if not (math.isfinite(self.bound) and self.bound >= 0):
            raise ValueError(f"a bound must be a number of 0 (bit for bit) or more, not {self.bound}")
        if self.kind == "rel" and self.bound >= 1:
            raise ValueError(
                f"rel={self.bound:g} would let every value be off by the whole range: give a share of it below 1, "
                f"such as rel=1e-3 ({self.bound:g} per cent are rel={self.bound / 100:g})"
            )
        if self.kind == "lossless" and self.bound != 0:
            raise ValueError(f"lossless has no bound, and {self.bound} was given: say abs={self.bound} instead")
        _check_name("filter", self.filter, FILTER_CHOICES)
        if self.filter != OUR_FILTER:
            self._check_foreign()

    def _check_foreign(self) -> None:
        if (self.coder, self.predictor) != ("auto", "auto"):
            raise ValueError(
                f"coder= and predictor= are those of {OUR_FILTER}'s own filter: leave them out with {self.filter}"
            )
        if self.filter == "zfp" and (self.kind == "lossless" or self.bound == 0):
            raise ValueError("zfp needs a bound above 0: say abs=NUMBER or rel=NUMBER, or take another filter")
        if self.filter != "zfp" and self.kind != "lossless":
            raise ValueError(f"{self.filter} keeps every bit: say lossless, or take zfp or {OUR_FILTER} for a bound")

    def absolute(self, span: float | Fraction) -> Codec:
        """Returns the codec with its bound as a number, never rounded up, for values that span `span`."""
        if self.kind != "rel":
            return self
        return replace(self, kind="abs", bound=rounded_down(Fraction(self.bound) * Fraction(span)))

    def unit_name(self, unit: Fraction) -> str:
        """Describes the numbers that the bound is about in a packed dataset, which unpacking multiplies by `unit`.

        It is empty if there is no bound, or if the numbers of the file are the values.
        """
        if self.kind == "lossless":
            return ""
        return "stored numbers" if self.stored else "unpacked values" if unit != 1 else ""

    def encode(self, array: NDArray[Any], span: float | Fraction | None = None) -> bytes:
        """Returns the array's chunk. A relative bound refers to `span`; without it, to the array's own span."""
        check_array(array)
        if self.filter != OUR_FILTER:
            raise TypeError(f"chunks of {self.filter} are made by libhdf5: solar.filters.named, or solar.compress")
        if self.kind == "rel" and span is None:
            span = span_of(array)
        exact = self.absolute(span or 0.0)
        how = exact.bound, self.coder, self.predictor, self.tables, self.marks, self.limits
        return _native.encode(np.ascontiguousarray(array), *how)

    def decode(self, chunk: bytes, out: NDArray[Any]) -> None:
        """Fills `out`, contiguous and of the chunk's type; float32 takes integers, too, and float16 takes float32."""
        _native.decode_into(chunk, out, self.tables)

    def trained(self, arrays: list[NDArray[Any]]) -> Codec:
        """Returns the codec with tables for data like these. A relative bound refers to their common span."""
        for array in arrays:
            check_array(array)
        bound = self.absolute(max(map(span_of, arrays), default=Fraction(0))).bound
        contiguous = [np.ascontiguousarray(array) for array in arrays]
        tables = _native.train(contiguous, bound, self.predictor, self.marks, self.limits)
        return replace(self, tables=tables)

    @property
    def filter_values(self) -> tuple[int, ...]:
        """Returns the values for the HDF5 filter message of a dataset with these chunks."""
        return tuple(_native.client_data(self.tables))


def parse(text: str) -> Codec:
    """Returns the codec for settings such as "abs=1e-3", "rel=1e-4,coder=pack" or "lossless,filter=zstd".

    >>> parse("rel=1e-4,coder=pack").bound
    0.0001
    """
    settings: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        _check_name("setting", key, {**BOUND_KINDS, "coder": "", "predictor": "", "filter": "", "stored": ""})
        if bool(equals) is (key in ("lossless", "stored")):
            raise ValueError(f"{part.strip()!r} in {text!r}: write abs=NUMBER, rel=NUMBER, lossless or stored")
        settings[key] = value
    kinds = [key for key in settings if key in BOUND_KINDS]
    if len(kinds) != 1 or len(settings) != len(text.split(",")):
        raise ValueError(f"{text!r} must name one of abs=NUMBER, rel=NUMBER and lossless, and each setting once")
    bound = parse_number(settings[kinds[0]], text)
    coder, predictor = (settings.get(key, "auto") for key in ("coder", "predictor"))
    filter = settings.get("filter", OUR_FILTER)
    return Codec(kinds[0], bound, coder, predictor, filter=filter, stored="stored" in settings)


def span_of(array: NDArray[Any]) -> Fraction:
    """Returns the largest minus the smallest finite value, exactly; 0 if there are none."""
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    return Fraction(finite.max().item()) - Fraction(finite.min().item()) if finite.size else Fraction(0)


def parse_number(text: str, whole: str) -> float:
    try:
        return float(text) if text else 0.0
    except ValueError:
        raise ValueError(f"the bound {text!r} in {whole!r} is no number") from None


def _check_name(what: str, name: str, known: dict[str, str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"there is no {what} {name!r}, only {', '.join(known)}{hint}")


def check_array(array: NDArray[Any]) -> None:
    code = array.dtype.str[1:]
    if array.dtype.fields is not None or code not in ENCODED_TYPES:
        raise CodecError(
            f"arrays of {array.dtype} cannot be encoded, only float32, float64 and integers of 8 to 64 bits; "
            "convert them, or leave this data set as it is"
        )
    if not array.dtype.isnative:
        raise CodecError(
            f"arrays of {array.dtype.str} have the bytes of each number the other way round; "
            f"use array.astype({array.dtype.newbyteorder('=').name!r}) and store that type"
        )
