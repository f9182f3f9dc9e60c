"""Run under mpiexec by test_mpio.py: what reader="mpio" gives, beside what is read directly."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from kit import same
from mpi4py import MPI

from solar import DataLoader, H5Dataset, PlanSampler
from solar.errors import PlanError, ReadError

WORLD = MPI.COMM_WORLD


def batches(dataset: H5Dataset, batch_size: int) -> list[Any]:
    sampler = PlanSampler(dataset, WORLD.size, WORLD.rank, seed=3, tail="exact")
    with DataLoader(dataset, batch_size, sampler=sampler) as loader:
        return [[part.numpy() if isinstance(part, torch.Tensor) else part for part in batch] for batch in loader]


def compare(path: Any, fields: Any, reader: Any, batch_size: int = 4, **options: Any) -> Any:
    """How many samples this rank's batches have, and whether they are those that are read directly."""
    theirs = batches(H5Dataset(path, fields, **options), batch_size)
    ours = batches(H5Dataset(path, fields, reader=reader, **options), batch_size)
    equal = len(ours) == len(theirs) and all(
        len(one) == len(other) and all(map(same, one, other)) for one, other in zip(ours, theirs, strict=True)
    )
    return [equal, [len(batch[0]) for batch in ours]]


def said(act: Callable[[], Any], kind: type[Exception]) -> str:
    try:
        act()
    except kind as error:
        return str(error)
    return "nothing"


def read_first(dataset: H5Dataset, out: Any) -> None:
    out.put(said(lambda: dataset[0], ReadError))


def of_another_process(dataset: H5Dataset, method: str) -> str:
    context = multiprocessing.get_context(method)
    out = context.SimpleQueue()
    child = context.Process(target=read_first, args=(dataset, out))
    child.start()
    text: str = out.get()
    child.join()
    return text


def main(path: str, folder: str, *fields: str) -> None:
    told: dict[str, Any] = {"ranks": WORLD.size}
    for reader in ("mpio", "mpio-collective"):
        for field in fields:
            told[f"{reader} {field}"] = compare(path, [field], reader)
        told[f"{reader} together"] = compare(path, ["gzip", "contiguous"], reader)
        told[f"{reader} one at a time"] = compare(path, ["contiguous"], reader, batch_size=1)
    told["files"] = compare(folder, ["x"], "mpio")
    told["file each"] = compare(folder, ["x"], "mpio", samples="files", batch_size=1)
    rows = H5Dataset(path, "contiguous", reader="mpio").read_batch([5, 2, 2, -1])
    told["any order"] = same(rows, H5Dataset(path, "contiguous").read_batch([5, 2, 2, -1]))
    told["of many files"] = said(lambda: H5Dataset(folder, "x", reader="mpio-collective"), PlanError)
    parts = [H5Dataset(path, "contiguous", reader="mpio-collective") for _ in range(2)]
    both = DataLoader(torch.utils.data.ConcatDataset(parts), 4)
    told["concatenated"] = said(lambda: list(both), PlanError)
    dataset = H5Dataset(path, "contiguous", reader="mpio")
    dataset[0]
    told["forked"] = of_another_process(dataset, "fork")
    WORLD.Barrier()
    if WORLD.rank == 0:
        os.utime(path)
    WORLD.Barrier()
    told["changed"] = [said(lambda one=one: one[0], ReadError) for one in (dataset, parts[0])]
    json.dump(told, sys.stdout)


def leave(path: str, reader: Any) -> None:
    """Ends amid an epoch, with batches on their way and files open."""
    dataset = H5Dataset(path, "contiguous", reader=reader)
    loader = DataLoader(dataset, 4, sampler=PlanSampler(dataset, WORLD.size, WORLD.rank))
    json.dump(len(next(iter(loader))), sys.stdout)


if __name__ == "__main__":
    {"compare": main, "leave": leave}[sys.argv[1]](*sys.argv[2:])
