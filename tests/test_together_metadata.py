"""Metadata that rank 0 reads for all: the same Layouts, the same errors, one reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi_kit import under_gloo, under_mpi

from solar import H5Dataset, Layout, inspect
from solar.io.hdf5.metadata import pack_layouts, unpacked

Start = Callable[..., list[Any]]
BEGIN = """
import json, os, sys
if "RANK" in os.environ:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
else:
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
import numpy as np
from solar import H5Dataset, SolarError, inspect
from solar.io.hdf5 import layouts as hdf5

def say(value):
    print(json.dumps([rank, value]))
"""


@pytest.fixture(params=["mpi", "torch"])
def on(request: pytest.FixtureRequest) -> Callable[..., dict[int, Any]]:
    """on(ranks, body, *args) runs the body on all ranks and gives what each has said."""
    start: Start = {"mpi": under_mpi, "torch": under_gloo}[request.param]
    return lambda ranks, body, *args: dict(start(ranks, BEGIN + body, *args))


def test_layouts_of_every_kind_are_the_same_when_they_have_been_packed(zoo: str) -> None:
    layouts = list(inspect(zoo).values())
    assert {layout.reader for layout in layouts} == {"direct", "h5py", "none"}
    for layout, other in zip(layouts, unpacked(pack_layouts(layouts)), strict=True):
        assert other.digest == layout.digest
        assert other.dtype.metadata == layout.dtype.metadata, "what h5py adds: texts, enumerations, references"
        facts = ("name", "paths", "shape", "index", "reason", "per_file", "forms")
        assert [getattr(other, fact) for fact in facts] == [getattr(layout, fact) for fact in facts]


def test_layouts_over_many_files_are_the_same_when_they_have_been_packed(make: Callable[..., str]) -> None:
    rng = np.random.default_rng(3)
    kinds = [{}, {"chunks": (2, 4)}, {"chunks": (3, 4), "compression": "gzip"}]
    paths = [make(f"{i}\udcff.h5", x=(rng.random((5 + i, 4)), kind)) for i, kind in enumerate(kinds)]
    layout = inspect(paths, "x")
    (other,) = unpacked(pack_layouts([layout]))
    assert other.digest == layout.digest
    assert other.paths == tuple(paths)


@pytest.mark.slow(but=["mpi"])
def test_all_ranks_have_the_layouts_that_only_rank_0_has_read(on: Callable[..., dict[int, Any]], zoo: str) -> None:
    body = """
path = sys.argv[1]
alone = inspect(path)
names = ["contiguous", {"a": "deflate", "b": ("text", "struct")}]
structured = inspect(path, names)
read = []
before = hdf5.read_layouts
hdf5.read_layouts = lambda *args: read.append(1) or before(*args)
together = inspect(path, collective_open=True)
both = inspect(path, names, collective_open=True)
dataset = H5Dataset(path, {"x": "deflate"}, collective_open=True)
say([
    list(together) == list(alone), all(together[name].digest == alone[name].digest for name in alone),
    both[0].digest == structured[0].digest, both[1]["b"][1].dtype == structured[1]["b"][1].dtype,
    float(dataset[3]["x"].sum()), len(read),
])
"""
    said = on(3, body, zoo)
    with h5py.File(zoo) as file:
        total = float(file["deflate"][3].sum())
    assert said == {rank: [True] * 4 + [total, 3 if rank == 0 else 0] for rank in range(3)}


@pytest.mark.slow(but=["torch"])
def test_large_chunk_tables_go_from_rank_to_rank(on: Callable[..., dict[int, Any]], tmp_path: Path) -> None:
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (30_000, 2), "u1", chunks=(1, 2))[::3] = np.arange(10_000)[:, None] % 256
    body = """
from solar.io.channels import bulk
bulk.CAST_PIECE = 50_000
layout = inspect(sys.argv[1], "x", collective_open=True)
dataset = H5Dataset(sys.argv[1], "x", collective_open=True)
say([layout.digest, len(layout.chunk_offset), int(dataset[29_997][1]), layout.chunk_offset.flags.writeable])
"""
    here = inspect(path, "x")
    said = on(4, body, path)
    for rank in range(4):
        digest, chunks, value, writeable = said[rank]
        assert (digest, chunks, value) == (here.digest, 10_000, 9_999 % 256)
        assert not writeable or rank == 0


@pytest.mark.slow(but=["torch"])
def test_an_error_of_rank_0_is_the_same_error_on_all(on: Callable[..., dict[int, Any]], zoo: str) -> None:
    body = """
found = []
tries = [(sys.argv[1], "contigous"), ("/nowhere/scan.h5", "x"), ([], "x"), (sys.argv[1], ("contiguous", "no_rows"))]
for path, field in tries:
    try:
        inspect(path, field, collective_open=True)
    except SolarError as error:
        found.append([type(error).__name__, str(error), getattr(error, "errno", None)])
say(found)
"""
    said = on(2, body, zoo)
    assert said[0] == said[1]
    assert [kind for kind, *_ in said[0]] == ["LayoutError", "ReadError", "LayoutError", "LayoutError"]
    assert said[0][1][2] == 2
    assert "contiguous" in said[0][0][1], "the near miss is told everywhere"


def test_ranks_that_ask_for_different_things_are_told_so(zoo: str) -> None:
    body = """
try:
    inspect(sys.argv[1], ["contiguous", "deflate"][rank], collective_open=True)
except SolarError as error:
    say(str(error))
"""
    said = dict(under_mpi(2, BEGIN + body, zoo))
    assert said[0] == said[1]
    assert f'the metadata of {zoo}: rank 1 has fields ["deflate"], rank 0 has ["contiguous"]' in said[0]


def test_a_bad_argument_is_refused_before_anybody_waits() -> None:
    with pytest.raises(TypeError, match="a field is a dataset's name"):
        inspect("/nowhere.h5", 7, collective_open=True)


def test_a_process_that_is_alone_reads_as_without(zoo: str) -> None:
    layout = inspect(zoo, "deflate", collective_open=True)
    assert isinstance(layout, Layout)
    assert layout.digest == inspect(zoo, "deflate").digest
    assert len(H5Dataset(zoo, "deflate", collective_open=True)) == 10
