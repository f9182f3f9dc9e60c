"""PtychoNN (Cherukara et al., Applied Physics Letters 117, 044103, 2020): one encoder, two decoders.

The published network has 32 channels in its first convolution (`width`) and inputs of 64 x 64 pixels.
"""

from __future__ import annotations

import math

import torch
from torch import nn


def convolve(inputs: int, outputs: int) -> list[nn.Module]:
    """Two convolutions of 3 x 3 pixels."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
    return layers


class PtychoNN(nn.Module):
    """Amplitude and phase (N, 2, size, size) of diffraction patterns in photons (N, size, size)."""

    def __init__(self, width: int = 32, bright: float = 400.0) -> None:
        super().__init__()
        self.bright = bright  # photons in a bright pixel
        down = [*zip((1, width, 2 * width), (width, 2 * width, 4 * width), strict=True)]
        up = [(4 * width, 4 * width), (4 * width, 2 * width), (2 * width, 2 * width)]

        def decode() -> list[nn.Module]:
            layers: list[nn.Module] = []
            for inputs, outputs in up:
                layers += [*convolve(inputs, outputs), nn.Upsample(scale_factor=2, mode="bilinear")]
            return [*layers, nn.Conv2d(2 * width, 1, 3, padding=1)]

        encoder: list[nn.Module] = []
        for inputs, outputs in down:
            encoder += [*convolve(inputs, outputs), nn.MaxPool2d(2)]
        self.encoder = nn.Sequential(*encoder)
        self.amplitude = nn.Sequential(*decode(), nn.Sigmoid())
        self.phase = nn.Sequential(*decode(), nn.Tanh())

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        code = self.encoder((counts.float() * (4 / self.bright)).sqrt().unsqueeze(1))
        return torch.cat([self.amplitude(code), math.pi * self.phase(code)], dim=1)
