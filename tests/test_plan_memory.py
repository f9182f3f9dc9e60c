"""What planning takes for each sample, in numpy's memory: counted by allocation, so the same on every machine."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, RandomSampler

from solar.planning import plan
from solar.planning.budget import SampleBytes
from solar.planning.job import Job
from solar.planning.pass_uses import PassUses, SampleUses, alone
from solar.planning.planned_passes import Piece, PlannedPasses
from solar.planning.regions import whole_region
from solar.planning.sweep import RetentionPolicy
from solar.planning.torch_shuffles import distributed, steps
from solar.planning.units import uniform
from solar.samplers.epoch_position import Indices, SamplerState
from solar.samplers.samplers import PlanSampler
from solar.values import Storage, World

SAMPLES, BATCH, NBYTES = 1 << 20, 64, 64
BUFFER = SAMPLES * NBYTES // 4
DISK = Storage(latency=1e-3, bandwidth=1e9, iops=500)
PIECE = Piece(0, 0, whole_region(uniform(SAMPLES, NBYTES)))
ORDER = 4  # bytes a sample of an epoch's order


def peak_of(make: Callable[[], Any]) -> float:
    """The bytes a sample that this takes at its peak; what it gives stays until then."""
    tracemalloc.start()
    try:
        made = make()
        peak = tracemalloc.get_traced_memory()[1]
        del made
    finally:
        tracemalloc.stop()
    return peak / SAMPLES


def planned(makers: list[Callable[[], PassUses]], pieces: Any, way: RetentionPolicy | None) -> Any:
    window = PlannedPasses(makers, 0, pieces, BUFFER, BATCH, [DISK], [way], way is not None)
    return window, window.scripts(0)


@pytest.mark.parametrize(("epochs", "way"), [(1, None), (4, RetentionPolicy(burst=1 << 16))])
def test_epochs_are_planned_with_one_order_in_memory(
    epochs: int, way: RetentionPolicy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from USES_KEPT samples on: of a small data set several orders stay."""
    monkeypatch.setattr(plan, "USES_KEPT", SAMPLES)
    starts = np.append(np.arange(0, SAMPLES, BATCH), SAMPLES)
    orders = distributed(SAMPLES, seed=1)

    def made(epoch: int) -> PassUses:
        return alone(SampleUses(None, orders.of(epoch).copy(), starts))  # a copy: numpy's memory is what is counted

    makers = [lambda epoch=epoch: made(epoch) for epoch in range(epochs)]
    # The order; a list of what waits for the first steps, and its parts; what is looked at together, 256 Ki uses.
    assert peak_of(lambda: planned(makers, [PIECE], way)) <= ORDER + (5 if epochs > 1 else 10)


@pytest.mark.parametrize(("of_a_node", "most"), [(4, 20), (2, 26)])
def test_a_rank_of_four_plans_in_few_bytes_a_sample(of_a_node: int, most: float) -> None:
    world = World(0, 4, rank_of_node=0, ranks_per_node=of_a_node)
    fields, order = [SampleBytes(NBYTES)], distributed(SAMPLES, seed=1, ranks=4)
    job = Job([PIECE], [DISK], fields, 0, order, world, BATCH // 4, BUFFER, 3)
    own = job.sharing(0)
    starts = steps(order, BATCH)

    def made() -> PassUses:
        return own.divided(SampleUses(None, order.of(0).copy(), starts))[0]

    assert peak_of(lambda: planned([made], own.planned(), None)) <= most


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_known_pass_is_drawn_without_an_object_for_each_batch(ranks: int) -> None:
    sampler = PlanSampler(range(SAMPLES), ranks, 0, seed=1)
    for drawn in (sampler, RandomSampler(range(SAMPLES))) if ranks == 1 else (sampler,):
        state = SamplerState(drawn, BatchSampler(drawn, BATCH, False), None, range(SAMPLES))
        state.as_arrays = True
        indices = Indices(state)
        assert peak_of(indices.at_once) <= 1.5  # where batches begin, and a rank's part; not torch's own memory
        assert indices.position.batches == 0
