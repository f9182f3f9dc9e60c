"""The public name of the GPU decoder for solar's own codec."""

from solar.gpu.kernels import Decoder as Decoder
