"""Bounds of packed data (scale_factor) are in the unit of the unpacked values, in every command and in Python."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import solar
from solar.cli import main
from solar.errors import LayoutError
from solar.io.codec.codec import Codec, parse
from solar.io.codec.verify import Verified

Shown = pytest.CaptureFixture[str]


def packed(path: Path, scale: Any, dtype: str = "i2") -> NDArray[Any]:
    values = np.random.default_rng(0).integers(-3000, 3000, (32, 40, 40)).cumsum(-1).clip(-30000, 30000).astype(dtype)
    with h5py.File(path, "w") as file:
        file["x"] = values
        if scale is not None:
            file["x"].attrs["scale_factor"] = scale
    return values


def moved(path: Path, values: NDArray[Any]) -> int:
    """How far the farthest stored number is from what it was."""
    back = np.asarray(solar.read(path, "x", slice(None)))
    return max(abs(int(a) - int(b)) for a, b in zip(values.ravel(), back.ravel(), strict=True))


FORMS: dict[str, tuple[Any, int]] = {  # of a scale, and by how much stored numbers may be off for abs=50
    "float64": (20.0, 2),
    "float32": (np.float32(20), 2),
    "array of one": (np.array([20.0]), 2),
    "float32 array of one": (np.array([20], "f4"), 2),
    "big-endian": (np.array(20.0, ">f4"), 2),
    "big-endian array": (np.array([20.0], ">f8"), 2),
    "int16": (np.int16(20), 2),
    "int64": (np.int64(20), 2),
    "big-endian integer": (np.array([20], ">i4"), 2),
    "negative": (-20.0, 2),
    "below one": (0.5, 100),
    "none": (None, 50),
    "one": (1.0, 50),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("form", FORMS)
def test_a_bound_is_in_the_unit_of_the_unpacked_values_whatever_form_the_scale_has(form: str, tmp_path: Path) -> None:
    scale, most = FORMS[form]
    values = packed(tmp_path / "a.h5", scale)
    stored = solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=50")
    assert moved(tmp_path / "b.h5", values) == most
    ((part, _),) = stored.parts
    assert (part.bound, part.codec.bound) == (50.0, most + (50 / 20 - 2 if most == 2 else 0))
    found = solar.verify(tmp_path / "a.h5", tmp_path / "b.h5")
    assert isinstance(found, Verified)
    (field,) = found.fields
    assert field.holds
    assert (field.bound, field.unit) == (50.0, "" if form in ("none", "one") else "unpacked values")
    assert field.largest == most * abs(float(np.ravel(1 if scale is None else scale)[0]))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("scale", "says"),
    [
        ("20", "scale_factor is '20', which is no number"),
        (np.array([20.0, 1.0]), "scale_factor has 2 values, where there should be one"),
        (h5py.Empty("f4"), "scale_factor has 0 values"),
        (np.nan, "scale_factor is nan: no value can be unpacked by it"),
        (0.0, "scale_factor is 0.0: no value can be unpacked by it"),
        (np.bytes_(b"20"), "scale_factor is b'20', which is no number"),
    ],
)
def test_a_scale_that_is_no_number_is_refused_in_words(scale: Any, says: str, tmp_path: Path, capsys: Shown) -> None:
    values = packed(tmp_path / "a.h5", scale)
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    with pytest.raises(LayoutError, match=r"a\.h5: /x: its attribute scale_factor") as error:
        solar.compress(a, b, {"x": "abs=50"})
    assert says in str(error.value)
    assert "--stored" in str(error.value)
    assert main(["compress", "--advise", a, "--abs", "50"]) == 1
    assert says in capsys.readouterr().err
    left = solar.compress(a, b, "abs=50").left  # nobody named it
    assert [says in one.reason for one in left] == [True]
    solar.compress(a, b, "abs=50,stored", force=True)
    assert moved(tmp_path / "b.h5", values) == 50
    solar.compress(a, b, "rel=1e-3", force=True)
    assert solar.verify(a, b).holds


def test_the_unit_is_said_by_every_command(tmp_path: Path, capsys: Shown) -> None:
    values = packed(tmp_path / "a.h5", 20.0)
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    assert main(["compress", a, b, "--abs", "50", "--quiet"]) == 0
    assert "within 50 (of the unpacked values, 2.5 of the stored numbers): " in capsys.readouterr().out
    assert main(["verify", a, b, "--quiet"]) == 0
    assert "/x  off by 40 at most, 50 was allowed (of the unpacked values)" in capsys.readouterr().out
    assert main(["compress", a, b, "--abs", "50", "--stored", "--quiet", "--force"]) == 0
    assert "within 50 (of the stored numbers): " in capsys.readouterr().out
    assert moved(tmp_path / "b.h5", values) == 50
    assert main(["verify", a, b, "--quiet"]) == 0
    assert "/x  off by 50 at most, 50 was allowed (of the stored numbers)" in capsys.readouterr().out
    assert main(["compress", a, b, "--field", "x:abs=50,stored", "--quiet", "--force", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["datasets"]
    assert (said["bound"], said["stored_bound"], said["unit"]) == (50, 50, "stored numbers")
    assert main(["compress", a, b, "--rel", "0.01", "--quiet", "--force"]) == 0
    span = int(np.ptp(values.astype("i8"))) * 20
    wanted = f"within {span / 100:.4g} (of the unpacked values, {span / 2000:.4g} of the stored numbers, "
    assert wanted + f"rel 0.01 of the range {span:.4g}): " in capsys.readouterr().out


@pytest.mark.parametrize(("flag", "most", "unit"), [([], 40, "unpacked values"), (["--stored"], 50, "stored numbers")])
def test_advice_tries_bounds_in_the_unit_that_it_says(
    flag: list[str], most: float, unit: str, tmp_path: Path, capsys: Shown
) -> None:
    packed(tmp_path / "a.h5", 20.0)
    line = ["compress", "--advise", str(tmp_path / "a.h5"), "--abs", "50", *flag]
    assert main(line) == 0
    assert f"  bound and off by: of the {unit}" in capsys.readouterr().out
    assert main([*line, "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["datasets"]
    assert said["unit"] == unit
    assert {(one["bound"], one["largest_error"]) for one in said["trials"]} == {(50, most)}


def test_a_file_of_a_version_that_named_no_unit_is_judged_by_its_stored_numbers(tmp_path: Path) -> None:
    packed(tmp_path / "a.h5", 20.0)
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=50,stored")
    with h5py.File(tmp_path / "b.h5", "r+") as file:
        said = {"version": 1, "kind": "abs", "bound": 50.0, "coder": "auto"}
        file["x"].attrs["solar_bound"] = np.bytes_(json.dumps(said))
    found = solar.verify(tmp_path / "a.h5", tmp_path / "b.h5")
    assert isinstance(found, Verified)
    assert found.holds
    assert (found.fields[0].unit, found.fields[0].bound, found.fields[0].largest) == ("stored numbers", 50, 50)


def test_a_bound_of_the_unpacked_unit_is_never_rounded_up(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(-(2**62), 2**62, (32, 40, 40)) // 7
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["scale_factor"] = 0.1  # a little more than a tenth
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=1e16")
    far = moved(tmp_path / "b.h5", values)
    assert Fraction(10) ** 17 * Fraction(99, 100) < far
    assert far * Fraction(0.1) <= 10**16


def test_settings_say_that_a_bound_is_of_stored_numbers() -> None:
    assert parse("abs=50,stored") == Codec("abs", 50.0, stored=True)
    with pytest.raises(ValueError, match="write abs=NUMBER, rel=NUMBER, lossless or stored"):
        parse("abs=50,stored=yes")


# --- relative bounds, and limits of whole numbers that no float can tell apart ----


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("rel", [0.3, 1e-2, 1e-5])
def test_whole_numbers_of_64_bits_do_not_cross_their_limits(dtype: str, rel: float, tmp_path: Path) -> None:
    facts, fields = np.iinfo(dtype), {}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            values = rng.integers(facts.min, facts.max, (8, 16, 32), dtype, endpoint=True)
            low, high = np.sort(rng.choice(values.ravel(), 2))
            made = file.create_dataset(f"x{seed}", data=values)
            made.attrs["valid_min"], made.attrs["valid_max"] = low, high
            fields[f"x{seed}"] = values, low, high
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", dict.fromkeys(fields, f"rel={rel}"))
    for name, (values, low, high) in fields.items():
        back = np.asarray(solar.read(tmp_path / "b.h5", name, slice(None)))
        assert ((values < low) == (back < low)).all()
        assert ((values > high) == (back > high)).all()
        span = int(values.max()) - int(values.min())
        far = max(abs(int(a) - int(b)) for a, b in zip(values.ravel(), back.ravel(), strict=True))
        assert far <= Fraction(rel) * span
    assert solar.verify(tmp_path / "a.h5", tmp_path / "b.h5").holds


def test_a_relative_bound_is_never_rounded_up() -> None:
    rng = np.random.default_rng(5)
    for _ in range(2000):
        share, low, high = rng.random() * 0.9, *rng.integers(-(2**62), 2**62, 2).tolist()
        span = abs(high - low)
        found = Fraction(Codec("rel", share).absolute(Fraction(span)).bound)
        assert found <= Fraction(share) * span
        assert Fraction(np.nextafter(float(found), np.inf)) > Fraction(share) * span
