"""A buffer that is too small: the error says how much is enough, and that is enough for all processes of the node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mpi_kit
import pytest
from buffer_kit import LAYOUTS, MANY, ORDERS, dataset_of

from solar import DataLoader, H5Dataset, PlanError
from solar.buffer import buffer_size
from solar.io.system.quantities import enough, size, size_of


def batch_of(loader: DataLoader[Any]) -> Any:
    return next(iter(loader))


def followed(make: Any) -> int:
    """The buffer that the error of one that is too small asks for, with which the loader works."""
    with pytest.raises(PlanError, match="is too small") as caught:
        batch_of(make(1))
    found = re.search(r"give at least buffer=(\d+), ", str(caught.value))
    assert found is not None
    least = int(found[1])
    with pytest.raises(PlanError, match=f"give at least buffer={least}, "):
        batch_of(make(least - 1))
    batch_of(make(least))
    return least


def doubled(sample: Any) -> Any:
    return sample


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("layout", [*LAYOUTS, *MANY])
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_the_advice_is_enough_for_processes_that_have_a_buffer_each(
    layout: str, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = dataset_of(tmp_path, layout)
    alone = followed(lambda nbytes: DataLoader(data, 7, shuffle=True, buffer=nbytes))
    monkeypatch.setattr(buffer_size, "ranks_here", lambda: processes)
    assert followed(lambda nbytes: DataLoader(data, 7, shuffle=True, buffer=nbytes)) == processes * alone
    assert followed(lambda nbytes: DataLoader(data, **ORDERS["odd batches"](data), buffer=nbytes)) > 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("thread_safe", [False, True])
def test_the_advice_is_enough_beside_a_transform(
    workers: int, thread_safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_size, "ranks_here", lambda: 3)
    dataset_of(tmp_path, "two fields")
    data = H5Dataset(str(tmp_path / "one.h5"), {"x": "x", "y": "y"}, transform=doubled, thread_safe=thread_safe)

    def make(nbytes: int) -> Any:
        context = "fork" if workers and not thread_safe else None
        return DataLoader(data, 7, shuffle=True, buffer=nbytes, num_workers=workers, multiprocessing_context=context)

    followed(make)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_advice_is_enough_for_ranks_that_share_a_buffer(ranks: int, tmp_path: Path) -> None:
    layouts = ["contiguous", "chunks of four samples", "two fields"]
    for layout in layouts:
        (tmp_path / layout).mkdir()
        dataset_of(tmp_path / layout, layout)
    program = """
import json, re, sys
import mpi4py.MPI
from solar import DataLoader, H5Dataset, PlanError, PlanSampler
from solar.io.channels import detect
rank, ranks = detect().rank, detect().ranks

def taken(folder, fields, buffer, **given):
    data = H5Dataset(folder + "/one.h5", fields, **given)
    try:
        with DataLoader(data, 4, sampler=PlanSampler(data, ranks, rank), buffer=buffer) as loader:
            return sum(1 for _ in loader)
    except PlanError as error:
        return str(error)

found = []
for folder, fields in zip(sys.argv[1:], ["x", "x", {"x": "x", "y": "y"}]):
    for given in ({}, {"transform": lambda sample: sample, "thread_safe": True}):
        least = int(re.search("at least buffer=([0-9]+)", taken(folder, fields, 1, **given))[1])
        found.append([least, taken(folder, fields, least - 1, **given), taken(folder, fields, least, **given)])
print(json.dumps(found))
"""
    for found in mpi_kit.under_mpi(ranks, program, *(tmp_path / layout for layout in layouts)):
        for least, refused, batches in found:
            assert f"give at least buffer={least}, " in refused
            assert isinstance(batches, int)


def test_a_size_that_is_said_to_be_enough_is_rounded_up() -> None:
    for nbytes in [1, 1023, 1024, 1025, 8704, 26112, 102399, 102401, (1 << 20) - 1, 1_234_567, (3 << 29) + 1, 10**13]:
        text = enough(nbytes)
        assert nbytes <= size_of(text.replace(",", ""), 0) <= nbytes * 1.1 + 1, text
        assert size(size_of(text.replace(",", ""), 0)) == text
