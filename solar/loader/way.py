"""Way: where batches come from that are handed out as they come; BatchFeed: what hands them to DirectBatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from solar import _native
from solar.io.reading.reader import Rows
from solar.samples.pending import PendingBatch

Tensors = list[torch.Tensor]
Taken = tuple[Any, tuple[int, ...]]  # a batch, and the counts of making it
Assemble = Callable[[list[Any]], Any]  # what makes a batch of the tensors of its fields
Left = tuple[PendingBatch, Any] | Exception  # a batch on its way, and its samples


class NotDirect(Exception):
    """Nothing is wrong with this batch, but it needs more than the short way has."""


class BatchFeed(Protocol):
    """What batches are taken from: a Way, or what brings its batches elsewhere first."""

    names: tuple[str, ...]  # of the counts

    def take(self, seconds: float) -> Taken | None:
        """The next batch, within this time. NotDirect where the long way is to go on."""

    def leave(self) -> list[Left]:
        """The batches on their way, for the long way."""


class DirectSource(BatchFeed, Protocol):
    """Where batches come from, `ahead` of the loop. Native code may take them instead, to copy them to a device."""

    ahead: int
    samples: int  # of the batch taken last; before the first, those of a batch
    nbytes: int
    begun: int  # batches of the epoch that the long way need not begin
    indices: Iterator[Any]  # what the long way goes on with
    rows: list[Rows]  # of each field
    drained: bool  # no more batches are begun

    @property
    def assemble(self) -> Assemble: ...

    @property
    def left(self) -> int:
        """The bytes of the batches on their way, once no more are begun."""

    @property
    def ended(self) -> bool:
        """Whether no batch comes after the one taken last."""

    def called(self) -> Any:
        """The samples of the batch taken last."""

    # --- for native code that takes batches ----

    def native(self, seconds: float, reclaim: Callable[[], Any]) -> _native.Run | _native.ReadAhead | None:
        """What makes the batches, to be taken from there; None if it is not ready within this time.

        `reclaim` is called when somebody else wants batches of it: they are given back.
        """

    def next_samples(self, place: int) -> int:
        """The samples of the batch at this place behind the one handed out last; 0: there is none yet."""

    def handed(self) -> None:
        """Counts that the next batch was handed out."""

    def take_back(self, left: list[Any], error: Exception | None) -> None:
        """Takes the native object back: these batches were taken from it and not handed out, and then it failed."""
