"""A small U-Net in three dimensions (Çiçek et al., MICCAI 2016): down twice, up twice, and what was there beside it."""

from __future__ import annotations

import torch
from torch import nn


def convolve(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv3d(channels, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Scores (N, classes, edge, edge, edge) of images (N, edge, edge, edge), whose edge is a multiple of 4."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([convolve(1, width), convolve(width, 2 * width)])
        self.bottom = convolve(2 * width, 4 * width)
        self.up = nn.ModuleList([convolve(6 * width, 2 * width), convolve(3 * width, width)])
        self.last = nn.Conv3d(width, classes, 1)
        self.smaller, self.larger = nn.MaxPool3d(2), nn.Upsample(scale_factor=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, beside = images[:, None], []
        for layer in self.down:
            beside.append(layer(x))
            x = self.smaller(beside[-1])
        x = self.bottom(x)
        for layer in self.up:
            x = layer(torch.cat([self.larger(x), beside.pop()], dim=1))
        scores: torch.Tensor = self.last(x)
        return scores
