"""The torch side of solar, the only package (but for solar.gpu and solar.integrations) that imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solar.torch.dataset import H5Dataset as H5Dataset
    from solar.torch.loader import DataLoader as DataLoader
    from solar.torch.samplers import PlanBatchSampler as PlanBatchSampler
    from solar.torch.samplers import PlanSampler as PlanSampler

__all__ = ["DataLoader", "H5Dataset", "PlanBatchSampler", "PlanSampler"]


def __getattr__(name: str) -> Any:
    """Imports these names on first use, so that modules below the loader can be imported without it."""
    if name not in __all__:
        raise AttributeError(f"module 'solar.torch' has no attribute {name!r}")
    from importlib import import_module

    where = {"DataLoader": "loader", "H5Dataset": "dataset"}.get(name, "samplers")
    return getattr(import_module(f"solar.torch.{where}"), name)
