"""Our codec's decoder on a device, under its public name."""

from solar.gpu.kernels import Decoder as Decoder
