"""What is no HDF5 file is called by its name; a name that no dataset has is answered with those there are."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import solar
from solar.cli import main
from solar.errors import LayoutError, SolarError
from solar.io.hdf5 import paths
from solar.io.hdf5.opening import open_file_checked


def tar() -> bytes:
    """An archive of one small file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return made.getvalue()


def archive(suffix: str) -> bytes:
    """What numpy and zipfile write."""
    made = io.BytesIO()
    if suffix == "npz":
        np.savez(made, x=np.zeros(3))
    elif suffix == "npy":
        np.save(made, np.zeros(3))
    else:
        with zipfile.ZipFile(made, "w") as file:
            file.writestr("a.txt", "text")
    return made.getvalue()


WRONG = {
    "empty": (b"", "0 bytes: empty"),
    "netCDF-3": (b"CDF\x01" + bytes(60), "looks like netCDF-3: .*nccopy -k nc4"),
    "netCDF-3, large": (b"CDF\x02" + bytes(60), "looks like netCDF-3: .*nccopy -k nc4"),
    "netCDF-3, larger": (b"CDF\x05" + bytes(60), "looks like netCDF-3: .*nccopy -k nc4"),
    "HDF4": (b"\x0e\x03\x13\x01" + bytes(60), "looks like HDF4: .*h4toh5"),
    "as text": (b"\x89HDF\n\x1a\n" + bytes(60), "transferred as text"),
    "gzip": (gzip.compress(b"text"), "looks like gzip: .*gunzip"),
    "zip": (archive("zip"), "a zip archive"),
    "npz": (archive("npz"), "a zip archive, as .npz"),
    "npy": (archive("npy"), "a .npy file: .*numpy.load"),
    "tar": (tar(), "a tar archive"),
    "TIFF": (b"II*\0" + bytes(60), "a TIFF image"),
    "TIFF, big-endian": (b"MM\0*" + bytes(60), "a TIFF image"),
    "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(60), "a PNG image"),
    "GRIB": (b"GRIB" + bytes(60), "looks like GRIB: .*grib_to_netcdf"),
    "FITS": (b"SIMPLE  =                    T".ljust(2880), "looks like FITS: .*astropy"),
    "HTML": (b"\xef\xbb\xbf\n <!doctype HTML><html>not found</html>", "a web page"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer.*git lfs pull"),
    "text": (b"time,velocity\n0,1.5\n" * 50, "looks like text"),
    "noise": (bytes(range(256)) * 4, "it has no HDF5 signature$"),
}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize(("content", "said"), WRONG.values(), ids=WRONG)
def test_a_file_of_another_kind_is_called_by_its_name_at_every_door(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    doors: tuple[Callable[[], object], ...] = (
        lambda: solar.inspect(path),
        lambda: solar.H5Dataset(path, "x"),
        lambda: solar.read(path, "x"),
        lambda: open_file_checked(path),
    )
    for door in doors:
        with pytest.raises(LayoutError, match=rf"a\.h5: .*{said}"):
            door()
    for command in (["inspect"], ["compress", str(tmp_path / "b.h5"), "--lossless"], ["verify", str(path)]):
        name, *rest = command
        assert main([name, str(path), *rest]) != 0
        assert said.partition(":")[0].partition(".")[0].strip("$") in capsys.readouterr().err


def test_what_comes_before_an_hdf5_file_is_its_users(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["x"] = np.arange(4)
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.write(b"<html>")
    assert solar.inspect(tmp_path / "a.h5", "x", cache=None).samples == 4


@pytest.mark.parametrize("mark", [".zgroup", ".zarray", "zarr.json"])
def test_a_zarr_folder_is_not_compressed(mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / mark).write_text("{}")
    assert main(["compress", str(tmp_path), str(tmp_path / "b.h5"), "--lossless"]) == 1
    assert "it is a Zarr store, not HDF5" in capsys.readouterr().err
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(4)
    assert solar.inspect(tmp_path, "x", cache=None).samples == 4


# --- names ----


def test_a_name_like_none_is_answered_with_the_datasets_there_are(make: Callable[..., str]) -> None:
    small = {f"aux/v{number:02}": np.zeros(3) for number in range(30)}
    path = make("a.h5", **small, **{"scan/counts": np.zeros((50, 4)), "truth": np.zeros(50)})
    with pytest.raises(LayoutError) as raised:
        solar.H5Dataset(path, "wholly-different")
    first, *names = str(raised.value).partition("; it has ")[2].partition(" and ")[0].split(", ")
    assert (first, names[0]) == ("/scan/counts", "/truth"), "what is as long as the largest comes first"
    assert len(names) == paths.LISTED - 1
    assert names[1:] == [f"/{name}" for name in sorted(small)][: paths.LISTED - 2]
    assert str(raised.value).endswith(f" and 12 more: `solar inspect {path}` lists all")


def test_a_group_is_answered_with_the_datasets_in_it(make: Callable[..., str]) -> None:
    path = make("a.h5", **{"scan/counts": np.zeros((50, 4)), "truth": np.zeros(50)})
    with pytest.raises(LayoutError, match=r"/scan: it is a group, not a dataset; it has /scan/counts$"):
        solar.inspect(path, "scan")
    with h5py.File(path, "r+") as file:
        file.create_group("void")
    with pytest.raises(SolarError, match=r"/void: it is a group, not a dataset; it has no dataset$"):
        solar.inspect(path, "void", cache=None)


def test_compress_answers_likewise(make: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    path = make("a.h5", x=np.zeros((50, 4)))
    assert main(["compress", path, "--advise", "--field", "wholly-different:abs=1"]) == 1
    assert "there is no dataset /wholly-different to be compressed; it has /x\n" in capsys.readouterr().err
