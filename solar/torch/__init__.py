"""The torch side of solar, the only package that imports torch."""

from __future__ import annotations

from solar.torch.dataset import H5Dataset
from solar.torch.loader import DataLoader

__all__ = ["DataLoader", "H5Dataset"]
