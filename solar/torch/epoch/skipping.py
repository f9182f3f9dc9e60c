"""Skipping: what becomes of a batch some of whose samples cannot be read, where the user said to go on without them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from solar.errors import CodecError, PlanError, ReadError
from solar.io.ranks import detect
from solar.torch.batch.pending import leaves
from solar.torch.source import SampleSource
from solar.values import Layout

if TYPE_CHECKING:
    from solar.io.read.reader import Pending
    from solar.torch.loader import DataLoader

Place = tuple[int, int, int, int]  # an H5Dataset, one of its fields, and there the line of chunks of a part; or a row
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

    def __init__(self, beneath: SampleSource, alone: bool, count: Callable[[int], None]) -> None:
        """`alone`: no other rank counts on as many batches of this one. `count` is told of samples left out."""
        self._beneath, self._alone, self._count = beneath, alone, count
        self._samples: deque[Any] = deque()  # of the batches on their way
        self._broken: dict[Place, Exception] = {}  # chunks that do not decode: their bytes stay what they are
        self._looked = False  # at all samples of the oldest
        self._handed_out = False
        self._last: Exception | None = None  # of a batch left out
        self._row = 0  # samples one after the other that could not be read

    def started(self, samples: Any) -> None:
        """A batch of these samples is on its way."""
        self._samples.append(samples)

    def dropped(self) -> None:
        """The oldest batch is gone."""
        self._samples.popleft()
        self._looked = False

    def handed_out(self) -> None:
        """A batch reached the user."""
        self._handed_out = True
        self._row = 0

    def readable(self, error: Exception, seconds: float | None) -> list[Any]:
        """The samples to make the oldest batch of, which failed with `error`. LeftOut: there are none.

        Those of chunks that are known not to decode are left out without a look. If it fails again, all others are
        looked at, each read for so many seconds; if it fails once more, the error is raised.
        """
        if self._looked:
            raise error
        samples = [one.item() if isinstance(one, np.generic) else one for one in self._samples[0]]
        places = self._places(samples)
        found = [_first(self._broken, ones) for ones in places]
        if not any(found):
            self._looked, found = True, self._found(places, seconds)
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
        good = [sample for sample, why in zip(samples, found, strict=True) if why is None]
        self._samples[0] = good
        return good

    def finish(self) -> None:
        """The epoch is over. Raises where all of it was left out: that is no broken sample, but no data."""
        if self._last is not None and not self._handed_out:
            raise ReadError(f"on_error='skip': not one sample could be read: {self._last}") from self._last

    def _found(self, places: list[dict[Place, int]], seconds: float | None) -> list[Exception | None]:
        """Why each sample cannot be read; None when it can. What several are decoded from is looked at once."""
        asked = {place: row for ones in places for place, row in ones.items()}
        bad = {}
        for place, one in {place: self._start(place, row) for place, row in asked.items()}.items():
            error = _error_of(one, seconds)
            if error is not None:
                bad[place] = error
            if isinstance(error, CodecError) and place[2] >= 0:
                self._broken[place] = error
        return [_first(bad, ones) for ones in places]

    def _places(self, samples: list[Any]) -> list[dict[Place, int]]:
        """For each sample what is read of it, with its row there."""
        which, rows = self._beneath.locate(samples)
        found = []
        for number, row in zip(which.tolist(), rows.tolist(), strict=True):
            layouts = leaves(self._beneath.datasets[number].layouts)
            found.append({(number, field, *_line(layout, row)): row for field, layout in enumerate(layouts)})
        return found

    def _start(self, place: Place, row: int) -> Pending | Exception:
        number, field, *_ = place
        try:
            started: Pending = self._beneath.datasets[number].opened()[field].rows.start(np.array([row]))
        except UNREADABLE as error:
            return error
        return started


def _line(layout: Layout, row: int) -> tuple[int, int]:
    """The part and the line of chunks there that the sample is decoded from; -1 and the row if from none."""
    part = int(np.searchsorted(layout.part_first, row, "right")) - 1
    if part >= len(layout.part_form):
        return -1, row
    form = layout.forms[int(layout.part_form[part])]
    if not form.filters or not form.chunk or not form.chunk[0]:
        return -1, row
    return part, (row - int(layout.part_first[part])) // form.chunk[0]


def _first(errors: dict[Place, Exception], places: Iterable[Place]) -> Exception | None:
    return next((errors[place] for place in places if place in errors), None)


def _error_of(started: Pending | Exception, seconds: float | None) -> Exception | None:
    """Why it cannot be read; None when it can."""
    if isinstance(started, Exception):
        return started
    try:
        started.wait(seconds)
    except UNREADABLE as error:
        return error.with_traceback(None)
    return None


def skipping(loader: DataLoader[Any], beneath: SampleSource) -> Skipping | None:
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
