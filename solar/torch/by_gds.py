"""ByGds: batches of which a device reads some fields itself, past the host (reader="gds")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from solar.errors import PlanError
from solar.io.gds import Gds
from solar.io.gds import refused as unreadable
from solar.torch.beneath import Array, Beneath
from solar.torch.dataset import H5Dataset, start_together
from solar.torch.pending import PendingBatch, PendingField, added, leaves
from solar.torch.streams import Streams
from solar.values import Layout

Tensor = torch.Tensor


class Reading:
    """Makes the samples of one field on the device of their numbers: there they are read by GPUDirect Storage.

    It waits for the reads, which no stream knows of; what is begun later in the stream that is current finds them done.
    """

    def __init__(self, layouts: Sequence[Layout], device: torch.device, streams: Streams) -> None:
        self.gds = Gds(layouts)
        self._shape, self._device, self._streams = layouts[0].sample_shape, device, streams
        self._dtype = torch.from_numpy(np.empty(0, layouts[0].dtype)).dtype

    def __call__(self, numbers: Tensor) -> Tensor:
        """The samples of these numbers, in memory of the stream that is current."""
        names = numbers.reshape(-1).numpy()
        made = torch.empty((len(names), *self._shape), dtype=self._dtype, device=self._device)
        # The memory may be one that kernels begun earlier in this stream still use.
        self._streams.mark().synchronize()
        if len(names):
            self.gds.read(names, made.view(-1).view(torch.uint8))
        return made.view((*numbers.shape, *self._shape))

    def close(self) -> None:
        """Closes the files, which the next batch opens again."""
        self.gds.close()


class Numbers(PendingField):
    """The numbers of a field's samples, in place of samples that are to be read on the device; what that will take."""

    def __init__(self, gds: Gds, names: Array) -> None:
        super().__init__([], None)
        self._names, self.nbytes = names, names.nbytes
        requests = len(gds.requests(names).first)
        self.counts = {"rows": len(names), "requests": requests, "bytes_read": len(names) * gds.sample_nbytes}

    def wait(self, end: float | None) -> Array:
        return self._names


class Numbered(PendingBatch):
    """A batch on its way, of which some fields are numbers of samples."""

    def counts(self) -> dict[str, int]:
        counts = super().counts()
        for field in self.fields:
            if isinstance(field, Numbers):
                counts = added(counts, field.counts)
        return counts


@dataclass(frozen=True)
class ByGds(Beneath):
    """What lies beneath a dataset, of which a device reads the fields that have a Reading; None: the host does."""

    readings: list[Reading | None]
    others: list[H5Dataset]  # of each H5Dataset the fields that the host reads

    def start(self, indices: Sequence[Any]) -> tuple[PendingBatch, Array]:
        which, rows = self.locate(indices)
        names = self.names(which, rows)
        others: Iterator[PendingField] = iter(())
        if leaves(self.others[0].layouts):
            others = iter(start_together(self.others, which, rows, self.room).fields)
        fields = [next(others) if reading is None else Numbers(reading.gds, names) for reading in self.readings]
        return Numbered(self.first.layouts, fields), names


def unread(layouts: Sequence[Layout]) -> str:
    """Why a device cannot read the samples of these Layouts itself; empty if it can."""
    if said := next((said for layout in layouts if (said := unreadable(layout))), ""):
        return said
    try:
        torch.from_numpy(np.empty(0, layouts[0].dtype))
    except TypeError:
        return f"{layouts[0].paths[0]}: {layouts[0].title} is of {layouts[0].dtype}, of which torch has no tensors"
    return ""


def check_alone(streams: Streams | None, device: torch.device, wanted: dict[str, bool]) -> None:
    """PlanError where samples cannot go straight to the device: it is of another kind, or they are wanted on the host.

    `wanted`: what was asked for beside it that needs them there, and whether it was.
    """
    if streams is None:
        raise PlanError(f"reader='gds' reads to CUDA devices, and {str(device)!r} is none: leave reader= out")
    for name, asked in wanted.items():
        if asked:
            raise PlanError(f"reader='gds', but {name} needs the samples on the host: give only one of the two")
