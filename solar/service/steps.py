"""Steps: the Run of a shared reader, whose batches lie in memory that jobs can map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import SolarError
from solar.io.reading.engine import LAST_WAIT, Engine
from solar.io.reading.reader import Rows
from solar.io.reading.run import columns
from solar.io.system.waiting import WaitTimeout
from solar.values import PartScript, RunPart


class Steps:
    """A native Run of steps, which are taken in order, as bytes: one row per sample for each part of a field."""

    def __init__(
        self,
        rows: Sequence[Rows],
        parts: Sequence[RunPart],
        fields: Sequence[Sequence[int]],
        staged: int,
        scratch: int,
        pool: _native.SharedPool,
    ) -> None:
        self.parts, self.staged, self.appended = tuple(parts), staged, 0
        self.nbytes = sum(part.pages * part.page for part in parts)
        self._fields, self.row_nbytes = fields, [nbytes for one in fields for nbytes in one]
        self._run = _native.Run(Engine.get(), staged, scratch, None, 0, pool)
        self._begun = 0  # of the steps that were taken, or cannot be
        for one, part in zip(rows, parts, strict=True):
            own = None if part.extents is None else part.extents.native
            terms = part.pages, part.page, part.stored, part.direct, part.ahead, part.gap
            assert one.source is not None, "what libhdf5 reads is refused"
            self._run.part(one.source, part.field, *terms, own, None, part.pack)

    def append(self, sizes: NDArray[np.int64], scripts: Sequence[PartScript], parcels: None = None) -> None:
        """Appends steps, whose memory has room for these numbers of samples."""
        self._run.append(np.ascontiguousarray(sizes), [columns(one) for one in scripts])
        self.appended += len(sizes)

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]:
        """Returns the memory of the next step. Raises WaitTimeout after `seconds`, or the error of the step.

        A step that failed counts as taken.
        """
        assert number == self._begun, "steps are taken one after another"
        assert seconds is not None
        try:
            came = self._run.take(seconds)
        except (SolarError, MemoryError):
            self._begun += 1
            raise
        if came is None:
            raise WaitTimeout.values(seconds, self._run.waiting_for())
        self._begun += 1
        values = []
        for nbytes, memory in zip(self._fields, came[0], strict=True):
            at = 0
            for one in nbytes:
                values.append(memory[at : at + samples * one].reshape(samples, one))
                at += samples * one
        return values, {}

    def ask(self, number: int) -> None:
        """Does nothing: jobs may keep any number of steps."""

    @property
    def broken(self) -> bool:
        """Whether the run failed as a whole, so that no further step comes."""
        return self._begun > self._run.counts()["steps"]

    def let_go(self, number: int) -> None:
        """Releases a step that was handed over."""

    def counts(self) -> dict[str, int]:
        """Returns what was read, held and found."""
        return self._run.counts()

    def fail(self, why: Exception) -> None:
        """Does nothing: no other rank has to know."""

    def close(self) -> None:
        """Ends the run."""
        self._run.close(LAST_WAIT)
