"""Keeps the memory of one tensor in fewer bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from solar.io.codec.codec import Codec

NUMBERS_AT_ONCE = 1 << 18  # numbers coded in one go: pieces for several threads, the same whatever their number
POOLED = 4  # edge of the boxes whose means are kept of smooth values

Each = Callable[..., Iterable[Any]]  # map, or that of a pool of threads


def dense_tensor(x: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself if its numbers lie in memory without gaps, in any order of axes; else a copy."""
    return x if _in_order(x).is_contiguous() else x.contiguous()


def has_boxes(x: torch.Tensor) -> bool:
    """Returns whether means of boxes can be taken: of a batch with channels and one to three axes in space."""
    return x.is_floating_point() and 3 <= x.dim() <= 5 and min(x.shape[2:]) >= POOLED


class ShapeAlone:
    """Only the shape and memory order of a dense tensor; its numbers come back arbitrary."""

    nbytes = 0

    def __init__(self, x: torch.Tensor) -> None:
        self._like = x.shape, x.stride(), x.dtype

    def restored(self, each: Each, coarser: float = 0.0) -> torch.Tensor:
        """Returns a tensor of that shape and memory order."""
        shape, strides, dtype = self._like
        return torch.empty_strided(shape, strides, dtype=dtype)


class SignsAlone(ShapeAlone):
    """One bit for each number of a dense tensor: it comes back as 1 if it is above 0, else as 0."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(x)
        self._bits = np.packbits((numbers_in_memory(x) > 0).numpy())
        self.nbytes = self._bits.nbytes

    def restored(self, each: Each, coarser: float = 0.0) -> torch.Tensor:
        """Returns a tensor of the same signs."""
        x = super().restored(each)
        numbers = numbers_in_memory(x)
        numbers.copy_(torch.from_numpy(np.unpackbits(self._bits, count=len(numbers))))
        return x


class PackedTensor(ShapeAlone):
    """A dense tensor, each number within a bound; 0 is bit for bit.

    The bound is a share of their root mean square if it is `relative`. For `smooth` ones, the means of small boxes are
    kept exactly, and the bound is for the rest.
    """

    def __init__(self, x: torch.Tensor, bound: float, each: Each, relative: bool = False, smooth: bool = False) -> None:
        super().__init__(x)
        self._low = _means(x) if smooth else None
        rest = x if self._low is None else torch.sub(x, _spread(self._low, x), out=torch.empty_like(x))
        numbers = numbers_in_memory(rest)
        self.bound = bound * _size_of(numbers) if relative and bound else bound
        # Where the spread is not finite there is no share of it, and nothing to be saved: training has come to its end.
        self._codec = Codec("abs", self.bound if math.isfinite(self.bound) else 0.0, "pack", "none" if bound else "x")
        self._chunks = tuple(each(self._codec.encode, _pieces(numbers)))
        self.nbytes = sum(map(len, self._chunks)) + (0 if self._low is None else self._low.nbytes)

    def restored(self, each: Each, coarser: float = 0.0) -> torch.Tensor:
        """Returns the tensor, with its numbers rounded once more to a bound this many times larger."""
        x = super().restored(each)
        numbers = numbers_in_memory(x)
        for _ in each(self._codec.decode, self._chunks, _pieces(numbers)):
            pass
        if coarser and self.bound:
            step = 2 * coarser * self.bound
            numbers.div_(step).round_().mul_(step)
        return x if self._low is None else x.add_(_spread(self._low, x))


def _in_order(x: torch.Tensor) -> torch.Tensor:
    """Returns the axes as they lie in memory, the outermost first."""
    return x.permute(sorted(range(x.dim()), key=lambda axis: x.stride()[axis], reverse=True))


def numbers_in_memory(x: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of a dense tensor in memory order, without a copy; of complex ones, both parts."""
    flat = _in_order(x).view(-1)
    if flat.is_complex():
        return torch.view_as_real(flat).view(-1)
    return flat.view(torch.uint8) if flat.dtype == torch.bool else flat


def _pieces(numbers: torch.Tensor) -> list[NDArray[Any]]:
    return np.split(numbers.numpy(), range(NUMBERS_AT_ONCE, len(numbers), NUMBERS_AT_ONCE))


def _size_of(numbers: torch.Tensor) -> float:
    """Returns the root of the mean square."""
    return float(torch.linalg.vector_norm(numbers)) / math.sqrt(numbers.numel())


def _means(x: torch.Tensor) -> torch.Tensor:
    pool = {3: functional.avg_pool1d, 4: functional.avg_pool2d, 5: functional.avg_pool3d}[x.dim()]
    means: torch.Tensor = pool(x, POOLED, ceil_mode=True, count_include_pad=False)
    return means


def _spread(means: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns, for each value of x, the mean of its box."""
    spread = functional.interpolate(means, scale_factor=POOLED)
    for axis, edge in enumerate(x.shape[2:], 2):
        spread = spread.narrow(axis, 0, edge)
    return spread
