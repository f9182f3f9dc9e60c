"""shuffle=True draws its seeds from torch's global generator: what is foreseen of it, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.utils.data

from solar import DataLoader, H5Dataset
from solar.buffer.planned_run import PlannedRun
from solar.planning.pass_uses import SampleUses, alone
from solar.planning.planned_passes import Piece, PlannedPasses, policies_after
from solar.planning.regions import whole_region
from solar.planning.sweep import Counts, total
from solar.planning.units import of_layout
from solar.samplers.index_stream import KnownOrder
from solar.samplers.sampler_streams import Shuffled
from solar.values import Storage

EPOCHS = 5
DISK = Storage(latency=1e-3, bandwidth=1e6, iops=100)  # a request costs as much as forty samples


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


@pytest.mark.slow(every=4)
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


# --- what it costs, exactly ----


def of_windows(dataset: H5Dataset, loader: DataLoader, orders: torch.Tensor, windows: Sequence[range]) -> Counts:
    """What the planner reads for passes in these orders, if those of each window are known when it begins."""
    budget, found, last = loader._buffered.planned_run.budget, [], None
    assert budget is not None
    starts = np.arange(0, 401, 16)
    uses = [alone(SampleUses(None, order.numpy().astype(np.int32), starts)) for order in orders]
    pieces = [Piece(0, 0, whole_region(of_layout(dataset.layouts)))]
    for window in windows:
        makers = [lambda epoch=epoch: uses[epoch] for epoch in window]
        ways = [None] if last is None else policies_after(last, len(window))
        last = PlannedPasses(makers, 0, pieces, budget.parts, budget.batch, [DISK], ways, last is not None)
        found += [one for number in last.segments for one in last.counts(number)]
    return total(found)


def drawing(numbers: Sequence[int]) -> Callable[[int], object]:
    return lambda epoch: torch.rand(numbers[epoch])


ONE_BY_ONE = [range(epoch, epoch + 1) for epoch in range(EPOCHS)]
FROM_THE_THIRD = [range(1), range(1, 2), range(2, EPOCHS)]
COSTS: dict[str, tuple[Callable[[int], object], list[range]]] = {
    "nothing": (lambda epoch: None, FROM_THE_THIRD),
    "the same": (drawing([3] * EPOCHS), FROM_THE_THIRD),
    "ever more": (drawing(range(EPOCHS)), ONE_BY_ONE),
    "very many": (drawing([1000] * EPOCHS), ONE_BY_ONE),
    "another seed": (lambda epoch: torch.manual_seed(epoch), ONE_BY_ONE),
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Counts]:
    """What the runs of loaders are told to read, pass by pass."""
    found: list[Counts] = []
    append = PlannedRun._append

    def noted(buffered: PlannedRun, window: PlannedPasses) -> Any:
        found.append(total(window.counts(window.next)))
        return append(buffered, window)

    monkeypatch.setattr(PlannedRun, "_append", noted)
    return found


def planned(dataset: H5Dataset, between: Callable[[int], object], *windows: Sequence[range]) -> list[Counts]:
    """What is to be read for the passes of a loader, which it makes, if those of each window are known."""
    with DataLoader(dataset, 16, shuffle=True, buffer=50_000, epochs=EPOCHS, storage=DISK) as loader:
        orders = epochs_of(loader, between)[:, 0].reshape(EPOCHS, 400) / 64
        return [of_windows(dataset, loader, orders, one) for one in windows]


@pytest.mark.parametrize("case", COSTS)
def test_passes_are_planned_together_once_a_guess_came_true_and_one_by_one_before(
    dataset: H5Dataset, case: str, told: list[Counts]
) -> None:
    between, windows = COSTS[case]
    expected, apart = planned(dataset, between, windows, ONE_BY_ONE)
    assert total(told) == expected
    assert len(told) == EPOCHS
    assert expected == apart or (expected.bytes < apart.bytes and expected.requests < apart.requests)


def test_guesses_that_are_always_wrong_cost_nothing(
    dataset: H5Dataset, monkeypatch: pytest.MonkeyPatch, told: list[Counts]
) -> None:
    monkeypatch.setattr(Shuffled, "_foreseen", lambda self: count(1))
    assert planned(dataset, lambda epoch: None, ONE_BY_ONE) == [total(told)]
    assert len(told) == EPOCHS


def test_a_generator_that_the_loop_draws_from_is_believed_once(dataset: H5Dataset, told: list[Counts]) -> None:
    generator = torch.Generator().manual_seed(1)
    terms: dict[str, Any] = {"shuffle": True, "generator": generator, "buffer": 50_000, "storage": DISK}
    with DataLoader(dataset, 16, epochs=EPOCHS, **terms) as loader:
        orders = epochs_of(loader, lambda epoch: torch.rand(1, generator=generator))[:, 0].reshape(EPOCHS, 400) / 64
        apart = of_windows(dataset, loader, orders, ONE_BY_ONE[1:])
    assert len(told) == EPOCHS + 1  # the second pass was told as it was guessed, and as it came
    assert total(told[2:]) == apart


def test_however_guesses_come_few_are_acted_upon_in_vain() -> None:
    rng = np.random.default_rng(3)
    for share in (0.2, 0.5, 0.8):
        trust, in_vain, gained = KnownOrder(0, 1), 0, False
        for came_true in rng.random(4096) < share:
            in_vain += trust.suffices and not came_true and not gained
            gained = trust.suffices and bool(came_true)
            trust = trust.after(bool(came_true))
        assert in_vain <= 12  # and not one part of all of them


def test_a_loop_that_changes_its_ways_once_is_foreseen_again() -> None:
    trust = KnownOrder(0, 1)
    for came_true in (True, False, False):
        trust = trust.after(came_true)
    assert not trust.suffices
    assert trust.after(True).after(True).suffices


@pytest.mark.parametrize(("buffer", "together"), [(50_000, True), (4_000_000, False)])
def test_where_memory_holds_all_no_pass_waits_for_the_plan_of_later_ones(
    dataset: H5Dataset, buffer: int, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, begin = list[int](), PlannedPasses.__init__

    def noted(self: PlannedPasses, makers: Sequence[Any], *more: Any, **others: Any) -> None:
        passes.append(len(makers))
        begin(self, makers, *more, **others)

    monkeypatch.setattr(PlannedPasses, "__init__", noted)
    monkeypatch.setattr("solar.planning.planned_passes.USES_HELD", 400)
    with DataLoader(dataset, 16, shuffle=True, buffer=buffer, epochs=EPOCHS, storage=DISK) as loader:
        for _ in range(EPOCHS):
            list(loader)
    assert (max(passes[1:]) > 1) == together
