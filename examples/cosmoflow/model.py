"""CosmoFlow (Mathuriya et al., SC18; the network of MLPerf HPC): four numbers from a cube of particle counts.

The benchmark's network has 32 channels in its first convolution (`width`), inputs of 128 x 128 x 128 with 4 redshifts,
and a dropout of 0.5, which is for the half million universes of the benchmark: here it is 0 unless you ask.
"""

from __future__ import annotations

import torch
from torch import nn

LAYERS = 5  # each halves the edge


class CosmoFlow(nn.Module):
    """The scaled parameters (N, 4) of universes (N, size, size, size, 4)."""

    def __init__(self, width: int = 32, size: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        convolutions: list[nn.Module] = []
        inputs = 4
        for layer in range(LAYERS):
            outputs = width * 2**layer
            convolutions += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.LeakyReLU(0.3), nn.MaxPool3d(2)]
            inputs = outputs
        self.convolutions = nn.Sequential(*convolutions).to(memory_format=torch.channels_last_3d)
        dense: list[nn.Module] = []
        features = inputs * (size // 2**LAYERS) ** 3
        for outputs in (128, 64):
            dense += [nn.Linear(features, outputs), nn.LeakyReLU(0.3), nn.Dropout(dropout)]
            features = outputs
        self.dense = nn.Sequential(*dense, nn.Linear(features, 4), nn.Tanh())

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        cubes = torch.log1p(counts.float()).sub(2).permute(0, 4, 1, 2, 3)  # about 0 on average
        return 1.2 * self.dense(self.convolutions(cubes).flatten(1))
