"""The tensors of a batch, wherever they are in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from solar.device.finish import DeviceFinish
from solar.loader.uneven import rebuild_batch

Tensor = torch.Tensor


def walked(batch: Any, finishes: Any, act: Callable[[Any, DeviceFinish | None], Any]) -> Any:
    """Returns the batch with each movable part replaced by `act(part, finish)`. `finishes` has the same structure."""
    if hasattr(batch, "to"):
        return act(batch, finishes if isinstance(finishes, DeviceFinish) else None)
    of_parts = finishes.values() if isinstance(finishes, dict) else finishes
    parts = iter(of_parts if isinstance(finishes, (dict, tuple)) else ())
    return rebuild_batch(batch, lambda part: walked(part, next(parts, None), act))


def plain_parts(batch: Any, finishes: Any = None) -> list[tuple[Tensor, DeviceFinish | None]]:
    """Returns the tensors of a batch that are copied byte by byte, each with its finish."""
    found: list[tuple[Tensor, DeviceFinish | None]] = []

    def seen(part: Any, how: DeviceFinish | None) -> Any:
        if is_plain(part):
            found.append((part, how))
        return part

    walked(batch, finishes, seen)
    return found


def is_plain(part: Any) -> bool:
    """Returns whether it is host memory that can be copied byte by byte. Other parts are moved by their own `to`."""
    if type(part) is not Tensor or part.layout is not torch.strided or part.device.type != "cpu":
        return False
    return not (part.requires_grad or part.is_quantized or part.is_nested or part.is_conj() or part.is_neg())
