"""Makes a batch without the samples that cannot be read (on_error="skip")."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from solar.errors import CodecError, PlanError, ReadError
from solar.io.channels import detect
from solar.loader.batch_queue import UNREADABLE, LeftOutSample
from solar.samples.pending import leaves
from solar.samples.source import SampleSource
from solar.values import Layout

if TYPE_CHECKING:
    from solar.io.reading.reader import Pending

Place = tuple[int, int, int, int]  # H5Dataset, field, part and line of chunks; or -1 and the row
MANY = 100  # unreadable samples in a row: then the file or its storage is to blame, not a sample
NOT_ALONE = (
    "on_error='skip': not one of the {samples} samples of a batch of this rank can be read, and were the batch left "
    "out, the other ranks would wait for ever: {error}"
)

SAMPLE = re.compile(r"(?<=, sample )\d+(?=, offset )")  # in an error: the one for which the chunk was read

log = logging.getLogger("solar")


class SkippingSource:
    """Finds the readable samples of a failed batch, to make it again from these.

    A batch that failed for another reason than its samples' bytes, such as an error of a transform, is made again once
    from all of them.
    """

    def __init__(self, source: SampleSource, alone: bool, count: Callable[[int], None]) -> None:
        """`alone`: no other rank relies on this one having as many batches. `count` is called with the samples left
        out.
        """
        self._source, self._alone, self._count = source, alone, count
        self._broken: dict[Place, Exception] = {}  # chunks that cannot be decoded, now or later
        self._checked: Any = None  # the samples of a batch that were read one by one
        self._handed_out = False
        self._last: Exception | None = None  # the error of the last batch left out
        self._row = 0  # unreadable samples in a row

    def handed_out(self) -> None:
        """Called when a batch reached the user."""
        self._handed_out = True
        self._row = 0

    def readable(self, called: Any, error: Exception, seconds: float | None, epoch: int) -> list[Any]:
        """Returns those of a batch's samples from which to make it again after `error`. Raises LeftOutSample if there
        are none.

        First, samples of chunks that are known to be broken are left out. If there are none, or if the batch fails
        again, each sample is read by itself, within `seconds` at most. If it fails once more, the error is raised.
        """
        if called is self._checked:
            raise error
        samples = [one.item() if isinstance(one, np.generic) else one for one in called]
        places = self._places(samples, epoch)
        found = [first_error(self._broken, ones) for ones in places]
        one_by_one = False
        if not any(found):
            one_by_one, found = True, self._find_bad(places, seconds)
        bad = [one for one in zip(samples, places, found, strict=True) if one[2] is not None]
        for sample, ones, why in bad:
            log.warning("on_error='skip': sample %s is left out: %s", sample, _of_own(str(why), ones))
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
            raise LeftOutSample
        good = [sample for sample, why in zip(samples, found, strict=True) if why is None]
        self._checked = good if one_by_one else None
        return good

    def finish(self) -> None:
        """Ends the epoch. Raises if every sample was left out."""
        if self._last is not None and not self._handed_out:
            raise ReadError(f"on_error='skip': not one sample could be read: {self._last}") from self._last

    def _find_bad(self, places: list[dict[Place, int]], seconds: float | None) -> list[Exception | None]:
        """Returns why each sample cannot be read; None if it can. Chunks that several samples share are read once."""
        asked = {place: row for ones in places for place, row in ones.items()}
        bad = {}
        for place, one in {place: self._start(place, row) for place, row in asked.items()}.items():
            error = _error_of(one, seconds)
            if error is not None:
                bad[place] = error
            if isinstance(error, CodecError) and place[2] >= 0:
                self._broken[place] = error
        return [first_error(bad, ones) for ones in places]

    def _places(self, samples: list[Any], epoch: int) -> list[dict[Place, int]]:
        """Returns, for each sample, the places that it is read from, and its row there."""
        which, rows = self._source.locate(samples)
        found, own = [], self._source.numbered(which, rows, epoch)
        for number, row in zip(which.tolist(), own.tolist(), strict=True):
            dataset = self._source.datasets[number]
            lines = [
                _line(read.layout, row % dataset.numbers) if read.extents is None else (-1, row)
                for read in dataset.reads
            ]
            found.append({(number, read, *line): row for read, line in enumerate(lines)})
        return found

    def _start(self, place: Place, row: int) -> Pending | Exception:
        number, read, *_ = place
        try:
            started: Pending = self._source.datasets[number].opened()[read].start(np.array([row]))
        except UNREADABLE as error:
            return error
        return started


def _line(layout: Layout, row: int) -> tuple[int, int]:
    """Returns the part, and the line of chunks in it, that hold the sample; -1 and the row if it is not in chunks."""
    part = int(np.searchsorted(layout.part_first, row, "right")) - 1
    if part >= len(layout.part_form):
        return -1, row
    form = layout.forms[int(layout.part_form[part])]
    if not form.filters or not form.chunk or not form.chunk[0]:
        return -1, row
    return part, (row - int(layout.part_first[part])) // form.chunk[0]


def _of_own(text: str, places: dict[Place, int]) -> str:
    """Returns the error of a chunk that several samples share, with the row of this sample."""
    own = next((row for place, row in places.items() if place[2] >= 0), None)
    return text if own is None else SAMPLE.sub(str(own), text)


def first_error(errors: dict[Place, Exception], places: Iterable[Place]) -> Exception | None:
    return next((errors[place] for place in places if place in errors), None)


def _error_of(started: Pending | Exception, seconds: float | None) -> Exception | None:
    """Returns why something cannot be read; None if it can."""
    if isinstance(started, Exception):
        return started
    try:
        started.wait(seconds)
    except UNREADABLE as error:
        return error.with_traceback(None)
    return None


def skipping(loader: Any, source: SampleSource) -> SkippingSource:
    """Returns the SkippingSource for an iterator. Raises PlanError if it cannot be used."""
    ranks = getattr(loader._sampler_state.with_epochs, "num_replicas", 1)
    if ranks > 1 and loader.exchange != "off" and loader.buffer not in (0, "0"):
        raise PlanError(
            f"on_error='skip' and a sampler over {ranks} ranks: ranks that read together depend on each other's "
            "samples. Give exchange='off': each then reads, and skips, by itself"
        )
    if any(layout.reader == "mpio-collective" for layout in leaves(source.first.layouts)):
        raise PlanError("on_error='skip': all ranks read each batch together by MPI, and none can read a sample alone")
    with suppress(PlanError):
        ranks = max(ranks, detect().ranks)
    return SkippingSource(source, ranks == 1, loader._stats.skip)
