"""What attributes say of values, and what becomes of such values in compressed files, in words and in numbers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import solar
import solar.filters
from solar.cli import main
from solar.errors import CodecError
from solar.io.codec.codec import Codec
from solar.io.codec.marks import like_labels, marks_of
from solar.io.codec.store import BOUND_ATTRIBUTE
from solar.io.codec.verify import Verified
from solar.training.as_stored import AsStored, Effort

Shown = pytest.CaptureFixture[str]


def dataset(dtype: str, **attributes: Any) -> Any:
    file = h5py.File("marks", "w", driver="core", backing_store=False)
    made = file.create_dataset("x", (4,), dtype)
    for name, value in attributes.items():
        made.attrs[name] = value
    return made


@pytest.mark.parametrize(
    ("dtype", "attributes", "marks"),
    [
        ("f4", {"_FillValue": np.float32(-9999)}, [-9999]),
        ("f4", {"_FillValue": np.array([-9999], "f4")}, [-9999]),
        ("f4", {"missing_value": np.array([-9999.0, 1e20])}, [-9999, np.float32(1e20)]),
        ("f4", {"missing_value": -9999.9}, [np.float32(-9999.9)]),  # what files hold, and tools compare with
        ("f4", {"missing_value": 1e300}, []),
        ("f4", {"missing_value": np.float64("nan")}, [np.nan]),
        (">f4", {"_FillValue": np.array(-999.0, ">f4")}, [-999]),
        ("f8", {"_FillValue": np.float32(-9999)}, [-9999]),
        ("f8", {"missing_value": "-9999.5"}, [-9999.5]),
        ("f8", {"missing_value": "none"}, []),
        ("f8", {"missing_value": h5py.Empty("f8")}, []),
        ("i2", {"_FillValue": -32768.0, "missing_value": np.int64(-9999)}, [-32768, -9999]),
        ("i2", {"missing_value": -0.5}, []),
        ("i2", {"missing_value": 1e20}, []),
        ("i2", {"missing_value": "-99"}, [-99]),
        ("i8", {"_FillValue": np.int64(-(2**63) + 2)}, [-(2**63) + 2]),
        ("u8", {"_FillValue": np.uint64(2**64 - 2)}, [2**64 - 2]),
        ("i1", {"_FillValue": np.int16(255)}, []),
        ("i1", {"_FillValue": np.int16(255), "_Unsigned": "true"}, [-1]),
        ("i1", {"_FillValue": np.int8(-1), "_Unsigned": b"true"}, [-1]),
        ("u1", {"_FillValue": np.int8(-1), "_Unsigned": "false"}, [255]),
    ],
)
def test_marks_are_numbers_of_the_data_sets_own_type(dtype: str, attributes: dict[str, Any], marks: list[Any]) -> None:
    found = marks_of(dataset(dtype, **attributes))
    assert found.values.dtype == np.dtype(dtype).newbyteorder("=")
    assert np.array_equal(
        np.sort(found.values), np.sort(np.array(marks, found.values.dtype)), equal_nan=dtype[-2] == "f"
    )


def test_the_fill_value_of_hdf5_is_a_mark_where_somebody_chose_it() -> None:
    with h5py.File("marks", "w", driver="core", backing_store=False) as file:
        assert marks_of(file.create_dataset("a", (4,), "f4", fillvalue=-7.5)).values.tolist() == [-7.5]
        assert marks_of(file.create_dataset("b", (4,), "f4")).values.tolist() == []


@pytest.mark.parametrize(
    ("dtype", "attributes", "limits"),
    [
        ("f4", {"valid_min": 0.0, "valid_max": 100.0}, [0, np.nextafter(np.float32(100), np.float32(200))]),
        ("f8", {"valid_range": [-1.5, 2.5]}, [-1.5, np.nextafter(2.5, 3)]),
        ("i2", {"valid_range": np.array([-5, 5], "i2")}, [-5, 6]),
        ("i2", {"valid_range": np.array([-32768, 32767])}, []),
        ("i2", {"valid_min": "no number"}, []),
        ("i2", {"valid_range": np.array([1, 2, 3])}, []),
        ("i2", {"valid_max": 1.005, "scale_factor": 0.01}, [101]),  # of what is unpacked: 100.5
        ("i2", {"valid_min": 1.0, "scale_factor": 0.01, "add_offset": 0.5}, [50, 51]),  # 50, but for rounding
        ("i1", {"_Unsigned": "true", "valid_range": np.array([0, 250], "u1")}, [-5, 0]),  # 251 is -5, 128 turns to 0
    ],
)
def test_limits_are_the_first_values_behind_them(dtype: str, attributes: dict[str, Any], limits: list[Any]) -> None:
    assert marks_of(dataset(dtype, **attributes)).limits.tolist() == np.array(limits, dtype).tolist()


def test_a_limit_of_more_digits_than_the_data_divides_them_either_way() -> None:
    near = np.float32(0.1)  # a little above 0.1
    found = marks_of(dataset("f4", valid_min=0.1)).limits
    assert near in found
    assert all((x < 0.1) == (x < found).all() or x in found for x in (near, np.nextafter(near, np.float32(0))))


# --- files ----


def radar(path: Path, missing: float = 0.3) -> dict[str, NDArray[Any]]:
    """Packed fields as radars have them: int16 with scale and offset, missing in patches and as speckle."""
    rng = np.random.default_rng(8)
    fields: dict[str, NDArray[Any]] = {}
    with h5py.File(path, "w") as file:
        for name, scale, offset in (("velocity", 0.01, 0.0), ("reflectivity", 0.5, -33.0), ("width", 0.005, 1.0)):
            walk = rng.normal(size=(24, 90, 180)).cumsum(-1)
            packed = np.round(walk / np.abs(walk).max() * 2000).astype("i2")
            slow = rng.normal(size=packed.shape).cumsum(-1)
            packed[(slow < np.quantile(slow, missing / 2)) | (rng.random(packed.shape) < missing / 2)] = -32768
            made = file.create_dataset(name, data=packed, chunks=(1, 90, 180))
            made.attrs["_FillValue"] = np.int16(-32768)
            made.attrs["scale_factor"], made.attrs["add_offset"] = np.float32(scale), np.float32(offset)
            made.attrs["valid_range"] = np.array([-32767, 32767], "i2")
            fields[name] = packed
    return fields


def unpacked(packed: NDArray[Any], attributes: Any) -> NDArray[Any]:
    values = packed * np.float64(attributes["scale_factor"]) + attributes["add_offset"]
    return np.ma.masked_array(values, packed == attributes["_FillValue"])


@pytest.mark.slow(but=["rel=1e-3"])
@pytest.mark.parametrize("how", ["rel=1e-3", "abs=7", "rel=1e-3,coder=pack", "rel=1e-2,coder=dense"])
def test_the_mean_of_a_packed_field_is_what_it_was_within_the_bound(how: str, tmp_path: Path) -> None:
    fields = radar(tmp_path / "a.h5")
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", how)
    found = solar.verify(tmp_path / "a.h5", tmp_path / "b.h5")
    assert isinstance(found, Verified)
    assert found.holds
    loaded = solar.H5Dataset(tmp_path / "b.h5", {name: name for name in fields})
    with h5py.File(tmp_path / "b.h5") as file:
        for name, packed in fields.items():
            back = np.array([loaded[i][name] for i in range(len(packed))])
            bound = json.loads(file[name].attrs[BOUND_ATTRIBUTE])["bound"] * float(file[name].attrs["scale_factor"])
            mean, again = (unpacked(one, file[name].attrs).mean() for one in (packed, back))
            assert ((packed == -32768) == (back == -32768)).all()
            assert abs(mean - again) <= bound
            (said,) = [one for one in found.fields if one.name == f"/{name}"]
            assert (said.missing, said.moved, said.made) == (int((packed == -32768).sum()), 0, 0)


def samples(dtype: str = "f4") -> NDArray[Any]:
    return (np.random.default_rng(1).normal(size=(16, 64, 64)).cumsum(-1) * 10).astype(dtype)


@pytest.mark.slow(every=4)
@pytest.mark.slow(but=["abs=5-missing_value->f4--9999", "abs=5-fill-i2--32768", "abs=0.3-_FillValue-f4--9999"])
@pytest.mark.parametrize(
    ("dtype", "mark"), [("f4", -9999), ("f8", 1e20), (">f4", -9999), ("i2", -32768), ("u2", 65535)]
)
@pytest.mark.parametrize("said_by", ["_FillValue", "missing_value", "fill"])
@pytest.mark.parametrize("how", ["rel=1e-3", "abs=0.3", "abs=5"])
def test_marks_are_kept_whoever_says_them(dtype: str, mark: float, said_by: str, how: str, tmp_path: Path) -> None:
    values = np.abs(samples()).astype(dtype)
    values[:, 10:30, 5:40] = mark
    values[:, ::7, ::5] = mark
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", data=values, fillvalue=mark if said_by == "fill" else None)
        if said_by != "fill":
            made.attrs[said_by] = np.array(mark, dtype)
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", how)
    back = solar.read(tmp_path / "b.h5", "x", slice(None))
    assert (back[values == mark] == mark).all()
    assert not (back[values != mark] == mark).any()
    assert solar.verify(tmp_path / "a.h5", tmp_path / "b.h5").holds


def test_a_value_of_an_unsigned_convention_does_not_turn_over(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(0, 256, (16, 64, 64)).astype("u1")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values.view("i1")
        file["x"].attrs["_Unsigned"] = "true"
        file["x"].attrs["_FillValue"] = np.int8(-1)
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=3")
    back = np.asarray(solar.read(tmp_path / "b.h5", "x", slice(None))).view("u1")
    assert np.abs(values.astype(int) - back).max() == 3
    assert ((values == 255) == (back == 255)).all()


def test_a_relative_bound_is_of_the_range_of_the_numbers_that_are_meant(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(100, 160, (16, 64, 64)).astype("u1")  # as int8: -128 to 127
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values.view("i1")
        file["x"].attrs["_Unsigned"] = "true"
    stored = solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "rel=0.1")
    assert stored.parts[0][0].span == 59


def test_nothing_moves_into_what_is_valid_or_out_of_it(tmp_path: Path) -> None:
    values = samples().clip(-20, 30)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["valid_range"] = np.array([-20, 30], "f4")
        file["y"] = samples()
        file["y"].attrs["valid_min"] = -3.0
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=0.7")
    x, y = (np.asarray(solar.read(tmp_path / "b.h5", name, slice(None))) for name in "xy")
    assert x.min() >= -20
    assert x.max() <= 30
    assert ((samples() < -3) == (y < -3)).all()
    assert solar.verify(tmp_path / "a.h5", tmp_path / "b.h5").holds


def test_flags_are_kept_bit_for_bit_unless_they_are_named(tmp_path: Path, capsys: Shown) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["quality"] = np.random.default_rng(0).integers(0, 4, (16, 64, 64)).astype("i2") * 1000
        file["quality"].attrs["flag_values"] = np.arange(4) * 1000
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    assert main(["compress", a, b, "--abs", "100", "--quiet"]) == 0
    assert "lossless, for its values are flags (flag_values): " in capsys.readouterr().out
    assert (solar.read(b, "quality", slice(None)) == solar.read(a, "quality", slice(None))).all()
    assert main(["compress", a, b, "--field", "quality:abs=100", "--quiet", "--force", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["datasets"]
    assert (said["kind"], said["why"]) == ("abs", "")


def test_flags_are_copied_where_a_filter_has_no_lossless_way(tmp_path: Path) -> None:
    pytest.importorskip("hdf5plugin")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["quality"] = np.zeros((16, 64, 64), "f4")
        file["quality"].attrs["flag_masks"] = np.arange(4)
        file["x"] = samples()
    stored = solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=0.1,filter=zfp")
    assert [part.name for part, _ in stored.parts] == ["/x"]
    assert "flags (flag_masks), which zfp would change" in stored.left[0].reason


def test_zfp_is_refused_where_it_changes_marks(tmp_path: Path) -> None:
    pytest.importorskip("hdf5plugin")
    values = samples()
    values[:, 3, 5] = -9999
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["_FillValue"] = np.float32(-9999)
    with pytest.raises(CodecError, match=r"zfp changes .* nothing was measured \(-9999\).*solar's own filter"):
        solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", {"x": "abs=0.1,filter=zfp"})


def test_more_marks_than_a_bound_can_keep_make_a_data_set_lossless(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = samples()
        file["x"].attrs["missing_value"] = np.arange(-30, 0, dtype="f4")
    stored = solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=0.1")
    why = [part.why for part, _ in stored.parts] + [one.reason for one in stored.left]
    assert why in (["30 values of it mean something else than a number"], ["it would not be smaller"])
    with pytest.raises(CodecError, match=r"30 values .* a bound keeps 16 .*: say lossless"):
        solar.compress(tmp_path / "a.h5", tmp_path / "c.h5", {"x": "abs=0.1"})


# --- verify ----


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("at", "to", "said"),
    [
        ((2, 3, 3), -9998.9, "1 of 16 missing values came back as others, the first at [2, 3, 3]: compress the "),
        ((2, 0, 0), -9999.0, "1 value came back as missing that were measured, the first at [2, 0, 0]"),
        ((2, 0, 1), 31.0, "1 value came back past a limit of what is valid, the first at [2, 0, 1]"),
    ],
)
def test_verify_counts_missing_values_and_fails_where_one_moved_or_is_new(
    at: tuple[int, ...], to: float, said: str, tmp_path: Path, capsys: Shown
) -> None:
    values = np.zeros((16, 64, 64), "f4")
    values[:, 3, 3], values[2, 0, 0], values[2, 0, 1] = -9999, -9998.9, 29.9
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["_FillValue"], file["x"].attrs["valid_max"] = np.float32(-9999), np.float32(30)
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    solar.compress(a, b, "abs=2")
    assert main(["verify", a, b]) == 0
    assert "16 missing values: all kept" in capsys.readouterr().out
    values[at] = to  # as earlier versions wrote them, within the bound
    with h5py.File(b, "r+") as file:
        file["x"].id.write_direct_chunk((2, 0, 0), Codec("lossless").encode(values[2:3]))
    assert main(["verify", a, b]) == 1
    shown = capsys.readouterr().out
    assert said in shown
    assert "does not hold" in shown
    assert main(["verify", a, b, "--json"]) == 1
    (field,) = json.loads(capsys.readouterr().out)["fields"]
    assert field["beyond"] == 0
    assert field["moved"] + field["made"] + field["crossed"] == 1


# --- libhdf5's filter ----


def test_the_plug_in_keeps_the_fill_value_of_the_data_set(tmp_path: Path) -> None:
    values = samples()
    values[:, 5:20, 30:] = -9999
    values[3, 0, 0] = -9998.9
    with h5py.File(tmp_path / "a.h5", "w") as file:
        how = solar.filters.Bounded(abs=0.5)
        file.create_dataset("x", data=values, chunks=(1, 64, 64), fillvalue=-9999, **how)
        file.create_dataset("y", data=values, chunks=(1, 64, 64), **how)
    with h5py.File(tmp_path / "a.h5") as file:
        x, y = file["x"][:], file["y"][:]
    assert ((values == -9999) == (x == -9999)).all()
    assert np.abs(values - x).max() <= 0.5
    assert not ((values == -9999) == (y == -9999)).all()  # nobody said so


def test_values_that_are_written_to_a_compressed_file_keep_its_marks(tmp_path: Path) -> None:
    values = samples()
    values[:, 5:20, 30:] = -9999
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["missing_value"] = -9999.0
    solar.compress(tmp_path / "a.h5", tmp_path / "b.h5", "abs=0.5")
    solar.filters.register()
    with h5py.File(tmp_path / "b.h5", "r+") as file:
        file["x"][0] = values[1]
    with h5py.File(tmp_path / "b.h5") as file:
        assert ((values[1] == -9999) == (file["x"][0] == -9999)).all()


# --- what only looks like labels ----


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.random.default_rng(0).integers(0, 3, (16, 64, 64)).astype("f4"), "3 different values"),
        (np.arange(16 * 64 * 64, dtype="i4").reshape(16, 64, 64), "ids"),
        (np.repeat(np.random.default_rng(0).integers(0, 5000, (16, 64, 4)), 16, -1).astype("i4"), "segments"),
        (samples(), ""),
        (samples("i2"), ""),
        (np.random.default_rng(0).poisson(80, (16, 64, 64)).astype("i4"), ""),
    ],
)
def test_advice_tries_no_bound_on_what_looks_like_labels(
    values: NDArray[Any], said: str, tmp_path: Path, capsys: Shown
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        assert (said in like_labels(file["x"], [values])) if said else not like_labels(file["x"], [values])
    path = str(tmp_path / "a.h5")
    assert main(["compress", "--advise", path]) == 0
    shown = capsys.readouterr().out
    assert ("rel=0.001" in shown) is not bool(said)
    assert ("only lossless is tried, for" in shown) is bool(said)
    assert main(["compress", "--advise", path, "--field", "x:rel=1e-3"]) == 0
    assert "rel=0.001" in capsys.readouterr().out


def test_what_tune_compares_has_its_marks(tmp_path: Path) -> None:
    values = samples()
    values[:, 5:20, 30:] = -9999
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["x"] = values
        file["x"].attrs["_FillValue"] = np.float32(-9999)
    asked, rows = [Codec("lossless"), Codec("abs", 0.5), Codec("rel", 1e-2)], np.array([3, 5])
    with h5py.File(path, locking=False) as file, ThreadPoolExecutor(2) as pool:
        source = AsStored(path, file, "x", asked, pool=pool, threads=2, progress=lambda _: None)
        for codec in source.codecs:
            back = source.samples(rows, source.back(codec, source.chunks(rows), Effort()))
            assert ((back == -9999) == (values[rows] == -9999)).all()
            assert np.abs(back - values[rows]).max() <= codec.bound
