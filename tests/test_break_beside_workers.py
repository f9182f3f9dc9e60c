"""Where an epoch is left early, generators are where torch leaves them with as many workers and prefetched batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.utils.data
from kit import settle
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from solar import DataLoader, H5Dataset

SAMPLES, BATCH = 23, 4
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

Asked = Callable[[Any, torch.Generator], dict[str, Any]]
ORDERS: dict[str, Asked] = {
    "a generator": lambda d, g: {"batch_size": BATCH, "shuffle": True, "generator": g},
    "a generator, the last dropped": lambda d, g: {
        "batch_size": BATCH, "shuffle": True, "generator": g, "drop_last": True,
    },
    "a generator, one by one": lambda d, g: {"batch_size": None, "shuffle": True, "generator": g},
    "the global generator": lambda d, g: {"batch_size": BATCH, "shuffle": True},
    "the sampler's generator": lambda d, g: {"batch_size": BATCH, "sampler": RandomSampler(d, generator=g)},
    "twice around": lambda d, g: {
        "batch_size": BATCH, "generator": g, "sampler": RandomSampler(d, num_samples=2 * SAMPLES, generator=g),
    },
    "with replacement": lambda d, g: {
        "batch_size": BATCH, "generator": g, "sampler": RandomSampler(d, True, 90, generator=g),
    },
    "weights": lambda d, g: {
        "batch_size": BATCH, "sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=g),
    },
    "a subset": lambda d, g: {"batch_size": BATCH, "sampler": SubsetRandomSampler(range(SAMPLES), generator=g)},
    "a batch sampler": lambda d, g: {"batch_sampler": BatchSampler(RandomSampler(d, generator=g), BATCH, False)},
}  # fmt: skip


class Plain(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(SAMPLES)
    settle(tmp_path / "x.h5")
    return tmp_path / "x.h5"


def said(kind: Any, data: Any, order: str, breaks: list[int], **options: Any) -> list[Any]:
    """The batches of epochs that are left after so many, and where the generators are when each begins and ends."""
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(3)
    found = list[Any]()

    def note() -> None:
        found.append((generator.get_state().tolist(), torch.get_rng_state().tolist()))

    with_workers = {"multiprocessing_context": "fork"} if options["num_workers"] else {}
    loader = kind(data, **ORDERS[order](data, generator), **options, **with_workers)
    for left_after in breaks:
        iterator = iter(loader)
        note()
        torch.rand(1)  # somebody else draws before the first batch
        for _, batch in zip(range(left_after), iterator, strict=False):
            found.append(torch.as_tensor(batch).tolist())
            note()
        del iterator
    found.append([torch.as_tensor(batch).tolist() for batch in loader])
    note()
    return found


@pytest.mark.slow(every=7)
@pytest.mark.parametrize(
    ("order", "buffer"), [*((order, 0) for order in ORDERS), ("a generator", "1MiB"), ("the global generator", "1MiB")]
)
def test_a_break_leaves_generators_where_torch_leaves_them(order: str, buffer: Any, path: Path) -> None:
    data, plain = H5Dataset(path, "x"), Plain()
    for workers, prefetched in ((0, None), (1, 1), (2, 2)):
        options = {"num_workers": workers, "prefetch_factor": prefetched}
        breaks = [0, 1, 2, 4, 5, 6]
        theirs = said(torch.utils.data.DataLoader, plain, order, breaks, **options)
        ours = said(DataLoader, data, order, breaks, buffer=buffer, **options)
        assert len(ours) == len(theirs)
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, (workers, prefetched, number)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_users_is_asked_so_many_batches_ahead(workers: int, path: Path) -> None:
    asked: list[int] = []

    class Noting:
        def __iter__(self) -> Any:
            for batch in range(20):
                asked.append(batch)
                yield [batch]

    loader = DataLoader(H5Dataset(path, "x"), batch_sampler=Noting(), num_workers=workers, ahead=3, buffer=0)
    iterator = iter(loader)
    assert not asked
    for handed_out in range(1, 6):
        next(iterator)
        assert len(asked) <= handed_out + 3
    iterator = iter(DataLoader(H5Dataset(path, "x"), batch_sampler=Noting(), num_workers=workers, buffer="1MiB"))
    asked.clear()
    next(iterator)
    assert len(asked) == 20
