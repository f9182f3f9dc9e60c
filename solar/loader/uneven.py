"""Batches of uneven size that train like even ones: each has a weight by which gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from copy import copy
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from solar.errors import PlanError

Batch = TypeVar("Batch")

LOST = (
    "this batch has lost its weight: it was made anew of its parts. Read `batch.weight` as the loader gives the batch, "
    "before anything takes it apart"
)
EMPTY_BATCH = (
    "this rank has no sample in this step, and of an empty batch a transform or a collate_fn can make nothing: give a "
    'larger batch_size, or another balance than "uneven"'
)


class _Weighted:
    """The base class of the batches that `weight_batch` makes."""

    weight: float

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the batch and its weight, each part that can be moved as torch.Tensor.to moves it."""
        return rebuild_batch(self, lambda part: _move_gradients(part, "to", *args, **kwargs))

    def pin_memory(self) -> Any:
        """Returns the batch and its weight, each tensor in pinned memory."""
        return rebuild_batch(self, lambda part: _move_gradients(part, "pin_memory"))

    def __getattr__(self, name: str) -> Any:  # called for what is not there
        raise AttributeError(LOST if name == "weight" else f"{type(self).__name__!r} object has no attribute {name!r}")


class WeightedDict(_Weighted, dict[Any, Any]):
    """A dict with a weight."""


class WeightedList(_Weighted, list[Any]):
    """A list with a weight."""


class WeightedTuple(_Weighted, tuple[Any, ...]):
    """A tuple with a weight."""


_WEIGHTED_TYPES: dict[type, type] = {dict: WeightedDict, list: WeightedList, tuple: WeightedTuple}


def weight_batch(batch: Batch, weight: float) -> Batch:
    """Returns the batch with `weight` as its attribute: n·W/N for n own samples of the N that W ranks take in this
    step.

    The mean over ranks of weight · (mean loss of the own samples) is then the mean loss of the step.

    A dict, list, tuple or named tuple is copied, but not its contents. The copy has the same kind, compares equal, and
    can be pickled. `batch.to(device)` and `batch.pin_memory()` keep the weight, and so do Lightning and Accelerate.
    Code that rebuilds a batch from its parts loses the weight; reading it is then an AttributeError. Any other batch,
    such as a tensor, gets the attribute itself; a tensor's `to` and `pin_memory` make a new tensor without it.

    >>> batch = weight_batch({"x": torch.zeros(3)}, 0.75)
    >>> isinstance(batch, dict), batch.weight, batch.to("cpu").weight
    (True, 0.75, 0.75)
    """
    kind: Any = type(batch)
    made: Any = batch
    if kind in _WEIGHTED_TYPES:
        made = _WEIGHTED_TYPES[kind](batch)
    elif isinstance(batch, _Weighted):
        made = copy(batch)
    elif not isinstance(getattr(batch, "weight", 0.0), float):
        raise TypeError(f"the batch is a {kind.__name__} that has a weight of its own: give that another name")
    elif _is_named(batch):
        made = weighted_tuple(kind)(*made)
    try:
        made.weight = float(weight)
    except (AttributeError, TypeError) as error:
        raise TypeError(
            f"a batch of type {kind.__name__} takes no attribute, and so no weight: let collate_fn or device_transform "
            f"give a tensor, a dict, a list, a tuple, or an object with attributes"
        ) from error
    given: Batch = made
    return given


def weighted_loss(loss: torch.Tensor, weight: float) -> torch.Tensor:
    """Returns the loss times the weight. Its mean over ranks is the mean loss of the step.

    It works with any way of averaging gradients over ranks. Use it for loops without DDP, for FSDP, and for accumulated
    gradients, where each part has its own weight and DDP averages their sum. For an empty batch, whose mean is NaN, it
    is 0 and can be differentiated.
    """
    return loss.nan_to_num(0.0, 0.0, 0.0) * 0.0 if weight == 0 else loss * weight


class WeightedAverage:
    """Makes DistributedDataParallel average gradients over ranks with each rank's weight.

    With batches of uneven size and losses that are means over a batch, this gives the gradients of even batches, except
    for rounding. What is not a mean over samples, such as the statistics of a BatchNorm, remains uneven.

    >>> averaging = WeightedAverage(ddp_model)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     averaging.weight = batch.weight  # before each backward
    ...     loss_of(ddp_model, batch).backward()

    An empty batch has weight 0 and takes part: its gradients, NaN or not, count as zeros. If a model cannot take an
    empty batch, give it any other batch instead. Losses are not changed; for their mean over ranks, average
    weighted_loss(). One weight serves one backward: to accumulate gradients under `no_sync`, do not use this class, but
    scale each loss by weighted_loss().
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._group = model.process_group
        self._weight: float | None = None
        # Not the method itself: DDP compares annotations with types, and ours are text.
        model.register_comm_hook(None, lambda _, bucket: self._average(bucket))

    @property
    def weight(self) -> float | None:
        """The factor for the gradients of the next backward, which uses it up. Set None to cancel it."""
        return self._weight

    @weight.setter
    def weight(self, weight: float | None) -> None:
        if self._weight is not None and weight is not None:
            raise PlanError(
                "a weight was set, and no backward averaged its gradients over the ranks. Where they are accumulated "
                "(no_sync), leave WeightedAverage out and scale each loss by weighted_loss(loss, batch.weight)"
            )
        self._weight = None if weight is None else float(weight)

    def _average(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Returns the mean over ranks of the gradients in one of DDP's buckets."""
        if self._weight is None:
            raise PlanError("no weight is set: set averaging.weight = batch.weight before each backward")
        gradients, ranks = bucket.buffer(), torch.distributed.get_world_size(self._group)
        if self._weight == 0:
            gradients.zero_()  # 0 times NaN would be NaN
        elif self._weight == 1:
            gradients.div_(ranks)  # what DDP itself does, to the bit
        else:
            gradients.mul_(self._weight / ranks)
        if bucket.is_last():
            self._weight = None
        work: Any = torch.distributed.all_reduce(gradients, group=self._group, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


# --- structures ----


def _move_gradients(part: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """A part of a batch moved by `to` or `pin_memory`; the part itself if it has no such method and no parts."""
    if hasattr(part, method):
        return getattr(part, method)(*args, **kwargs)
    return rebuild_batch(part, lambda inner: _move_gradients(inner, method, *args, **kwargs))


def rebuild_batch(batch: Any, act: Callable[[Any], Any]) -> Any:
    """A batch of the same kind and weight with `act` of each part; a batch without parts is returned as it is."""
    if isinstance(batch, MutableMapping):
        made = copy(batch)
        made.update({key: act(part) for key, part in batch.items()})
        return made
    if isinstance(batch, list):
        listed = copy(batch)
        listed[:] = [act(part) for part in batch]
        return listed
    if not isinstance(batch, tuple):
        return batch
    parts = [act(part) for part in batch]
    tupled: Any = type(batch)(*parts) if _is_named(batch) else type(batch)(parts)
    if isinstance(batch, _Weighted):
        tupled.weight = batch.weight
    return tupled


def _is_named(batch: object) -> bool:
    return isinstance(batch, tuple) and hasattr(batch, "_fields")


@lru_cache(maxsize=64)
def weighted_tuple(kind: type) -> type:
    """Returns the named tuple's class with a weight. It is pickled through the user's class."""

    def reduced(batch: Any, _: Any) -> Any:
        return weight_batch, (kind(*batch), batch.weight)

    return type(kind.__name__, (_Weighted, kind), {"__reduce_ex__": reduced})
