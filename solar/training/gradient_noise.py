"""How much gradients vary between batches, and how much errors of the inputs change them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from solar.errors import PlanError

NUMBERS_KEPT = 16384  # numbers of a gradient; lengths of longer ones are then right to a hundredth
FEWEST = 4  # batches that tell anything of a spread

Batch = dict[str, torch.Tensor]
Loss = Callable[[nn.Module, Batch], torch.Tensor]
Gradients = NDArray[np.float64]  # of batches, one a row


@dataclass(frozen=True)
class Noise:
    """How far the gradients of single batches are from their mean."""

    size: float  # the root of the mean square distance
    error: float  # standard error of `size`, as a share of it
    mean: float  # length of the mean gradient


@dataclass(frozen=True)
class Change:
    """How much the gradients of the same batches have changed."""

    size: float  # the root of the mean square
    shared: float  # what the changes of all batches have in common: it does not average out


def noise_of(gradients: Gradients) -> Noise:
    """Returns the spread of a batch's gradient, estimated from some batches without bias.

    The squared distances to the mean, times n / (n - 1), have the variance of one batch's gradient as their mean; their
    scatter tells how well n of them determine it.
    """
    batches = len(gradients)
    mean = gradients.mean(axis=0)
    squares = np.square(gradients - mean).sum(axis=1) * (batches / (batches - 1))
    variance = float(squares.mean())
    error = float(squares.std(ddof=1)) / math.sqrt(batches) / (2 * variance) if variance > 0 else 0.0
    return Noise(math.sqrt(variance), error, float(np.linalg.norm(mean)))


def change_of(changes: Gradients) -> Change:
    """Returns the size of changes, and of their mean over all possible batches, estimated from these without bias."""
    if not np.isfinite(changes).all():
        return Change(math.inf, math.inf)
    batches, squares = len(changes), float(np.square(changes).sum())
    products = float(np.square(changes.sum(axis=0)).sum()) - squares  # of different batches: no square of noise in it
    shared = max(0.0, products) / (batches * (batches - 1))
    return Change(math.sqrt(squares / batches), math.sqrt(shared))


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters whose gradients are taken. Raises PlanError if there are none, or not yet."""
    found = [one for one in model.parameters() if one.requires_grad]
    if any(isinstance(one, nn.UninitializedParameter) for one in found):
        raise PlanError(
            "the model has parameters without a shape yet (a lazy module): call it once before you return it"
        )
    if not any(one.numel() for one in found):
        raise PlanError("the model has no parameters that are trained, so that no gradient can be taken")
    return found


class Sketch:
    """Gradients as few numbers, which can be subtracted and averaged, and whose lengths can be taken.

    More than NUMBERS_KEPT are reduced to as many sums with random signs (a count sketch): that is linear, so lengths
    are kept to about sqrt(2 / NUMBERS_KEPT).
    """

    def __init__(self, parameters: list[nn.Parameter], seed: int) -> None:
        self._parameters = parameters
        count = sum(count_numbers(one) for one in parameters)
        self._kept = min(count, NUMBERS_KEPT)
        self._places: tuple[torch.Tensor, torch.Tensor] | None = None
        if count > NUMBERS_KEPT:
            drawn = torch.Generator().manual_seed(seed)
            signs = torch.randint(0, 2, (count,), generator=drawn, dtype=torch.int8).mul_(2).sub_(1)
            self._places = torch.randint(0, NUMBERS_KEPT, (count,), generator=drawn, dtype=torch.int32), signs

    def of(self, found: tuple[torch.Tensor | None, ...]) -> NDArray[np.float64]:
        """Returns the sketch of the parameters' gradients; None if the loss does not depend on one."""
        flat = torch.zeros(self._kept, dtype=torch.float64)
        at = 0
        for parameter, gradient in zip(self._parameters, found, strict=True):
            count = count_numbers(parameter)
            if gradient is not None:
                real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
                numbers = real.detach().reshape(-1).to("cpu", torch.float64)
                if self._places is None:
                    flat[at : at + count] = numbers
                else:
                    places, signs = (part[at : at + count] for part in self._places)
                    flat.index_add_(0, places, numbers * signs)
            at += count
        return flat.numpy()


def count_numbers(one: torch.Tensor) -> int:
    return one.numel() * (2 if one.is_complex() else 1)


class Taker:
    """Takes gradients of a model, always in the same way: with the same draws of dropout, from the same buffers."""

    def __init__(self, model: nn.Module, loss: Loss, seed: int) -> None:
        self._model, self._loss, self._seed = model, loss, seed
        self._parameters = parameters_of(model)
        self._buffers = [(one, one.detach().clone()) for one in model.buffers()]
        self._sketch = Sketch(self._parameters, seed)

    def take(self, batch: Batch) -> NDArray[np.float64]:
        """Returns the gradient of a batch, or its sketch."""
        torch.manual_seed(self._seed)
        self._model.train()
        value = loss_value(self._loss, self._model, batch)
        found = torch.autograd.grad(value, self._parameters, allow_unused=True)
        with torch.no_grad():
            for buffer, saved in self._buffers:
                buffer.copy_(saved)
        return self._sketch.of(found)


def loss_value(loss: Loss, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Returns the loss of a batch, a number that depends on the model. An error of the user's code names the batch."""
    try:
        value: Any = loss(model, batch)
    except Exception as error:  # theirs, of any kind: it goes on, with what it was given
        given = ", ".join(f"{name} {tuple(one.shape)} {one.dtype}" for name, one in batch.items())
        error.add_note(f"solar tune: while taking the loss of a batch of {given}")
        raise
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise PlanError(f"the loss of a batch must be a tensor with one number, and is {what}: take its mean")
    if not value.requires_grad:
        raise PlanError("the loss does not depend on the model's parameters: is it taken from what the model gives?")
    return value.reshape(())
