"""Finds the H5Dataset that a torch dataset draws its samples from, through torch's own Subset and random_split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Subset

from solar.torch.dataset import H5Dataset

Rows = Callable[[Sequence[Any]], Sequence[Any]]


def h5_beneath(dataset: Any) -> tuple[H5Dataset, Rows] | None:
    """The H5Dataset and what turns the dataset's indices into its; None where samples are made in another way.

    Only classes that take samples as torch's and ours do are seen through; a subclass with its own __getitem__ is
    asked.
    """
    if isinstance(dataset, Subset) and _takes_as(dataset, Subset):
        found = h5_beneath(dataset.dataset)
        if found is None:
            return None
        beneath, rows = found
        indices = dataset.indices
        return beneath, lambda asked: rows([indices[i] for i in asked])
    if isinstance(dataset, H5Dataset) and _takes_as(dataset, H5Dataset):
        return dataset, lambda asked: asked
    return None


def _takes_as(dataset: Any, kind: type) -> bool:
    return all(getattr(type(dataset), name) is getattr(kind, name) for name in ("__getitem__", "__getitems__"))
