"""One step of a flow: convolutions around the edges of a periodic square, added to what was there last."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


class Stepper(nn.Module):
    """The next fields (N, fields, size, size) of the last ones (N, steps, fields, size, size)."""

    def __init__(self, fields: int, steps: int, width: int, layers: int = 4) -> None:
        super().__init__()
        channels = [fields * steps, *[width] * layers]
        convolutions: list[nn.Module] = []
        for inputs, outputs in pairwise(channels):
            convolutions += [nn.Conv2d(inputs, outputs, 5, padding=2, padding_mode="circular"), nn.GELU()]
        self.change = nn.Sequential(*convolutions, nn.Conv2d(width, fields, 1))

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        return past[:, -1] + self.change(past.flatten(1, 2))
