"""Values that mean "missing" come back bit for bit from chunks with a bound, and nothing else becomes one.

The oracle is numpy. `SOLAR_MARKERS=20000000 .venv/bin/pytest tests/test_markers.py` tries so many values.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError
from solar.io.codec.codec import CODERS, PREDICTORS

VALUES = int(os.environ.get("SOLAR_MARKERS", "400000"))
DTYPES = ["f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
Array = NDArray[Any]


def field(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Smooth, rough, counted, stepped or arbitrary numbers."""
    size = 10 ** rng.uniform(-2, 4)
    kind = rng.integers(6)
    if kind == 0:
        bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
        return bits.view(dtype).reshape(shape)
    values = rng.normal(size=shape)
    if kind == 1:
        values = values.cumsum(-1).cumsum(-1) / shape[-1]
    if kind == 2:
        values = np.sin(np.arange(values.size).reshape(shape) / rng.uniform(5, 500)) + 0.001 * values
    if kind == 3:
        return rng.poisson(rng.uniform(0, 5), shape).astype(dtype)
    values = values * size
    if kind == 4:
        values = np.round(values / size * 20) * 0.5
    if dtype.kind == "f":
        return values.astype(dtype)
    facts = np.iinfo(dtype)
    values += 0 if dtype.kind == "i" else size
    return values.clip(facts.min / 2, facts.max / 2).astype(dtype)


def some_marks(rng: np.random.Generator, values: Array) -> Array:
    """Those that people use, others of any kind, and some that lie amid the values."""
    dtype = values.dtype
    usual: list[Any] = [0, 1, 100]
    if dtype.kind == "f":
        usual += [-9999, 1e20, -999.25, -0.0, 9.969209968386869e36, np.finfo(dtype).max, np.finfo(dtype).min, -1]
    else:
        facts = np.iinfo(dtype)
        usual += [facts.min, facts.max, facts.max - 1, max(facts.min, -99)]
    with np.errstate(over="ignore"):
        found = [dtype.type(usual[rng.integers(len(usual))]) for _ in range(rng.integers(0, 4))]
    amid = values.ravel()[rng.integers(0, values.size, rng.integers(0, 3))]
    all_of_them = np.concatenate([np.array(found, dtype), amid])
    return all_of_them[np.isfinite(all_of_them)]


def strewn(rng: np.random.Generator, values: Array, marks: Array) -> Array:
    """The values with marks in patches, like noise, both or nearly everywhere."""
    values = values.copy()
    for mark in marks:
        kind, share = rng.integers(5), rng.uniform(0, 0.6)
        where = rng.random(values.shape) < share
        if kind in (1, 2):
            slow = rng.normal(size=values.shape).cumsum(-1)
            where = (where if kind == 2 else np.zeros_like(where)) | (slow > np.quantile(slow, 1 - share))
        if kind == 3:
            where = rng.random(values.shape) < 0.99
        if kind < 4:
            values[where] = mark
    return values


def checked(values: Array, back: Array, bound: float, marks: Array, limits: Array) -> None:
    assert _native.compare(values, back, bound)[0] == 0
    bits = f"u{values.itemsize}"
    same = values.view(bits) == back.view(bits)
    assert same[np.isin(values, marks)].all(), "a mark moved"
    assert same[np.isin(back, marks)].all(), "a value became a mark"
    for limit in limits:
        assert ((values < limit) == (back < limit)).all(), "a value crossed a limit"


def test_marks_come_back_bit_for_bit_and_nothing_else_becomes_one() -> None:
    rng = np.random.default_rng(17)
    tried = 0
    while tried < VALUES:
        dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
        axes = rng.integers(1, 4)
        shape = tuple(int(n) for n in rng.integers(1, {1: 60000, 2: 250, 3: 40}[int(axes)], axes))
        values = field(rng, dtype, shape)
        marks = some_marks(rng, values)
        values = np.ascontiguousarray(strewn(rng, values, marks))
        limits = values.ravel()[rng.integers(0, values.size, rng.integers(0, 4))]
        finite = values[np.isfinite(values)].astype("f8") if dtype.kind == "f" else values.astype("f8")
        with np.errstate(over="ignore"):
            span = float(np.ptp(np.abs(finite).clip(0, 1e30))) if finite.size else 1.0
        bound = min(1e300, float(10 ** rng.uniform(-6, 0)) * (span or 1.0))
        coder, predictor = (str(rng.choice(list(names))) for names in (CODERS, PREDICTORS))
        kept = marks.tobytes(), limits.tobytes()
        tables = _native.train([values], bound, predictor, *kept) if rng.random() < 0.2 else b""
        chunk = _native.encode(values, bound, coder, predictor, tables, *kept)
        for path in _native.codec_paths():
            back = np.empty_like(values)
            _native.decode_into(chunk, back, tables, path)
            checked(values, back, bound, marks, limits)
        tried += values.size


@pytest.mark.parametrize("coder", ["pack", "dense"])
@pytest.mark.parametrize(("dtype", "mark"), [("f4", -9999), ("f4", 1e20), ("f8", -9999), ("i2", -32768), ("i2", -9999)])
@pytest.mark.parametrize("strewn_as", ["patches", "noise"])
def test_marks_cost_little(dtype: str, mark: float, coder: str, strewn_as: str) -> None:
    rng = np.random.default_rng(3)
    smooth = rng.normal(size=(256, 256)).cumsum(0).cumsum(1)
    values = (smooth / smooth.std() * 3000).astype(dtype)
    slow = rng.normal(size=values.shape).cumsum(0).cumsum(1)
    missing = slow < np.quantile(slow, 0.3) if strewn_as == "patches" else rng.random(values.shape) < 0.3
    values[missing] = mark
    marks = np.array([mark], dtype).tobytes()
    before, after = (len(_native.encode(values, 7.0, coder, "auto", b"", kept)) for kept in (b"", marks))
    assert after <= 1.1 * before


def test_a_tile_of_nothing_but_marks_and_one_other_value_takes_a_few_bytes() -> None:
    values = np.full((128, 128), 7.25, "f4")
    values[:64] = -9999
    values[100, 3:50] = 1e20
    marks = np.array([-9999, 1e20], "f4")
    chunk = _native.encode(values, 0.5, "auto", "auto", b"", marks.tobytes())
    assert len(chunk) < 200
    for path in _native.codec_paths():
        back = np.empty_like(values)
        _native.decode_into(chunk, back, b"", path)
        checked(values, back, 0.5, marks, marks[:0])


def test_more_marks_than_can_be_kept_are_refused() -> None:
    values = np.arange(100, dtype="f4")
    for kept in ({"marks": np.arange(17, dtype="f4").tobytes()}, {"limits": np.arange(9, dtype="f4").tobytes()}):
        with pytest.raises(CodecError, match="at most 16 marks of missing values and 8 limits"):
            _native.encode(values, 0.5, **kept)
    with pytest.raises(CodecError, match="of the array's own type"):
        _native.encode(values, 0.5, marks=b"123")
