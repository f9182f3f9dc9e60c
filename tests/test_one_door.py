"""`solar plan` and the loader plan by one door: the table's requests, bytes and peak are those of a run, in fifty."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from test_slowfs import load
from test_together import LAYOUTS as LAYOUTS_TOGETHER
from test_together import case
from test_together import run as run_together
from test_together import written as written_together

import solar
from solar import DataLoader, H5Dataset, PlanSampler
from solar.cli import main
from solar.cli.compare import PlannedData, job_of
from solar.io.reading.engine import GAP
from solar.io.reading.run import scratch_nbytes
from solar.io.system.cores import planned_threads, reading_threads
from solar.io.system.profile import with_decoding
from solar.planning import torch_shuffles
from solar.planning.budget import BufferTooSmall
from solar.planning.job import Job, NodePlan, plan_node
from solar.planning.sweep import Counts, total
from solar.planning.units import of_layout
from solar.values import Storage, World

SAMPLES, SHAPE, SEED = 300, (12, 20), 7
DISK = Storage(latency=1e-3, bandwidth=1e8, iops=500)  # a request costs as much as 200 kB
TOGETHERS = DISK  # together_program.py's
FLASH = Storage(latency=1e-4, bandwidth=1e9, iops=1e6)  # 1 kB, about a sample

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "rows of chunks": {"chunks": (4, *SHAPE)},
    "deflate, one sample": {"chunks": (1, *SHAPE), "compression": "gzip"},
    "deflate, four samples": {"chunks": (4, *SHAPE), "compression": "gzip"},
    "deflate, sixty-four samples": {"chunks": (64, *SHAPE), "compression": "gzip", "shuffle": True},
    "tiles": {"chunks": (1, 5, 7), "compression": "gzip"},
    "across samples": {"chunks": (4, 6, 20)},
    "our codec": {},
    "several files": {"chunks": (4, *SHAPE), "compression": "gzip"},
    "two fields": {"chunks": (8, *SHAPE), "compression": "gzip"},
}


class Asked(NamedTuple):
    """A training on a file of this layout."""

    layout: str
    share: float  # of the data as they are stored, that the buffer has room for beside the batches
    batch: int
    ahead: int | None
    sampler: str
    epochs: int | None  # as the loader is told
    storage: Storage


def fifty() -> list[Asked]:
    """Every layout with every share, and the other choices in turn; then each with large batches."""
    samplers, batches, aheads = ("planned", "generator", "sequential"), (8, 5, 30), (None, 1, 9)
    found = [
        Asked(
            layout, share, batches[(at + turn) % 3], aheads[(at + 2 * turn) % 3], samplers[(at + turn // 2) % 3],
            (3, 3, None)[(2 * at + turn) % 3], (DISK, DISK, FLASH)[(at + turn) % 3],
        )
        for at, layout in enumerate(LAYOUTS)
        for turn, share in enumerate((0.1, 0.25, 0.5, 1.0))
    ]  # fmt: skip
    found += [Asked(layout, 0.25, 64, 4, "planned", 2, DISK) for layout in LAYOUTS]
    assert len(set(found)) == 50
    return found


def written(folder: Path, layout: str) -> tuple[list[str], dict[str, str]]:
    """The files of a layout, and the fields of a sample."""
    rng, folder = np.random.default_rng(0), folder / "data"
    folder.mkdir(exist_ok=True)
    parts = 3 if layout == "several files" else 1
    paths = [folder / f"{part}.h5" for part in range(parts)]
    for path in paths:
        with h5py.File(path, "w") as file:
            values = rng.integers(0, 90, (SAMPLES // parts, *SHAPE)).astype("f4")
            file.create_dataset("x", data=values, **LAYOUTS[layout])
            if layout == "two fields":
                file.create_dataset("y", data=rng.random((SAMPLES // parts, 6)))
    if layout == "our codec":
        packed = folder / "packed.h5"
        assert main(["compress", str(paths[0]), str(packed), "--chunk-samples", "1", "--field", "x:lossless"]) == 0
        paths = [packed]
    for path in paths:
        settle(path)
    return [str(path) for path in paths], {"x": "/x"} | ({"y": "/y"} if layout == "two fields" else {})


def job(asked: Asked, paths: Sequence[str], fields: dict[str, str], memory: int) -> Job:
    """The same training as `solar plan` sees it."""
    cases = []
    for name in fields.values():
        layout = solar.inspect(list(paths), name)
        storage = with_decoding(asked.storage, layout, reading_threads())
        one = PlannedData(name, of_layout(layout), World(0, 1), asked.batch, memory, storage, SEED, asked.epochs or 3)
        cases.append(replace(one, scratch=scratch_nbytes(layout)))
    made = replace(job_of(cases, memory, asked.ahead or 4), epochs=asked.epochs)
    if asked.sampler == "generator":
        made = replace(made, order=torch_shuffles.random(SAMPLES, seed=SEED, between=2))
    if asked.sampler == "sequential":
        made = replace(made, order=torch_shuffles.distributed(SAMPLES, shuffle=False))
    return made


def loader_of(asked: Asked, paths: Sequence[str], fields: dict[str, str], memory: int) -> Any:
    data = H5Dataset(list(paths), fields)
    how: dict[str, Any] = {"planned": {"sampler": PlanSampler(data, seed=SEED)}, "sequential": {}}.get(
        asked.sampler, {"shuffle": True, "generator": torch.Generator().manual_seed(SEED)}
    )
    return DataLoader(
        data, asked.batch, ahead=asked.ahead, buffer=memory, epochs=asked.epochs, storage=asked.storage, **how
    )


def least_of(of: Job) -> int:
    """The least memory that a job works with."""
    with pytest.raises(BufferTooSmall) as caught:
        plan_node(replace(of, memory=1))
    return caught.value.least


def taken(loader: Any, epochs: int) -> None:
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        assert sum(1 for _ in loader) == len(loader)


def summed(plan: NodePlan, epochs: int) -> Counts:
    return total(counts for epoch in plan.epochs[:epochs] for counts in epoch)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("asked", fifty(), ids=lambda asked: "-".join(map(str, asked[:-1])))
def test_a_run_takes_what_was_planned_without_it(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, fields = written(tmp_path, asked.layout)
    empty = job(asked, paths, fields, 1)
    memory = least_of(empty) + int(asked.share * sum(piece.units.total_nbytes for piece in empty.pieces))
    plan = plan_node(replace(empty, memory=memory))
    epochs = asked.epochs or 3
    with loader_of(asked, paths, fields, memory) as loader:
        taken(loader, epochs)
        if (work := loader._buffered._work) is not None:
            work.join()  # or it might tell the run more between these lines
        run, said, stats = loader._buffered.running.counts(), loader._buffered.planned, loader.stats()
        told = loader._buffered.running.appended // len(loader)  # epochs, of which the last may not have been asked for
    assert said == summed(plan, told)
    wanted = summed(plan, epochs)
    if asked.epochs is None:  # the run has begun with the next
        least = summed(plan, epochs - 1)  # nor has it to have all that the next wants of this one
        assert least.requests <= run["requests"] <= said.requests
        assert least.bytes <= run["bytes"] <= said.bytes
    else:
        assert told == len(plan.epochs) == epochs
        assert (run["reads"], run["requests"], run["bytes"]) == (wanted.reads, wanted.requests, wanted.bytes)
        assert stats["bytes"] == wanted.bytes
    pages = [one.pages * one.page for one in plan.windows[0].parts()]
    assert run["peak_bytes"] <= sum(pages)
    if len(pages) == 1 and not plan.windows[0].plans[0].policy.direct:
        assert run["peak_bytes"] == said.peak
    assert stats["peak_bytes"] <= plan.peak_nbytes <= memory
    if asked.sampler == "planned" and asked.epochs is not None:
        table = tabled(asked, tmp_path, fields, memory, capsys)
        ours, first = table["policies"]["solar"], table["first_epoch"]
        for name in ("requests", "bytes"):
            assert first[name] + (epochs - 1) * ours[name] == run[name]
        assert ours["peak_bytes"] == plan.peak_nbytes
        assert table["buffer"]["samples"] + table["buffer"]["batches"] + table["buffer"]["scratch"] == memory


def tabled(
    asked: Asked, folder: Path, fields: dict[str, str], memory: int, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What `solar plan --json` says of it."""
    storage = asked.storage
    files = str(folder / "data" / ("packed.h5" if asked.layout == "our codec" else "?.h5"))
    numbers = {"latency": f"{storage.latency}s", "bandwidth": storage.bandwidth, "iops": storage.iops, "memory": memory}
    numbers |= {"batch-size": asked.batch, "ahead": asked.ahead or 4, "epochs": asked.epochs, "seed": SEED}
    capsys.readouterr()
    options = [part for name, value in numbers.items() for part in (f"--{name}", str(value))]
    assert main(["plan", files, *fields.values(), *options, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


# --- several ranks ----


@pytest.mark.slow(but=["2-500000"])
@pytest.mark.parametrize(("nodes", "buffer"), [(1, 800_000), (1, 400_000), (2, 500_000)])
def test_two_ranks_take_what_was_planned_for_their_nodes(nodes: int, buffer: int, tmp_path: Path) -> None:
    cases = []
    for number, options in enumerate(LAYOUTS_TOGETHER):
        path = written_together(tmp_path / f"{number}.h5", 70, options)
        cases.append(case([path], samples=70, tail="pad", buffer=buffer, known=3))
    for asked, found in zip(cases, run_together("torch", 2, tmp_path, cases, nodes), strict=True):
        fields = []
        for name in ("x", "y"):
            layout = solar.inspect(asked["paths"], name)
            storage = with_decoding(TOGETHERS, layout, planned_threads(2 // nodes) * 2 // nodes)
            world = World(0, 2, 0, 2 // nodes)
            one = PlannedData(name, of_layout(layout), world, asked["batch"], buffer, storage, asked["seed"], 3)
            fields.append(replace(one, scratch=scratch_nbytes(layout)))
        of = replace(job_of(fields, buffer), exchange="torch")
        for node in range(nodes):
            ranks = [one for one in found.values() if nodes == 1 or one["node"] == [node]]
            wanted = summed(plan_node(of, node), 3)
            assert [Counts(*one["planned"]) for one in ranks] == [wanted] * len(ranks)
            reads, requests, nbytes = (
                sum(one["counts"][name] for one in ranks) for name in ("reads", "requests", "bytes")
            )
            assert reads == wanted.reads
            if nodes == 2:
                assert (requests, nbytes) == (wanted.requests, wanted.bytes)
            else:  # where a request passes from one rank to the other it is two, and the hole between them is not read
                assert requests - wanted.requests >= 0
                assert 0 <= wanted.bytes - nbytes <= (requests - wanted.requests) * TOGETHERS.gap


# --- what the storage counts ----

slowfs = load()
PAGE = 4096
QUICK = [one for one in fifty() if one.epochs and one.batch < 64 and one.share in (0.1, 0.5)]
MOUNTED = [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in fifty()]


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A mount that counts, and takes no time; and the folder behind it."""
    if reason := slowfs.lacking():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("counted")
    with slowfs.mounted(folder, latency=0.0, bandwidth=0.0, iops=0.0) as mount:
        yield mount, folder


@pytest.mark.parametrize("asked", MOUNTED, ids=lambda asked: "-".join(map(str, asked[:-1])))
def test_the_storage_counts_what_was_planned(asked: Asked, slowed: tuple[Any, Path]) -> None:
    mount, folder = slowed
    own = folder / "-".join(map(str, asked[:-1]))
    own.mkdir()
    paths, fields = written(own, asked.layout)
    paths = [str(mount.path / Path(path).relative_to(folder)) for path in paths]
    empty = job(asked, paths, fields, 1)
    memory = least_of(empty) + int(asked.share * sum(piece.units.total_nbytes for piece in empty.pieces))
    plan, epochs = plan_node(replace(empty, memory=memory)), asked.epochs or 3
    with loader_of(asked, paths, fields, memory) as loader:
        before = mount.counts()
        taken(loader, epochs)
        running = loader._buffered.running
        loader._buffered.close()  # where nobody says how many epochs there are, the next has begun
        ahead = running.appended // len(loader) - epochs
        after, stats = mount.counts(), loader.stats()
    requests, nbytes = (after[name] - before[name] for name in ("requests", "bytes"))
    pieces = after["pieces"] - before["pieces"]
    least, wanted = summed(plan, epochs if asked.epochs else epochs - 1), summed(plan, epochs + ahead)
    assert least.bytes <= nbytes <= wanted.bytes
    assert nbytes == stats["bytes"] or asked.epochs is None
    if asked.epochs is not None:
        assert stats["calls"] <= pieces <= 1.05 * stats["calls"] + 1  # a call may be cut on its way to the mount
    # What goes on is one request there, whichever batches it is for; a thread that is late makes it two.
    some = 2 + pieces // 20
    assert requests <= wanted.requests + some
    if asked in QUICK and asked.sampler != "sequential":
        assert requests >= wanted.requests - some


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_buffer_batches_are_read_one_by_one(layout: str, slowed: tuple[Any, Path]) -> None:
    mount, folder = slowed
    asked = Asked(layout, 0.0, 8, None, "planned", 2, DISK)
    own = folder / f"{layout} alone"
    own.mkdir()
    paths, fields = written(own, layout)
    paths = [str(mount.path / Path(path).relative_to(folder)) for path in paths]
    plan = plan_node(job(asked, paths, fields, 0))
    with loader_of(asked, paths, fields, 0) as loader:
        before = mount.counts()
        taken(loader, 2)
        after, stats = mount.counts(), loader.stats()
    requests, nbytes = (after[name] - before[name] for name in ("requests", "bytes"))
    wanted = summed(plan, 2)
    assert nbytes == stats["bytes"]
    if layout in ("contiguous", "rows of chunks"):
        assert (stats["requests"], nbytes) == (wanted.requests, wanted.bytes)
    elif layout == "across samples":  # of a chunk that is not encoded the reader takes the rows it wants; a plan, all
        assert nbytes < wanted.bytes
    else:  # what threads decode side by side are several requests, and the holes between them are not read
        assert 0 <= wanted.bytes - nbytes <= (stats["requests"] - wanted.requests) * GAP
    assert requests <= wanted.requests * 1.1 + 2
