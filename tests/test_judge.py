"""`solar verify` by planted violations: a value off by a little more than its bound is found, one just within holds."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import solar
from solar.io.codec import judge
from solar.io.codec.codec import Codec
from solar.io.codec.judge import judged, meaning_of
from solar.io.codec.verify import Verified

Array = NDArray[Any]
TYPES = ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
MOST_SIZE = {"f4": 1e30, "f8": 1e250}


def within(value: Any, bound: Fraction, upwards: bool) -> Any:
    """The number of the same type that is farthest from the value in one direction and not beyond the bound."""
    dtype = value.dtype
    if dtype.kind != "f":
        far = int(value) + (math.floor(bound) if upwards else -math.floor(bound))
        return dtype.type(far) if np.iinfo(dtype).min <= far <= np.iinfo(dtype).max else None
    towards = dtype.type(np.inf if upwards else -np.inf)
    with np.errstate(over="ignore"):
        near = dtype.type(float(Fraction(value.item()) + (bound if upwards else -bound)))
    if np.isinf(near):
        return None
    while abs(Fraction(near.item()) - Fraction(value.item())) > bound:
        near = np.nextafter(near, -towards)
    while abs(Fraction(np.nextafter(near, towards).item()) - Fraction(value.item())) <= bound:
        near = np.nextafter(near, towards)
    return near


def beyond(value: Any, upwards: bool) -> Any:
    """The next number of its type; None at the end."""
    if value.dtype.kind == "f":
        found = np.nextafter(value, value.dtype.type(np.inf if upwards else -np.inf))
        return found if np.isfinite(found) else None
    facts, far = np.iinfo(value.dtype), int(value) + (1 if upwards else -1)
    return value.dtype.type(far) if facts.min <= far <= facts.max else None


def values_of(rng: np.random.Generator, dtype: str, count: int) -> Array:
    if dtype in MOST_SIZE:
        size = 10 ** rng.uniform(-math.log10(MOST_SIZE[dtype]), math.log10(MOST_SIZE[dtype]))
        return (rng.standard_normal(count) * size).astype(dtype)
    facts = np.iinfo(dtype)
    return rng.integers(facts.min, facts.max, count, dtype, endpoint=True)


def bound_of(rng: np.random.Generator, values: Array) -> Fraction:
    span = Fraction(values.max().item()) - Fraction(values.min().item())
    kinds = [span * Fraction(float(rng.choice([1e-7, 1e-3, 0.3]))), Fraction(float(span) * rng.random())]
    if values.dtype.kind != "f":
        kinds += [Fraction(int(rng.integers(1, 9))), Fraction(1, 3)]
    return kinds[rng.integers(len(kinds))]


@pytest.mark.parametrize("dtype", TYPES)
def test_one_value_past_its_bound_is_found_at_every_type_and_one_just_within_holds(dtype: str) -> None:
    with h5py.File("judged", "w", driver="core", backing_store=False) as file:
        meaning = meaning_of(file.create_dataset("x", (4,), dtype))
    rng, planted = np.random.default_rng([7, TYPES.index(dtype)]), 0
    for _ in range(400):
        values = values_of(rng, dtype, 50)
        bound, at, upwards = bound_of(rng, values), int(rng.integers(50)), bool(rng.integers(2))
        inside = within(values[at], bound, upwards)
        outside = None if inside is None else beyond(inside, upwards)
        if outside is None:
            continue
        for planted_value, count in ((inside, 0), (outside, 1)):
            back = values.copy()
            back[at] = planted_value
            found = judged(values, back, bound, meaning)
            assert found.beyond == count, f"{values[at]!r} came back as {planted_value!r}, {float(bound)!r} was allowed"
            assert found.first == (at if count else -1)
            assert found.largest == abs(Fraction(values[at].item()) - Fraction(planted_value.item()))
            planted += count
    assert planted > 100


@pytest.mark.parametrize(
    ("before", "after", "bound", "count"),
    [
        (1.0, 1 + 2**-52, Fraction(2) ** -52, 0),
        (1e16, 1.0, Fraction(10) ** 16 - 1, 0),  # the difference is no float: its rounding decides
        (1e16, 1.0, Fraction(10) ** 16 - Fraction(3, 2), 1),
        (1e16, -1.0, Fraction(10) ** 16 + 1, 0),
        (1e16, -1.0, Fraction(10) ** 16, 1),
        (1.7e308, -1.7e308, Fraction(1.7e308) * 2, 0),  # overflows
        (1.7e308, -1.7e308, Fraction(1.7e308) * 2 - 1, 1),
        (5e-324, 0.0, Fraction(5e-324), 0),
        (5e-324, 0.0, Fraction(4e-324) / 3, 1),
        (0.0, -0.0, Fraction(0), 1),
        (0.0, -0.0, Fraction(1, 10**400), 0),
        (math.nan, 0.0, Fraction(10) ** 300, 1),
        (math.inf, 1e308, Fraction(10) ** 400, 1),
        (1.0, math.inf, Fraction(10) ** 400, 1),
    ],
)
def test_floats_are_compared_with_the_rounding_of_their_difference(
    before: float, after: float, bound: Fraction, count: int
) -> None:
    with h5py.File("judged", "w", driver="core", backing_store=False) as file:
        meaning = meaning_of(file.create_dataset("x", (4,), "f8"))
    assert judged(np.array([before]), np.array([after]), bound, meaning).beyond == count


LIMITED: dict[str, tuple[str, dict[str, Any], int, int]] = {  # type, attributes, a value, and what it may not become
    "a large whole number": ("i8", {"valid_max": np.int64(2**62 + 1)}, 2**62 + 1, 2**62 + 2),
    "a large unsigned one": ("u8", {"valid_min": np.uint64(2**63 + 3)}, 2**63 + 3, 2**63 + 2),
    "an array of one element": ("i8", {"valid_min": np.array([2**60 + 1])}, 2**60 + 1, 2**60),
    "big-endian": ("i8", {"valid_min": np.array(2**60 + 1, ">i8")}, 2**60 + 1, 2**60),
    "text": ("i8", {"valid_min": str(2**60 + 1)}, 2**60 + 1, 2**60),
    "a range": ("i4", {"valid_range": np.array([-5, 7])}, 7, 8),
    "of what is unpacked": ("i2", {"valid_max": 1.005, "scale_factor": 0.01}, 100, 101),
    "of what is unpacked, turned round": ("i2", {"valid_max": 1.005, "scale_factor": -0.01}, -100, -101),
    "of packed numbers": ("i2", {"valid_max": np.int16(100), "scale_factor": 0.01}, 100, 101),
    "of unsigned numbers": ("i1", {"valid_max": np.uint8(250), "_Unsigned": "true"}, -6, -5),
}


@pytest.mark.parametrize("name", LIMITED)
def test_a_value_past_a_limit_is_found_in_every_form_of_the_limit(name: str) -> None:
    dtype, attributes, value, past = LIMITED[name]
    with h5py.File("judged", "w", driver="core", backing_store=False) as file:
        made = file.create_dataset("x", (4,), dtype)
        for key, said in attributes.items():
            made.attrs[key] = said
        meaning = meaning_of(made)
    values = np.full(4, value, dtype)
    back = values.copy()
    assert judged(values, back, Fraction(2) ** 70, meaning).crossed == 0
    back[2] = past
    found = judged(values, back, Fraction(2) ** 70, meaning)
    assert (found.crossed, found.first) == (1, 2)
    assert judged(back, values, Fraction(2) ** 70, meaning).crossed == 1


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("how", ["abs", "rel", "packed", "stored"])
def test_verify_finds_a_value_past_its_bound_in_a_file_and_holds_for_one_within(how: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    fields = {dtype: values_of(rng, dtype, 64 * 40).reshape(64, 40) for dtype in TYPES}
    wide = {name: max(float(np.ptp(values.astype("f8"))) / 64, 1.0) for name, values in fields.items()}
    setting = {"abs": "abs={}", "rel": "rel=0.01", "packed": "abs={}", "stored": "abs={},stored"}[how]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in fields.items():
            file[name] = values
            if how in ("packed", "stored"):
                file[name].attrs["scale_factor"] = np.float32(0.3)
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", {name: setting.format(wide[name]) for name in fields})
    unit = Fraction(np.float32(0.3).item()) if how == "packed" else Fraction(1)
    for past in (0, 1):
        places = {}
        with h5py.File(tmp_path / "b.h5", "r+") as file:
            for name, values in fields.items():
                span = Fraction(values.max().item()) - Fraction(values.min().item())
                bound = Fraction(0.01) * span if how == "rel" else Fraction(wide[name]) / unit
                column = int(values[0].argmax())
                planted = within(values[0, column], bound, False)
                chunk = values[: file[name].chunks[0]].copy()
                chunk[0, column] = beyond(planted, False) if past else planted
                file[name].id.write_direct_chunk((0, 0), Codec("lossless").encode(chunk))
                places[f"/{name}"] = column
        found = solar.verify(tmp_path / "a.h5", tmp_path / "b.h5")
        assert isinstance(found, Verified)
        assert {field.name: field.beyond for field in found.fields} == dict.fromkeys(places, past)
        for field in found.fields:
            assert field.first == ((0, places[field.name]) if past else ())
            assert field.unit == {"packed": "unpacked values", "stored": "stored numbers"}.get(how, "")


def test_the_judge_imports_nothing_of_the_encoder() -> None:
    source = Path(judge.__file__).read_text()
    taken = {line for line in source.splitlines() if "solar" in line and "import" in line.split()}
    assert taken == {"from solar.io.codec.skeleton import H5_ERRORS"}
