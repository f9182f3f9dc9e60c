"""A real .h5ad file that scanpy ships, written by an old AnnData, is read as it is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest

from solar import CSR, DataLoader, H5Dataset
from solar.cli import main

SPEC = find_spec("scanpy")
FILE = Path(next(iter((SPEC and SPEC.submodule_search_locations) or ["-"])), "datasets/10x_pbmc68k_reduced.h5ad")
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="pip install --no-deps scanpy: it ships a file")


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    with h5py.File(FILE) as file:
        values, columns, ends = (file["raw.X"][name][()] for name in ("data", "indices", "indptr"))
    whole = np.zeros((len(ends) - 1, 765), values.dtype)
    whole[np.repeat(np.arange(len(whole)), np.diff(ends)), columns] = values
    return whole


@pytest.mark.parametrize("buffer", [0, "25%"])
def test_its_matrix_is_read_as_it_is(buffer: object, truth: np.ndarray) -> None:
    data = H5Dataset(str(FILE), CSR("raw.X"))
    assert np.array_equal(next(iter(DataLoader(data, len(data)))).to_dense().numpy(), truth)
    order = np.random.default_rng(0).permutation(len(data))
    with DataLoader(data, 64, sampler=order.tolist(), buffer=buffer, epochs=2) as loader:
        for _ in range(2):
            at = 0
            for batch in loader:
                rows = batch.to_dense().numpy()
                assert np.array_equal(rows, truth[order[at : at + len(rows)]])
                at += len(rows)
            assert at == len(truth)


def test_it_is_told_with_the_line_that_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FILE)]) == 0
    assert f'a sparse matrix of 700 rows and 765 columns: H5Dataset("{FILE}", CSR("/raw.X"))' in capsys.readouterr().out
