"""Raw files that an HDF5 file names: those in its folder are read, others are refused, and all are named."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import solar
from solar import H5Dataset, LayoutError
from solar.cli import main
from solar.io.codec.diff import differences
from solar.io.hdf5 import guarded_reader

PRIVATE = b"PRIVATE!" * 10
OK = bytes(range(80))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a private file beside it, which a link within leads to."""
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "private").write_bytes(PRIVATE)
    (tmp_path / "data-too").mkdir()
    (tmp_path / "data-too" / "private").write_bytes(PRIVATE)
    (folder / "below" / "raw.bin").write_bytes(OK)
    (folder / "link.bin").symlink_to(tmp_path / "private")
    return folder


WAYS_OUT = {
    "an absolute name": "{private}",
    "a name that leads up": "{folder}/../private",
    "a link in the folder": "{folder}/link.bin",
    "a folder whose name begins alike": "{folder}-too/private",
}
SHARES = {"natively": [(0, 80)], "through libhdf5": [(0, 12), (12, 68)]}  # the second ends within a row


def written(path: Path, raw: str, shares: list[tuple[int, int]]) -> None:
    """The dataset x in the raw file; and datasets whose source it is: whole, or a part of each row."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (10, 8), "u1", external=[(raw, begin, nbytes) for begin, nbytes in shares])
        for name, columns in {"whole": slice(0, 8), "part": slice(2, 6)}.items():
            layout = h5py.VirtualLayout((10, columns.stop - columns.start), "u1")
            layout[...] = h5py.VirtualSource(str(path), "x", (10, 8))[:, columns]
            file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_raw_file_outside_of_the_folder_is_not_read(way: str, shares: str, place: Path) -> None:
    path = place / "scan.h5"
    raw = WAYS_OUT[way].format(private=place.parent / "private", folder=place)
    written(path, raw, SHARES[shares])
    for name in ("x", "whole", "part"):
        with pytest.raises(LayoutError, match=r"raw file .*private, which is not in .*data or below.*EXTFILE_PREFIX"):
            solar.read(path, name)
        with pytest.raises(LayoutError, match=r"raw file .*private"):
            H5Dataset(path, name).read_batch([3, 1])


def test_one_by_a_link_to_another_file_is_judged_by_the_folder_of_that_file(place: Path) -> None:
    other = place.parent / "other"
    other.mkdir()
    written(place / "scan.h5", str(place / "below" / "raw.bin"), SHARES["natively"])
    with h5py.File(other / "links.h5", "w") as file:
        file["x"] = h5py.ExternalLink(str(place / "scan.h5"), "/x")
    assert solar.read(other / "links.h5", "x").tobytes() == OK


@pytest.mark.parametrize("shares", SHARES)
def test_a_raw_file_below_is_read_and_named_by_inspect(
    shares: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, raw = place / "scan.h5", str(place / "below" / "raw.bin")
    written(path, raw, SHARES[shares])
    assert solar.read(path, "x").tobytes() == OK
    assert np.array_equal(solar.read(path, "part"), solar.read(path, "x")[:, 2:6])
    assert main(["inspect", str(path), "x"]) == 0
    assert raw in "".join(line.strip() for line in capsys.readouterr().out.splitlines())
    assert main(["inspect", str(path), "x", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["datasets"]
    assert raw in found["reason"] if found["reason"] else found["values_in"] == [raw]


def test_inspect_names_a_raw_file_that_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(place / "scan.h5", str(place.parent / "private"), SHARES["natively"])
    main(["inspect", str(place / "scan.h5"), "--json"])
    reasons = {one["name"]: one["reason"] for one in json.loads(capsys.readouterr().out)["datasets"]}
    assert all(str(place.parent / "private") in reasons[name] for name in ("/x", "/whole", "/part"))


@pytest.mark.parametrize("shares", SHARES)
def test_the_variable_of_hdf5_allows_a_folder_more(shares: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = place.parent / "raw"
    elsewhere.mkdir()
    (elsewhere / "1.bin").write_bytes(OK)
    monkeypatch.setenv("HDF5_EXTFILE_PREFIX", str(elsewhere))
    guarded_reader._child.stop()  # or it has the variables of before
    try:
        for name in ("1.bin", str(elsewhere / "1.bin")):
            written(place / "scan.h5", name, SHARES[shares])
            assert solar.read(place / "scan.h5", "x").tobytes() == OK
        written(place / "scan.h5", "../private", SHARES[shares])
        with pytest.raises(LayoutError, match=r"raw file .*private"):
            solar.read(place / "scan.h5", "x")
    finally:
        guarded_reader._child.stop()


def test_verify_does_not_compare_a_private_file(place: Path) -> None:
    """Its answer alone, whether two files have the same values, would tell of the private one."""
    for name in ("one.h5", "two.h5"):
        written(place / name, str(place.parent / "private"), SHARES["natively"])
    with h5py.File(place / "one.h5") as here, h5py.File(place / "two.h5") as there:
        found = list(differences(here, there, ()))
    assert any(one.startswith("/x: ") and "raw file" in one for one in found)
