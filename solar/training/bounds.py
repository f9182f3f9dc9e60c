"""Chooses the bounds of layers while training."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from solar.training.gradient_noise import FEWEST, Sketch, noise_of, parameters_of

FIRST = 0.1  # of the values' root mean square
LEAST, MOST = 1e-6, 0.5  # of the same; beyond, too little is left for COARSER to change anything
COARSER = 4.0  # times the present bound, to see what a larger one would do
FASTEST = 8.0  # a bound becomes at most so many times larger or smaller at once
EARLY, EVERY = (0, 8, 32, 96), 256  # the steps at which a choice begins


class Choice:
    """The bounds of layers as shares of their values' root mean square.

    A choice takes FEWEST steps. In each, the gradient is taken as it is, for the noise between batches, and once more
    for some of the layers, with these rounded to a bound COARSER times theirs, to see how much it changes. A change
    grows at most as its bound does. The changes of all layers together may be `fraction` of the noise; a layer's share
    of them, squared, is its share of the numbers, which gives the fewest bits.
    """

    def __init__(self, fraction: float) -> None:
        self.shares: dict[str, float] = {}
        self.coarse: str | None = None  # the layer that is just being looked at
        self._fraction, self._steps = fraction, 0
        self._sketch: Sketch | None = None
        self._parameters: list[nn.Parameter] = []
        self._counts: dict[str, int] = {}  # numbers of each layer in this step
        self._taken: list[NDArray[np.float64]] = []
        self._changes: dict[str, float] = {}

    def share(self, layer: str, count: int) -> float:
        """Returns the bound for the next `count` numbers of a layer."""
        self._counts[layer] = self._counts.get(layer, 0) + count
        return self.shares.setdefault(layer, FIRST)

    def begin(self) -> bool:
        """Returns whether the step that begins is measured."""
        self._counts.clear()
        since = next((self._steps - early for early in reversed(EARLY) if self._steps >= early), 0)
        looked = min(since, self._steps % EVERY) < FEWEST
        self._steps += 1
        return looked

    def look(self, model: nn.Module, output: torch.Tensor, gradient: torch.Tensor) -> None:
        """Measures the parameters' gradients for this gradient of the output."""
        if self._sketch is None:
            self._parameters = parameters_of(model)
            self._sketch = Sketch(self._parameters, 0)
        number, layers = len(self._taken), list(self._counts)
        plain = self._take(output, gradient)
        self._taken.append(plain)
        for layer in layers[number::FEWEST]:
            self.coarse = layer
            try:
                self._changes[layer] = float(np.linalg.norm(self._take(output, gradient) - plain))
            finally:
                self.coarse = None
        if len(self._taken) == FEWEST:
            self._choose()
            self._taken.clear()
            self._changes.clear()

    def _take(self, output: torch.Tensor, gradient: torch.Tensor) -> NDArray[np.float64]:
        assert self._sketch is not None
        found = torch.autograd.grad(output, self._parameters, gradient, retain_graph=True, allow_unused=True)
        return self._sketch.of(found)

    def _choose(self) -> None:
        noise, all_counts = noise_of(np.array(self._taken)).size, sum(self._counts.values())
        for layer, change in self._changes.items():
            if not np.isfinite(noise) or not np.isfinite(change):
                continue  # of such gradients nothing is learned
            may_change = self._fraction * noise * (self._counts.get(layer, 0) / all_counts) ** 0.5
            factor = COARSER * may_change / change if change else FASTEST
            now = self.shares[layer] * min(max(factor, 1 / FASTEST), FASTEST)
            self.shares[layer] = min(max(now, LEAST), MOST)
