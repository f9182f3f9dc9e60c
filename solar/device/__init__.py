"""Batches on a device: copied, decoded and kept there. `Decoder`, of solar's own codec, is its public name."""

from __future__ import annotations

from typing import Any

__all__ = ["Decoder"]


def __getattr__(name: str) -> Any:
    """Imports the decoder on first use: it needs Triton, and a loader does not."""
    if name != "Decoder":
        raise AttributeError(f"module 'solar.device' has no attribute {name!r}")
    from solar.device.kernels import Decoder

    return Decoder
