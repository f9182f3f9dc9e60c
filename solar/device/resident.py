"""ResidentSource: reads batches without the rows that are already on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from solar.device.cache import DeviceCache, Slots
from solar.device.finish import as_signed
from solar.device.parts import walked
from solar.loader.batch_queue import BatchFuture
from solar.samples.constants import ConstantsOfBatch
from solar.samples.dataset import H5Dataset, constants_of_batch, start_batch_of
from solar.samples.pending import TENSOR_KINDS, PendingBatch, PendingField, leaves
from solar.samples.source import Array, SampleSource
from solar.values import Layout


class MissingBatch(PendingBatch):
    """A batch that is being read; its fields of numbers have only the samples that are not on the device."""

    def __init__(
        self, structure: Any, fields: list[PendingField], slots: Slots, constants: ConstantsOfBatch | None = None
    ) -> None:
        super().__init__(structure, fields, constants)
        self.slots = slots  # of all its samples


class Parts(NamedTuple):
    """Divides each H5Dataset into the fields of numbers, which can stay on a device, and the others."""

    numbers: list[H5Dataset]
    others: list[H5Dataset]


@dataclass(frozen=True)
class ResidentSource(SampleSource):
    """A source that does not read again what a device cache has."""

    parts: Parts
    tier: DeviceCache

    def start(self, indices: Sequence[Any], epoch: int) -> tuple[PendingBatch, Array]:
        which, rows = self.locate(indices)
        names = self.names(which, rows)
        slots = self.tier.slots(names)
        few = np.flatnonzero(slots < 0)
        numbers = start_fields(self.parts.numbers, which[few], rows[few])
        others = start_fields(self.parts.others, which, rows)
        layouts = self.first.layouts
        fields = [next(numbers if stays(layout) else others) for layout in leaves(layouts)]
        return MissingBatch(layouts, fields, slots, constants_of_batch(self.datasets, which, rows)), names


def parted(datasets: Sequence[H5Dataset]) -> Parts:
    """Returns the parts of these datasets."""
    numbers = [stays(layout) for layout in leaves(datasets[0].layouts)]
    others = [not one for one in numbers]
    return Parts([_only(one, numbers) for one in datasets], [_only(one, others) for one in datasets])


def _only(dataset: H5Dataset, chosen: Sequence[bool]) -> H5Dataset:
    """Returns the dataset with these of its fields, one after another."""
    made = copy.copy(dataset)  # which has opened nothing yet
    every = zip(*map(leaves, (dataset.layouts, dataset.fields, dataset.extents)), chosen, strict=True)
    found = [facts for *facts, here in every if here]
    made.layouts, made.fields, made.extents = map(tuple, zip(*found, strict=True) if found else ((), (), ()))
    return made


def start_fields(datasets: list[H5Dataset], which: Array, rows: Array) -> Iterator[PendingField]:
    if not leaves(datasets[0].layouts):
        return iter(())
    return iter(start_batch_of(datasets, which, rows).fields)


def stays(layout: Layout) -> bool:
    """Returns whether the samples are numbers, which can stay on a device."""
    return layout.dtype.base.kind in TENSOR_KINDS


# --- on the way ----


@dataclass
class ResidentBatch:
    """A batch whose rows that are not on the device have been read."""

    batch: Any
    names: Array  # of all its samples
    slots: Slots


def without_kept(names: Array, tier: DeviceCache, finishes: Any, future: BatchFuture, batch: Any) -> ResidentBatch:
    """Returns the batch without what is on the device by now: from a buffer it comes whole."""
    if isinstance(future.pending, MissingBatch):
        return ResidentBatch(batch, names, future.pending.slots)
    slots = tier.slots(names)
    if (slots >= 0).any():
        came = torch.from_numpy(np.flatnonzero(slots < 0))
        batch = walked(batch, finishes, lambda part, how: part if how is None else select_rows(part, came))
    return ResidentBatch(batch, names, slots)


def select_rows(part: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return as_signed(part).index_select(0, which).view(part.dtype)
