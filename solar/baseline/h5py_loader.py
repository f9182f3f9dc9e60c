"""torch's loader over h5py with its best settings, which short trials find for each file."""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from solar.baseline.h5py_samples import CACHES, Cache, H5pyPieces, H5pySamples, Sample, Unequal
from solar.values import is_url

Kind = Literal["items", "sorted", "straight", "span"]
Reads = H5pySamples | H5pyPieces
Setting = dict[str, Any]  # kind, workers, cache
WAYS_TO_READ: tuple[Kind, ...] = ("straight", "items", "sorted")  # of rows
WORKERS = (0, 1, 2, 4)
WARMING = 4.0  # seconds at most, in which chunk caches are filled before a trial
FINALISTS = 2  # of the ways to read, each of which is tried with all numbers of workers
RECOVERABLE = (OSError, RuntimeError, TypeError, ValueError)


class Items(Dataset[Any]):
    """The simplest way: each sample is one read of each field, and torch collates."""

    def __init__(self, plain: Any) -> None:
        self.plain: Reads = plain

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> Sample:
        return self.plain.sample(index)


class Sorted(Items):
    plain: H5pySamples

    """By torch's `__getitems__`: one ascending selection of each field per batch, then reordered."""

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(values) for name, values in self.plain.batch(indices).items()}


class Straight(Items):
    """Reads each sample to its place in the batch.

    That is memory of an earlier batch that nobody holds any more, or, in a worker, memory that it shares with the
    training.
    """

    def __init__(self, plain: Reads) -> None:
        super().__init__(plain)
        self.rooms: list[list[Any]] = []

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        wanted = self.plain.room(indices)
        arrays = self._room([*wanted.values()]) if get_worker_info() is None else []
        tensors = [torch.from_numpy(one) for one in arrays] or [
            shared_memory(shape, dtype) for shape, dtype in wanted.values()
        ]
        self.plain.straight(indices, [one.numpy() for one in tensors])
        return dict(zip(wanted, tensors, strict=True))

    def _room(self, wanted: Sequence[tuple[tuple[int, ...], Any]]) -> list[Any]:
        """Returns arrays that no tensor holds any more: a tensor that was made from one has a reference to it."""
        shapes = [shape for shape, _ in wanted]
        for arrays in self.rooms:
            if [*map(np.shape, arrays)] == shapes and all(sys.getrefcount(arrays[k]) == 2 for k in range(len(arrays))):
                return arrays
        made = [np.empty(shape, dtype) for shape, dtype in wanted]
        self.rooms = [*self.rooms[-3:], made]
        return made

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, rooms=[])


def shared_memory(shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
    """Returns shared memory for a batch, as torch's own collate gets it in a worker."""
    empty = torch.from_numpy(np.empty(0, dtype))
    storage: Any = torch.UntypedStorage._new_shared(math.prod(shape) * empty.itemsize)  # type: ignore[no-untyped-call]
    return empty.new_empty(0).set_(storage).view(shape)


MADE: dict[Kind, Callable[[Any], Items]] = {"items": Items, "sorted": Sorted, "straight": Straight, "span": Straight}


def dataset_of(plain: Reads, setting: Setting, batch: int, memory: int) -> tuple[Items, dict[str, Any]]:
    """Returns the dataset with its chunk caches, which the workers share, and the other arguments of torch's loader."""
    kind, workers = setting["kind"], setting["workers"]
    cached = plain.cache_nbytes(setting["cache"], batch, memory // max(1, workers))
    data = MADE[kind](plain.again(cached, kind == "span"))
    if setting.get("warm") and not workers:
        data.plain.warm(WARMING)
    given = {"num_workers": workers, "persistent_workers": workers > 0}
    if workers and any(map(is_url, plain.paths)):
        given["multiprocessing_context"] = "spawn"  # the library that fetches does not come with a fork
    collate = functools.partial(collate_unequal, plain.unequal) if plain.unequal else None
    return data, {**given, "collate_fn": collate if kind == "items" else _as_it_is}


def plain_loader(plain: Reads, batch_size: int, seed: int, setting: Setting, memory: int) -> DataLoader[Any]:
    """Returns a loader whose batches are those of solar's with a PlanSampler of the same seed."""
    items, given = dataset_of(plain, setting, batch_size, memory)
    make = Drawn if plain.drawn else DistributedSampler
    sampler: DistributedSampler[Any] = make(items, 1, 0, seed=seed, drop_last=True)
    return DataLoader(items, batch_size, sampler=sampler, drop_last=True, **given)


class Drawn(DistributedSampler[Any]):
    """torch's own order, of samples whose numbers tell the epoch, too: their places are drawn in each."""

    def __iter__(self) -> Iterator[int]:
        before = self.epoch * len(self.dataset)  # type: ignore[arg-type]
        return (before + index for index in super().__iter__())


def simple(workers: int = 0, kind: Kind = "items") -> Setting:
    """Returns what one would write first, with the file kept open."""
    return {"kind": kind, "workers": workers, "cache": "default"}


def _as_it_is(batch: Any) -> Any:
    return batch


def collate_unequal(unequal: Sequence[Unequal], samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """A batch of samples of which some fields differ in length: one after another, and where each begins."""
    made, parts = {}, {part for one in unequal for part in one.parts}
    for name in samples[0]:
        join = np.concatenate if name in parts else np.stack
        made[name] = torch.from_numpy(join([sample[name] for sample in samples]))
    for one in unequal:
        lengths = [len(sample[one.parts[0]]) for sample in samples]
        made[one.offsets] = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
    return made


def _as_torch_has_them(unequal: Sequence[Unequal], batch: dict[str, Any]) -> dict[str, Any]:
    """Fields whose samples differ in length as nested tensors, and rows of matrices as one: here, not in a worker, for
    not all of these can be sent."""
    for one in unequal:
        offsets = batch.pop(one.offsets)
        values, *columns = (batch.pop(part) for part in one.parts)
        if not columns:
            batch[one.name] = torch.nested.nested_tensor_from_jagged(values, offsets=offsets)
            continue
        kind = columns[0].dtype if columns[0].dtype in (torch.int32, torch.int64) else torch.int64
        shape = len(offsets) - 1, one.width
        batch[one.name] = torch.sparse_csr_tensor(offsets.to(kind), columns[0].to(kind), values, size=shape)
    return batch


def batches_from(loader: DataLoader[Any], epochs: Iterable[int]) -> Iterator[Any]:
    """Yields the batches of these epochs, one after another."""
    sampler: Any = loader.sampler
    data: Any = loader.dataset
    made = functools.partial(_as_torch_has_them, data.plain.unequal)
    for epoch in epochs:
        sampler.set_epoch(epoch)
        yield from map(made, loader)


def best_of(
    plain: Reads,
    batch: int,
    memory: int,
    workers: Sequence[int],
    timed: Callable[[Setting], float],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Setting, list[Setting], int]:
    """Returns the best setting by trials; all that were tried, with their rates or why they failed; how many there was
    no time for: none is begun after so many seconds, but the first.

    Every way to read with every chunk cache is tried with the least workers; the best two then with all others.
    """
    tried: list[Setting] = []
    begin, untried = clock(), 0

    def attempt(settings: Iterable[Setting]) -> None:
        nonlocal untried
        for setting in settings:
            if tried and clock() - begin > seconds:
                untried += 1
                continue
            try:
                # A large cache shows what it is worth when it is full, which a short trial does not make it.
                tried.append(setting | {"samples_per_second": timed(setting | {"warm": True})})
            except RECOVERABLE as error:
                tried.append(setting | {"failed": (str(error).strip().splitlines() or [repr(error)])[-1][:300]})

    fewest, *more = sorted(set(workers))
    ways = itertools.product(plain.ways or WAYS_TO_READ, _caches(plain, batch, memory))
    attempt({"kind": kind, "workers": fewest, "cache": cache} for kind, cache in ways)
    finalists = _fastest(tried)[:FINALISTS]
    # Plain readers first, so that no more is lost than the last of the workers where time runs out.
    attempt(one | {"workers": count} for count in more for one in finalists)
    fastest = _fastest(tried)
    if not fastest:
        raise RuntimeError(tried[0]["failed"])
    return fastest[0], tried, untried


def _fastest(tried: list[Setting]) -> list[Setting]:
    """Returns the settings that worked, the fastest first."""
    worked = sorted((one for one in tried if "failed" not in one), key=lambda one: -one["samples_per_second"])
    return [{name: one[name] for name in ("kind", "workers", "cache")} for one in worked]


def _caches(plain: Reads, batch: int, memory: int) -> list[Cache]:
    """Those that differ in their bytes for this file. The largest first: where time runs out, it was tried."""
    sizes = {cache: tuple(plain.cache_nbytes(cache, batch, memory)) for cache in CACHES}
    differ = [one for k, one in enumerate(CACHES) if sizes[one] not in [sizes[before] for before in CACHES[:k]]]
    return differ[::-1]
