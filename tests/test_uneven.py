"""Weights of uneven batches: what carries them, what loses them, and gradients averaged by them in one process.

Averaging over several processes is in integrations/test_uneven_ddp.py.
"""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from solar.errors import PlanError
from solar.loader.uneven import WeightedAverage, weight_batch, weighted_loss


class Pair(NamedTuple):
    x: Any
    y: Any


X, Y = torch.arange(3.0), torch.arange(3)
BATCHES = {
    "dict": {"x": X, "y": Y},
    "nested": {"x": (X, [Y, "name"]), "y": OrderedDict(z=X)},
    "list": [X, Y],
    "tuple": (X, Y),
    "named": Pair(X, Y),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# --- what carries a weight ----


@pytest.mark.parametrize("kind", BATCHES)
def test_a_weighted_batch_is_still_what_it_was(kind: str) -> None:
    batch = BATCHES[kind]
    ours = weight_batch(batch, 0.75)
    assert isinstance(ours, type(batch))
    assert same(ours, batch)
    assert ours.weight == 0.75
    assert not hasattr(batch, "weight"), "the batch that was given is as before"


def test_names_keys_and_unpacking_stay() -> None:
    x, y = weight_batch((X, Y), 1)
    assert x is X and y is Y
    assert weight_batch(Pair(X, Y), 1).y is Y
    assert weight_batch(Pair(X, Y), 1)._fields == ("x", "y")
    assert dict(**weight_batch({"x": X}, 1))["x"] is X


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_copies_and_pickles_keep_the_weight(kind: str, again: Any) -> None:
    ours = again(weight_batch(BATCHES[kind], 0.75))
    assert isinstance(ours, type(BATCHES[kind]))
    assert same(ours, BATCHES[kind])
    assert ours.weight == 0.75


@pytest.mark.parametrize("kind", BATCHES)
def test_moving_a_batch_moves_every_tensor_and_keeps_the_weight(kind: str) -> None:
    moved = weight_batch(BATCHES[kind], 0.75).to("meta")
    assert isinstance(moved, type(BATCHES[kind]))
    assert moved.weight == 0.75
    found: list[Any] = []

    def look(part: Any) -> None:
        if isinstance(part, (dict, list, tuple)):
            for inner in part.values() if isinstance(part, dict) else part:
                look(inner)
        else:
            found.append(part.device.type if isinstance(part, torch.Tensor) else part)

    look(moved)
    assert set(found) <= {"meta", "name"} and "meta" in found


class Pinned:
    """Stands for a tensor, where there is no CUDA to pin memory for."""

    def pin_memory(self) -> str:
        return "pinned"


def test_pinning_a_batch_keeps_the_weight() -> None:
    for batch in ({"x": Pinned()}, [Pinned()], (Pinned(),), Pair(Pinned(), 1)):
        pinned = weight_batch(batch, 0.75).pin_memory()
        assert isinstance(pinned, type(batch))
        assert "pinned" in (pinned.values() if isinstance(pinned, dict) else pinned)
        assert pinned.weight == 0.75


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_torchs_own_conversions_keep_the_weight(kind: str) -> None:
    assert default_convert(weight_batch(BATCHES[kind], 0.75)).weight == 0.75
    if torch.cuda.is_available():
        assert pin_memory(weight_batch(BATCHES[kind], 0.75)).weight == 0.75


def test_a_batch_made_anew_of_its_parts_says_that_its_weight_is_lost() -> None:
    ours = weight_batch({"x": X}, 0.75)
    anew = type(ours)({key: part for key, part in ours.items()})
    with pytest.raises(AttributeError, match="lost its weight"):
        anew.weight  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'height'"):
        anew.height  # noqa: B018


def test_a_batch_can_be_given_another_weight() -> None:
    for batch in (*BATCHES.values(), X.clone(), SimpleNamespace(x=X)):
        first = weight_batch(batch, 0.75)
        second = weight_batch(first, 0.5)
        assert second.weight == 0.5
        assert type(second) is type(first)


def test_tensors_and_objects_get_the_attribute_themselves() -> None:
    for batch in (X.clone(), SimpleNamespace(x=X), OrderedDict(x=X)):
        assert weight_batch(batch, 0.75) is batch
        assert batch.weight == 0.75


def test_what_takes_no_attribute_takes_no_weight() -> None:
    for batch in (3, None, "text"):
        with pytest.raises(TypeError, match="takes no attribute"):
            weight_batch(batch, 1)


def test_a_weight_of_the_users_is_not_overwritten() -> None:
    for batch in (SimpleNamespace(weight=X), namedtuple("Weighed", ["x", "weight"])(X, X)):
        with pytest.raises(TypeError, match="weight of its own"):
            weight_batch(batch, 1)
        assert batch.weight is X
    assert weight_batch({"weight": X}, 0.75)["weight"] is X, "a key is no attribute"


# --- losses and gradients ----


def test_the_weighted_loss_of_an_empty_batch_is_zero_and_so_are_its_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    loss = model(torch.zeros(0, 3)).square().mean()
    assert loss.isnan()
    ours = weighted_loss(loss, 0)
    ours.backward()
    assert ours.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_a_weighted_loss_is_the_loss_times_the_weight() -> None:
    assert weighted_loss(torch.tensor(3.0), 0.5).item() == 1.5


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[DistributedDataParallel]:
    """A model in several buckets, in a process group of one."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.001)
    yield model
    del model.reducer, model.logger  # torch may hang when these are the last to let go of the group
    dist.destroy_process_group()


def gradients(model: DistributedDataParallel, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_gradients_are_averaged_with_the_weight(model: DistributedDataParallel) -> None:
    batch = torch.randn(5, 40)
    plain = gradients(model, model(batch).square().mean())
    averaging = WeightedAverage(model)
    for weight in (1, 0.5, 1.0):
        averaging.weight = weight
        ours = gradients(model, model(batch).square().mean())
        assert all(torch.equal(one, weight * other) for one, other in zip(ours, plain, strict=True))
    assert len(ours) == 4


def test_gradients_that_are_not_numbers_count_as_zeros_where_the_weight_is_zero(model: DistributedDataParallel) -> None:
    averaging = WeightedAverage(model)
    averaging.weight = 0
    found = gradients(model, model(torch.ones(2, 40)).mean() * float("nan"))
    assert len(found) == 4 and not any(one.any() for one in found)


def test_a_backward_without_a_weight_of_its_own_is_refused(model: DistributedDataParallel) -> None:
    averaging = WeightedAverage(model)
    averaging.weight = 1
    gradients(model, model(torch.ones(2, 40)).mean())
    assert averaging.weight is None
    with pytest.raises(PlanError, match="no weight is set"):
        gradients(model, model(torch.ones(2, 40)).mean())


def test_a_weight_that_no_backward_used_is_not_passed_over(model: DistributedDataParallel) -> None:
    averaging = WeightedAverage(model)
    averaging.weight = 0.5
    with model.no_sync():
        gradients(model, model(torch.ones(2, 40)).mean())
    with pytest.raises(PlanError, match="weighted_loss"):
        averaging.weight = 0.5
    averaging.weight = None
    averaging.weight = 0.25
    assert averaging.weight == 0.25
