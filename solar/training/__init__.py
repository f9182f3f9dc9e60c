"""Compresses the rest of a training: activations in memory, and gradients between ranks. Loaders do not need it."""

from solar.training.activations import compressed_activations as compressed_activations
from solar.training.gradients import compressed_gradients as compressed_gradients
