"""torchdata's Stateful protocol: what holds for its StatefulDataLoader holds for solar's DataLoader too.

Where torchdata is not installed, ours is tested alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from solar import DataLoader, H5Dataset, PlanSampler


def torchdatas_loader(*args: Any, **options: Any) -> Any:
    """torchdata's loader; where it is not installed, the test is skipped."""
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(*args, **options)


KINDS: dict[str, Any] = {"solar": DataLoader, "torchdata": torchdatas_loader}

SAMPLES = 53

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # in torchdata's constructor

BOTH = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

# Options of a loader, made anew for each.
ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "in order": lambda _: {"batch_size": 4},
    "the last dropped": lambda _: {"batch_size": 4, "drop_last": True},
    "one by one": lambda _: {"batch_size": None},
    "shuffled": lambda _: {"batch_size": 4, "shuffle": True},
    "shuffled by a generator": lambda _: {
        "batch_size": 4,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(1),
    },
    "distributed": lambda data: {"batch_size": 4, "sampler": DistributedSampler(data, 2, 1, seed=5)},
}
OURS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "planned": lambda data: {"batch_size": 4, "sampler": PlanSampler(data, 2, 1, seed=5)},
    "exact": lambda data: {"batch_size": 4, "sampler": PlanSampler(data, 2, 1, seed=5, tail="exact")},
    "batches of the user's": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 3, False)},
    "a list": lambda _: {"batch_size": 4, "sampler": [5, 1, 3, 2, 8, 13, 21, 34, 1, 7, 9, 0]},
}
CASES = [
    *(
        pytest.param(kind, options, id=f"{of}, {name}")
        for of, kind in KINDS.items()
        for name, options in ORDERS.items()
    ),
    *(pytest.param(DataLoader, options, id=f"solar, {name}") for name, options in OURS.items()),
]


@pytest.fixture
def dataset(numbered: str) -> H5Dataset:
    return H5Dataset(numbered, "i")


def test_the_loader_has_torchs_protocol(dataset: H5Dataset) -> None:
    assert isinstance(DataLoader(dataset), Stateful)


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("taken", [1, 3, 9])
def test_a_state_amid_an_epoch_gives_the_batches_that_were_left(
    dataset: H5Dataset, kind: Any, options: Callable[[Any], dict[str, Any]], taken: int
) -> None:
    torch.manual_seed(3)
    loader = kind(dataset, **options(dataset))
    batches = iter(loader)
    for _ in range(min(taken, len(loader) - 1)):
        next(batches)
    state = loader.state_dict()
    left = [batch.tolist() for batch in batches]
    torch.manual_seed(4)  # what the new process draws must not matter
    again = kind(dataset, **options(dataset))
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == left
    assert left


@BOTH
def test_a_state_at_the_end_of_an_epoch_begins_the_next(dataset: H5Dataset, kind: Any) -> None:
    loader = kind(dataset, 4)
    whole = [batch.tolist() for batch in loader]
    again = kind(dataset, 4)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == whole


@BOTH
def test_only_the_next_iteration_is_resumed(dataset: H5Dataset, kind: Any) -> None:
    loader = kind(dataset, 4)
    for _ in zip(range(5), loader, strict=False):
        pass
    again = kind(dataset, 4)
    again.load_state_dict(loader.state_dict())
    assert len(again) == 14
    assert len(list(again)) < 14
    assert len(list(again)) == len(again) == 14


@BOTH
def test_a_state_before_the_first_batch_is_the_beginning(dataset: H5Dataset, kind: Any) -> None:
    again = kind(dataset, 4)
    again.load_state_dict(kind(dataset, 4).state_dict())
    assert len(list(again)) == 14


@BOTH
def test_a_state_of_a_resumed_epoch_counts_from_its_beginning(dataset: H5Dataset, kind: Any) -> None:
    state = None
    seen = []
    for _ in range(20):  # a job that is killed after every third batch
        loader = kind(dataset, 4)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        got = [batch.tolist() for _, batch in zip(range(3), batches, strict=False)]
        seen += got
        if len(got) < 3:
            break
        state = loader.state_dict()
    assert list(chain.from_iterable(seen)) == list(range(SAMPLES))


@pytest.mark.parametrize("options", {**ORDERS, **OURS}.values(), ids={**ORDERS, **OURS})
def test_a_state_is_small_and_json(dataset: H5Dataset, options: Callable[[Any], dict[str, Any]]) -> None:
    loader = DataLoader(dataset, **options(dataset))
    for _, state in zip(loader, iter(loader.state_dict, None), strict=False):
        assert json.loads(json.dumps(state)) == state
        assert len(json.dumps(state)) < 1000


def test_the_workers_asked_for_may_be_others_than_before(dataset: H5Dataset) -> None:
    loader = DataLoader(dataset, 4, num_workers=2, ahead=6, sampler=PlanSampler(dataset, 1, 0))
    batches = iter(loader)
    next(batches)
    state, left = loader.state_dict(), [batch.tolist() for batch in batches]
    again = DataLoader(dataset, 4, ahead=1, sampler=PlanSampler(dataset, 1, 0))
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == left


def test_torchdatas_nodes_save_and_restore_the_loader(dataset: H5Dataset) -> None:
    nodes = pytest.importorskip("torchdata.nodes")

    def graph() -> Any:
        loader = DataLoader(dataset, 4, sampler=PlanSampler(dataset, 1, 0, seed=2))
        node = nodes.IterableWrapper(loader)
        return nodes.Loader(nodes.Mapper(node, lambda batch: batch.tolist()))

    first = graph()
    batches = iter(first)
    for _ in range(6):
        next(batches)
    state = first.state_dict()
    left = list(batches)
    again = graph()
    again.load_state_dict(state)
    assert list(again) == left
    assert len(left) == 8


@pytest.mark.parametrize(
    "sampler",
    [RandomSampler, SequentialSampler, lambda data: SubsetRandomSampler(range(40))],
    ids=["random", "all", "some"],
)
def test_torchdatas_loader_takes_our_dataset(dataset: H5Dataset, sampler: Any) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(dataset, 4, sampler=sampler(dataset))
    seen = torch.cat(list(loader)).tolist()
    assert sorted(seen) == list(range(len(loader.sampler)))
