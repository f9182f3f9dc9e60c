"""AutoPhaseNN (Yao et al., npj Computational Materials 8, 124, 2022): phase retrieval in 3-D that needs no truth.

An encoder and two decoders make amplitude and phase of an object of half the edge; its far field is computed and
compared with the measured pattern, and the error flows back through the Fourier transform. The published network has
32 channels in its first convolution (`width`) and inputs of 64 x 64 x 64.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import pad

SUPPORT = 0.1  # what is fainter is no part of the object


def convolve(inputs: int, outputs: int) -> list[nn.Module]:
    """Two convolutions of 3 x 3 x 3 voxels, each with its normalisation."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv3d(channels, outputs, 3, padding=1), nn.LeakyReLU(0.01), nn.BatchNorm3d(outputs)]
    return layers


def far_field(wave: torch.Tensor) -> torch.Tensor:
    """The amplitude of the diffracted wave (N, size, size, size) of objects of half the edge."""
    padded = pad(wave, (wave.shape[-1] // 2,) * 6)
    return torch.fft.fftshift(torch.fft.fftn(padded, dim=(-3, -2, -1)), dim=(-3, -2, -1)).abs()


class AutoPhaseNN(nn.Module):
    """The complex objects (N, size/2, size/2, size/2) behind diffraction patterns in photons (N, size, size, size)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        channels = [1, width, 2 * width, 4 * width, 8 * width]
        encoder: list[nn.Module] = []
        for inputs, outputs in pairwise(channels):
            encoder += [*convolve(inputs, outputs), nn.MaxPool3d(2)]

        def decode() -> list[nn.Module]:
            layers: list[nn.Module] = []
            for inputs, outputs in pairwise(channels[:0:-1]):
                upsample = nn.Upsample(scale_factor=2, mode="trilinear", align_corners=True)
                layers += [*convolve(inputs, outputs), upsample]
            return [*layers, nn.Conv3d(width, 1, 3, padding=1)]

        self.encoder = nn.Sequential(*encoder).to(memory_format=torch.channels_last_3d)
        self.amplitude = nn.Sequential(*decode(), nn.Sigmoid()).to(memory_format=torch.channels_last_3d)
        self.phase = nn.Sequential(*decode(), nn.Tanh()).to(memory_format=torch.channels_last_3d)

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        measured = counts.float().sqrt()
        code = self.encoder((4 * measured / measured.amax((1, 2, 3), keepdim=True)).unsqueeze(1))
        amplitude, phase = self.amplitude(code).squeeze(1), math.pi * self.phase(code).squeeze(1)
        return torch.polar(torch.where(amplitude < SUPPORT, 0.0, amplitude), phase)
