"""Subclasses of H5Dataset that make their samples themselves, as one writes them: torch's loader is the oracle."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset

SAMPLES = 23
VALUES = np.random.default_rng(3).normal(size=(SAMPLES, 4)).astype("f4")


def doubled(sample: Any) -> Any:
    return 2 * sample


class Window(H5Dataset):
    """Two neighbours are one sample."""

    def __len__(self) -> int:
        return super().__len__() - 1

    def __getitem__(self, index: int) -> Any:
        return np.stack(super().__getitems__([index, index + 1]))


class Difference(Window):
    """A window of windows."""

    def __len__(self) -> int:
        return super().__len__() - 1

    def __getitem__(self, index: int) -> Any:
        one, other = super().__getitems__([index, index + 1])
        return other - one


class OneByOne(H5Dataset):
    def __getitem__(self, index: int) -> Any:
        return np.stack([super().__getitem__(index), super().__getitem__(index + 1 - SAMPLES)])


class Whole(H5Dataset):
    """Gives a batch of its own, sample by sample."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [-self[index] for index in indices]


class Both(Window):
    """Makes a sample of its own, and a batch of what that class makes of the samples before."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + 1

    def __getitems__(self, indices: Any) -> list[Any]:
        return [one + 1 for one in super().__getitems__(indices)]


class Negative:
    """To be mixed in."""

    def __getitem__(self, index: int) -> Any:
        return -super().__getitem__(index)  # type: ignore[misc]


class Mixed(Negative, H5Dataset): ...


class OfBatches(H5Dataset):
    """Has what is read its own way."""

    def read_batch(self, indices: Any) -> Any:
        return super().read_batch(indices) + 5


class Named(H5Dataset):
    """Makes nothing itself."""

    name = "mine"


windows = np.stack([VALUES[:-1], VALUES[1:]], 1)
MADE: dict[type[H5Dataset], np.ndarray[Any, Any]] = {
    Window: windows,
    Difference: windows[1:] - windows[:-1],
    OneByOne: np.stack([VALUES, np.roll(VALUES, -1, 0)], 1),
    Whole: -VALUES,
    Both: windows + 1,
    Mixed: -VALUES,
    OfBatches: VALUES + 5,
    Named: VALUES,
}


@pytest.fixture
def path(make: Callable[..., str]) -> str:
    return make("scan.h5", x=(VALUES, {"chunks": (4, 4), "compression": "gzip"}))


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.filterwarnings("ignore:buffer=.* has no effect")  # where the class makes its samples itself
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"num_workers": 2}, {"buffer": "1MiB"}], ids=str)
def test_batches_are_what_the_class_makes_of_its_samples(kind: Any, options: dict[str, Any], path: str) -> None:
    dataset, expected = kind(path, "x"), torch.from_numpy(MADE[kind])
    assert len(dataset) == len(expected)
    if options.get("shuffle"):
        torch.manual_seed(2)
        theirs = list(TorchLoader(dataset, 5, shuffle=True))
        torch.manual_seed(2)
        assert same(list(DataLoader(dataset, 5, **options)), theirs)
    else:
        assert same(list(DataLoader(dataset, 5, **options)), expected.split(5))
        assert same(list(DataLoader(dataset, None, **options)), expected if kind is not Whole else -expected)


@pytest.mark.parametrize("kind", MADE)
def test_they_stay_what_they_are_in_parts_of_others(kind: Any, path: str) -> None:
    dataset, expected = kind(path, "x"), torch.from_numpy(MADE[kind])
    chosen = [7, 2, 2, 19]
    assert same(list(DataLoader(Subset(dataset, chosen), 3)), expected[chosen].split(3))
    both = ConcatDataset([dataset, dataset])
    assert same(list(DataLoader(both, 6)), list(TorchLoader(both, 6)))


def test_a_transform_is_of_what_was_read(path: str) -> None:
    for workers in (0, 2):
        loader = DataLoader(Window(path, "x", transform=doubled), 5, num_workers=workers)
        assert same(list(loader), torch.from_numpy(2 * windows).split(5))


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Where there is no room for another call, none of what earlier tests have left is to be closed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_samples_that_are_asked_for_without_end_are_an_error_that_says_so(path: str) -> None:
    class Round(H5Dataset):
        def __getitem__(self, index: int) -> Any:
            return np.stack(self.__getitems__([index, index + 1]))

    for ask in (lambda data: data[3], lambda data: data.__getitems__([3]), lambda data: next(iter(DataLoader(data)))):
        with pytest.raises(RuntimeError, match=r"Round.__getitem__ .* without end: ask super\(\)") as caught:
            ask(Round(path, "x"))
        assert not isinstance(caught.value, RecursionError)
        assert len(caught.traceback) < 100


@pytest.mark.usefixtures("no_collection")
def test_an_endless_call_of_the_classs_own_stays_what_it_is(path: str) -> None:
    class Endless(H5Dataset):
        def __getitem__(self, index: int) -> Any:
            return self[index]

    with pytest.raises(RecursionError):
        Endless(path, "x").__getitems__([3])


def test_a_class_that_makes_nothing_itself_is_read_natively(path: str) -> None:
    loader = DataLoader(Named(path, "x"), 5)
    list(loader)
    assert loader.stats()["bytes_decoded"]
