"""What the tests of the exchange need on each rank: a file, random plans of all ranks, a run that reads its share."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.distributed.exchange import Exchange, mail
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
from solar.io.reading.run import Running
from solar.values import PartScript, RunPart, Script, Transfers

SAMPLES = 120
FIELDS = {"x": ((3, 5), "f4"), "y": ((), ">i8"), "z": ((700,), "u1")}
ROW_NBYTES = sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in FIELDS.values())


def write(path: Path, bad: int | None = None) -> None:
    """A file of three fields. The chunk of sample `bad` of the last one cannot be decoded."""
    rng = np.random.default_rng(7)
    with h5py.File(path, "w") as file:
        for name, (shape, kind) in FIELDS.items():
            packed = {"chunks": (1, *shape), "compression": "gzip"} if name == "z" else {}
            file.create_dataset(name, data=rng.integers(0, 200, (SAMPLES, *shape)).astype(kind), **packed)
        if bad is not None:
            file["z"].id.write_direct_chunk((bad, 0), b"this is no deflate stream")
    past = time.time() - 60
    os.utime(path, (past, past))


def inbox_nbytes(parcels: Transfers, window: int) -> int:
    """The bytes that an Exchange takes at most beside the memory of `window` batches, for rows that arrive."""
    rows = np.bincount(parcels.come[:, 0] // parcels.letters, minlength=len(parcels.sizes)) // parcels.letters
    return int(np.sort(rows)[::-1][:window].sum()) * ROW_NBYTES


class Plan(NamedTuple):
    """A stretch as one rank carries it out: what it gets, reads, sends and receives."""

    own: list[NDArray[np.int64]]  # the samples of each batch
    sizes: NDArray[np.int64]
    told: PartScript
    parcels: Transfers


def plans(seed: int, ranks: int, steps: int, batch: int = 6, letters: int = 1) -> list[Plan]:
    """Each rank's plan of the same random batches. A sample is read where its home is: by parts of the file.

    With a letter for each field each travels by itself.
    """
    rng = np.random.default_rng(seed)
    owned = [[rng.integers(0, SAMPLES, rng.integers(0, batch + 1)) for _ in range(ranks)] for _ in range(steps)]
    return [_plan(owned, rank, letters, rng.permutation(ranks)) for rank in range(ranks)]


def _plan(owned: list[list[NDArray[np.int64]]], rank: int, letters: int, order: NDArray[np.int64]) -> Plan:
    rows, positions, starts, sizes, sent, come, ranks = [], [], [0], [], [], [], len(order)
    for step, batches in enumerate(owned):
        own = batches[rank]
        homes = own * ranks // SAMPLES
        rows += own[homes == rank].tolist()
        positions += np.flatnonzero(homes == rank).tolist()
        end = len(own)
        for peer in order.tolist():
            parcel = np.sort(batches[peer][batches[peer] * ranks // SAMPLES == rank]) if peer != rank else own[:0]
            if len(parcel):
                rows += parcel.tolist()
                positions += range(end, end + len(parcel))
                sent.append((step, peer, end, end := end + len(parcel)))
        for home in sorted({*homes.tolist()} - {rank}):
            places = np.flatnonzero(homes == home)
            come += [(step, home, place) for place in places[np.argsort(own[places], kind="stable")].tolist()]
        starts.append(len(rows))
        sizes.append(end)
    none, nothing = np.zeros(0, np.int32), np.zeros(0, np.int64)
    script = Script(
        np.array(rows, np.int32), np.array(starts, np.int64), np.zeros(len(rows), np.uint8), none,
        np.zeros(len(owned) + 1, np.int64), none, nothing, nothing,
    )  # fmt: skip
    own_sizes = np.array([len(batches[rank]) for batches in owned], np.int64)
    parcels = Transfers(own_sizes, _lettered(sent, 4, letters), _lettered(come, 3, letters), letters)
    told = PartScript(script, np.array(positions, np.int32))
    return Plan([batches[rank] for batches in owned], np.array(sizes, np.int64), told, parcels)


def _lettered(rows: list[tuple[int, ...]], columns: int, letters: int) -> NDArray[np.int64]:
    """What travels in each step, for each of its letters."""
    each = [(step * letters + one, *of) for step, *of in rows for one in range(letters)]
    return np.array(sorted(each, key=lambda row: row[: columns - 2]), np.int64).reshape(-1, columns)


def running(path: str) -> Running:
    """A run that holds nothing, and reads for each batch what its plan says."""
    rows = [Rows(inspect(path, name), native_order=True) for name in FIELDS]
    parts = [RunPart(field, 0, one.sample_nbytes, False, True, 2, 0) for field, one in enumerate(rows)]
    return Running(rows, parts, 2, 1 << 16)


class Rank(NamedTuple):
    """What one of the ranks has, of those that were started."""

    rank: int
    ranks: int
    running: Running
    exchange: Exchange
    values: list[Any]  # of each field all samples, as h5py reads them


def begin(by: str) -> None:
    """Starts MPI, or torch.distributed."""
    if by == "mpi":
        from mpi4py import MPI  # noqa: F401 - which does it
    else:
        import torch.distributed as distributed

        distributed.init_process_group("gloo")


def rank_of(path: str, by: str, window: int = 3, letters: int = 1) -> Rank:
    """An exchange with the ranks that were started with this process."""
    post, run = mail(by), running(path)
    arrays = [slice(None)] if letters == 1 else [slice(at, at + 1) for at in range(letters)]
    return Rank(post.rank, post.ranks, run, Exchange(run, post, window, arrays), contents(path))


def append(exchange: Exchange, plan: Plan) -> None:
    exchange.append(plan.sizes, [plan.told] * len(FIELDS), plan.parcels)


def contents(path: str) -> list[Any]:
    """All samples of each field; zeros for one that cannot be decoded."""
    made: list[Any] = []
    with h5py.File(path) as file:
        for name in FIELDS:
            made.append(np.zeros(file[name].shape, file[name].dtype))
            for sample in range(SAMPLES):
                with contextlib.suppress(OSError):
                    made[-1][sample] = file[name][sample]
    return made


def check(this: Rank, plan: Plan, base: int, step: int) -> None:
    """Takes a batch and compares it with the file."""
    own = plan.own[step]
    found, counts = this.exchange.wait(base + step, len(own), 60)
    for one, all_of_it in zip(found, this.values, strict=True):
        assert np.array_equal(one, all_of_it[own]), (step, own)
    every = plan.parcels.letters
    rows = int(np.count_nonzero(plan.parcels.come[:, 0] // every == step))
    assert counts["exchanged_bytes"] * every == rows * ROW_NBYTES
    this.exchange.let_go(base + step)


def broken(plan: Plan, step: int, bad: int) -> bool:
    """Whether a rank reads this sample at this step."""
    script = plan.told.script
    return bad in script.rows[script.starts[step] : script.starts[step + 1]]


def travelling(plan: Plan) -> tuple[int, int]:
    """Rows sent and received, those of each letter."""
    return int((plan.parcels.sent[:, 3] - plan.parcels.sent[:, 2]).sum()), len(plan.parcels.come)


def say(value: Any) -> None:
    """Prints this for the test that started this process."""
    print(json.dumps(value), flush=True)
