"""reader="mpio": the same batches through libhdf5's parallel driver, where h5py is built with MPI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle
from mpi_kit import under_mpi

from solar import H5Dataset, inspect
from solar.errors import PlanError

PROGRAM = Path(__file__).with_name("mpio_program.py")
FIELDS = ("contiguous", "chunked", "gzip", "big_endian", "compact", "text", "rows")
SAMPLES = 29
with_mpi = pytest.mark.skipif(not h5py.get_config().mpi, reason="h5py is built without MPI")


# --- without it ----


@pytest.mark.skipif(h5py.get_config().mpi, reason="h5py is built with MPI")
@pytest.mark.parametrize("reader", ["mpio", "mpio-collective"])
def test_an_h5py_without_mpi_is_an_error_that_says_how_to_go_on(reader: Any, make: Callable[..., str]) -> None:
    path = make("a.h5", x=np.arange(3))
    with pytest.raises(PlanError, match=rf"reader='{reader}' for .*a.h5: /?x: .*built without MPI.*HDF5_MPI=ON"):
        H5Dataset(path, "x", reader=reader)


def test_another_reader_is_refused(make: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="'auto', 'mpio', 'mpio-collective'"):
        H5Dataset(make("a.h5", x=np.arange(3)), "x", reader="mpi")  # type: ignore[arg-type]


def test_nobody_reads_over_mpi_who_did_not_ask(make: Callable[..., str]) -> None:
    path = make("a.h5", x=np.arange(3))
    assert inspect(path, "x").reader == "direct"
    assert H5Dataset(path, "x").layouts.reader == "direct"


# --- with it ----


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of many kinds of data sets, and a folder of files alike."""
    folder = tmp_path_factory.mktemp("mpio")
    random = np.random.default_rng(4)
    numbers = random.integers(-1000, 1000, (SAMPLES, 6, 5))
    with h5py.File(folder / "kinds.h5", "w") as file:
        file["contiguous"] = numbers.astype("f4")
        file.create_dataset("chunked", data=numbers, chunks=(4, 4, 3))
        file.create_dataset("gzip", data=numbers, chunks=(3, 6, 5), compression="gzip", shuffle=True)
        file["big_endian"] = numbers.astype(">i4")
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((SAMPLES,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT16, space, dcpl=compact)
        h5py.Dataset(made)[...] = numbers[:, 0, 0]
        file["text"] = [f"sample {i}" for i in range(SAMPLES)]
        file["rows"] = np.arange(SAMPLES)
    (folder / "many").mkdir()
    for part in range(3):
        with h5py.File(folder / "many" / f"{part}.h5", "w") as file:
            file["x"] = numbers[9 * part : 9 * (part + 1)]
        settle(folder / "many" / f"{part}.h5")
    settle(folder / "kinds.h5")
    return folder / "kinds.h5", folder / "many"


@pytest.fixture(scope="module")
def told(files: tuple[Path, Path]) -> list[dict[str, Any]]:
    ranks = under_mpi(2, PROGRAM, "compare", *files, *FIELDS)
    assert [rank["ranks"] for rank in ranks] == [2, 2], "this mpiexec is not of the MPI that h5py is built with"
    return ranks


@with_mpi
@pytest.mark.parametrize("reader", ["mpio", "mpio-collective"])
@pytest.mark.parametrize("field", [*FIELDS, "together"])
def test_batches_are_those_that_are_read_directly(told: list[dict[str, Any]], reader: str, field: str) -> None:
    assert [rank[f"{reader} {field}"] for rank in told] == [[True, [4, 4, 4, 3]], [True, [4, 4, 4, 2]]]


@with_mpi
@pytest.mark.parametrize("reader", ["mpio", "mpio-collective"])
def test_a_rank_with_an_empty_batch_holds_nobody_up(told: list[dict[str, Any]], reader: str) -> None:
    assert [rank[f"{reader} one at a time"] for rank in told] == [[True, [1] * 15], [True, [1] * 14 + [0]]]


@with_mpi
def test_many_files_are_read_independently(told: list[dict[str, Any]]) -> None:
    assert [rank["files"] for rank in told] == [[True, [4, 4, 4, 2]], [True, [4, 4, 4, 1]]]
    assert [rank["file each"] for rank in told] == [[True, [1, 1]], [True, [1, 0]]]


@with_mpi
def test_rows_come_in_the_order_asked(told: list[dict[str, Any]]) -> None:
    assert [rank["any order"] for rank in told] == [True, True]


@with_mpi
def test_many_files_are_not_read_collectively(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert "and 2 more files" in rank["of many files"]
        assert "cannot be a part of a ConcatDataset" in rank["concatenated"]


@with_mpi
def test_a_process_that_mpi_was_not_started_in_is_told_so(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert "in a process that MPI was not started in" in rank["forked"]


@with_mpi
def test_a_file_that_changed_is_an_error(told: list[dict[str, Any]]) -> None:
    assert all("changed since it was inspected" in said for rank in told for said in rank["changed"])


@with_mpi
@pytest.mark.parametrize("reader", ["mpio", "mpio-collective"])
def test_a_program_may_end_amid_an_epoch(files: tuple[Path, Path], reader: str) -> None:
    settle(files[0])
    assert under_mpi(2, PROGRAM, "leave", files[0], reader) == [4, 4]
