"""What tests of datasets with a state share: a map and a stream that have one, loaders, and how they are resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from solar import DataLoader

SAMPLES = 23


def as_list(batch: list[Any]) -> list[Any]:
    return batch


class Counting(Dataset[Any]):
    """Counts what it gave, from where the user's init function began."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self.released = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        self.released += 1
        return index, self.released

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.released}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.released = state["given"]


def share(samples: int) -> range:
    """Shards of different lengths, as get_worker_info() says: of three workers the first has one sample only."""
    info = get_worker_info()
    if info is None:
        return range(samples)
    cuts = [0, *(1 + (samples - 1) * n // max(1, info.num_workers - 1) for n in range(info.num_workers))]
    cuts = [0, samples] if info.num_workers == 1 else cuts
    return range(cuts[info.id], cuts[info.id + 1])


class Generated(IterableDataset[Any]):
    """Its iterator is a generator, so the dataset keeps where it is; at the end it says that it is at the beginning."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self.at = 0
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        for value in share(self.samples)[self.at :]:
            self.at += 1
            yield value, self.epoch
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


def loader(dataset: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": 2, **options}
    return DataLoader(dataset, num_workers=workers, collate_fn=as_list, **options)


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [next(iterator) for _ in range(count)]


def check_resumes(make: Any, stops: tuple[int, ...], **options: Any) -> None:
    """Loaders that go on one after another, each for as many batches as `stops` says, give what the first gives."""
    first = loader(make(), **options)
    alone = iter(first)
    take(alone, stops[0])
    state, rest = first.state_dict(), list(alone)
    for stop in (*stops[1:], None):
        other = loader(make(), **options)
        other.load_state_dict(state)
        iterator = iter(other)
        assert (list(iterator) if stop is None else take(iterator, stop)) == rest[:stop]
        state, rest = other.state_dict(), rest[stop:]
