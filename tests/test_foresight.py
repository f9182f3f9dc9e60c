"""shuffle=True draws its seeds from torch's global generator: what is foreseen of it, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.utils.data

from solar import DataLoader, H5Dataset

EPOCHS = 5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> H5Dataset:
    path = tmp_path_factory.mktemp("foresight") / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(400 * 64, dtype="f4").reshape(400, 64)
    return H5Dataset(path, "x")


def epochs_of(loader: Any, between: Callable[[int], object]) -> torch.Tensor:
    torch.manual_seed(5)
    batches = []
    for epoch in range(EPOCHS):
        batches += list(loader)
        between(epoch)
    return torch.cat(batches)


def validated(dataset: H5Dataset) -> Callable[[int], object]:
    loader = torch.utils.data.DataLoader(dataset, 100, shuffle=True)
    return lambda epoch: sum(1 for _ in loader)


CASES: dict[str, tuple[Callable[[H5Dataset], Callable[[int], object]], bool]] = {
    "nothing": (lambda dataset: lambda epoch: None, True),
    "one number": (lambda dataset: lambda epoch: torch.rand(1), True),
    "another loader": (validated, True),
    "too many numbers": (lambda dataset: lambda epoch: torch.rand(1000), False),
    "ever more numbers": (lambda dataset: lambda epoch: torch.rand(3 * epoch), False),
    "another seed": (lambda dataset: lambda epoch: torch.manual_seed(epoch), False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("generator", [None, 7])
def test_samples_stay_for_the_next_epoch_where_the_loop_draws_as_much_as_before(
    dataset: H5Dataset, case: str, generator: int | None
) -> None:
    make, foreseen = CASES[case]

    def arguments() -> dict[str, Any]:  # the loader's generator seeds workers; a sampler of its own shuffles
        sampler = torch.utils.data.RandomSampler(dataset)
        given = None if generator is None else torch.Generator().manual_seed(generator)
        return {"batch_size": 16, "sampler": sampler, "generator": given}

    expected = epochs_of(torch.utils.data.DataLoader(dataset, **arguments()), make(dataset))
    loader = DataLoader(dataset, buffer=50_000, epochs=EPOCHS, **arguments())
    assert torch.equal(epochs_of(loader, make(dataset)), expected)
    assert (loader.stats()["buffer_hits"] > 0) == foreseen
