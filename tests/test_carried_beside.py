"""Datasets with a state beside other workers, datasets without one, and the users' own init functions and loaders."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from carried_kit import SAMPLES, Counting, Generated, as_list, check_resumes, loader, share, take
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from solar.loader.torch_iterators import StateCarrier

# torch warns of more workers than the machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Stateless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(share(SAMPLES))


class Plain(Dataset[Any]):
    """Tells what it is told."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        return index, info.id, info.num_workers, info.dataset is self


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 0), (0, 2)])
def test_with_other_workers_a_map_goes_on_without_their_states_and_says_so(
    before: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = loader(Counting(), before)
    iterator = iter(first)
    take(iterator, 3)
    state = first.state_dict()
    other = loader(Counting(), after)
    other.load_state_dict(state)
    with caplog.at_level(logging.WARNING, "solar"):
        rest = list(other)
    assert [[index for index, _ in batch] for batch in rest] == [[index for index, _ in batch] for batch in iterator]
    assert rest[0][0] == (6, 1)
    assert [record.name for record in caplog.records] == ["solar"]
    assert f"num_workers={before}" in caplog.text
    assert f"num_workers={after}" in caplog.text


def test_with_other_workers_a_stream_is_read_again_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    first = loader(Generated(), 2)
    take(iter(first), 3)
    other = loader(Generated(), 1)
    other.load_state_dict(first.state_dict())
    with caplog.at_level(logging.WARNING, "solar"):
        assert list(other) == list(loader(Generated(), 1))[3:]
    assert "num_workers=2" in caplog.text
    assert "3 batches" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_passing_over_batches_of_a_stream_without_a_state_is_said(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = loader(Stateless(), workers)
    iterator = iter(first)
    take(iterator, 4)
    state = first.state_dict()
    assert "parts" not in state
    other = loader(Stateless(), workers)
    other.load_state_dict(state)
    with caplog.at_level(logging.WARNING, "solar"):
        assert list(other) == list(iterator)
        assert len(list(other)) == len(list(first))
    (record,) = caplog.records
    assert record.name == "solar"
    assert "Stateless" in record.getMessage()
    assert "4 batches" in record.getMessage()


def begin_at_hundred(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.released = 100 * (worker + 1)


def test_the_users_init_function_comes_first_and_the_state_last() -> None:
    first = loader(Counting(), worker_init_fn=begin_at_hundred)
    iterator = iter(first)
    assert take(iterator, 2) == [[(0, 101), (1, 102)], [(2, 201), (3, 202)]]
    other = loader(Counting(), worker_init_fn=begin_at_hundred)
    other.load_state_dict(first.state_dict())
    assert next(iter(other)) == [(4, 103), (5, 104)]


class Inner(IterableDataset[Any]):
    """Has a state, and reads another dataset through a loader of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in list(torch.utils.data.DataLoader(Counting(9), 3, collate_fn=as_list))[self.at :]:
            self.at += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def test_a_loader_within_the_dataset_is_left_alone() -> None:
    assert list(loader(Inner(), 1, batch_size=None)) == [[(i + j, i + j + 1) for j in range(3)] for i in (0, 3, 6)]
    check_resumes(Inner, (1,), workers=1, batch_size=None)


@pytest.mark.parametrize("dataset", [Plain, Stateless])
def test_a_dataset_without_a_state_is_read_by_torchs_own_means(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from its workers is what torch's workers send."""
    iterator: Any = iter(loader(dataset()))
    received: list[Any] = []
    get = iterator._get_data

    def get_data() -> Any:
        received.append(get())
        return received[-1]

    monkeypatch.setattr(iterator, "_get_data", get_data)
    batches = list(iterator)
    torchs = torch.utils.data.DataLoader(dataset(), 2, num_workers=2, collate_fn=as_list)
    assert batches == list(torchs)
    kinds = {type(data).__name__ for _, data in received}
    assert kinds <= {"list", "_IterableDatasetStopIteration"}
    assert isinstance(iterator._worker_init_fn, StateCarrier) == (dataset is not Plain)
