"""Skipping: what becomes of a batch some of whose samples cannot be read, where the user said to go on without them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from solar.errors import CodecError, PlanError, ReadError
from solar.io.ranks import detect
from solar.torch.beneath import Beneath
from solar.torch.pending import PendingBatch, leaves

if TYPE_CHECKING:
    from solar.torch.loader import DataLoader

OnError = Literal["raise", "skip"]
MANY = 100  # samples one after the other that cannot be read: no sample is to blame, but the file or its storage
UNREADABLE = (ReadError, CodecError)  # what a sample's own bytes can be guilty of
NOT_ALONE = (
    "on_error='skip': not one of the {samples} samples of a batch of this rank can be read, and were the batch left "
    "out, the other ranks would wait for ever: {error}"
)

log = logging.getLogger("solar")


class LeftOut(Exception):
    """Not one sample of a batch could be read: there is no batch."""


class Skipping:
    """Finds the samples of a failed batch that can be read, for it to be made anew of these.

    It knows the samples of all batches on their way. A batch that failed for another reason than its samples' bytes (an
    error of a transform, say) is made anew as it was, once.
    """

    def __init__(self, beneath: Beneath, alone: bool, count: Callable[[int], None]) -> None:
        """`alone`: no other rank counts on as many batches of this one. `count` is told of samples left out."""
        self._beneath, self._alone, self._count = beneath, alone, count
        self._samples: deque[Any] = deque()  # of the batches on their way
        self._handed_out = False
        self._last: Exception | None = None  # of a batch left out
        self._row = 0  # samples one after the other that could not be read

    def started(self, samples: Any) -> None:
        """A batch of these samples is on its way."""
        self._samples.append(samples)

    def dropped(self) -> None:
        """The oldest batch is gone."""
        self._samples.popleft()

    def handed_out(self) -> None:
        """A batch reached the user."""
        self._handed_out = True
        self._row = 0

    def readable(self, error: Exception, seconds: float | None) -> list[Any]:
        """The samples of the oldest batch that can be read, each of which gets so many seconds. LeftOut: none can."""
        samples = [one.item() if isinstance(one, np.generic) else one for one in self._samples[0]]
        started = [self._start(sample) for sample in samples]
        found = [_error_of(one, seconds) for one in started]
        bad = [(sample, why) for sample, why in zip(samples, found, strict=True) if why is not None]
        for sample, why in bad:
            log.warning("on_error='skip': sample %s is left out: %s", sample, why)
        for one in found:
            self._row = self._row + 1 if isinstance(one, ReadError) else 0
            if self._row == MANY:
                raise ReadError(
                    f"on_error='skip': {MANY} samples one after the other could not be read: {one}"
                ) from one
        if samples and len(bad) == len(samples):
            if not self._alone:
                raise ReadError(NOT_ALONE.format(samples=len(bad), error=error)) from error
            self._last = error.with_traceback(None)
        self._count(len(bad))
        if samples and len(bad) == len(samples):
            raise LeftOut
        return [sample for sample, why in zip(samples, found, strict=True) if why is None]

    def finish(self) -> None:
        """The epoch is over. Raises where all of it was left out: that is no broken sample, but no data."""
        if self._last is not None and not self._handed_out:
            raise ReadError(f"on_error='skip': not one sample could be read: {self._last}") from self._last

    def _start(self, sample: Any) -> PendingBatch | Exception:
        try:
            return self._beneath.start([sample])[0]
        except UNREADABLE as error:
            return error


def _error_of(started: PendingBatch | Exception, seconds: float | None) -> Exception | None:
    """Why a sample cannot be read; None when it can."""
    if isinstance(started, Exception):
        return started
    try:
        started.arrived(seconds)
    except UNREADABLE as error:
        return error.with_traceback(None)
    return None


def skipping(loader: DataLoader[Any], beneath: Beneath) -> Skipping | None:
    """What skips for an iterator of this loader, where it is asked for. PlanError where it cannot be."""
    if loader.on_error == "raise":
        return None
    ranks = getattr(loader._course.with_epochs, "num_replicas", 1)
    if ranks > 1 and loader.exchange != "off" and loader.buffer not in (0, "0"):
        raise PlanError(
            f"on_error='skip' and a sampler over {ranks} ranks: ranks that read together depend on each other's "
            "samples. Give exchange='off': each then reads, and skips, by itself"
        )
    if any(layout.reader == "mpio-collective" for layout in leaves(beneath.first.layouts)):
        raise PlanError("on_error='skip': all ranks read each batch together by MPI, and none can read a sample alone")
    with suppress(PlanError):
        ranks = max(ranks, detect().ranks)
    return Skipping(beneath, ranks == 1, loader._stats.skip)


def checked(on_error: Any) -> OnError:
    """ValueError unless it is one of the words."""
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error={on_error!r}: it is 'raise' or 'skip'")
    word: OnError = on_error
    return word
