"""`solar verify`: whatever differs is found and named, and the exit code says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from store_kit import all_of_hdf5, smooth

from solar import read
from solar.cli import main
from solar.io.codec.store import compress
from solar.io.hdf5.layouts import inspect

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    """A file with all that HDF5 has, and its compressed form."""
    all_of_hdf5(tmp_path / "a.h5")
    compress(tmp_path / "a.h5", tmp_path / "b.h5", {None: "abs=0.01", "group/counts": "lossless"})
    return str(tmp_path / "a.h5"), str(tmp_path / "b.h5")


def test_what_holds_is_said_and_stored(two: tuple[str, str], capsys: Shown) -> None:
    source, target = two
    assert main(["verify", source, target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("/fields  off by 0.00") and ", 0.01 was allowed, PSNR " in line for line in lines)
    assert "/group/counts  all of 64,000 values are the same, bit for bit" in lines
    assert lines[-1].startswith(f"{target} holds what {source} does, as read by solar")
    with h5py.File(source) as here, h5py.File(target) as there:
        assert json.loads(there.attrs["solar_verified"])["holds"] is True
        said = json.loads(there["fields"].attrs["solar_verified"])
        off = np.abs(read(target, "fields").astype("f8") - here["fields"][()]).max()
        assert said["largest_error"] == pytest.approx(off, rel=1e-12)
        assert (said["bound"], said["beyond"], said["holds"]) == (0.01, 0, True)
    assert main(["verify", source, target]) == 0  # what it stored is no difference


def test_a_result_need_not_be_stored(two: tuple[str, str], capsys: Shown) -> None:
    before = Path(two[1]).read_bytes()
    assert main(["verify", *two, "--no-store", "--json"]) == 0
    assert Path(two[1]).read_bytes() == before
    answer = json.loads(capsys.readouterr().out)
    assert [*answer] == ["version", "holds", "fields", "differences", "by"]
    assert [*answer["fields"][0]] == [
        *("name", "kind", "bound", "values", "beyond", "first", "largest", "psnr"),
        *("missing", "moved", "made", "crossed", "unit"),
    ]


def test_a_file_that_may_not_be_written_is_verified_all_the_same(
    two: tuple[str, str], capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("solar.cli.verify.store_result", refuse)
    assert main(["verify", *two]) == 0
    assert "the result is not stored in" in capsys.readouterr().err


def test_a_value_beyond_its_bound_is_found_and_named(two: tuple[str, str], capsys: Shown) -> None:
    with h5py.File(two[0], "r+") as file:
        file["fields"][17, 3, 30] += 0.5
        file["group/counts"][2, 1, 0] += 1
        file["filled"][35, 0, 1] = np.nan
    assert main(["verify", *two]) == 1
    shown = capsys.readouterr().out
    assert "/fields  1 of 40,960 values are off by more than 0.01: by up to 0." in shown
    assert "the first at [17, 3, 30]" in shown
    assert "/group/counts  1 of 64,000 values" in shown
    assert "the first at [35, 0, 1]" in shown
    assert f"{two[1]} does not hold what" in shown
    with h5py.File(two[1]) as file:
        assert json.loads(file.attrs["solar_verified"])["holds"] is False


def test_files_in_the_wrong_order_are_told_the_right_one(two: tuple[str, str], capsys: Shown) -> None:
    assert main(["verify", two[1], two[0]]) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"If {two[0]} is the original, it comes first: solar verify {two[0]} {two[1]}"
    assert main(["verify", *two]) == 0
    assert "comes first" not in capsys.readouterr().out


def remove(name: str) -> Callable[[Any], None]:
    return lambda file: file.__delitem__(name)


def attribute(name: str, key: str, value: Any) -> Callable[[Any], None]:
    return lambda file: file[name].attrs.__setitem__(key, value)


def links_again(name: str, to: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]
        file[name] = file[to] if isinstance(to, str) else to

    return change


def value(name: str, place: Any, new: Any) -> Callable[[Any], None]:
    return lambda file: file[name].__setitem__(place, new)


def made_anew(name: str, make: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    """Makes the object of this name again: make(its values so far, its file)."""

    def change(file: Any) -> None:
        values = file[name][()]
        del file[name]
        make(values, file)

    return change


DIFFERENCES: dict[str, tuple[Callable[[Any], None], str]] = {
    "link gone": (remove("group/labels"), "/group: its links differ: ['labels'] are missing"),
    "link new": (lambda file: file.create_group("more"), "/: its links differ: [] are missing, ['more'] are new"),
    "soft link": (links_again("soft", h5py.SoftLink("/x")), "/soft: a link that leads elsewhere"),
    "external link": (links_again("other", h5py.ExternalLink("a", "/x")), "/other: a link that leads elsewhere"),
    "alias": (links_again("alias", "zeta"), "/alias: the same object as another one, which it is not in the original"),
    "no alias": (
        made_anew("alias", lambda values, file: file.create_dataset("alias", data=values)),
        "/group/counts: another object than /alias, which it is in the original",
    ),
    "group": (
        made_anew("group/labels", lambda values, file: file.create_group("group/labels")),
        "/group/labels: a group, and a dataset in the original",
    ),
    "type": (
        made_anew("group/labels", lambda values, file: file.create_dataset("group/labels", data=values.astype("f8"))),
        "/group/labels: of another type",
    ),
    "attribute": (attribute("fields", "unit", "T"), "/fields: attribute unit "),
    "attribute new": (attribute("group", "new", 1), "/group: attribute new is new"),
    "attribute type": (attribute("fields", "odd", 3), "/fields: attribute odd is of another type or shape"),
    "value": (value("group/labels", 3, 9), "/group/labels: its values differ"),
    "chunked value": (value("half", (3, 2, 1), 9), "/half: its values differ"),
    "text": (value("group/text", 2, "another"), "/group/text: its values differ"),
    "list": (value("group/vlen", 2, np.arange(4)), "/group/vlen: its values differ"),
    "reference": (
        lambda file: file["group/references"].__setitem__(1, file["x"].ref),
        "/group/references: its values differ",
    ),
    "kind": (lambda file: links_again("x", h5py.SoftLink("/zeta"))(file), "/x: a link that leads elsewhere"),
}


@pytest.mark.slow(every=8)
@pytest.mark.parametrize("name", DIFFERENCES)
def test_anything_else_that_differs_is_found_and_named(name: str, two: tuple[str, str], capsys: Shown) -> None:
    change, words = DIFFERENCES[name]
    with h5py.File(two[1], "r+", track_order=True) as file:
        change(file)
    assert main(["verify", *two, "--no-store"]) == 1
    shown = capsys.readouterr().out
    assert words in shown, shown


def test_files_that_have_nothing_to_do_with_each_other_differ(two: tuple[str, str], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["fields"] = smooth(10, 5, 5)
    assert main(["verify", str(tmp_path / "c.h5"), two[1], "--no-store"]) == 1
    assert main(["verify", two[0], str(tmp_path / "c.h5"), "--no-store"]) == 1


def test_a_value_that_differs_is_found_where_a_later_axis_is_unlimited(tmp_path: Path, capsys: Shown) -> None:
    paths = [str(tmp_path / name) for name in ("a.h5", "b.h5", "c.h5")]
    for path, value in zip(paths, (1, 1, 2), strict=True):
        with h5py.File(path, "w", libver="v110") as file:  # libhdf5 lists its one chunk at (0, 9)
            made = file.create_dataset("x", (4, 25), "i4", chunks=(2, 3), maxshape=(5, None), compression="gzip")
            made[0:2, 3:6] = value
    assert main(["verify", *paths[:2], "--no-store"]) == 0
    assert main(["verify", *paths[1:], "--no-store"]) == 1
    assert "/x: its values differ" in capsys.readouterr().out


def test_a_copy_is_no_difference(two: tuple[str, str], tmp_path: Path) -> None:
    shutil.copy(two[0], tmp_path / "c.h5")
    assert main(["verify", two[0], str(tmp_path / "c.h5"), "--no-store"]) == 0


# --- one file ----


def test_a_sound_file_is_sound(two: tuple[str, str], capsys: Shown) -> None:
    for path in two:
        assert main(["verify", path]) == 0
        assert "all can be decoded" in capsys.readouterr().out
    assert main(["verify", two[1], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [*answer] == ["version", "holds", "chunks", "nbytes", "bad"]
    assert answer["chunks"] > 50


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", ["fields", "group/counts"])
def test_each_damaged_chunk_is_named_with_its_place(name: str, two: tuple[str, str], capsys: Shown) -> None:
    layout = inspect(two[1], name)
    rng = np.random.default_rng(3)
    spoiled = sorted(int(i) for i in rng.choice(len(layout.chunk_offset), 3, replace=False))
    with Path(two[1]).open("r+b") as file:
        for i in spoiled:
            at = int(layout.chunk_offset[i]) + int(rng.integers(int(layout.chunk_nbytes[i])))
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 16]))
    assert main(["verify", two[1]]) == 1
    shown = capsys.readouterr().out
    rows = layout.forms[0].chunk[0]
    for i in spoiled:
        place = f"{int(layout.chunk_nbytes[i]):,} bytes at {int(layout.chunk_offset[i]):,}: "
        assert f"/{name}  chunk {i} (from sample {i * rows}), {place}" in shown
    assert "3 cannot be read" in shown
    assert main(["verify", *two, "--no-store"]) == 1


def test_damage_to_gzip_is_named_too(tmp_path: Path, capsys: Shown) -> None:
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=smooth(20, 30, 30), chunks=(2, 30, 30), compression="gzip", fletcher32=True)
    layout = inspect(path, "x")
    with Path(path).open("r+b") as raw:
        raw.seek(int(layout.chunk_offset[7]) + 100)
        raw.write(b"\0\0\0\0")
    assert main(["verify", path]) == 1
    assert "/x  chunk 7 (from sample 14)" in capsys.readouterr().out


def test_a_file_cut_short_is_an_error(two: tuple[str, str], capsys: Shown) -> None:
    whole = Path(two[1]).read_bytes()
    Path(two[1]).write_bytes(whole[: len(whole) // 2])
    assert main(["verify", two[1]]) == 1
    assert main(["verify", *two]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_what_libhdf5_cannot_open_is_named_and_all_else_is_read(two: tuple[str, str], capsys: Shown) -> None:
    """A compound type whose member is outside it: h5py raises KeyError when such a dataset is opened."""
    for path in two:
        with h5py.File(path, "a") as file:
            file.create_dataset("spoiled", data=np.zeros(4, [("spoil_me", "<i4"), ("b", "<f8")]))
        whole = Path(path).read_bytes()
        at = whole.index(b"spoil_me\0") + 16  # the name is padded; the place of the member follows
        Path(path).write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        with h5py.File(path, "r") as file, pytest.raises(KeyError):
            file["spoiled"]
    assert main(["verify", two[1], "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["chunk"]) for one in answer["bad"]] == [("/spoiled", -1)]
    assert answer["chunks"] > 50
    assert main(["verify", *two]) == 1
    told = capsys.readouterr().err
    assert "/spoiled: libhdf5 cannot open it" in told and "`solar verify" in told
    for command in (["compress", "--advise", two[0], "--quiet"], ["compress", two[0], two[0] + ".out", "--abs", "1"]):
        assert main(command) == 1
        assert "/spoiled: libhdf5 cannot open it" in capsys.readouterr().err


def test_what_is_not_there_is_one_line(tmp_path: Path, capsys: Shown) -> None:
    assert main(["verify", str(tmp_path / "none.h5")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
