"""The torch side of solar, the only package (but for solar.integrations) that imports torch."""

from __future__ import annotations

from solar.torch.dataset import H5Dataset
from solar.torch.loader import DataLoader
from solar.torch.samplers import PlanBatchSampler, PlanSampler

__all__ = ["DataLoader", "H5Dataset", "PlanBatchSampler", "PlanSampler"]
