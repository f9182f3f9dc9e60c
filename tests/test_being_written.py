"""A file that is being written is told so, with what to do."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from solar import H5Dataset, LayoutError, inspect
from solar.cli import main
from solar.io.hdf5.paths import locked_by_writer


@pytest.fixture(autouse=True)
def locks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "try.h5", "w"):
        if not locked_by_writer(str(tmp_path / "try.h5")):
            pytest.skip("HDF5 takes no locks on files here")


def test_a_swmr_file_is_named_while_it_is_written_and_read_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=np.arange(8.0), chunks=(2,), maxshape=(None,))
        file.swmr_mode = True
        said = (
            r"being written \(SWMR: .*wait until the writer has closed it, or read it with h5py.File\(path, swmr=True\)"
        )
        for read in (
            lambda: inspect(path, "x"),
            lambda: H5Dataset(path, "x"),
            lambda: H5Dataset(path, "x", samples="/*"),
        ):
            with pytest.raises(LayoutError, match=said):
                read()
        assert main(["inspect", path]) == 1
        assert "is being written (SWMR" in capsys.readouterr().err
    assert [float(one) for one in H5Dataset(path, "x")] == list(range(8))


def test_a_writer_that_died_is_told_with_the_command_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.arange(8)
        file.swmr_mode = True
        file.flush()
        left = path.read_bytes()
    path.write_bytes(left)
    with pytest.raises(LayoutError, match="if no writer is left, run `h5clear -s` on it"):
        H5Dataset(path, "x")
    assert not locked_by_writer(str(path))


def test_a_file_that_is_locked_and_cannot_be_read_is_told_to_be_written(tmp_path: Path) -> None:
    """As h5py writes by default there is no flag: what is not flushed yet looks damaged, or is not there."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(8)
        file.flush()
        with pytest.raises(
            LayoutError, match=r"there is no y.*; a program has this file open for writing and holds a lock"
        ):
            H5Dataset(path, "y")
        file["deep/y"] = np.arange(8)
    with pytest.raises(LayoutError) as caught:
        H5Dataset(path, "z")
    assert "open for writing" not in str(caught.value)
    assert len(H5Dataset(path, "deep/y")) == 8


def test_a_locked_file_that_can_be_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(8)
        file.flush()
        assert len(H5Dataset(path, "x")) == 8
        with h5py.File(path, "r") as again:  # the same process may
            assert again["x"].shape == (8,)
